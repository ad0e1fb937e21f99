# Every layer (row, the first at the top) and query head (column): median of R/c on the left (blue: negative, red: positive),
# share inside the trust radius on the right. Columns of the table: panel layer head value n row colour state label.
figure = "taylor-heatmap"
if (!exists("styled")) { script = ARG0; table = ARG1; picture = ARG2; load script[1:strlen(script) - strlen("taylor-heatmap.gp")] . "style.gp" }
if (field("figure") ne figure) { exit error sprintf("%s: holds no table of the figure %s", table, figure) }

rows = int(number("rows"))
columns = int(number("columns"))

# Cells: as large as a page allows; numbers in them where they can be read.
stacked = columns > 12
across = stacked ? 1 : panels
down = stacked ? panels : 1
numbers = int(number("numbers"))
cell_w = numbers ? (columns <= 4 ? 46 : columns <= 8 ? 30 : 24) : 9
cell_h = numbers ? (rows*down <= 12 ? 24 : rows*down <= 48 ? 14 : 10.5) : (rows*down <= 80 ? 9 : 6)
cell_font = font((cell_h < 12) ? 5.8 : (cell_w >= 46) ? 8 : (cell_w >= 30) ? 7 : 6)
grid_w = columns*cell_w
grid_h = rows*cell_h
slot_w = (grid_w > 160) ? grid_w : 160 # headings need this much
gap = 76
left = 56
top = 84
bar = (grid_h < 60) ? 60 : (grid_h < 100) ? grid_h : (grid_h < 260) ? 100 : 160
room_h = (grid_h > bar) ? grid_h : bar
W = left + across*slot_w + (across - 1)*gap + 76
if (W < 480) { W = 480 }
H = top + down*room_h + (down - 1)*78 + 38 + 10*notes + 22
eval open_picture

# Lightness falls evenly from the middle to either end, so that grey shows the size; the sign is then in the numbers or, where those
# have no room, in the + of positive cells. The share has one hue.
diverging = 'set palette defined (-1 "#1b4f9c", -0.75 "#4f79b6", -0.5 "#84a3cf", -0.25 "#bacde5", 0 "#f7f7f7", 0.25 "#f6c9b4", 0.5 "#e89878", 0.75 "#cf6345", 1 "#ab2a1e"); set cbrange [-1:1]'
rising = 'set palette defined (0 "#f7f7f7", 0.25 "#c5dccb", 0.5 "#8dbb9d", 0.75 "#4f8f6d", 1 "#1c5c43"); set cbrange [0:1]'
unset colorbox

set multiplot
eval frame
set yrange [rows - 0.5:-0.5]
set xrange [-0.5:columns - 0.5]
set border 0
step_x = (cell_w >= 12) ? 1 : (columns <= 32) ? 4 : 8
step_y = (cell_h >= 8) ? 1 : 5
do for [p = 1:panels] {
    L = left + (stacked ? 0 : (p - 1)*(slot_w + gap))
    R = L + grid_w
    T = top + (stacked ? (p - 1)*(room_h + 78) : 0)
    B = T + grid_h
    eval panel
    set label at screen real(L)/W, 1 - (T - 34.0)/H field(sprintf("panel%d", p)) font bold textcolor rgb ink
    set label at screen real(L)/W, 1 - (T - 23.0)/H field(sprintf("panel%d_note1", p)) font small textcolor rgb ink
    set label at screen real(L)/W, 1 - (T - 13.0)/H field(sprintf("panel%d_note2", p)) font small textcolor rgb ink
    set format x ""
    set xtics scale 0 step_x offset 0, 0.3
    set xtics ()
    do for [i = 0:columns - 1:step_x] { set xtics add (sprintf("%d", i) i) }
    set ytics scale 0 ()
    do for [i = 0:rows - 1:step_y] { set ytics add (word(field("row_labels"), i + 1) i) }
    set xlabel "query head" font normal textcolor rgb ink offset 0, 0.4
    if (p == 1 || stacked) { set ylabel "layer" font normal textcolor rgb ink offset -0.6, 0 } else { unset ylabel }
    if (p == 1) { eval diverging } else { eval rising }
    X = L + grid_w + 12.0
    set colorbox user origin screen X/W, screen 1 - real(T + bar)/H size screen 8.0/W, screen real(bar)/H
    if (p == 1) {
        set cbtics scale 0.4 (field("tick1") -1, field("tick2") -0.5, field("tick3") 0, field("tick4") 0.5, field("tick5") 1) font small
    } else { set cbtics scale 0.4 ("0" 0, "25" 0.25, "50" 0.5, "75" 0.75, "100" 1) font small }
    thin = (cell_w < 12) ? 0.15 : 0.6
    only(state) = (strcol(8) eq state) ? $3 : NaN
    dark = 0.6 # beyond it, text is white
    plot table index p - 1 using (only("missing")):6:($3 - 0.5):($3 + 0.5):($6 - 0.5):($6 + 0.5) with boxxyerror fillstyle pattern 4 border lc rgb "#999999" lw thin fc rgb "#777777", \
        "" index p - 1 using (only("infinite")):6:($3 - 0.5):($3 + 0.5):($6 - 0.5):($6 + 0.5) with boxxyerror fillstyle solid 1 border lc rgb "white" lw thin fc rgb "#777777", \
        "" index p - 1 using (abs($7) <= 1 ? $3 : NaN):6:($3 - 0.5):($3 + 0.5):($6 - 0.5):($6 + 0.5):7 with boxxyerror fillstyle solid 1 border lc rgb "white" lw thin fc palette, \
        "" index p - 1 using (p == 1 && !numbers && $7 > 0 ? $3 : NaN):6:(abs($7) > dark ? 0xffffff : 0x222222) with points pt 1 ps 0.28*enlarge lw 0.35 lc rgb variable
    unset label
    unset colorbox
    # Numbers on their own, one plot over all cells: gnuplot 5.4 dies of a plot of labels that has no point.
    if (numbers) {
        plot table index p - 1 using 3:6:9:(strcol(8) eq "infinite" || abs($7) > dark ? 0xffffff : 0x222222) with labels font cell_font tc rgb variable
    }
}
unset multiplot
