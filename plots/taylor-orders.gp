# |A - A_n| against the order n (left) and by layer (right), on one logarithmic axis.
# Columns of the table: scope order q25 median q75 drawn25 drawn drawn75 alone. Indices: model; layers, a line each; then one per order.
figure = "taylor-orders"
if (!exists("styled")) { script = ARG0; table = ARG1; picture = ARG2; load script[1:strlen(script) - strlen("taylor-orders.gp")] . "style.gp" }
if (field("figure") ne figure) { exit error sprintf("%s: holds no table of the figure %s", table, figure) }

layer_min = number("layer_min"); layer_max = number("layer_max")
orders = int(number("orders"))
panel_w = 180; panel_h = 180; gap = 44
left = 50; top = 80
W = left + 2*panel_w + gap + 46
H = top + panel_h + 42 + 10*notes + 18
eval open_picture
array colour[5] = ["#777777", "#d55e00", "#0072b2", "#009e73", "#8a3b72"]
array dash[5] = [3, 2, 1, 4, 5]
array mark[5] = [9, 5, 7, 13, 11]
set dashtype 2 (9,4)
set dashtype 3 (2,3)
set dashtype 4 (9,3,2,3)
set dashtype 5 (5,2)
# Layers from light to dark: lightness alone carries the order.
set palette defined (0 "#f2c063", 0.35 "#d9743c", 0.7 "#8e2f5c", 1 "#1d1147")
if (layer_max > layer_min) { set cbrange [layer_min:layer_max] } else { set cbrange [layer_min - 1:layer_max] }
unset colorbox
superscript = "⁰¹²³⁴⁵⁶⁷⁸⁹"
digits(n) = (n >= 10) ? digits(n/10) . superscript[n%10 + 1:n%10 + 1] : superscript[n + 1:n + 1]
power(e) = (e < 0) ? "10⁻" . digits(-e) : (e == 0) ? "1" : (e == 1) ? "10" : "10" . digits(e)
set multiplot
eval frame
y_min = number("y_min"); y_max = number("y_max")
set yrange [y_min:y_max]
set logscale y
first_e = int(floor(log10(y_min) + 0.5)); last_e = int(floor(log10(y_max) + 0.5))
step = (last_e - first_e <= 8) ? 1 : (last_e - first_e <= 16) ? 2 : 4
set grid ytics lt 1 lw 0.3 lc rgb "#dddddd"
set ytics scale 0.5 ()
do for [e = last_e:first_e:-step] { set ytics add (power(e) 10.0**e) }
span = layer_max - layer_min

L = left; R = left + panel_w; T = top; B = top + panel_h
eval panel
set label at screen real(L)/W, 1 - (T - 25.0)/H field("panel1") font bold textcolor rgb ink
set xrange [-0.4:orders - 0.6]
set xtics 1
set xlabel "order n" font normal textcolor rgb ink offset 0, 0.3
set ylabel "|A − Aₙ|" font normal textcolor rgb ink offset 0.5, 0
eval empty("panel1_empty1")
plot table index 1 using 2:7:1 with lines lw 0.5 lc palette, \
    "" index 0 using 2:7 with lines lw 3 lc rgb "white", \
    "" index 0 using 2:6:(0):($8 - $6) with vectors nohead lw 4 lc rgb "white", \
    "" index 0 using 2:6:(0):($8 - $6) with vectors nohead lw 2.2 lc rgb ink, \
    "" index 0 using 2:7 with lines lw 1.3 lc rgb ink, \
    "" index 0 using 2:7 with points pt 7 ps 0.55*enlarge lc rgb "white", \
    "" index 0 using 2:7 with points pt 7 ps 0.42*enlarge lc rgb ink
unset label

L = left + panel_w + gap; R = L + panel_w
eval panel
set label at screen real(L)/W, 1 - (T - 25.0)/H field("panel2") font bold textcolor rgb ink
do for [k = 1:orders] { # the legend by hand: gnuplot's own breaks the line where it likes
    x = L + 40.0*(k - 1)
    y = 1 - (T - 10.0)/H
    set arrow from screen x/W, y to screen (x + 20)/W, y nohead dashtype dash[k] lw 1.2 lc rgb colour[k]
    set label "" at screen (x + 10)/W, y point pt mark[k] ps 0.32*enlarge lc rgb colour[k]
    set label at screen (x + 23)/W, y sprintf("%d", k - 1) font normal textcolor rgb ink
}
set label at screen (L - 6.0)/W, 1 - (T - 10.0)/H "n:" right font normal textcolor rgb ink
set xrange [layer_min - 0.5:layer_max + 0.5]
set xtics layer_step(span)
set xlabel "layer" font normal textcolor rgb ink offset 0, 0.3
unset ylabel
set format y ""
point_every = (span <= 40) ? 1 : 2
eval empty("panel2_empty1")
plot for [k = 1:orders] table index k + 1 using 1:6:8 with filledcurves fillstyle transparent solid 0.16 noborder fc rgb colour[k], \
    for [k = 1:orders] table index k + 1 using 1:($9 == 1 ? $7 : NaN):6:8 with yerrorbars pt mark[k] ps 0.3*enlarge lw 0.8 lc rgb colour[k], \
    for [k = 1:orders] table index k + 1 using 1:7 with linespoints dashtype dash[k] lw 1.2 pt mark[k] ps 0.32*enlarge pointinterval point_every lc rgb colour[k]
unset label
unset arrow
unset multiplot
