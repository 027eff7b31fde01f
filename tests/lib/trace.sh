# shellcheck shell=bash
# whole TRACE COUNT: every instruction once, none ends before it begins, and those of a stream follow each other.
whole() {
    awk -v count="$2" '
        /"instruction": / {
            match($0, /"tid": [0-9]+/); tid = substr($0, RSTART + 7, RLENGTH - 7)
            match($0, /"ts": [-0-9.]+/); ts = substr($0, RSTART + 6, RLENGTH - 6)
            match($0, /"dur": [-0-9.]+/); dur = substr($0, RSTART + 7, RLENGTH - 7)
            match($0, /"instruction": [0-9]+/); n = substr($0, RSTART + 15, RLENGTH - 15)
            if (seen[n]++ || dur < 0 || ts < 0 || ts + 0.0015 < end[tid]) { print "instruction", n, ts, dur, end[tid]; bad = 1 }
            end[tid] = ts + dur
            total++
        }
        END { if (total != count) { print total, "of", count; bad = 1 }; exit bad }' "$1" >why
}
