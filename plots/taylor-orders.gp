# |A - A_n| against the order n (top left), the medians by layer (top right) and, an order a panel, with quartiles; one logarithmic axis.
# Columns of the table: scope order q25 median q75 drawn25 drawn drawn75 alone. Indices: model; layers, a line each; then one per order.
figure = "taylor-orders"
if (!exists("styled")) { script = ARG0; table = ARG1; picture = ARG2; load script[1:strlen(script) - strlen("taylor-orders.gp")] . "style.gp" }
if (field("figure") ne figure) { exit error sprintf("%s: holds no table of the figure %s", table, figure) }

layer_min = number("layer_min"); layer_max = number("layer_max")
orders = int(number("orders"))
panel_w = 190; panel_h = 150; gap = 44
small_w = 78; small_h = 110; small_gap = 8; between = 66
left = 50; top = 80
W = left + 2*panel_w + gap + 26
H = top + panel_h + between + small_h + 42 + 10*notes + 18
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
do for [k = 1:orders] { set label at screen (L + 36.0*(k - 1) + 21)/W, 1 - (T - 10.0)/H sprintf("%d", k - 1) font normal textcolor rgb ink }
set label at screen (L - 6.0)/W, 1 - (T - 10.0)/H "n:" right font normal textcolor rgb ink
set xrange [layer_min - 0.5:layer_max + 0.5]
set xtics layer_step(span)
set xlabel "layer" font normal textcolor rgb ink offset 0, 0.3
unset ylabel
set format y ""
point_every = (span <= 40) ? 1 : 2
eval empty("panel2_empty1")
plot for [k = 1:orders] table index k + 1 using 1:7 with linespoints dashtype dash[k] lw 1.2 pt mark[k] ps 0.3*enlarge pointinterval point_every lc rgb colour[k]
unset label

T = top + panel_h + between; B = T + small_h
set xtics layer_step(span)*(span > 3 ? 2 : 1)
do for [k = 1:orders] {
    L = left + (k - 1)*(small_w + small_gap); R = L + small_w
    eval panel
    if (k == 1) { set label at screen real(L)/W, 1 - (T - 20.0)/H field("panel3") font bold textcolor rgb ink }
    set label at screen real(L)/W, 1 - (T - 7.0)/H sprintf("n = %d", k - 1) font normal textcolor rgb ink
    set format y ""
    set ytics scale 0.5 ()
    do for [e = last_e:first_e:-step] { set ytics add ((k == 1 ? power(e) : "") 10.0**e) }
    if (k == 1) { set ylabel "|A − Aₙ|" font normal textcolor rgb ink offset 0.5, 0 } else { unset ylabel }
    plot table index k + 1 using 1:6:8 with filledcurves fillstyle solid 1 noborder fc rgb "#d5e2f0", \
        "" index k + 1 using 1:($9 == 1 ? $7 : NaN):6:8 with yerrorbars pt 7 ps 0.25*enlarge lw 0.8 lc rgb ink, \
        "" index k + 1 using 1:7 with linespoints pt 7 ps 0.18*enlarge lw 1 lc rgb ink
    unset label
}
# The legend as a panel of its own: gnuplot's SVG gives dashed arrows of one colour the last one's dashes.
L = left + panel_w + gap; R = L + 36*orders; T = top - 16; B = top - 4
eval panel
set border 0
unset logscale y
unset xtics
unset ytics
unset xlabel
unset ylabel
unset grid
set xrange [0:36*orders]
set yrange [0:1]
set samples 36*orders + 1
plot for [k = 1:orders] (x >= 36*(k - 1) && x <= 36*(k - 1) + 18 ? 0.5 : NaN) with lines dashtype dash[k] lw 1.2 lc rgb colour[k], \
    for [k = 1:orders] (abs(x - 36*(k - 1) - 9) < 0.5 ? 0.5 : NaN) with points pt mark[k] ps 0.3*enlarge lc rgb colour[k]
unset multiplot
