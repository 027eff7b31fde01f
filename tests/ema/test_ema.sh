#!/bin/bash
# test_ema.sh CTITAN SAME_WEIGHTS CASE: averages of the weights are written in the layout of the model, by the
# run and from its checkpoint, go on after a resume, and are what validation reads.
source "$(dirname "$0")/../lib/test.sh"
set -euo pipefail
ctitan=$(realpath "$1") same=$(realpath "$2") data=$(realpath "$3")
enter

recipe +fsdp +tp +ckpt +ema training.seq_len=16 training.local_batch_size=4 training.mixed_precision_param=float32 \
    lr_scheduler.warmup_steps=0 validation.freq=4 validation.steps=1 -tokens.repeat tokens.validation_path="$data/tokens.bin" tp.degree=2 \
    ckpt.interval=2 ema.decay=0.5 ema.validate=true

# averaged NAME SETTING...: trains into NAME, with the averages in NAME/average. without NAME SETTING..: without the plugin.
averaged() {
    averaged_with - "$@"
}
averaged_with() { # PLUGINS NAME SETTING...
    local arguments
    arguments_of 4 "$1" "${@:3}" ema.save_to="$2/average" model.save_to="$2/weights"
    train_to "$2" "${arguments[@]}"
}
without() {
    local arguments
    arguments_of 4 -ema "${@:2}" model.save_to="$1/weights"
    train_to "$1" "${arguments[@]}"
}
validated() { values validation_loss "$1/metrics.jsonl" | tail -n 1; }
averages() { "$ctitan" ckpt show "$1/checkpoint/step-4" | grep -o 'ema\.[^ ]*' | sort; }
loss_of() { values loss "$1/metrics.jsonl" | tail -n 1; }

averaged last ema.decay=0
"$same" last/weights last/average
averaged whole
"$same" whole/weights last/weights
never "$same" whole/weights whole/average > /dev/null
"$ctitan" export whole exported --state ema. > /dev/null
"$same" whole/average exported
"$ctitan" export whole exported --state ema --force > /dev/null
"$same" whole/average exported
fails 2 'has no none\.' run export whole none --state none.
fails 2 '--state adamw: .*adamw\..* is no parameter; states that stand for parameters: adamw.m, adamw.v, ema$' run export whole none --state adamw

averaged plain ema.validate=false
[[ $(validated plain) == "$(validated last)" ]]
[[ $(validated plain) != "$(validated whole)" ]]

rm -rf whole/checkpoint/step-4 whole/average
averaged whole
grep -q 'step-2' whole.log
"$same" whole/average exported
# A parameter that is not trained has no average, and is in the folder as it is.
averaged_with freeze frozen ckpt.interval=4 'freeze.trains=*h.0.*'
[[ $(averages frozen) ]] && cmp <(averages frozen) <(averages whole | grep 'h\.0\.')
"$ctitan" export frozen of_frozen --state ema. > /dev/null
"$same" frozen/average of_frozen
# In bfloat16 the average, which is float32, is cast.
averaged bfloat16 training.dtype=bfloat16 ema.decay=0
averaged weights training.dtype=bfloat16 ema.validate=false
[[ $(validated bfloat16) == "$(validated weights)" ]]
averaged averages training.dtype=bfloat16
[[ $(validated bfloat16) != "$(validated averages)" ]]
# Transforms that move parameters, or try the training's graph, leave validation the averages.
averaged_with offload,sac moved training.dtype=bfloat16 sac.mode=budget cpu.offload_folder=.
echo "$(validated moved) $(validated averages) $(validated weights)" |
    awk '{ d = $1 - $2; if (d < 0) d = -d; e = $3 - $2; if (e < 0) e = -e; exit !(NF == 3 && 10 * d < e) }'

# A run that had no average gets one that begins as its weights, and keeps its moments. With a learning rate of 0 the average of
# the ninth step is half of these and half of the same.
without begun training.steps=8 validation.freq=0
cp -r begun still
cp -r begun more
without begun training.steps=10 validation.freq=0
averaged more training.steps=10 validation.freq=0
grep -q 'states ema\.\* are not loaded, and begin as the weights of' more.log
[[ $(loss_of begun) == "$(loss_of more)" ]]
averaged still training.steps=9 validation.freq=0 adamw.lr=0
"$same" still/average still/weights
# Without ema the run goes on with its moments; its averages are dropped.
cp -r more less
without less training.steps=12 validation.freq=0
grep -q 'ema\.[^ ]* of .*/step-10, and other states that follow parameters, are dropped' less.log
without begun training.steps=12 validation.freq=0
[[ $(loss_of less) == "$(loss_of begun)" ]]
never run export less none --state ema.
grep -q 'has no ema\.' log

# Each of the two folders has room on their disk, but not both.
size=$(du -sk whole/weights | cut -f 1)
if unshare -m true 2> /dev/null; then
    mkdir small
    # shellcheck disable=SC2016 # of the inner shell
    fails 2 'the weights need .* beside the .* of other folders, and the disk has room' unshare -m sh -c \
        'mount -t tmpfs -o size=$0k none small; exec timeout 60 "$@"' $((size * 3 / 2)) \
        "$ctitan" train recipe.ini -n 4 --set job.dump_folder=fresh --set ema.save_to=small/average --set model.save_to=small/weights \
        > log 2>&1 || fail "$(cat log)"
fi
