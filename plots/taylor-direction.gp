# Direction fidelity by layer: the cosine between the second-order step and what softmax does, and the share of it in the leading axes.
# Columns of the table: measure layer head n median lo hi alone. Per measure: an index of heads, one of layers.
figure = "taylor-direction"
if (!exists("styled")) { script = ARG0; table = ARG1; picture = ARG2; load script[1:strlen(script) - strlen("taylor-direction.gp")] . "style.gp" }
if (field("figure") ne figure) { exit error sprintf("%s: holds no table of the figure %s", table, figure) }

layer_min = number("layer_min"); layer_max = number("layer_max")
panel_w = 200; panel_h = 160; gap = 44
left = 50; top = 66
W = left + 2*panel_w + gap + 20
H = top + panel_h + 42 + 10*notes + 18
crowd = number("columns") > 16
eval open_picture
set multiplot
eval frame
span = layer_max - layer_min
set xrange [layer_min - 0.5:layer_max + 0.5]
set xtics layer_step(span)
set grid ytics lt 1 lw 0.3 lc rgb "#dddddd"
do for [p = 1:2] {
    L = left + (p - 1)*(panel_w + gap); R = L + panel_w
    T = top; B = top + panel_h
    eval panel
    set label at screen real(L)/W, 1 - (T - 8.0)/H field(sprintf("panel%d", p)) font bold textcolor rgb ink
    set yrange [number(sprintf("y%d_min", p)):number(sprintf("y%d_max", p))]
    set ytics number(sprintf("y%d_step", p))
    set xlabel "layer" font normal textcolor rgb ink offset 0, 0.3
    if (p == 1) { set ylabel "cosine" font normal textcolor rgb ink offset 0.5, 0 } else { set ylabel "share" font normal textcolor rgb ink offset 0.5, 0 }
    reference = number(sprintf("reference%d", p))
    eval empty(sprintf("panel%d_empty1", p))
    first = 2*(p - 1)
    plot table index first + 1 using 2:6:7 with filledcurves fillstyle solid 1 noborder fc rgb "#d5e2f0", \
        reference with lines lw 0.5 lc rgb faint dt 1, \
        table index first using 2:5 with points pt (crowd ? 7 : 6) ps (crowd ? 0.13 : 0.28)*enlarge lw 0.6 lc rgb (crowd ? "#902a6aa0" : "#2a6aa0"), \
        table index first + 1 using 2:($8 == 1 ? $5 : NaN):6:7 with yerrorbars pt 7 ps 0.25*enlarge lw 0.9 lc rgb ink, \
        "" index first + 1 using 2:5 with linespoints pt 7 ps 0.25*enlarge lw 1.1 lc rgb ink
    unset label
}
unset multiplot
