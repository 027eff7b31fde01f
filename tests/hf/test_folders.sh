#!/bin/bash
# test_folders.sh CTITAN SAME_WEIGHTS PACK_MXFP4 CASE..: each case's model is read by four ranks that hold shards of
# it, and written: its tensors come back as they were, and what config.json says besides is kept. So do
# they from a checkpoint of these ranks, in several files, and through an imported checkpoint. Folders
# whose files do not fit their config.json, or are damaged, are wrong input. The last case's model, with
# experts in MXFP4, is read as the same numbers in float32.
source "$(dirname "$0")/../lib/test.sh"
set -euo pipefail
ctitan=$(realpath "$1") same=$(realpath "$2") pack=$(realpath "$3")
mapfile -t cases < <(realpath "${@:4}")
first=${cases[0]}
enter

for data in "${cases[@]}"; do
    # Biases of routers move whatever the learning rate is.
    biases=()
    ! grep -q '"model": "deepseek_v3"' "$data/case.json" || biases=(deepseek_v3.load_balance_coeff=0)
    recipe -metrics +fsdp +tp +ckpt model.save_to=saved model.max_shard_size=0.0003 training.seq_len=16 training.local_batch_size=1 \
        training.steps=1 training.mixed_precision_param=float32 adamw.lr=0 adamw.weight_decay=0 tp.degree=2 ckpt.interval=1 "${biases[@]}"
    rm -rf saved* out imported exported*
    "$ctitan" train recipe.ini -n 4 > log 2>&1 || fail "$(cat log)"
    never grep 'is ignored' log
    "$same" "$data/hf" saved
    [ "$(ls saved | grep -c '^model-0000.-of-0000.\.safetensors$')" -gt 1 ]
    [[ ! -e saved/model.safetensors && -e saved/model.safetensors.index.json ]]
    "$ctitan" export out exported > /dev/null
    "$same" "$data/hf" exported
    # A run and a checkpoint of it write the same bytes.
    "$ctitan" export out exported --force --max-shard-size 0.0003 > /dev/null
    diff -r saved exported
    "$ctitan" export out exported --force --max-shard-size 0.0001 > /dev/null
    [ ! -e exported/model.safetensors ]
    "$same" "$data/hf" exported
    "$ctitan" export out exported --force > /dev/null
    [ "$(ls exported | wc -l)" = 2 ]
    "$ctitan" import saved imported > /dev/null
    "$ctitan" ckpt verify imported > /dev/null
    "$ctitan" export imported exported_2 > /dev/null
    "$same" "$data/hf" exported_2
    "$ctitan" train recipe.ini -n 4 --set model.save_to=saved_2 \
        --set ckpt.initial_load_path=imported --set ckpt.folder=second > log 2>&1 || fail "$(cat log)"
    "$same" "$data/hf" saved_2
    [ "$(grep '"eos_token_id"' "$data/hf/config.json")" = "$(grep '"eos_token_id"' saved/config.json)" ]
    echo "$data: the same"
done

# Inner sizes are multiples of 32.
"$ctitan" train recipe.ini --without ckpt --without tp --without fsdp --set model.init_from= --set model.flavor=debug \
    --set gpt_oss.n_layers=2 --set gpt_oss.dim=64 --set gpt_oss.n_heads=4 --set gpt_oss.expert_dim=96 --set gpt_oss.n_experts=3 \
    --set gpt_oss.n_chosen=2 --set gpt_oss.vocab_size=288 > log 2>&1 || fail "$(cat log)"
rm -rf plain
mv saved plain
"$pack" plain packed dense
sed '1s/{/{ "quantization_config": {"quant_method": "mxfp4"},/' plain/config.json > packed/config.json
"$ctitan" train recipe.ini -n 4 --set model.init_from=packed --without ckpt > log 2>&1 || fail "$(cat log)"
never grep 'is ignored' log
"$same" dense saved
rm -rf imported exported
"$ctitan" import packed imported > /dev/null
"$ctitan" export imported exported --dtype float32 > /dev/null
"$same" dense exported
never grep quantization_config saved/config.json exported/config.json

# refused WORDS VERB..: it ends with status 2, and says so.
refused() {
    fails 2 "$1" run "${@:2}" || fail "$(cat log)"
}

# llama ANOTHER: the first case's model with another line of config.json.
llama() {
    rm -rf bad out saved
    cp -r "$first/hf" bad
    chmod -R u+w bad
    sed -i "$1" bad/config.json
    sed -e "s#^init_from = .*#init_from = bad#; s#^path = .*#path = $first/tokens.bin#" -e 's/^name = .*/name = llama/' \
        -e 's/^load = .*/load = cpu, local, llama, tokens, adamw/' -e '/^\[tp\]/,$d' \
        recipe.ini > bad.ini
}

cp -r packed nameless
rm nameless/config.json
refused 'need the config.json of their model' import nameless imported_bad
llama 's/\("intermediate_size": *\)[0-9]*/\17/'
refused 'gate_proj.weight is \[[0-9]*,[0-9]*\], .* is \[7,[0-9]*\]' train bad.ini
llama 's/\("tie_word_embeddings": *\)false/\1true/'
refused 'lm_head.weight differs from model.embed_tokens.weight' train bad.ini
llama ''
truncate -s -1 bad/model.safetensors
refused 'outside' train bad.ini
refused 'outside' import bad imported_bad

# One expert of several, which is not the first.
rm -rf bad
cp -r "${cases[3]}/hf" bad
chmod -R u+w bad
LC_ALL=C sed -i 's/mlp\.experts\.\([013-9]\)\./mlp.exparts.\1./g' bad/model.safetensors
refused 'mlp\.experts\..*: the folder has 1 of its 3 rows' import bad imported_bad
[ ! -e imported_bad ]

# All experts but the last: the others are numbered as those of a smaller model.
rm -rf bad
cp -r "${cases[3]}/hf" bad
chmod -R u+w bad
last=$(($(grep -oE '"(num_experts|num_local_experts|n_routed_experts)": *[0-9]+' bad/config.json | grep -oE '[0-9]+$') - 1))
LC_ALL=C sed -i "s/mlp\.experts\.$last\./mlp.exparts.$last./g" bad/model.safetensors
refused "it has no tensor model\.layers\..*mlp\.experts\.$last\." import bad imported_bad
[ ! -e imported_bad ]

# import_odd FOLDER CHANGE [OPTION..]: imports its model with another line of config.json, from a folder whose path would begin
# comments of a recipe. No option of a run is warned about.
import_odd() {
    rm -rf 'odd #1 ;2' imported
    cp -r "$1" 'odd #1 ;2'
    chmod -R u+w 'odd #1 ;2'
    sed -i "$2" 'odd #1 ;2/config.json'
    "$ctitan" import 'odd #1 ;2' imported "${@:3}" > log 2>&1 || fail "$(cat log)"
    never grep seq_len log
}

# A run writes such paths to its recipe, and they are read back.
cp -r "$first/hf" 'odd #1 ;2'
chmod -R u+w 'odd #1 ;2'
"$ctitan" train 'odd #1 ;2' --with adamw,tokens --set "tokens.path=$first/tokens.bin" --set training.steps=1 \
    --set training.seq_len=16 --set adamw.lr=0 --set 'model.save_to="saved #3"' --set 'job.dump_folder="out ;4"' > log 2>&1 || fail "$(cat log)"
"$same" "$first/hf" 'saved #3'
"$ctitan" plan 'out ;4' > /dev/null

rm -rf saved
"$ctitan" train recipe.ini --without ckpt --without tp --without fsdp --without gpt_oss --with gpt2 --set model.name=gpt2 \
    --set model.init_from= --set model.flavor=debug --set gpt2.max_positions=32 > log 2>&1 || fail "$(cat log)"
grep -q '"n_positions": *32' saved/config.json
import_odd saved ''
import_odd "${cases[2]}/hf" '1s/{/{ "odd_key": 1, "odder_key": 2,/' --ignore 'odd_key, odder_key #'
refused 'odder_key = 2 is not known here' import 'odd #1 ;2' imported_bad --ignore odd_key
