#!/bin/bash
# packing.sh CTITAN SOURCE: training on whole documents in rows. Losses and gradient norms that PyTorch computed with documents masked
# from each other, on one rank and on meshes; a run that goes on on another mesh reads the same rows.
source "$(dirname "$0")/../lib/test.sh"
set -euo pipefail
ctitan=$(realpath "$1") data=$(realpath "$2")/tests/text/packing
enter

recipe -tokens +text +bytes model.init_from="$data" text.path="$data/lines.jsonl" text.format=ids text.packing=first_fit text.shuffle=false \
    text.cache=none training.seq_len=256 training.local_batch_size=4 training.global_batch_size=4 training.mixed_precision_param=float32 \
    adamw.lr=2e-3 adamw.beta2=0.95 adamw.eps=1e-6 adamw.weight_decay=0.1 lr_scheduler.warmup_steps=2

# check FOLDER FIRST: losses and gradient norms from step FIRST on, within 1e-5.
check() {
    values loss grad_norm "$1/metrics.jsonl" >got
    tail -n "+$2" "$data/expected" >want
    near got want 1e-5 && (($(wc -l <got) > 1)) || fail "$1 is not equal within 1e-5"
}

train_to one
check one 1
grep -q '40 documents in 16 rows of 256 tokens, .*% full; longer than a row: 0 cut, 0 split, 0 dropped' one.log || fail "$(cat one.log)"

# An epoch of 16 rows is 4 steps; what is less than a step is left out.
train_to epoch --unset training.steps --set training.epochs=1
check epoch 1
[[ $(wc -l <got) == 4 ]] || fail "an epoch has $(wc -l <got) steps"
"$ctitan" plan epoch/recipe.ini >log 2>&1 || fail "the recipe of a run of epochs: $(cat log)"
grep -q '  steps  *those of 1 epochs; a run counts them' log || fail "$(cat log)"
train_to epochs --unset training.steps --set training.epochs=2 --set training.local_batch_size=5 --set training.global_batch_size=5
grep -q 'epochs = 2, of 16 samples each: 6 steps of 5' epochs.log || fail "$(cat epochs.log)"
[[ $(wc -l <epochs/metrics.jsonl) == 6 ]] || fail 'two epochs are not 6 steps'
# Goes on for as many samples as are left, in steps of another size: 16 are read of 48, and 32 make 10 steps of 3 (and a rest).
longer=(--with ckpt --unset training.steps --set ckpt.interval=2 --set job.dump_folder=longer)
"$ctitan" train recipe.ini "${longer[@]}" --set training.epochs=1 >log 2>&1 || fail "$(cat log)"
"$ctitan" train recipe.ini "${longer[@]}" --set training.epochs=3 --set training.local_batch_size=3 --set training.global_batch_size=3 >log 2>&1 ||
    fail "$(cat log)"
grep -q 'epochs = 3, of 16 samples each, of which 16 are read: 10 more steps of 3, to step 14' log || fail "$(cat log)"
[[ $(values step longer/metrics.jsonl | tail -n 1) == 14 ]] || fail 'three epochs end elsewhere'
if "$ctitan" train recipe.ini --unset training.steps --set training.epochs=1 --set training.global_batch_size=20 >log 2>&1; then fail 'no step is no error'; fi
grep -q 'epochs = 1: 16 samples an epoch are less than one step of 20' log || fail "$(cat log)"
for mesh in '-n 2 --with fsdp --set training.local_batch_size=2' '-n 2 --with fsdp --set training.local_batch_size=1 --set text.balance=false' '-n 2 --with tp --set tp.degree=2' '-n 2 --with cp --set cp.degree=2 --set cp.pairs=4' \
    '-n 2 --with cp --set cp.degree=2 --set cp.method=allgather --set cp.pairs=8' '-n 2 --with pp --set pp.degree=2 --set pp.microbatch_size=1'; do
    read -ra arguments <<<"$mesh"
    rm -rf many
    train_to many "${arguments[@]}"
    check many 1
    echo "$mesh: the losses of PyTorch"
done

# Pairs of tokens within documents, as an independent count has them: 2 steps of 4 ranks, 2 microbatches and 1 row each.
run data recipe.ini --world 4 --with fsdp --set training.local_batch_size=1 --set training.global_batch_size=8 || fail "$(cat log)"
tail -n 2 log | diff - <(echo '  in order: the busiest rank has 1.184, those of each microbatch together 1.468'
    echo '  balanced: the busiest rank has 1.077, those of each microbatch together 1.189') || fail 'the work of ranks'
if run data recipe.ini --world 2 --with fsdp --set text.balance=false --set training.local_batch_size=2; then fail 'work that nobody tells is shown'; fi
grep -q 'does not tell the work of its samples' log || fail "$(cat log)"
echo 'work of ranks'

# Ids are judged by the model's vocabulary, of 211 here and more in the flavor, not by that of the tokenizer, 258.
echo '{"ids": [1, 230]}' >between.jsonl
echo '{"ids": [1, 300]}' >beyond.jsonl
if run data recipe.ini --set text.path=between.jsonl; then fail 'a token that the model lacks is shown'; fi
grep -q 'is no token of the vocabulary of 211' log || fail "$(cat log)"
run data recipe.ini --set text.path=beyond.jsonl --set model.init_from= --set model.flavor=debug || fail "$(cat log)"
# The model of the folder counts, whether the recipe lists it or not; without one there is the tokenizer alone.
if run data recipe.ini --set text.path=beyond.jsonl --without llama; then fail 'a token that the folder lacks is shown'; fi
grep -q 'is no token of the vocabulary of 211' log || fail "$(cat log)"
if run data recipe.ini --set text.path=beyond.jsonl --without llama --set model.init_from=; then fail 'a token that nothing has is shown'; fi
grep -q 'is no token of the vocabulary of 258' log || fail "$(cat log)"
echo 'ids as the model has them'

checkpoints=(--with ckpt --set ckpt.interval=2)
train_to on -n 2 --with fsdp --set training.local_batch_size=2 "${checkpoints[@]}" --set training.steps=2 --set lr_scheduler.total_steps=4
rm on/metrics.jsonl
train_to on -n 2 --with cp --set cp.degree=2 "${checkpoints[@]}"
check on 3
echo 'gone on on another mesh'

# The same lines from standard input, from a pipe and from a process: one of two ranks reads them, and both train.
sed -i -e "s|^cache = .*|cache = $work/tokens|" -e '/^path = /d' recipe.ini
export LINES_FILE=$data/lines.jsonl
both=(-n 2 --with fsdp --set training.local_batch_size=2)
cat "$LINES_FILE" | train_to standard "${both[@]}" --set text.path=- --set text.command_key=lines
train_to pipe "${both[@]}" --set text.path=/dev/fd/7 --set text.command_key=lines 7< <(cat "$LINES_FILE")
train_to process "${both[@]}" --set text.command='echo >>runs; cat "$LINES_FILE"'
for folder in standard pipe process; do check $folder 1; done
[[ $(wc -l <runs) == 1 ]] || fail 'the command ran more than once'
fails='head -n 9 "$LINES_FILE"; echo no more lines >&2; exit 4'
if "$ctitan" train recipe.ini "${both[@]}" --set text.command="$fails" >log 2>&1; then fail 'a failure is no error'; fi
grep -q 'it failed with status 4; its last line: no more lines' log || fail "$(cat log)"
[[ $(find tokens -type f | wc -l) == 3 ]] || fail 'a half of the lines is in the cache'
echo 'read once'
