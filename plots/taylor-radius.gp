# R(s q)/c(s q) along a few queries: a row per head, a panel per query. Columns of the table: kind layer head prompt position s ratio lo
# hi drawn drawn_lo drawn_hi; per panel an index of the curve and one of the radii (there lo is eps, hi the proved part, drawn the level).
figure = "taylor-radius"
if (!exists("styled")) { script = ARG0; table = ARG1; picture = ARG2; load script[1:strlen(script) - strlen("taylor-radius.gp")] . "style.gp" }
if (field("figure") ne figure) { exit error sprintf("%s: holds no table of the figure %s", table, figure) }

across = int(number("across")); down = int(number("down"))
gap = 12; between = 56
left = 48; top = 84
panel_w = (across == 1) ? 220 : (across == 2) ? 200 : (across == 3) ? 140 : 108
panel_h = (across <= 2) ? 140 : 110
W = left + across*panel_w + (across - 1)*gap + 20
if (W < 500) { W = 500 }
H = top + down*panel_h + (down - 1)*between + 42 + 10*notes + 18
eval open_picture
set multiplot
eval frame
set xrange [0:1]
y_min = number("y_min")
set yrange [y_min:1.08]
set xtics 0.25 scale 0.4
set dashtype 2 (6,3)
set dashtype 3 (1.5,2.5)
array dash[3] = [3, 2, 1]
array mark[3] = [6, 4, 8]
array level[3] = [number("eps1"), number("eps2"), number("eps3")]
if (panels == 0) {
    L = left; R = left + panel_w; T = top; B = top + panel_h
    eval panel
    set label at graph 0, 0.62 field("none") left font normal textcolor rgb ink
    set border 0
    unset xtics
    unset ytics
    plot NaN notitle
}
do for [p = 1:panels] {
    column_of = int(number(sprintf("column%d", p))); row_of = int(number(sprintf("row%d", p)))
    L = left + column_of*(panel_w + gap); R = L + panel_w
    T = top + row_of*(panel_h + between); B = T + panel_h
    eval panel
    if (column_of == 0) { set label at screen real(L)/W, 1 - (T - 29.0)/H field(sprintf("panel%d", p)) font bold textcolor rgb ink }
    set label at screen real(L)/W, 1 - (T - 17.0)/H field(sprintf("where%d", p)) font small textcolor rgb ink
    set label at screen real(L)/W, 1 - (T - 7.0)/H field(sprintf("radii%d", p)) font small textcolor rgb ink
    set format x ((row_of == down - 1) ? "%g" : "")
    set format y ((column_of == 0) ? "%g" : "")
    set ytics 0.5 scale 0.4
    if (row_of == down - 1) { set xlabel "s" font normal textcolor rgb ink offset 0, 0.3 } else { unset xlabel }
    if (column_of == 0) { set ylabel "R(s q) / c(s q)" font normal textcolor rgb ink offset 0.8, 0 } else { unset ylabel }
    if (field(sprintf("empty%d", p)) ne "") { set label at graph 0.5, 0.8 field(sprintf("empty%d", p)) center font normal textcolor rgb faint front }
    plot table index 2*(p - 1) using 6:11:12 with filledcurves fillstyle solid 1 noborder fc rgb "#d9d9d9", \
        for [k = 1:3] level[k] with lines lw 0.5 dt dash[k] lc rgb "#8a8a8a", \
        for [k = 1:3] (-level[k] >= y_min ? -level[k] : NaN) with lines lw 0.5 dt dash[k] lc rgb "#8a8a8a", \
        0 with lines lw 0.4 lc rgb "#444444", \
        table index 2*(p - 1) using 6:10 with lines lw 1.3 lc rgb "#0b4f8a", \
        for [k = 1:3] "" index 2*(p - 1) + 1 every ::(k - 1)::(k - 1) using ($6 < 1 ? $6 : NaN):10 with points pt mark[k] ps 0.5*enlarge lw 1.2 lc rgb "#a83c00"
    unset label
}
unset multiplot
