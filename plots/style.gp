# plots/style.gp: what the figures of attgeo share. Reads the header of the table ("# key<TAB>value" lines), chooses the terminal
# from the name of the picture, and draws title and notes. Lengths are points (1/72 inch).
#   gnuplot -c FIGURE.gp [TABLE.tsv [PICTURE.png|.svg|.pdf]]     default: FIGURE.tsv and FIGURE.png beside the script
styled = 1
if (!exists("script")) { script = ARG0; table = ARG1; picture = ARG2 }
base = (strlen(script) > 3 && script[strlen(script) - 2:*] eq ".gp") ? script[1:strlen(script) - 3] : script
if (table eq "") { table = base . ".tsv" }
if (picture eq "") { picture = base . ".png" }
kind = (strlen(picture) > 4) ? picture[strlen(picture) - 3:*] : ""
if (kind ne ".png" && kind ne ".svg" && kind ne ".pdf") {
    exit error sprintf("%s: expected a picture named .png, .svg or .pdf", picture)
}
set encoding utf8
set minussign
set datafile separator "\t"

# The header: in expressions, so that nothing in it is ever run.
array header_key[200]
array header_value[200]
array header_number[200]
headers = 0
set datafile commentschars ""
stats table using (strcol(1)[1:2] eq "# " && headers < 200 ? (headers = headers + 1, header_key[headers] = strcol(1)[3:*], header_value[headers] = strcol(2), header_number[headers] = (valid(2) ? column(2) : NaN), 0) : 0) every ::0::199 nooutput
set datafile commentschars "#"
at(key) = sum [i = 1:headers] ((header_key[i] eq key) ? i : 0)
field(key) = (at(key) > 0) ? header_value[at(key)] : ""
number(key) = (at(key) > 0) ? header_number[at(key)] : NaN
if (headers == 0) { exit error sprintf("%s: cannot be read or has no header of attgeo plot", table) }

ink = "#222222"
faint = "#666666"
hair = "#bbbbbb"
# gnuplot's SVG has no bold, and draws points on whole units: that picture has two units a point.
enlarge = (kind eq ".svg") ? 2.0 : 1.0
font(size) = sprintf("DejaVu Sans,%g", size*enlarge)
heavy(size) = (kind eq ".svg") ? font(size + 1) : sprintf("DejaVu Sans:Bold,%g", size)
small = font(6.5)
normal = font(7.5)
bold = heavy(7.5)
large = heavy(9.5)

# open_picture: call with W and H set. PNG has two pixels a point (144 dpi). gnuplot's cairo terminals take a font's point for
# 1/72 inch at 96 dots an inch: fontscale 0.75 makes it true.
open_picture = '\
    if (kind eq ".png") { set terminal pngcairo noenhanced size 2*W,2*H font normal fontscale 1.5 linewidth 2 pointscale 2 background rgb "white" };\
    if (kind eq ".svg") { set terminal svg noenhanced size 2*W,2*H fixed font normal linewidth 2 background rgb "white" };\
    if (kind eq ".pdf") { set terminal pdfcairo noenhanced size W/72.0,H/72.0 font normal fontscale 0.75 linewidth 2 pointscale 1 background rgb "white" };\
    set output picture;\
    set border 3 lw 0.6 lc rgb ink;\
    set tics out nomirror scale 0.5 textcolor rgb ink font normal;\
    set format "%g";\
    unset key'

# Title, subtitle; notes and source from the bottom up. Call inside multiplot, before the first panel's plot; then "unset label".
frame = '\
    set label at screen 12.0/W, 1 - 15.0/H field("title") font large textcolor rgb ink;\
    set label at screen 12.0/W, 1 - 29.0/H field("subtitle") font normal textcolor rgb ink;\
    do for [k = 1:notes] { set label at screen 12.0/W, (12.0 + 10*(notes - k + 1))/H field(sprintf("note%d", k)) font small textcolor rgb ink };\
    set label at screen 12.0/W, 11.0/H field("source") font small textcolor rgb faint'
# A panel of the given edges, points from the top left corner.
panel = '\
    set lmargin at screen real(L)/W; set rmargin at screen real(R)/W;\
    set tmargin at screen 1 - real(T)/H; set bmargin at screen 1 - real(B)/H'
notes = 0
while (field(sprintf("note%d", notes + 1)) ne "") { notes = notes + 1 }
panels = int(number("panels"))
layer_step(span) = (span <= 12) ? 1 : (span <= 30) ? 5 : (span <= 70) ? 10 : 20
# What a panel without a single point says, from the table.
empty(key) = 'if (field("' . key . '") ne "") { set label at graph 0.5, 0.62 field("' . key . '") center font normal textcolor rgb faint }'
