# Queries by sqrt(v) and |R|/c: all layers, then one panel a layer; colour: how many, on one logarithmic scale.
# Columns of the table: layer sqrt_v_lo sqrt_v_hi ratio_lo ratio_hi count, an index per panel. Both axes are drawn in octaves.
figure = "taylor-density"
if (!exists("styled")) { script = ARG0; table = ARG1; picture = ARG2; load script[1:strlen(script) - strlen("taylor-density.gp")] . "style.gp" }
if (field("figure") ne figure) { exit error sprintf("%s: holds no table of the figure %s", table, figure) }

x_min = number("x_min"); x_max = number("x_max"); y_min = number("y_min"); y_max = number("y_max")
across = (panels <= 3) ? panels : (panels <= 6) ? 3 : (panels <= 8) ? 4 : (panels <= 15) ? 5 : 6
down = (panels + across - 1)/across
gap = (across <= 3) ? 20 : 8
between = (across <= 3) ? 24 : 18
left = 46; top = 58
panel_w = (across <= 2) ? 190 : int((430.0 - (across - 1)*gap)/across)
panel_h = (across <= 3) ? int(0.85*panel_w) : panel_w
W = left + across*panel_w + (across - 1)*gap + 66
if (W < 500) { W = 500 }
H = top + down*panel_h + (down - 1)*between + 36 + 10*notes + 18
eval open_picture
tic = (across <= 3) ? normal : small
# From light to dark: lightness alone carries the count.
set palette defined (0 "#f5dfa8", 0.3 "#ea9a52", 0.65 "#a8345f", 1 "#1d1147")
most = number("most")
set cbrange [0:(most > 1 ? log10(most) : 1)]
unset colorbox
set multiplot
eval frame
set xrange [x_min:x_max]
set yrange [y_min:y_max]
octave = log(2.0)
decades(lo, hi) = floor(hi*octave/log(10) + 1e-9) - ceil(lo*octave/log(10) - 1e-9)
step(lo, hi, room) = (decades(lo, hi) <= room) ? 1 : (decades(lo, hi) <= 2*room) ? 2 : (decades(lo, hi) <= 4*room) ? 4 : 6
step_x = step(x_min, x_max, (across <= 3) ? 6 : 3)
step_y = step(y_min, y_max, (across <= 3) ? 8 : 5)
superscript = "⁰¹²³⁴⁵⁶⁷⁸⁹"
digits(n) = (n >= 10) ? digits(n/10) . superscript[n%10 + 1:n%10 + 1] : superscript[n + 1:n + 1]
power(e) = (e < 0) ? "10⁻" . digits(-e) : (e == 0) ? "1" : (e == 1) ? "10" : "10" . digits(e)
array eps[3] = [0.1, 0.5, 1.0]
set dashtype 2 (6,3)
set dashtype 3 (1.5,2.5)
array eps_dash[3] = [3, 2, 1]
do for [p = 1:panels] {
    column_of = (p - 1)%across
    row_of = (p - 1)/across
    L = left + column_of*(panel_w + gap); R = L + panel_w
    T = top + row_of*(panel_h + between); B = T + panel_h
    eval panel
    set label at screen real(L)/W, 1 - (T - 5.0)/H field(sprintf("panel%d", p)) font ((p == 1) ? bold : tic) textcolor rgb ink
    set label at screen real(R)/W, 1 - (T - 5.0)/H field(sprintf("share%d", p)) right font tic textcolor rgb ink
    set xtics scale 0.4 offset 0, 0.2 () font tic
    set ytics scale 0.4 () font tic
    bottom = (p + across > panels)
    do for [e = ceil(x_min*octave/log(10) - 1e-9):floor(x_max*octave/log(10) + 1e-9)] { if (e%step_x == 0) { set xtics add ((bottom ? power(e) : "") e*log(10)/octave) } }
    do for [e = ceil(y_min*octave/log(10) - 1e-9):floor(y_max*octave/log(10) + 1e-9)] { if (e%step_y == 0) { set ytics add ((column_of == 0 ? power(e) : "") e*log(10)/octave) } }
    # less than a decade: 2 and 5 too, else there would be no scale to read
    if (decades(x_min, x_max) < 1) { do for [e = floor(x_min*octave/log(10)):floor(x_max*octave/log(10))] { do for [k = 2:5:3] { set xtics add ((bottom ? sprintf("%g", k*10.0**e) : "") log(k*10.0**e)/octave) } } }
    if (bottom) { set xlabel "√v" font tic textcolor rgb ink offset 0, 0.6 } else { unset xlabel }
    if (column_of == 0) { set ylabel "|R| / c" font tic textcolor rgb ink offset 0.8, 0 } else { unset ylabel }
    if (p == 1) {
        X = left + across*panel_w + (across - 1)*gap + 14.0
        bar = (down*panel_h > 140) ? 120.0 : 80.0
        set colorbox user origin screen X/W, screen 1 - (top + bar)/H size screen 9.0/W, screen bar/H
        set cbtics scale 0.4 () font small
        do for [e = 0:floor((most > 1 ? log10(most) : 1) + 1e-9)] { set cbtics add (power(e) e) }
        set label at screen X/W, 1 - (top - 9.0)/H "queries" font small textcolor rgb ink
        do for [k = 1:3] { set label at screen (X + 22)/W, 1 - (top + bar + 26.0 + 12*k)/H sprintf("%g", eps[k]) font small textcolor rgb ink }
        set label at screen X/W, 1 - (top + bar + 26.0)/H "|R| / c" font small textcolor rgb ink
    }
    if (field(sprintf("empty%d", p)) ne "") { set label at graph 0.5, 0.62 field(sprintf("empty%d", p)) center font tic textcolor rgb faint }
    grow = 0.015 # neighbours overlap by a hair, so that no seam shows
    plot table index p - 1 using (log($2*$3)/octave/2):(log($4*$5)/octave/2):(log($2)/octave - grow):(log($3)/octave + grow):(log($4)/octave - grow):(log($5)/octave + grow):(log10($6)) with boxxyerror fillstyle solid 1 noborder fc palette, \
        for [k = 1:3] log(eps[k])/octave with lines lw 1.8 lc rgb "#99ffffff", \
        for [k = 1:3] log(eps[k])/octave with lines lw 0.7 dt eps_dash[k] lc rgb ink
    unset label
    unset colorbox
}
# Which line is which, as a panel of its own: gnuplot's SVG gives dashed arrows of one colour the last one's dashes.
set lmargin at screen X/W; set rmargin at screen (X + 18)/W
set tmargin at screen 1 - (top + bar + 30.0)/H; set bmargin at screen 1 - (top + bar + 66.0)/H
set border 0
unset xtics
unset ytics
unset xlabel
unset ylabel
set xrange [0:1]
set yrange [36:0]
plot for [k = 1:3] 12*k - 4 with lines lw 0.8 dt eps_dash[k] lc rgb ink
unset multiplot
