#!/bin/sh
# test_generate.sh CTITAN BPE: a model that learned a simple text goes on with it, past its window; the same
# seed writes the same; a fine-tuned model uses the tokenizer of the folder it began with; and what is missing is said.
set -eu

ctitan=$1
bpe=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "FAILED: $*"
    exit 1
}

i=0
while [ $i -lt 200 ]; do
    printf 'the quick brown fox '
    i=$((i + 1))
done > "$work/text"
cat > "$work/recipe.ini" <<END
[job]
dump_folder = $work/out
[plugins]
load = cpu, llama, text, bytes, adamw
[model]
name = llama
flavor = debug
save_to = $work/model
[llama]
dim = 64
n_layers = 2
n_heads = 4
vocab_size = 258
[training]
seq_len = 32
local_batch_size = 8
steps = 80
mixed_precision_param = float32
[text]
path = $work/text
[bytes]
add_bos = false
add_eos = false
[adamw]
lr = 1e-2
END

status=0
"$ctitan" generate "$work/recipe.ini" --prompt the > "$work/said" 2>&1 || status=$?
[ $status = 2 ] || fail "exit $status without a model"
grep -q "train one with: ctitan train" "$work/said" || fail "$(cat "$work/said")"

"$ctitan" train "$work/recipe.ini" > /dev/null 2>&1 || fail "training"

write() {
    "$ctitan" generate "$work/recipe.ini" "$@" 2> "$work/said" || fail "$(cat "$work/said")"
}

got=$(write --prompt 'the quick' --tokens 70 --temperature 0)
want='the quick brown fox the quick brown fox the quick brown fox the quick brown fox'
[ "$got" = "$want" ] || fail "greedy: '$got'"

one=$(write --prompt fox --tokens 20 --temperature 3 --seed 5)
two=$(write --prompt fox --tokens 20 --temperature 3 --seed 5)
three=$(write --prompt fox --tokens 20 --temperature 3 --seed 6)
[ "$one" = "$two" ] || fail "one seed wrote '$one' and '$two'"
[ "$one" != "$three" ] || fail "two seeds wrote '$one'"
[ "$(write --prompt fox --tokens 9 --temperature 3 --top-k 1)" = "$(write --prompt fox --tokens 9 --temperature 0)" ] ||
    fail "top-k 1 is not greedy"

[ "$(write --prompt fox --tokens 9 --temperature 3 --top-p 1e-9)" = "$(write --prompt fox --tokens 9 --greedy)" ] ||
    fail "a small top-p is not greedy"
write --prompt 'the quick' --prompt 'fox' --tokens 10 --greedy > "$work/two"
printf '%s\n' "$(write --prompt 'the quick' --tokens 10 --greedy)" "$(write --prompt fox --tokens 10 --greedy)" |
    cmp - "$work/two" || fail "two prompts: $(cat "$work/two")"
[ "$(write --prompt 'the quick' --tokens 70 --greedy --no-cache)" = "$want" ] || fail "without a cache"
! "$ctitan" plugins | grep -q '^offload ' || [ "$(write --with offload --set cpu.offload_folder="$work" --prompt 'the quick' --tokens 70 --greedy)" = "$want" ] ||
    fail "with its parameters in host memory"

for bad in '--tokens x' '--top-p 0' '--top-p 1.5' '--prompt-ids 1,x' '--temperature -1' '--top-k' '--prompt' '--colour red' \
    '--greedy --temperature 0.5' '--temperature 0.5 --greedy'; do
    status=0
    # shellcheck disable=SC2086
    "$ctitan" generate "$work/recipe.ini" $bad > /dev/null 2>&1 || status=$?
    [ $status = 2 ] || fail "exit $status for $bad"
done
"$ctitan" generate "$work/recipe.ini" --prompt fox --tokens 3 > /dev/null 2> "$work/said"
! grep 'WARNING' "$work/said" || fail "a warning"
write --prompt fox --tokens 3 --with flight_recorder > /dev/null
[ ! -e "$work/out/flight" ] || fail "generating writes over the record of a training run"

status=0
"$ctitan" generate "$work/recipe.ini" > /dev/null 2> "$work/said" || status=$?
[ $status = 2 ] || fail "exit $status without a prompt"
grep -q 'prompt is missing' "$work/said" || fail "$(cat "$work/said")"

# A fine-tuning saves its model in a folder without a tokenizer: that of init_from is used, with either kind of weights.
cat > "$work/tune.ini" <<END
[job]
dump_folder = $work/tune
[plugins]
load = cpu, llama, text, bpe, adamw, ckpt
[model]
name = llama
init_from = $work/base
save_to = $work/tuned
[llama]
dim = 32
n_layers = 1
n_heads = 2
vocab_size = 679
[training]
seq_len = 16
local_batch_size = 1
steps = 1
[text]
path = $work/text
END
"$ctitan" train "$work/tune.ini" --set model.init_from= --set model.save_to="$work/base" --set bpe.path="$bpe" \
    --set job.dump_folder="$work/first" > "$work/log" 2>&1 || fail "$(cat "$work/log")"
cp "$bpe"/tokenizer*.json "$work/base"
"$ctitan" train "$work/tune.ini" > "$work/log" 2>&1 || fail "$(cat "$work/log")"
rm -f "$work"/tuned/tokenizer*
tune() {
    "$ctitan" generate "$work/tune.ini" --prompt fox --greedy --tokens 3 "$@" > "$work/wrote" 2> "$work/said" || fail "$(cat "$work/said")"
}
tune
grep -q "the weights in $work/tune/checkpoint/step-1" "$work/said" || fail "$(cat "$work/said")"
tune --without ckpt
grep -q "the weights in $work/tuned" "$work/said" || fail "$(cat "$work/said")"

# A file that is missing is not blamed on the cache.
status=0
"$ctitan" generate "$work/tune.ini" --set bpe.path="$work/none" > /dev/null 2> "$work/said" || status=$?
[ $status = 2 ] || fail "exit $status without a tokenizer"
! grep cache "$work/said" || fail "$(cat "$work/said")"
