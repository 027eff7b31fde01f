#!/bin/bash
# recipes.sh CTITAN SOURCE [FOLDER]: each recipe of FOLDER (recipes) is planned for the ranks and the device that its first lines name,
# where it fits, and a shrunken copy of it trains on processors, on its techniques' smallest mesh. Not shrunken are those that fine-tune
# a folder, which `generate` trains, and recipes/paper, which is there to be planned.
source "$(dirname "$0")/../lib/test.sh"
ctitan=$(realpath "$1") source=$(realpath "$2") folder=${3-recipes}
enter
# 25,100 tokens of 251 kinds
for ((i = 0; i < 251; i++)); do printf '%b\0\0\0' "\\x$(printf %02x $((i * 7 % 251)))"; done >cycle
for ((i = 0; i < 100; i++)); do cat cycle; done >tokens.bin

# stand_in RECIPE: options that give a recipe data and weights that are here.
stand_in() {
    local recipe=$1
    set_=(--set model.save_to=)
    if grep -q '^init_from = models/base' "$recipe"; then
        set_+=(--set "model.init_from=$source/tests/generate/folder")
    elif grep -q '^init_from' "$recipe"; then
        set_+=(--set model.init_from=)
    fi
    if grep -q '^\[text\]' "$recipe"; then
        set_+=(--without text --with tokens)
    fi
    if grep -q '^\[dpo\]' "$recipe"; then
        set_+=(--without dpo --unset objective.name --with tokens)
    fi
    set_+=(--set tokens.path=tokens.bin)
    if grep -q '^validation_path' "$recipe"; then
        set_+=(--set tokens.validation_path=tokens.bin)
    fi
}

# planned RECIPE: on the ranks and the device that it names.
planned() {
    local world device
    world=$(sed -nE 's/^;.*ctitan plan .*--world ([0-9]+).*/\1/p' "$1" | head -n 1)
    device=$(sed -nE 's/^;.*ctitan plan .*--device ([a-z0-9-]+).*/\1/p' "$1" | head -n 1)
    "$ctitan" plan "$1" "${set_[@]}" --world "${world:-1}" ${device:+--device "$device"} --json >plan 2>log || { tail -n 1 log; return 1; }
    [[ ! $device ]] || grep -q '"fits": true' plan || { echo "it does not fit into $device"; return 1; }
    ! grep -q '^load = cuda' "$1" || [[ $device ]] || { echo "its first lines name no device to plan for"; return 1; }
}

# shrunken RECIPE: two steps of a small copy.
shrunken() {
    local model small=() technique ranks=1
    model=$(sed -nE 's/^name = (llama|llama4|gpt_oss|deepseek_v3|decoder)$/\1/p' "$1")
    small=(--set "$model.n_layers=4" --set "$model.dim=32" --set "$model.n_heads=4" --set "$model.vocab_size=256")
    [[ $model == gpt_oss ]] || small+=(--set "$model.ffn_dim=48")
    case $model in
    llama) small+=(--set llama.n_kv_heads=2 --set llama.head_dim=8) ;;
    llama4) small+=(--set llama4.n_kv_heads=2 --set llama4.head_dim=8 --set llama4.n_experts=4 --set llama4.expert_dim=32) ;;
    decoder) small+=(--set decoder.n_kv_heads=2 --set decoder.head_dim=8 --set decoder.n_experts=8 --set decoder.n_chosen=2 --set decoder.expert_dim=32) ;;
    gpt_oss) small+=(--set gpt_oss.n_kv_heads=2 --set gpt_oss.head_dim=8 --set gpt_oss.n_experts=8 --set gpt_oss.expert_dim=32) ;;
    deepseek_v3)
        small+=(--set deepseek_v3.q_lora_rank=16 --set deepseek_v3.kv_lora_rank=16 --set deepseek_v3.qk_nope_head_dim=8
            --set deepseek_v3.qk_rope_head_dim=8 --set deepseek_v3.v_head_dim=8 --set deepseek_v3.n_dense_layers=1
            --set deepseek_v3.n_experts=8 --set deepseek_v3.n_chosen=2 --set deepseek_v3.expert_dim=16 --set deepseek_v3.n_groups=1
            --set deepseek_v3.n_groups_chosen=1)
        ;;
    esac
    for technique in tp pp ep; do
        grep -qE "^load = .*\b$technique\b" "$1" || continue
        small+=(--set $technique.degree=2)
        ranks=$((ranks * 2))
    done
    if grep -qE '^load = .*\bfsdp\b' "$1" && ((ranks < 4)); then
        ranks=$((ranks * 2))
    fi
    ((ranks == 1)) || small+=(--with "local" -n $ranks)
    case $(sed -nE 's/^load = ([a-z]+, [a-z]+).*/\1/p' "$1") in
    'cuda, nccl') small+=(--without cuda,nccl --with cpu) ;;
    cuda,*) small+=(--without cuda --with cpu) ;;
    esac
    rm -rf out
    run train "$1" "${set_[@]}" "${small[@]}" \
        --set training.seq_len=32 --set training.local_batch_size=4 --set training.global_batch_size=-1 --set training.steps=2 \
        --set job.dump_folder=out --set metrics.log_freq=1 --set metrics.peak_tflops=1 || { tail -n 2 log; return 1; }
    values loss out/metrics.jsonl | awk '{ n += $1 > 4 && $1 < 40 } END { exit n != 2 }' || { echo "losses: $(values loss out/metrics.jsonl)"; return 1; }
}

for recipe in "$source/$folder"/*.ini; do
    grep -q '^\[plugins\]' "$recipe" || continue # a device's description
    name=$(basename "$recipe" .ini)
    stand_in "$recipe"
    try "$name: planned" planned "$recipe"
    [[ $name != finetune_* && $folder == recipes ]] || continue
    try "$name: a small copy trains" shrunken "$recipe"
done
finish
