# papers/ccq/verdicts.awk: the numbers of claims.md from the tables beside the figures, a line per tap, basis and pooling.
#   awk -f verdicts.awk FOLDER/*/delta-mu.tsv FOLDER/*/token/delta-mu.tsv FOLDER/*/separation.tsv FOLDER/*/spectra.tsv
BEGIN { FS = "\t"; OFS = "\t" }
FNR == 1 { split("", column); tap = pooling = figure = "" }
/^# / {
    if ($1 == "# tap") tap = $2
    if ($1 == "# pooling") pooling = $2
    if ($1 == "# figure") figure = $2
    if ($1 == "# r") r = $2
    next
}
NF < 3 { next }
!("basis" in column) { for (i = 1; i <= NF; i++) column[$i] = i; next }
figure == "delta-mu" {
    key = tap OFS $column["basis"] OFS pooling
    if (!(key in cells)) order[++keys] = key
    value = $column["delta_mu"]
    cells[key]++
    if (value == "NaN" || value ~ /inf/) { missing[key]++; next }
    negative[key] += value < 0
    sum[key] += value
    if ($column["mark"] == 1) { if (value < 0) marked_negative[key]++; else marked_positive[key]++ }
}
figure == "separation" {
    key = tap OFS $column["basis"]
    if (!(key in curves)) { curves[key] = 1; curve_order[++curve_keys] = key }
    at = key OFS $column["layer"]
    if ($column["alignment"] == "NaN") next
    if ($column["role"] == "needle") needle[at] = $column["alignment"]
    if ($column["role"] == "haystack") haystack[at] = $column["alignment"]
    if ($column["role"] == "needle-distractor") {
        layers[key]++
        below[key] += $column["alignment"] < 0
        surely_below[key] += $column["mark"] == -1
        surely_above[key] += $column["mark"] == 1
    }
}
figure == "spectra" && $column["head"] == "mean" && $column["component"] == r && $column["explained"] != "NaN" {
    key = tap OFS $column["basis"] OFS r
    if (!(key in explained_layers)) explained_order[++explained_keys] = key
    value = $column["explained"] + 0
    if (!explained_layers[key]++) least[key] = most[key] = value
    if (value < least[key]) least[key] = value
    if (value > most[key]) most[key] = value
    total[key] += value
}
END {
    print "tap", "basis", "pooling", "cells", "missing", "negative_percent", "mean", "q05_negative", "q05_positive"
    for (k = 1; k <= keys; k++) {
        key = order[k]
        n = cells[key] - missing[key]
        test = key ~ /\tprompt$/
        print key, cells[key], missing[key] + 0, n ? sprintf("%.1f", 100*negative[key]/n) : "NaN", n ? sprintf("%.4f", sum[key]/n) : "NaN",
            test ? marked_negative[key] + 0 : "NaN", test ? marked_positive[key] + 0 : "NaN"
    }
    print ""
    print "tap", "basis", "layers", "needle_below_distractor", "interval_below_0", "interval_above_0", "needle_below_haystack"
    for (k = 1; k <= curve_keys; k++) {
        key = curve_order[k]
        below_haystack = 0
        for (at in needle)
            if (index(at, key OFS) == 1 && at in haystack) below_haystack += needle[at] + 0 < haystack[at] + 0
        print key, layers[key] + 0, below[key] + 0, surely_below[key] + 0, surely_above[key] + 0, below_haystack
    }
    print ""
    print "tap", "basis", "r", "layers", "explained_least", "explained_mean", "explained_most"
    for (k = 1; k <= explained_keys; k++) {
        key = explained_order[k]
        print key, explained_layers[key], sprintf("%.3f", least[key]), sprintf("%.3f", total[key]/explained_layers[key]), sprintf("%.3f", most[key])
    }
}
