#!/bin/sh
# test_folders.sh CTITAN SAME_WEIGHTS CASE..: each case's model is read by four ranks that hold shards of
# it, and written: its tensors come back as they were, and what config.json says besides is kept.
set -eu

ctitan=$1 same=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for data; do
    model=$(sed -n 's/.*"model": *"\(.*\)".*/\1/p' "$data/case.json")
    cat > "$work/recipe.ini" <<END
[job]
dump_folder = $work/out
[plugins]
load = cpu, local, ${model:-llama}, tokens, adamw, fsdp, tp
[model]
name = ${model:-llama}
init_from = $data/hf
save_to = $work/saved
[training]
seq_len = 16
local_batch_size = 1
steps = 1
mixed_precision_param = float32
[adamw]
lr = 0
weight_decay = 0
[tokens]
path = $data/tokens.bin
[tp]
degree = 2
END
    rm -rf "$work/saved"
    "$ctitan" train "$work/recipe.ini" -n 4 > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
    ! grep 'not used' "$work/log"
    "$same" "$data/hf" "$work/saved"
    [ "$(grep '"eos_token_id"' "$data/hf/config.json")" = "$(grep '"eos_token_id"' "$work/saved/config.json")" ]
    echo "$data: the same"
done
