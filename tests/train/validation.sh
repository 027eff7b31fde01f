#!/bin/bash
# validation.sh CTITAN DATA: several sets of validation, the patience of a run, and the checkpoint of the best step.
source "$(dirname "$0")/../lib/test.sh"
ctitan=$(realpath "$1") data=$(realpath "$2")
enter

# The same four samples again and again: their loss falls, and that of other text first falls, then rises.
head -c $((4 * (4 * 32 + 1))) "$data/tokens.bin" >trained.bin
head -c $((4 * (4 * 32 + 1))) /dev/zero >zeros.bin
tail -c $((4 * (8 * 32 + 1))) "$data/tokens.bin" >other.bin
recipe +ckpt tokens.path=trained.bin training.seq_len=32 training.local_batch_size=4 training.steps=60 training.seed=3 adamw.lr=1e-3 training.mixed_precision_param=float32 \
    lr_scheduler.warmup_steps=0 lr_scheduler.decay_ratio=0 metrics.log_freq=1 validation.freq=2 validation.steps=2 \
    ckpt.keep_best=true ckpt.interval=1000 ckpt.keep_latest_k=2
cat >>recipe.ini <<END
[validation.other]
path = other.bin
[validation.zeros]
path = zeros.bin
END

# losses SET FILE: its steps and losses.
losses() { grep "\"validation_set\": \"$1\"" "$2" | values step validation_loss /dev/stdin; }

train --set validation.patience=3 --with tensorboard
tell 'a run with two sets of validation and patience'
losses other out/metrics.jsonl >found
best=$(sort -gk 2 found | head -n 1 | cut -d ' ' -f 1) last=$(tail -n 1 found | cut -d ' ' -f 1)
check 'the run ends three validations after the best loss' "$last == $best + 6 && $last < 60 && $best > 2"
grep -q "validation loss was best after step $best, .*patience" log
tell 'the end is told'
[[ -d out/checkpoint/step-$best && -d out/checkpoint/step-$last && $(find out/checkpoint -name 'step-*' | wc -l) -le 3 ]]
tell 'the checkpoint of the best step is there, beside the latest'
grep -q "best validation loss was .*, after step $best: .*step-$best has these weights" log
tell 'its folder is told'

# The best weights, loaded, have the loss of their validation.
run train recipe.ini --set job.dump_folder=again --set "ckpt.initial_load_path=out/checkpoint/step-$best" --set adamw.lr=0 \
    --set validation.freq=1 --set training.steps=1 --set adamw.weight_decay=0
losses other again/metrics.jsonl >got
awk -v best="$best" '$1 == best { print 1, $2 }' found >want
near got want 1e-6
tell 'the weights of the best step have its loss'

# Started again, the run that had no patience left ends at once.
cp out/metrics.jsonl before
train --set validation.patience=3 && cmp before out/metrics.jsonl && grep -q 'patience' log
tell 'a run whose patience has ended trains no further step'
for interval in 1 2; do
    often=(--set job.dump_folder=often --set ckpt.interval=$interval --set validation.patience=3)
    rm -rf often
    train "${often[@]}" && cp often/metrics.jsonl before && train "${often[@]}" && cmp before often/metrics.jsonl && grep -q 'patience' log
    tell "nor where a checkpoint is due after a validation, every $interval steps"
done

# Interrupted and resumed on another mesh: the same end.
run train recipe.ini --set job.dump_folder=on --set validation.patience=3 --set "training.steps=$((best + 2))" -n 2 --with fsdp --set training.local_batch_size=2
run train recipe.ini --set job.dump_folder=on --set validation.patience=3 -n 2 --with tp --set tp.degree=2
losses other on/metrics.jsonl >got
near got found 1e-4 && [[ $(tail -n 1 got | cut -d ' ' -f 1) == "$last" ]]
tell 'interrupted and resumed on another mesh, it ends after the same step'

run watch out
grep -q 'validation other loss' log && grep -q 'validation zeros loss' log
tell 'watch has both sets'
grep -q 'validation_metrics/other/loss' out/tensorboard/events.*
tell 'TensorBoard has both sets'
run report out --out report.html && grep -q 'out, validation other' report.html
tell 'the report has both sets'
run compare out on && grep -qE 'validation other +[0-9.]+ after step' log
tell 'compare has both sets'

fails 2 '\[validation\] best_set = othr: there is no section \[validation.othr\]' train --set validation.best_set=othr
tell 'an unknown best_set is refused'
fails 2 '\[validation.zeros\] path: .*absent' train --set validation.zeros.path=absent
tell 'the set whose file is absent is named'
fails 2 'validation.b d\]: expected a name' train --set 'validation.b d.path=x'
tell 'a name with a space is refused'
fails 2 '\[validation.other\] has no effect, as \[validation\] freq is 0' train --set validation.freq=0 --set ckpt.keep_best=false
tell 'sets that nothing validates are refused'
fails 2 '\[validation\] min_delta has no effect' train --set validation.freq=0 --set ckpt.keep_best=false --set validation.min_delta=1 --unset validation.zeros --unset validation.other
tell 'a difference that nothing has is refused'
finish
