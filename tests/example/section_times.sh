#!/bin/bash
# A hook tells how long each section of the step's order takes: no more than the steps.
set -euo pipefail
. "$(dirname "$0")/installed.sh" "$1" "$2" section_times

# told FOLDER NAMES: two lines, each with these sections and with no more time than the steps that they are of.
told() {
    grep -c 'sections of step [36], ms:' "$1.log" | grep -qx 2
    [[ $(sed -nE 's/.*sections of step 6, ms://p' "$1.log" |
        awk '{ for (i = 1; i < NF; i += 2) printf "%s ", $i }') == "$2 " ]]
    sed -nE 's/.*sections of step 6, ms://p' "$1.log" |
        awk '{ for (i = 2; i <= NF; i += 2) sum += $i; print sum / 1e3 }' >spent
    values step_time_s "$1/metrics.jsonl" | tail -n 3 | awk '{ sum += $1 } END { print sum / 3 }' >steps
    paste spent steps
    awk 'NR == FNR { spent = $1; next } { exit !(spent > 0 && spent <= 1.001 * $1) }' spent steps
}
train_to one --with section_times --set section_times.every=3
told one 'F I+W'
train_to pipeline -n 2 --with pp --set pp.degree=2 --set pp.microbatch_size=2 --with section_times --set section_times.every=3
told pipeline '0F 0SEND_F 0RECV_B 0I+0W'
