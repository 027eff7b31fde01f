#!/bin/bash
# test_beside.sh CTITAN FOLDER..: folders that transformers' save_pretrained wrote (tests/hf/make.py)
# train, generate, and come back complete: from save_to, from a checkpoint whose source is gone, and
# through an imported checkpoint. All files are the same but the weights, and so is config.json.
source "$(dirname "$0")/../lib/test.sh"
set -euo pipefail
ctitan=$(realpath "$1")
mapfile -t folders < <(realpath "${@:2}")
enter

# is_complete FOLDER: it has all that the source has.
is_complete() {
    diff -r -x model.safetensors -x config.json "$source" "$1"
    [ -s "$1/model.safetensors" ]
    # A width that null stands for is written as a number.
    sed -e 's/"n_inner": null/"n_inner": 64/' "$source/config.json" > expected.json
    tr -d '\n ' < expected.json > expected
    tr -d '\n ' < "$1/config.json" | diff expected -
}

# begin MODEL FOLDER: the recipe.
begin() {
    recipe -local -tokens -metrics +text +bytes +ckpt model.name="$1" model.init_from="$2" model.save_to=run/model job.dump_folder=run \
        training.seq_len=32 training.local_batch_size=1 training.steps=2 training.dtype=bfloat16 text.path="$here/test_beside.sh" \
        text.cache=none
}

for source in "${folders[@]}"; do
    model=$(basename "$source")
    rm -rf "${work:?}"/*
    cp -r "$source" source
    chmod -R u+w source
    echo hidden > source/.gitattributes
    echo state > source/optimizer.pt
    mkdir source/original
    begin "$model" source
    "$ctitan" train recipe.ini > log 2>&1 || fail "$(cat log)"
    "$ctitan" generate recipe.ini --prompt 'The quick' --tokens 3 > log 2>&1 || fail "$(cat log)"
    rm -rf source
    is_complete run/model
    "$ctitan" export run exported > /dev/null
    is_complete exported
    "$ctitan" import exported imported > /dev/null
    "$ctitan" export imported again > /dev/null
    is_complete again
    echo "$model: complete"
done

# The dtype is that of the weights that are written.
"$ctitan" export run wide --dtype float32 > /dev/null
grep -q '"dtype": "float32"' wide/config.json

# Numbers that a dtype cannot hold are not written in it: 99840 and 70144, but 65280, are beyond float16.
rm -rf large
mkdir large
cp exported/config.json large
{ head -c -6 exported/model.safetensors && printf '\303\107\211\107\177\107'; } > large/model.safetensors
"$ctitan" import large large_checkpoint > /dev/null
fails 2 '(model.norm|lm_head).weight: 2 of [0-9]* values are beyond float16, the largest 99840: set --dtype bfloat16 or float32' \
    run export large_checkpoint narrow --dtype float16 || fail "$(cat log)"
[ ! -e narrow/model.safetensors ]
# Nor are the files before the one that has them.
never run export large_checkpoint narrow --dtype float16 --max-shard-size 0.0001
grep -q 'are beyond float16' log
[ -z "$(ls narrow)" ]
"$ctitan" export large_checkpoint narrow --dtype float32 > /dev/null

fails 2 'the checkpoint of step 1: .*weight: a value of .* is beyond float16: set .ckpt. export_dtype = bfloat16' \
    train --set training.steps=1 --set job.dump_folder=large_run --set model.init_from=large --set model.save_to= \
    --set ckpt.last_save_model_only=true --set ckpt.export_dtype=float16 || fail "$(cat log)"

# A small file of a checkpoint that is damaged is not written.
echo ' ' >> run/checkpoint/step-2/hf/tokenizer.json
never run export run damaged
grep -q 'hf/tokenizer.json: its checksum is wrong' log
never run ckpt verify run
grep -q 'damaged: .*hf/tokenizer.json' log

# It is found where other files are on another host, too. This host has another name while it trains.
if unshare -u hostname elsewhere 2> /dev/null; then
    rm -rf run
    unshare -u sh -c "hostname elsewhere; exec '$ctitan' train recipe.ini -n 2 --with local,fsdp --set model.init_from=exported \
        --set ckpt.files=local" > log 2>&1 || fail "$(cat log)"
    rm run/checkpoint/step-2/rank-00001.safetensors
    run ckpt verify --here run && grep -q 'undamaged, 1 of 2 files' log || fail "$(cat log)"
    echo ' ' >> run/checkpoint/step-2/hf/tokenizer.json
    fails 1 'damaged: .*hf/tokenizer.json' run ckpt verify --here run || fail "$(cat log)"
fi

# A model from random weights has the ids of its tokenizer.
begin llama ""
rm -rf run
"$ctitan" train recipe.ini --set llama.dim=16 --set llama.n_layers=1 --set llama.n_heads=2 --set llama.vocab_size=320 \
    > log 2>&1 || fail "$(cat log)"
grep -q '"bos_token_id": 256' run/model/config.json
grep -q '"eos_token_id": 257' run/model/config.json
grep -q '"dtype": "bfloat16"' run/model/config.json

# A tokenizer that is far smaller than the model's vocabulary is another model's.
sizes="--set llama.dim=16 --set llama.n_layers=1 --set llama.n_heads=2 --set training.steps=1"
for vocabulary in 512 600; do
    rm -rf run
    # shellcheck disable=SC2086
    "$ctitan" train recipe.ini $sizes --set llama.vocab_size=$vocabulary --set model.save_to="model-$vocabulary" > log 2>&1
    "$ctitan" train recipe.ini --set training.steps=1 --set job.dump_folder="run-$vocabulary" \
        --set model.init_from="model-$vocabulary" > "log-$vocabulary" 2>&1
done
never grep -q 'the tokenizer has' log-512
grep -q 'the tokenizer has 258 tokens, and the model a vocabulary of 600' log-600

# The first loss of a tied model: of TorchTitan's rule for initial weights, and of transformers', near ln 2048.
first_loss() {
    rm -rf tied
    "$ctitan" train recipe.ini --with metrics --set job.dump_folder=tied --set model.save_to= --set training.steps=1 \
        --set metrics.log_freq=1 --set llama.dim=128 --set llama.n_layers=2 --set llama.n_heads=4 --set llama.vocab_size=2048 \
        --set llama.tie_embeddings=true "$@" > log 2>&1
    values loss tied/metrics.jsonl
}
first_loss --set model.initializer_range=0.02 | awk '{ print "a first loss of " $1; exit !($1 > 7.3 && $1 < 7.9) }'
first_loss | awk '{ print "a first loss of " $1; exit !($1 > 8.5) }'
