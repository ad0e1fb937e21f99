# Spectra of the key covariance: explained variance by layer (left) and the scree of every head (right), a row per basis.
# Columns of the table: basis layer head component share explained drawn. Per basis: one index per component (means over heads),
# one of end labels, one of scree curves.
figure = "spectra"
if (!exists("styled")) { script = ARG0; table = ARG1; picture = ARG2; load script[1:strlen(script) - strlen("spectra.gp")] . "style.gp" }
if (field("figure") ne figure) { exit error sprintf("%s: holds no table of the figure %s", table, figure) }

layer_min = number("layer_min"); layer_max = number("layer_max")
components = int(number("components"))
blocks = components + 2
r = number("r_component")
panel_w = 190; panel_h = 150; gap = 80; between = 58
left = 50; top = 66
W = left + 2*panel_w + gap + 70
H = top + panels*panel_h + (panels - 1)*between + 42 + 10*notes + 18
eval open_picture
# Layers from light to dark: lightness alone carries the order.
set palette defined (0 "#f2c063", 0.35 "#d9743c", 0.7 "#8e2f5c", 1 "#1d1147")
if (layer_max > layer_min) { set cbrange [layer_min:layer_max] } else { set cbrange [layer_min - 1:layer_max] }
unset colorbox
set multiplot
eval frame
span = layer_max - layer_min
shade(k) = (components > 1) ? int(160 - 150.0*(k - 1)/(components - 1)) : 20
grey(k) = 0x10000*shade(k) + 0x100*shade(k) + shade(k)
exponent_min = floor(log10(number("share_min")) + 0.5)
# "10⁻⁴": markup is off everywhere, so that names stay as they are.
superscript = "⁰¹²³⁴⁵⁶⁷⁸⁹"
digits(n) = (n >= 10) ? digits(n/10) . superscript[n%10 + 1:n%10 + 1] : superscript[n + 1:n + 1]
power(e) = (e < 0) ? "10⁻" . digits(-e) : "10" . digits(e)
do for [p = 1:panels] {
    T = top + (p - 1)*(panel_h + between)
    B = T + panel_h
    L = left; R = left + panel_w
    eval panel
    set label at screen real(L)/W, 1 - (T - 8.0)/H field(sprintf("panel%d", p)) font bold textcolor rgb ink
    unset logscale y
    set xrange [layer_min - 0.5:layer_max + 0.5]
    set yrange [0:1.02]
    set xtics layer_step(span)
    set ytics 0.2
    set xlabel "layer" font normal textcolor rgb ink offset 0, 0.3
    set ylabel "explained variance (share of tr Σ)" font normal textcolor rgb ink offset 0.5, 0
    set grid ytics lt 1 lw 0.3 lc rgb "#dddddd"
    first = (p - 1)*blocks
    eval empty(sprintf("panel%d_empty1", p))
    plot for [k = 1:components] table index first + k - 1 using 2:6 with linespoints pt 7 ps 0.22*enlarge lw 0.9 lc rgb grey(k), \
        table index first + components using (layer_max + 0.5):7:(sprintf(" %d", $4)) with labels left font small tc rgb ink
    unset label

    L = left + panel_w + gap; R = L + panel_w
    eval panel
    last = (number("dimension") > 1) ? number("dimension") : 2
    set xrange [1:last]
    set yrange [number("share_min"):1]
    set logscale y
    set xtics autofreq
    set ytics ()
    do for [e = 0:-exponent_min:(exponent_min < -6 ? 2 : 1)] { set ytics add (power(-e) 10.0**(-e)) }
    set xlabel "component i" font normal textcolor rgb ink offset 0, 0.3
    set ylabel "sᵢ / tr Σ" font normal textcolor rgb ink offset 0.5, 0
    if (p == 1 && layer_max > layer_min) {
        set colorbox user origin screen (R + 12.0)/W, screen 1 - real(T + 100)/H size screen 8.0/W, screen 100.0/H
        set cbtics layer_step(span) font small
        set label at screen (R + 12.0)/W, 1 - (T - 8.0)/H "layer" font normal textcolor rgb ink
    }
    eval empty(sprintf("panel%d_empty2", p))
    plot table index first + components + 1 using 4:7:2 with lines lw 0.4 lc palette
    unset label
    unset colorbox
}
unset multiplot
