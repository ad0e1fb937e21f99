# Mean alignment by layer, one curve per role with a 95 % band (the paper's Figure 1): basis and control in two panels of one scale.
# Columns of the table: basis layer role alignment lo hi mark. Per panel: one index per role, one of paired differences.
figure = "separation"
if (!exists("styled")) { script = ARG0; table = ARG1; picture = ARG2; load script[1:strlen(script) - strlen("separation.gp")] . "style.gp" }
if (field("figure") ne figure) { exit error sprintf("%s: holds no table of the figure %s", table, figure) }

roles = int(number("roles"))
layer_min = number("layer_min"); layer_max = number("layer_max")
array colour[4] = ["#0072b2", "#d55e00", "#444444", "#009e73"]
array dash[4] = [1, 2, 3, 4]
array mark[4] = [7, 5, 9, 13]
set dashtype 2 (9,4)
set dashtype 3 (2,3)
set dashtype 4 (9,3,2,3)

panel_w = 200; panel_h = 170; gap = 20
left = 50; top = 82
W = left + panels*panel_w + (panels - 1)*gap + 34
if (W < 500) { W = 500 }
H = top + panel_h + 42 + 10*notes + 18
eval open_picture
set multiplot
eval frame
set xrange [layer_min - 0.5:layer_max + 0.5]
room = 0.07*(number("y_max") - number("y_min")) # at the top, for the marks
set yrange [number("y_min"):number("y_max") + room]
span = layer_max - layer_min
set xtics layer_step(span)
set ytics number("y_min"), number("y_step"), number("y_max") + room/10
set grid ytics lt 1 lw 0.3 lc rgb "#dddddd"
reference = number("reference")
point_every = (span <= 40) ? 1 : 2
do for [k = 1:roles] { # the legend by hand: gnuplot's own breaks the line where it likes
    x = left + 78.0*(k - 1)
    y = 1 - (top - 30.0)/H
    set arrow from screen x/W, y to screen (x + 26)/W, y nohead dashtype dash[k] lw 1.2 lc rgb colour[k]
    set label "" at screen (x + 13)/W, y point pt mark[k] ps 0.32*enlarge lc rgb colour[k]
    set label at screen (x + 30)/W, y field(sprintf("role%d", k)) font normal textcolor rgb ink
}
do for [p = 1:panels] {
    L = left + (p - 1)*(panel_w + gap)
    R = L + panel_w
    T = top
    B = top + panel_h
    eval panel
    set label at screen real(L)/W, 1 - (T - 8.0)/H field(sprintf("panel%d", p)) font bold textcolor rgb ink
    set xlabel "layer" font normal textcolor rgb ink offset 0, 0.3
    if (p == 1) {
        set ylabel "mean top-r alignment" font normal textcolor rgb ink offset 0.5, 0
    } else { unset ylabel; set format y "" }
    first = (p - 1)*(roles + 1)
    eval empty(sprintf("panel%d_empty1", p))
    plot for [k = 1:roles] table index first + k - 1 using 2:5:6 with filledcurves fillstyle transparent solid 0.16 noborder fc rgb colour[k], \
        reference with lines lw 0.5 lc rgb faint dt 1, \
        for [k = 1:roles] table index first + k - 1 using 2:($7 == 1 && $5 <= $6 ? $4 : NaN):5:6 with yerrorbars pt mark[k] ps 0.3*enlarge lw 0.8 lc rgb colour[k], \
        for [k = 1:roles] table index first + k - 1 using 2:4 with linespoints dashtype dash[k] lw 1.2 pt mark[k] ps 0.32*enlarge pointinterval point_every lc rgb colour[k], \
        table index first + roles using ($7 == -1 ? $2 : NaN):(number("y_max") + room/2) with points pt 11 ps 0.28*enlarge lc rgb ink, \
        "" index first + roles using ($7 == 1 ? $2 : NaN):(number("y_max") + room/2) with points pt 9 ps 0.28*enlarge lc rgb faint
    unset label
    unset arrow
}
unset multiplot
