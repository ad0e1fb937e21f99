# Effective rank, participation ratio and stable rank by layer: a dot per KV head, the median as a line; a row per basis.
# Columns of the table: basis layer head measure value drawn. Per basis and measure: an index of heads, one of medians.
figure = "rank"
if (!exists("styled")) { script = ARG0; table = ARG1; picture = ARG2; load script[1:strlen(script) - strlen("rank.gp")] . "style.gp" }
if (field("figure") ne figure) { exit error sprintf("%s: holds no table of the figure %s", table, figure) }

layer_min = number("layer_min"); layer_max = number("layer_max")
panel_w = 132; panel_h = 120; gap = 34; between = 52
left = 46; top = 74
W = left + 3*panel_w + 2*gap + 16
H = top + panels*panel_h + (panels - 1)*between + 40 + 10*notes + 18
crowd = number("columns") > 16
crowd_pt = crowd ? 7 : 6
crowd_ps = crowd ? 0.13 : 0.3
crowd_colour = crowd ? "#9056a0d3" : "#56a0d3" # with transparency
eval open_picture
set multiplot
eval frame
span = layer_max - layer_min
set xrange [layer_min - 0.5:layer_max + 0.5]
set xtics layer_step(span)
set grid ytics lt 1 lw 0.3 lc rgb "#dddddd"
do for [p = 1:panels] {
    do for [m = 1:3] {
        T = top + (p - 1)*(panel_h + between)
        B = T + panel_h
        L = left + (m - 1)*(panel_w + gap); R = L + panel_w
        eval panel
        if (m == 1) { set label at screen real(L)/W, 1 - (T - 21.0)/H field(sprintf("panel%d", p)) font bold textcolor rgb ink }
        set label at screen real(L)/W, 1 - (T - 8.0)/H field(sprintf("measure%d", m)) font normal textcolor rgb ink
        set yrange [number(sprintf("y%d_min", m)):number(sprintf("y%d_max", m))]
        set ytics number(sprintf("y%d_step", m))
        if (p == panels) { set xlabel "layer" font normal textcolor rgb ink offset 0, 0.3 }
        if (m == 1) { set ylabel "dimensions" font normal textcolor rgb ink offset 0.5, 0 } else { unset ylabel }
        eval empty(sprintf("panel%d_empty%d", p, m))
        first = 6*(p - 1) + 2*(m - 1)
        plot table index first using 2:6 with points pt crowd_pt ps crowd_ps*enlarge lw 0.6 lc rgb crowd_colour, \
            table index first + 1 using 2:6 with linespoints pt 7 ps 0.25*enlarge lw 1.1 lc rgb ink
        unset label
    }
}
unset multiplot
