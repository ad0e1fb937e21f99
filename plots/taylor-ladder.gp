# One head's sampled queries in the order of R: per bound a panel with its interval (light), B3's (dark) and the exact R (dots).
# Columns of the table: bound rank prompt position role value R lo hi drawn_R drawn_lo drawn_hi lo_state hi_state drawn_b3_lo drawn_b3_hi,
# an index per bound; drawn ends are finite, their states 0 as it is, -1 or 1 clipped, 2 infinite.
figure = "taylor-ladder"
if (!exists("styled")) { script = ARG0; table = ARG1; picture = ARG2; load script[1:strlen(script) - strlen("taylor-ladder.gp")] . "style.gp" }
if (field("figure") ne figure) { exit error sprintf("%s: holds no table of the figure %s", table, figure) }

linear = number("linear"); most = number("most"); n = number("n")
panel_w = 80; panel_h = 210; gap = 9
left = 52; top = 98
W = left + panels*panel_w + (panels - 1)*gap + 16
if (W < 500) { W = 500 }
H = top + panel_h + 42 + 10*notes + 18
eval open_picture
signed(y) = (y < 0) ? -log10(1 - y/linear) : log10(1 + y/linear)
end = signed(most)
strip = 0.05*end # where infinite ends go
superscript = "⁰¹²³⁴⁵⁶⁷⁸⁹"
digits(n) = (n >= 10) ? digits(n/10) . superscript[n%10 + 1:n%10 + 1] : superscript[n + 1:n + 1]
power(e) = (e < 0) ? "10⁻" . digits(-e) : (e == 0) ? "1" : (e == 1) ? "10" : "10" . digits(e)
set multiplot
eval frame
last = (n > 0) ? n : 1
half = (n <= 60) ? 0.4 : 0.53 # many: neighbours overlap by a hair, so that no seam shows
set xrange [0.5:last + 0.5]
set yrange [-end - 2*strip:end + 2*strip]
first_e = floor(log10(linear) + 0.5)
last_e = floor(log10(most) + 0.5)
step = (last_e - first_e <= 6) ? 1 : (last_e - first_e <= 12) ? 2 : 3
set grid ytics lt 1 lw 0.3 lc rgb "#dddddd"
do for [p = 1:panels] {
    L = left + (p - 1)*(panel_w + gap); R = L + panel_w
    T = top; B = top + panel_h
    eval panel
    set label at screen real(L)/W, 1 - (T - 46.0)/H field(sprintf("panel%d", p)) font bold textcolor rgb ink
    set label at screen real(L)/W, 1 - (T - 36.0)/H field(sprintf("about%d", p)) font small textcolor rgb ink
    set label at screen real(L)/W, 1 - (T - 26.0)/H field(sprintf("width%d", p)) font small textcolor rgb ink
    set label at screen real(L)/W, 1 - (T - 16.0)/H field(sprintf("sign%d", p)) font small textcolor rgb ink
    set label at screen real(L)/W, 1 - (T - 6.0)/H field(sprintf("infinite%d", p)) font small textcolor rgb ink
    set xtics scale 0.4 ((p == 1 ? "1" : "") 1)
    if (n > 1) { set xtics add (sprintf("%d", n) n) }
    set ytics scale 0.4 ()
    set ytics add ((p == 1 ? "0" : "") 0)
    do for [e = last_e:first_e:-step] {
        if (signed(10.0**e) < 0.08*end) { continue }
        set ytics add ((p == 1 ? power(e) : "") signed(10.0**e))
        set ytics add ((p == 1 ? "−" . power(e) : "") signed(-(10.0**e)))
    }
    set ytics add ((p == 1 ? "+∞" : "") end + 1.5*strip)
    set ytics add ((p == 1 ? "−∞" : "") -end - 1.5*strip)
    if (p == 1) { set ylabel "R and its enclosure" font normal textcolor rgb ink offset 0.5, 0 } else { unset ylabel }
    set xlabel "rank of R" font normal textcolor rgb ink offset 0, 0.6
    if (field(sprintf("empty%d", p)) ne "") { set label at graph 0.5, 0.88 field(sprintf("empty%d", p)) center font small textcolor rgb ink front }
    plot table index p - 1 using 2:(0):($2 - half):($2 + half):(signed($11)):(signed($12)) with boxxyerror fillstyle solid 1 noborder fc rgb "#c9d9ea", \
        "" index p - 1 using ($14 == 2 ? $2 : NaN):(0):($2 - 0.5):($2 + 0.5):(end + strip):(end + 2*strip) with boxxyerror fillstyle solid 1 noborder fc rgb "#777777", \
        "" index p - 1 using ($13 == 2 ? $2 : NaN):(0):($2 - 0.5):($2 + 0.5):(-end - 2*strip):(-end - strip) with boxxyerror fillstyle solid 1 noborder fc rgb "#777777", \
        "" index p - 1 using 2:(0):($2 - half):($2 + half):(signed($15)):(signed($16)) with boxxyerror fillstyle solid 1 noborder fc rgb "#6f93ba", \
        0 with lines lw 0.5 lc rgb "white", \
        end with lines lw 0.3 lc rgb faint, -end with lines lw 0.3 lc rgb faint, \
        table index p - 1 using 2:(signed($10)) with points pt 7 ps (n <= 60 ? 0.24 : 0.14)*enlarge lc rgb "#111111"
    unset label
}
unset multiplot
