#!/bin/sh
# test_beside.sh CTITAN FOLDER..: folders that transformers' save_pretrained wrote (tests/hf/make.py)
# train, generate, and come back complete: from save_to, from a checkpoint whose source is gone, and
# through an imported checkpoint. All files are the same but the weights, and so is config.json.
set -eu

ctitan=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# is_complete FOLDER: it has all that the source has.
is_complete() {
    diff -r -x model.safetensors -x config.json "$source" "$1"
    [ -s "$1/model.safetensors" ]
    # A width that null stands for is written as a number.
    sed -e 's/"n_inner": null/"n_inner": 64/' "$source/config.json" > "$work/expected.json"
    tr -d '\n ' < "$work/expected.json" > "$work/expected"
    tr -d '\n ' < "$1/config.json" | diff "$work/expected" -
}

# recipe MODEL FOLDER [LINE]
recipe() {
    cat > "$work/recipe.ini" <<END
[job]
dump_folder = $work/run
[plugins]
load = cpu, $1, text, bytes, adamw, ckpt
[model]
name = $1
init_from = $2
save_to = $work/run/model
[training]
seq_len = 32
local_batch_size = 1
steps = 2
dtype = bfloat16
[text]
path = $0
cache = none
END
}

for source; do
    model=$(basename "$source")
    rm -rf "${work:?}"/*
    cp -r "$source" "$work/source"
    chmod -R u+w "$work/source"
    echo hidden > "$work/source/.gitattributes"
    echo state > "$work/source/optimizer.pt"
    mkdir "$work/source/original"
    recipe "$model" "$work/source"
    "$ctitan" train "$work/recipe.ini" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
    "$ctitan" generate "$work/recipe.ini" --prompt 'The quick' --tokens 3 > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
    rm -rf "$work/source"
    is_complete "$work/run/model"
    "$ctitan" export "$work/run" "$work/exported" > /dev/null
    is_complete "$work/exported"
    "$ctitan" import "$work/exported" "$work/imported" > /dev/null
    "$ctitan" export "$work/imported" "$work/again" > /dev/null
    is_complete "$work/again"
    echo "$model: complete"
done

# The dtype is that of the weights that are written.
"$ctitan" export "$work/run" "$work/wide" --dtype float32 > /dev/null
grep -q '"dtype": "float32"' "$work/wide/config.json"

# Numbers that a dtype cannot hold are not written in it: 99840 and 70144, but 65280, are beyond float16.
rm -rf "$work/large"
mkdir "$work/large"
cp "$work/exported/config.json" "$work/large"
{ head -c -6 "$work/exported/model.safetensors" && printf '\303\107\211\107\177\107'; } > "$work/large/model.safetensors"
"$ctitan" import "$work/large" "$work/large_checkpoint" > /dev/null
status=0
"$ctitan" export "$work/large_checkpoint" "$work/narrow" --dtype float16 2> "$work/log" || status=$?
[ $status = 2 ] || { cat "$work/log"; exit 1; }
grep -q '\(model.norm\|lm_head\).weight: 2 of [0-9]* values are beyond float16, the largest 99840: set --dtype bfloat16 or float32' "$work/log"
[ ! -e "$work/narrow/model.safetensors" ]
# Nor are the files before the one that has them.
! "$ctitan" export "$work/large_checkpoint" "$work/narrow" --dtype float16 --max-shard-size 0.0001 2> "$work/log"
grep -q 'are beyond float16' "$work/log"
[ -z "$(ls "$work/narrow")" ]
"$ctitan" export "$work/large_checkpoint" "$work/narrow" --dtype float32 > /dev/null

status=0
"$ctitan" train "$work/recipe.ini" --set training.steps=1 --set job.dump_folder="$work/large_run" --set model.init_from="$work/large" \
    --set model.save_to= --set ckpt.last_save_model_only=true --set ckpt.export_dtype=float16 > "$work/log" 2>&1 || status=$?
[ $status = 2 ] && grep -q 'the checkpoint of step 1: .*weight: a value of .* is beyond float16: set .ckpt. export_dtype = bfloat16' "$work/log" || {
    cat "$work/log"
    exit 1
}

# A small file of a checkpoint that is damaged is not written.
echo ' ' >> "$work/run/checkpoint/step-2/hf/tokenizer.json"
! "$ctitan" export "$work/run" "$work/damaged" 2> "$work/log"
grep -q 'hf/tokenizer.json: its checksum is wrong' "$work/log"
! "$ctitan" ckpt verify "$work/run" > "$work/log" 2>&1
grep -q 'damaged: .*hf/tokenizer.json' "$work/log"

# A model from random weights has the ids of its tokenizer.
recipe llama ""
rm -rf "$work/run"
"$ctitan" train "$work/recipe.ini" --set llama.dim=16 --set llama.n_layers=1 --set llama.n_heads=2 --set llama.vocab_size=320 \
    > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
grep -q '"bos_token_id": 256' "$work/run/model/config.json"
grep -q '"eos_token_id": 257' "$work/run/model/config.json"
grep -q '"dtype": "bfloat16"' "$work/run/model/config.json"

# A tokenizer that is far smaller than the model's vocabulary is another model's.
sizes="--set llama.dim=16 --set llama.n_layers=1 --set llama.n_heads=2 --set training.steps=1"
for vocabulary in 512 600; do
    rm -rf "$work/run"
    # shellcheck disable=SC2086
    "$ctitan" train "$work/recipe.ini" $sizes --set llama.vocab_size=$vocabulary --set model.save_to="$work/model-$vocabulary" > "$work/log" 2>&1
    "$ctitan" train "$work/recipe.ini" --set training.steps=1 --set job.dump_folder="$work/run-$vocabulary" \
        --set model.init_from="$work/model-$vocabulary" > "$work/log-$vocabulary" 2>&1
done
! grep -q 'the tokenizer has' "$work/log-512"
grep -q 'the tokenizer has 258 tokens, and the model a vocabulary of 600' "$work/log-600"

# The first loss of a tied model: of TorchTitan's rule for initial weights, and of transformers', near ln 2048.
first_loss() {
    rm -rf "$work/tied"
    "$ctitan" train "$work/recipe.ini" --with metrics --set job.dump_folder="$work/tied" --set model.save_to= --set training.steps=1 \
        --set metrics.log_freq=1 --set llama.dim=128 --set llama.n_layers=2 --set llama.n_heads=4 --set llama.vocab_size=2048 \
        --set llama.tie_embeddings=true "$@" > "$work/log" 2>&1
    sed -nE 's/.*"loss": *([0-9.]*).*/\1/p' "$work/tied/metrics.jsonl"
}
first_loss --set model.initializer_range=0.02 | awk '{ print "a first loss of " $1; exit !($1 > 7.3 && $1 < 7.9) }'
first_loss | awk '{ print "a first loss of " $1; exit !($1 > 8.5) }'
