#!/bin/bash
# Preference pairs: the losses that PyTorch computed; a reference pass beside adapters equals stored log-probabilities; one rank's
# losses on every mesh; metrics, wherever they are shown.
set -euo pipefail
data=$2/tests/example/dpo
check_pairs=$(mktemp)
echo '1 2 3 ; 4 5 ; 6 7 8' >"$check_pairs"
check_options=(--set "dpo.path=$check_pairs")
. "$(dirname "$0")/installed.sh" "$1" "$2" dpo
rm "$check_pairs"

cat >recipe.ini <<INI
[plugins]
load = cpu, local, llama, dpo, adamw, metrics
[objective]
name = dpo
[dpo]
path = $data/pairs.txt
beta = 0.3
reference = stored
[model]
name = llama
init_from = $data
[training]
seq_len = 24
local_batch_size = 12
global_batch_size = 12
steps = 4
mixed_precision_param = float32
[adamw]
lr = 2e-4
beta2 = 0.95
eps = 1e-6
weight_decay = 0
[lr_scheduler]
warmup_steps = 0
decay_ratio = 0
[metrics]
log_freq = 1
peak_tflops = 1
INI

# All weights are trained; the reference is another model, whose log-probabilities are in the file.
train one --with tensorboard
close <(values one loss) <(cut -d ' ' -f 1 "$data/expected")
close <(values one grad_norm) <(cut -d ' ' -f 2 "$data/expected")
for mesh in '-n 4 --with fsdp --with tp --set tp.degree=2 --set training.local_batch_size=2' \
    '-n 2 --with cp --set cp.degree=2' '-n 2 --with pp --set pp.degree=2 --set pp.microbatch_size=2'; do
    read -ra arguments <<<"$mesh"
    rm -rf many
    train many "${arguments[@]}"
    close <(values many loss) <(cut -d ' ' -f 1 "$data/expected")
    values many accuracy | cmp - <(values one accuracy)
    echo "$mesh: the losses of PyTorch"
done

# One of the six pairs, then two, four and four are right.
close <(values one accuracy) <(printf '%s\n' 0.1666667 0.3333333 0.6666667 0.6666667)
grep -q 'reward_chosen: .* accuracy: 0.66667' one.log
"$ctitan" watch one >log
grep -q 'accuracy 0.66667' log || { cat log; exit 1; }
grep -q 'metrics/accuracy' one/tensorboard/events.*

# A second forward pass, with the weights without their adapters: those that the file own.txt was made from.
adapters=(--with lora --set adamw.lr=1e-2)
train stored "${adapters[@]}" --set "dpo.path=$data/own.txt"
values stored loss >expected
train pass "${adapters[@]}" --set dpo.reference=pass
close <(values pass loss) expected
close <(values pass loss | head -n 1) <(echo 0.69314718056)
for mesh in '-n 2 --with fsdp --set training.local_batch_size=6' '-n 2 --with tp --set tp.degree=2' \
    '-n 2 --with cp --set cp.degree=2' \
    '-n 4 --with fsdp --with pp --set pp.degree=2 --set pp.microbatch_size=2 --set training.local_batch_size=6'; do
    read -ra arguments <<<"$mesh"
    rm -rf many
    train many "${adapters[@]}" --set dpo.reference=pass "${arguments[@]}"
    close <(values many loss) expected
    echo "$mesh: a reference pass as on one rank"
done

# Its weights would move with those that are trained.
if "$ctitan" train recipe.ini --set dpo.reference=pass >log 2>&1; then exit 1; fi
grep -q 'the weights that the run began with, but .* is trained: train adapters' log || { cat log; exit 1; }
