#!/bin/sh
# test_folders.sh CTITAN SAME_WEIGHTS PACK_MXFP4 CASE..: each case's model is read by four ranks that hold shards of
# it, and written: its tensors come back as they were, and what config.json says besides is kept. So do
# they from a checkpoint of these ranks, in several files, and through an imported checkpoint. Folders
# whose files do not fit their config.json, or are damaged, are wrong input. The last case's model, with
# experts in MXFP4, is read as the same numbers in float32.
set -eu

ctitan=$1 same=$2 pack=$3
shift 3
first=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for data; do
    model=$(sed -n 's/.*"model": *"\(.*\)".*/\1/p' "$data/case.json")
    cat > "$work/recipe.ini" <<END
[job]
dump_folder = $work/out
[plugins]
load = cpu, local, ${model:-llama}, tokens, adamw, fsdp, tp, ckpt
[model]
name = ${model:-llama}
init_from = $data/hf
save_to = $work/saved
max_shard_size = 0.0003
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
[ckpt]
interval = 1
END
    # These biases move whatever the learning rate is.
    [ "$model" != deepseek_v3 ] || printf '[deepseek_v3]\nload_balance_coeff = 0\n' >> "$work/recipe.ini"
    rm -rf "$work/saved"* "$work/out" "$work/imported" "$work/exported"*
    "$ctitan" train "$work/recipe.ini" -n 4 > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
    ! grep 'is ignored' "$work/log"
    "$same" "$data/hf" "$work/saved"
    [ "$(ls "$work/saved" | grep -c '^model-0000.-of-0000.\.safetensors$')" -gt 1 ]
    [ ! -e "$work/saved/model.safetensors" ] && [ -e "$work/saved/model.safetensors.index.json" ]
    "$ctitan" export "$work/out" "$work/exported" > /dev/null
    "$same" "$data/hf" "$work/exported"
    # A run and a checkpoint of it write the same bytes.
    "$ctitan" export "$work/out" "$work/exported" --force --max-shard-size 0.0003 > /dev/null
    diff -r "$work/saved" "$work/exported"
    "$ctitan" export "$work/out" "$work/exported" --force --max-shard-size 0.0001 > /dev/null
    [ ! -e "$work/exported/model.safetensors" ]
    "$same" "$data/hf" "$work/exported"
    "$ctitan" export "$work/out" "$work/exported" --force > /dev/null
    [ "$(ls "$work/exported" | wc -l)" = 2 ]
    "$ctitan" import "$work/saved" "$work/imported" > /dev/null
    "$ctitan" ckpt verify "$work/imported" > /dev/null
    "$ctitan" export "$work/imported" "$work/exported_2" > /dev/null
    "$same" "$data/hf" "$work/exported_2"
    "$ctitan" train "$work/recipe.ini" -n 4 --set model.save_to="$work/saved_2" \
        --set ckpt.initial_load_path="$work/imported" --set ckpt.folder=second > "$work/log" 2>&1 ||
        { cat "$work/log"; exit 1; }
    "$same" "$data/hf" "$work/saved_2"
    [ "$(grep '"eos_token_id"' "$data/hf/config.json")" = "$(grep '"eos_token_id"' "$work/saved/config.json")" ]
    echo "$data: the same"
done

# Inner sizes are multiples of 32.
"$ctitan" train "$work/recipe.ini" --without ckpt --without tp --without fsdp --set model.init_from= --set model.flavor=debug \
    --set gpt_oss.n_layers=2 --set gpt_oss.dim=64 --set gpt_oss.n_heads=4 --set gpt_oss.expert_dim=96 --set gpt_oss.n_experts=3 \
    --set gpt_oss.n_chosen=2 --set gpt_oss.vocab_size=288 > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
rm -rf "$work/plain"
mv "$work/saved" "$work/plain"
"$pack" "$work/plain" "$work/packed" "$work/dense"
sed '1s/{/{ "quantization_config": {"quant_method": "mxfp4"},/' "$work/plain/config.json" > "$work/packed/config.json"
"$ctitan" train "$work/recipe.ini" -n 4 --set model.init_from="$work/packed" --without ckpt > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
if grep 'is ignored' "$work/log"; then exit 1; fi
"$same" "$work/dense" "$work/saved"
rm -rf "$work/imported" "$work/exported"
"$ctitan" import "$work/packed" "$work/imported" > /dev/null
"$ctitan" export "$work/imported" "$work/exported" --dtype float32 > /dev/null
"$same" "$work/dense" "$work/exported"
if grep quantization_config "$work/saved/config.json" "$work/exported/config.json"; then exit 1; fi

# refused WORDS COMMAND..: it ends with status 2, and says so.
refused() {
    words=$1 status=0
    shift
    "$@" > "$work/log" 2>&1 || status=$?
    [ $status = 2 ] && grep -q "$words" "$work/log" || { echo "status $status"; cat "$work/log"; exit 1; }
}

# llama ANOTHER: the first case's model with another line of config.json.
llama() {
    rm -rf "$work/bad" "$work/out" "$work/saved"
    cp -r "$first/hf" "$work/bad"
    chmod -R u+w "$work/bad"
    sed -i "$1" "$work/bad/config.json"
    sed -e "s#^init_from = .*#init_from = $work/bad#; s#^path = .*#path = $first/tokens.bin#" -e 's/^name = .*/name = llama/' \
        -e 's/^load = .*/load = cpu, local, llama, tokens, adamw/' -e '/^\[tp\]/,$d' \
        "$work/recipe.ini" > "$work/bad.ini"
}

cp -r "$work/packed" "$work/nameless"
rm "$work/nameless/config.json"
refused 'need the config.json of their model' "$ctitan" import "$work/nameless" "$work/imported_bad"
llama 's/\("intermediate_size": *\)[0-9]*/\17/'
refused 'gate_proj.weight is \[[0-9]*,[0-9]*\], .* is \[7,[0-9]*\]' "$ctitan" train "$work/bad.ini"
llama 's/\("tie_word_embeddings": *\)false/\1true/'
refused 'lm_head.weight differs from model.embed_tokens.weight' "$ctitan" train "$work/bad.ini"
llama ''
truncate -s -1 "$work/bad/model.safetensors"
refused 'outside' "$ctitan" train "$work/bad.ini"
refused 'outside' "$ctitan" import "$work/bad" "$work/imported_bad"
