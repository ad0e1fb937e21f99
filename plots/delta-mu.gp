# Delta-mu of every layer (row, the first at the top) and KV head (column): the basis on the left, its control on the right.
# Blue: negative, red: positive. Columns of the table: basis layer head delta_mu lo hi p q row colour mark state label.
figure = "delta-mu"
if (!exists("styled")) { script = ARG0; table = ARG1; picture = ARG2; load script[1:strlen(script) - strlen("delta-mu.gp")] . "style.gp" }
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
gap = 44
left = 56
top = 84
bar = (grid_h < 60) ? 60 : (grid_h < 100) ? grid_h : (grid_h < 260) ? 100 : 160
room_h = (grid_h > bar) ? grid_h : bar
W = left + across*slot_w + (across - 1)*gap + 76
if (W < 480) { W = 480 }
H = top + down*room_h + (down - 1)*78 + 38 + 10*notes + 22
eval open_picture

# Lightness falls evenly from the middle to either end, so that grey shows |Delta-mu|; the sign is then in the numbers or, where
# those have no room, in the + of positive cells.
set palette defined (-1 "#1b4f9c", -0.75 "#4f79b6", -0.5 "#84a3cf", -0.25 "#bacde5", 0 "#f7f7f7", 0.25 "#f6c9b4", 0.5 "#e89878", 0.75 "#cf6345", 1 "#ab2a1e")
set cbrange [-1:1]
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
    set xlabel "KV head" font normal textcolor rgb ink offset 0, 0.4
    if (p == 1 || stacked) { set ylabel "layer" font normal textcolor rgb ink offset -0.6, 0 } else { unset ylabel }
    if (p == (stacked ? 1 : panels)) {
        X = L + slot_w + 16.0
        set colorbox user origin screen X/W, screen 1 - real(T + bar)/H size screen 9.0/W, screen real(bar)/H
        set cbtics scale 0.4 (field("tick1") -1, field("tick2") -0.5, field("tick3") 0, field("tick4") 0.5, field("tick5") 1) font small
        set label at screen X/W, 1 - (T - 10.0)/H "Δμ" font normal textcolor rgb ink
    }
    thin = (cell_w < 12) ? 0.15 : 0.6
    only(state) = (strcol(12) eq state) ? $3 : NaN
    dark = 0.6 # beyond it, text is white
    dot = (cell_w < 30) ? 0.16 : 0.22
    inset = (cell_w < 30) ? 2.0 : 3.2
    plot table index p - 1 using (only("missing")):9:($3 - 0.5):($3 + 0.5):($9 - 0.5):($9 + 0.5) with boxxyerror fillstyle pattern 4 border lc rgb "#999999" lw thin fc rgb "#777777", \
        "" index p - 1 using (only("infinite")):9:($3 - 0.5):($3 + 0.5):($9 - 0.5):($9 + 0.5) with boxxyerror fillstyle solid 1 border lc rgb "white" lw thin fc rgb "#777777", \
        "" index p - 1 using (abs($10) <= 1 ? $3 : NaN):9:($3 - 0.5):($3 + 0.5):($9 - 0.5):($9 + 0.5):10 with boxxyerror fillstyle solid 1 border lc rgb "white" lw thin fc palette, \
        "" index p - 1 using ($11 == 1 && numbers ? $3 + 0.5 - inset/cell_w : NaN):($9 - 0.5 + inset/cell_h):(abs($10) > dark ? 0xffffff : 0x222222) with points pt 7 ps dot*enlarge lc rgb variable, \
        "" index p - 1 using ($11 == 1 && !numbers && $10 < 0 ? $3 : NaN):9:(abs($10) > dark ? 0xffffff : 0x222222) with points pt 7 ps 0.2*enlarge lc rgb variable, \
        "" index p - 1 using (!numbers && $10 > 0 ? $3 : NaN):9:(abs($10) > dark ? 0xffffff : 0x222222) with points pt 1 ps 0.28*enlarge lw 0.35 lc rgb variable, \
        "" index p - 1 using ($11 == 1 && !numbers && $10 > 0 ? $3 : NaN):9:(abs($10) > dark ? 0xffffff : 0x222222) with points pt 1 ps 0.34*enlarge lw 1.1 lc rgb variable
    unset label
    unset colorbox
    # Numbers on their own, one plot over all cells: gnuplot 5.4 dies of a plot of labels that has no point.
    if (numbers) {
        plot table index p - 1 using 3:9:13:(strcol(12) eq "infinite" || abs($10) > dark ? 0xffffff : 0x222222) with labels font cell_font tc rgb variable
    }
}
unset multiplot
