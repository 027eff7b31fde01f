#!/bin/bash
# test_freeze.sh CTITAN DATA: what a run with frozen parameters plans, refuses, keeps and saves. Prints TAP.
source "$(dirname "$0")/../lib/test.sh"
ctitan=$(realpath "$1") data=$(realpath "$2")
enter

recipe -local +ckpt +freeze training.seq_len=16 training.local_batch_size=8 training.mixed_precision_param=float32 \
    adamw.lr=3e-3 lr_scheduler.warmup_steps=0 -tokens.repeat ckpt.interval=2 \
    freeze.parameters='*embed*, *norm.weight'

# train FOLDER ARGUMENT...
train() {
    local folder=$1
    shift
    run train recipe.ini --set job.dump_folder="$folder" "$@" || { tail -n 2 log; return 1; }
}

# refused WORDS ARGUMENT...: as wrong input.
refused() {
    local words=$1
    shift
    run plan recipe.ini "$@"
    (($? == 2)) && grep -qF -- "$words" log || { tail -n 1 log; return 1; }
}

wrong_patterns() {
    refused '[freeze] trains: *lm_haed* fits no parameter; the nearest is lm_head.weight' \
        --set freeze.parameters= --set 'freeze.trains=*lm_haed*' &&
        refused '[freeze] parameters: q_porj.weight fits no parameter; the nearest is model.layers.0.self_attn.q_proj.weight' \
            --set freeze.parameters=q_porj.weight &&
        refused 'freezes all 39 parameters: there is nothing to train' --set 'freeze.parameters=*' &&
        refused 'parameters and trains exclude each other' --set 'freeze.trains=*' &&
        refused 'neither parameters nor trains is set' --set freeze.parameters=
}

plans() {
    "$ctitan" plan recipe.ini >plan 2>log && grep -q 'freeze: 29 of 39 parameters train, 188416 of 205376 elements' log &&
        grep -q 'optimizer .* 1,507,328 ' plan
}

# Frozen parameters stay what they were; there are no states for them.
keeps() {
    train run && "$ctitan" ckpt show run/checkpoint/step-4 >shown || return
    ! grep -q 'adamw.*embed\|adamw.*norm' shown && grep -q 'adamw.m.lm_head.weight' shown || { cat shown; return 1; }
    "$ctitan" ckpt diff run/checkpoint/step-2 run/checkpoint/step-4 >differ 2>log
    grep -q '^lm_head.weight' differ && ! grep -q 'embed\|norm' differ || { cat differ; return 1; }
    awk -F'"loss": ' '{ loss[NR] = $2 + 0 } END { exit !(NR == 4 && loss[4] < loss[1]) }' run/metrics.jsonl
}

# Bit for bit; and from a checkpoint in which all parameters are trained, with its weights alone.
resumes() {
    mkdir -p again/checkpoint && cp -r run/checkpoint/step-2 again/checkpoint && train again &&
        "$ctitan" ckpt diff run/checkpoint/step-4 again/checkpoint/step-4 >differ 2>&1 || { cat differ; return 1; }
    train all --without freeze || return
    ! train tuned --set ckpt.initial_load_path=all/checkpoint/step-4 --set ckpt.exclude_from_loading= \
        --set ckpt.initial_load_model_only=false >refusal || return
    grep -q 'adamw.m.model.embed_tokens.weight of the checkpoint is not in this model or optimizer' log || { cat log; return 1; }
    train tuned --set ckpt.initial_load_path=all/checkpoint/step-4
}

# The average has the frozen parameters, too.
averages() {
    train run --with ema --set ema.save_to=average --set ckpt.enable=false &&
        grep -qa model.embed_tokens.weight average/model.safetensors &&
        grep -qa lm_head.weight average/model.safetensors
}

for what in wrong_patterns plans keeps resumes averages; do
    try $what $what
done
finish
