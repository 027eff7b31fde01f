#!/bin/bash
# test_main_path.sh CTITAN FOLDER LOGITS: a folder of transformers and a text in: trained, interrupted, resumed on two ranks,
# exported, and generated from. LOGITS has those of transformers 5.24 for the folder, after PROMPT.
set -euo pipefail

ctitan=$1 folder=$2 logits=$3
prompt='Redistribution and use'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "FAILED: $*"
    exit 1
}

generate() {
    "$ctitan" generate "$@" --prompt "$prompt" --greedy 2> "$work/said" || fail "$(cat "$work/said")"
}

generate "$folder" --tokens 0 --logits "$work/first" > "$work/wrote"
paste <(tr ' ' '\n' < "$work/first") <(tr ' ' '\n' < "$logits") | awk '
    { d = $1 - $2; if (d < 0) d = -d; if (d > most) most = d }
    END { print "logits differ by " most + 0; exit NR != 320 || most > 1e-5 }' || fail "logits of transformers"

for ((i = 0; i < 50; i++)); do echo "Redistribution and use in source and binary forms are permitted."; done > "$work/text"
cat > "$work/recipe.ini" <<END
[plugins]
load = cpu, llama, text, bpe, adamw, ckpt, local, fsdp
[model]
name = llama
init_from = $folder
[job]
dump_folder = $work/run
[training]
seq_len = 32
steps = 1000000
mixed_precision_param = float32
[ckpt]
interval = 20
keep_latest_k = 2
[text]
path = $work/text
cache = none
END
"$ctitan" train "$work/recipe.ini" > "$work/log" 2>&1 &
run=$!
for ((i = 0; i < 600; i++)); do
    ! compgen -G "$work/run/checkpoint/step-*" > /dev/null || break
    sleep 0.1
done
kill -INT $run
status=0
wait $run || status=$?
[[ $status = 1 ]] || fail "status $status of an interrupted run: $(cat "$work/log")"
step=$(sed -n 's/.*interrupted by signal 2 after step //p' "$work/log")
[[ -d $work/run/checkpoint/step-$step ]] || fail "no checkpoint of step $step: $(cat "$work/log")"

"$ctitan" train "$work/recipe.ini" -n 2 --set training.steps=$((step + 2)) > "$work/log" 2>&1 || fail "$(cat "$work/log")"
grep -q "loaded .*/step-$step" "$work/log" || fail "$(cat "$work/log")"
grep -q "local_batch_size = 4, so that 2 data-parallel ranks share the 8 sequences of a step" "$work/log" || fail "$(cat "$work/log")"
! grep -q "changed since the checkpoint.*batch" "$work/log" || fail "$(cat "$work/log")"

generate "$work/run" --tokens 8 --logits "$work/before" > "$work/wrote"
grep -q "checkpoint/step-$((step + 2))" "$work/said" || fail "$(cat "$work/said")"
"$ctitan" export "$work/run" "$work/out" > "$work/log" 2>&1 || fail "$(cat "$work/log")"
diff <(ls "$folder") <(ls "$work/out") || fail "files of what was exported"
generate "$work/out" --tokens 8 --logits "$work/after" > "$work/again"
cmp "$work/before" "$work/after" || fail "logits of what was exported"
cmp "$work/wrote" "$work/again" || fail "text of what was exported: $(cat "$work/again")"
! cmp -s "$work/first" "$work/after" || fail "training changed nothing"
