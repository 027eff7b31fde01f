#!/bin/bash
# verb.sh CTITAN FOLDER: the verbs schedule, check and new from outside: what is said, and the exit status.
source "$(dirname "$0")/../lib/test.sh"
ctitan=$(realpath "$1") tests=$(realpath "$2")
enter
export COLUMNS=100

# expect STATUS WORDS ARGUMENTS...: ctitan ends with the status, and its output has the words. Where it fails, it writes to stderr alone.
expect() {
    local status
    "$ctitan" "${@:3}" >out 2>log
    status=$?
    echo "status $status, expected $1 and \"$2\"" >why
    [[ $status == "$1" && ! ($1 != 0 && -s out) ]] && grep -qF -- "$2" out log
    tell "ctitan ${*:3}"
}

# has WORDS...: the last output has them too.
has() {
    local words
    for words; do
        cp out log
        grep -qF -- "$words" out
        tell "it says: $words"
    done
}

# ---- what is wrong is said ----

expect 2 'expected the name of a schedule, or --csv FILE' schedule
expect 2 'no schedule 1f2b; did you mean 1f1b?' schedule 1f2b --ranks 2 --microbatches 4
expect 2 'no schedule frobnicate; there are: 1f1b, ' schedule frobnicate --ranks 2 --microbatches 4
expect 2 'no schedule adamw; there are: ' schedule adamw --ranks 2 --microbatches 4
expect 2 'schedule 1f1b: --ranks is missing' schedule 1f1b --microbatches 4
expect 2 'schedule 1f1b: --microbatches is missing' schedule 1f1b --ranks 4
expect 2 '--ranks zero: expected a number, at least 1' schedule 1f1b --ranks zero --microbatches 4
expect 2 '--stages 0: expected a number, at least 1' schedule 1f1b --ranks 2 --stages 0
expect 2 'schedule: --ranks needs a value' schedule 1f1b --ranks
expect 2 'schedule has no option --rank-s' schedule 1f1b --rank-s 3
expect 2 'but there is also gpipe' schedule 1f1b gpipe --ranks 2 --microbatches 2
expect 2 'give --csv or the name 1f1b, not both' schedule 1f1b --csv x.csv
expect 2 '--costs 1,2: expected times F,I,W' schedule 1f1b --ranks 2 --microbatches 2 --costs 1,2
expect 2 '--costs 1,2,x: expected times' schedule 1f1b --ranks 2 --microbatches 2 --costs 1,2,x
expect 2 '--costs 1,2,3,4,5: expected times' schedule 1f1b --ranks 2 --microbatches 2 --costs 1,2,3,4,5
expect 2 '--costs 1,-2,3: expected times' schedule 1f1b --ranks 2 --microbatches 2 --costs 1,-2,3
expect 2 '--costs 0,0,0: expected times F,I,W, not all 0' schedule 1f1b --ranks 2 --microbatches 2 --costs 0,0,0
expect 2 'gpipe has 1 stage on each rank: 4 on 4 ranks, not 8' \
    schedule gpipe --ranks 4 --stages 8 --microbatches 4
expect 2 'must be a multiple of the ranks' schedule looped_bfs --ranks 4 --stages 6 --microbatches 4
expect 2 'at least 2 stages on each rank: 8 on 4 ranks, not 4' \
    schedule interleaved_1f1b --ranks 4 --stages 4 --microbatches 4
expect 2 'at least two for each rank are needed, 8' schedule dualpipe_v --ranks 4 --microbatches 7
expect 2 'are too many actions' schedule 1f1b --ranks 100000 --microbatches 100000
expect 2 'none.csv: No such file' schedule --csv none.csv
expect 1 'No such file or directory' schedule 1f1b --ranks 2 --microbatches 2 --svg /proc/none/x.svg

echo '0F0,0G0' >bad.csv
expect 2 'bad.csv, row 1, column 2: ' schedule --csv bad.csv
printf '0F0,0B0\n1F0\n' >invalid.csv
expect 2 'schedule: invalid.csv is a file: --csv invalid.csv' schedule invalid.csv
expect 1 'stage 1 microbatch 0: B (or I and W) is missing on rank 1' schedule --csv invalid.csv
expect 2 'the schedule is for 2 ranks, not 4' schedule --csv invalid.csv --ranks 4
printf '0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0\n' >late.csv
expect 1 'RECV_F (action 2 of rank 1) must come before F (action 1)' schedule --csv late.csv

expect 2 'check: PLUGIN is missing' check
expect 2 'no plugin named nothing' check nothing
expect 0 'op adamw: ' check adamw
expect 2 'new: NAME is missing' new schedule
expect 2 'new stage: expected model, op' new stage mine
expect 2 'lower-case letters, digits and' new schedule ../mine
expect 2 'a plugin needs a name' new schedule ''

# ---- what is right is drawn ----

expect 0 '1f1b: 4 ranks, 4 stages, 8 microbatches' schedule 1f1b --ranks 4 --microbatches 8
has '33 time, of which 9 (27.3%) is bubble' '64 compute actions' '48 transfers' \
    'no deadlock with streams of their own for transfers, nor with one stream' \
    'rank 3   |      F0B0--F1B1--F2B2--F3B3--F4B4--F5B5--F6B6--F7B7--            |'
never grep -q $'\033' out
tell 'no colours, as stdout is no terminal'
expect 0 'a column is 6.438 time, longer than some actions' schedule 1f1b --ranks 64 --microbatches 128
has 'one in 2 ranks is drawn'
expect 0 'of which 3.85 ' schedule zbv --ranks 8 --microbatches 16 --costs 1,1.1,.9

expect 0 'valid' schedule --csv "$tests/custom_schedule.csv" --svg custom.svg
has '2 ranks, 4 stages, 8 microbatches' '96 compute actions' '48 transfers'
grep -q '<title>3F7: ' custom.svg && [[ $(grep -c '<title>' custom.svg) == 96 ]] &&
    [[ $(tail -c 7 custom.svg) == '</svg>' && $(grep -c "^<svg class='chart broad'" custom.svg) == 1 ]] &&
    [[ $(grep -c "^<svg class='chart narrow'.*viewBox='0 0 340 " custom.svg) == 1 ]]
tell 'custom.svg is whole'

# Written with communication, it reads back and verifies as such.
expect 0 'valid' schedule zbv --ranks 3 --microbatches 7 --comm --write-csv full.csv
grep -q '5SEND_B0' full.csv
tell 'full.csv has sends'
expect 0 '126 compute actions' schedule --csv full.csv --write-csv again.csv
has '56 transfers' '18 times UNSHARD, RESHARD or REDUCE_GRAD'
cmp full.csv again.csv
tell 'it is written again as it was'

# The verb says that a schedule runs only with streams of its own.
printf '0F0,0F1,0RECV_B0,0SEND_F0,0SEND_F1,0B0,0RECV_B1,0B1\n' >streams.csv
printf '1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n' >>streams.csv
expect 0 'but it deadlocks with one stream: streams.csv: deadlock with one stream: rank 0' schedule --csv streams.csv

expect 0 'schedule zbv: 192 cases verified' check zbv
has '    8     16      24        0  ' '24 of 32 numbers of ranks and stages are refused: zbv has 2 stages on each rank: 2 on 1 ranks, not 1'
expect 0 'mine/mine.c is the example' new schedule mine
expect 2 'mine exists already' new schedule mine

finish
