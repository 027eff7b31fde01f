#!/bin/sh
# test_ema.sh CTITAN SAME_WEIGHTS CASE: averages of the weights are written in the layout of the model, by the
# run and from its checkpoint, go on after a resume, and are what validation reads.
set -eu

ctitan=$1 same=$2 data=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
model=$(sed -n 's/.*"model": *"\(.*\)".*/\1/p' "$data/case.json")
cat > "$work/recipe.ini" <<END
[plugins]
load = cpu, local, $model, tokens, adamw, fsdp, tp, ckpt, ema, metrics
[model]
name = $model
init_from = $data/hf
[training]
seq_len = 16
local_batch_size = 4
steps = 4
mixed_precision_param = float32
[lr_scheduler]
warmup_steps = 0
[validation]
freq = 4
steps = 1
[tokens]
path = $data/tokens.bin
validation_path = $data/tokens.bin
[tp]
degree = 2
[ckpt]
interval = 2
[ema]
decay = 0.5
validate = true
END

# run NAME SETTING...: trains into $work/NAME; with --without ema as settings, without it.
run() {
    name=$1
    shift
    average="--set ema.save_to=$work/$name/average"
    for setting; do
        shift
        case $setting in
        --without) average=--without ;;
        ema) average="--without ema" ;;
        *) set -- "$@" --set "$setting" ;;
        esac
    done
    # shellcheck disable=SC2086
    "$ctitan" train "$work/recipe.ini" -n 4 --set job.dump_folder="$work/$name" --set model.save_to="$work/$name/weights" $average "$@" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
}
validated() { sed -n 's/.*"validation_loss": *\([^,}]*\).*/\1/p' "$work/$1/metrics.jsonl" | tail -1; }

run last ema.decay=0
"$same" "$work/last/weights" "$work/last/average"
run whole
"$same" "$work/whole/weights" "$work/last/weights"
! "$same" "$work/whole/weights" "$work/whole/average" > /dev/null
"$ctitan" export "$work/whole" "$work/exported" --state ema. > /dev/null
"$same" "$work/whole/average" "$work/exported"
"$ctitan" export "$work/whole" "$work/none" --state none. 2>&1 | grep -q 'has no none\.'

run plain ema.validate=false
[ "$(validated plain)" = "$(validated last)" ]
[ "$(validated plain)" != "$(validated whole)" ]

rm -rf "$work/whole/checkpoint/step-4" "$work/whole/average"
run whole
grep -q 'step-2' "$work/log"
"$same" "$work/whole/average" "$work/exported"
# In bfloat16 the average, which is float32, is cast.
run bfloat16 training.dtype=bfloat16 ema.decay=0
run weights training.dtype=bfloat16 ema.validate=false
[ "$(validated bfloat16)" = "$(validated weights)" ]
run averages training.dtype=bfloat16
[ "$(validated bfloat16)" != "$(validated averages)" ]

# A run that had no average gets one that begins as its weights, and keeps its moments. With a learning rate of 0 the average of
# the ninth step is half of these and half of the same.
losses() { sed -n 's/.*"loss": *\([^,]*\),.*/\1/p' "$work/$1/metrics.jsonl" | tail -1; }
run begun training.steps=8 validation.freq=0 --without ema
cp -r "$work/begun" "$work/still"
cp -r "$work/begun" "$work/more"
run begun training.steps=10 validation.freq=0 --without ema
run more training.steps=10 validation.freq=0
grep -q 'states ema\.\* are not loaded, and begin as the weights of' "$work/log"
[ "$(losses begun)" = "$(losses more)" ]
run still training.steps=9 validation.freq=0 adamw.lr=0
"$same" "$work/still/average" "$work/still/weights"
# Without ema the run goes on with its moments; its averages are dropped.
cp -r "$work/more" "$work/less"
run less training.steps=12 validation.freq=0 --without ema
grep -q 'ema\.[^ ]* of .*/step-10, and other states that follow parameters, are dropped' "$work/log"
run begun training.steps=12 validation.freq=0 --without ema
[ "$(losses less)" = "$(losses begun)" ]
! "$ctitan" export "$work/less" "$work/none" --state ema. > "$work/log" 2>&1 || exit 1
grep -q 'has no ema\.' "$work/log"
echo "averages of $model"
