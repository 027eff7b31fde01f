#!/bin/bash
# test_generate.sh CTITAN BPE: a model that learned a simple text goes on with it, past its window; the same
# seed writes the same; a fine-tuned model uses the tokenizer of the folder it began with; and what is missing is said.
source "$(dirname "$0")/../lib/test.sh"
set -euo pipefail
ctitan=$(realpath "$1") bpe=$(realpath "$2")
enter

for _ in {1..200}; do printf 'the quick brown fox '; done > text
recipe -local -tokens -metrics +text +bytes model.flavor=debug model.save_to=model llama.dim=64 llama.n_layers=2 llama.n_heads=4 \
    llama.vocab_size=258 training.seq_len=32 training.local_batch_size=8 training.steps=80 training.mixed_precision_param=float32 \
    text.path=text bytes.add_bos=false bytes.add_eos=false adamw.lr=1e-2

status=0
"$ctitan" generate recipe.ini --prompt the > said 2>&1 || status=$?
[ $status = 2 ] || fail "exit $status without a model"
grep -q "train one with: ctitan train" said || fail "$(cat said)"

"$ctitan" train recipe.ini > /dev/null 2>&1 || fail "training"

write() {
    "$ctitan" generate recipe.ini "$@" 2> said || fail "$(cat said)"
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
write --prompt 'the quick' --prompt 'fox' --tokens 10 --greedy > two
printf '%s\n' "$(write --prompt 'the quick' --tokens 10 --greedy)" "$(write --prompt fox --tokens 10 --greedy)" |
    cmp - two || fail "two prompts: $(cat two)"
[ "$(write --prompt 'the quick' --tokens 70 --greedy --no-cache)" = "$want" ] || fail "without a cache"
"$ctitan" plugins > list
! grep -q '^offload ' list || [ "$(write --with offload --set cpu.offload_folder=. --prompt 'the quick' --tokens 70 --greedy)" = "$want" ] ||
    fail "with its parameters in host memory"

for bad in '--tokens x' '--top-p 0' '--top-p 1.5' '--prompt-ids 1,x' '--temperature -1' '--top-k' '--prompt' '--colour red' \
    '--greedy --temperature 0.5' '--temperature 0.5 --greedy' '--prompt-ids 1 --stop x' '--prompt-ids 1 --chat'; do
    status=0
    # shellcheck disable=SC2086
    "$ctitan" generate recipe.ini $bad > /dev/null 2>&1 || status=$?
    [ $status = 2 ] || fail "exit $status for $bad"
done
"$ctitan" generate recipe.ini --prompt fox --tokens 3 > /dev/null 2> said
! grep 'WARNING' said || fail "a warning"
write --prompt fox --tokens 3 --with flight_recorder > /dev/null
[ ! -e out/flight ] || fail "generating writes over the record of a training run"

status=0
"$ctitan" generate recipe.ini > /dev/null 2> said || status=$?
[ $status = 2 ] || fail "exit $status without a prompt"
grep -q 'prompt is missing' said || fail "$(cat said)"

# Texts end before a stop, wherever it begins in the tokens, and at the ids that the model's folder names.
ends() {
    want=$1
    shift
    got=$(write --prompt 'the quick' --tokens 30 --greedy "$@")
    [ "$got" = "$want" ] || fail "$*: '$got'"
}
ends 'the quick brown' --stop ' fox'
ends 'the quick br' --stop foxes --stop own --stop fox
ends 'the quick brown fox the quick brown fo' --stop foxes --tokens 29
echo '{"eos_token_id": null}' > model/generation_config.json
sed -i 's/"eos_token_id": 257/"eos_token_id": 119/' model/config.json
ends 'the quick bro'
echo '{"eos_token_id": [7, 120]}' > model/generation_config.json
ends 'the quick brown fo'
ends 'the quick brown' --stop ' fo'
ends 'the quick brown fox the quick brown fox' --ignore-eos
ends 'the quick br' --stop foxes --stop own --stop fox -n 2 --with local --with tp --set tp.degree=2
[ "$(write --prompt-ids 113,117,105 --tokens 30 --greedy)" = 99,107,32,98,114,111,119,110,32,102,111 ] || fail "ids do not end"
echo '{"eos_token_id": "x"}' > model/generation_config.json
status=0
"$ctitan" generate recipe.ini --prompt the > /dev/null 2> said || status=$?
[ $status = 2 ] || fail "exit $status for an end that is no id"
grep -q 'generation_config.json: eos_token_id: expected an id' said || fail "$(cat said)"

# A fine-tuning saves its model in a folder without a tokenizer: that of init_from is used, with either kind of weights.
mv recipe.ini bytes.ini
recipe -local -tokens -metrics +text +bpe +ckpt model.init_from=base model.save_to=tuned llama.dim=32 llama.n_layers=1 llama.n_heads=2 \
    llama.vocab_size=679 training.seq_len=16 training.local_batch_size=4 training.steps=60 training.mixed_precision_param=float32 \
    job.dump_folder=tune text.path=text adamw.lr=1e-2 lr_scheduler.warmup_steps=5 ckpt.interval=100
mv recipe.ini tune.ini
mv bytes.ini recipe.ini
"$ctitan" train tune.ini --set model.init_from= --set model.save_to=base --set bpe.path="$bpe" \
    --set job.dump_folder=first > log 2>&1 || fail "$(cat log)"
cp "$bpe"/tokenizer*.json base
"$ctitan" train tune.ini > log 2>&1 || fail "$(cat log)"
rm -f tuned/tokenizer*
tune() {
    "$ctitan" generate tune.ini --prompt fox --greedy --tokens 3 "$@" > wrote 2> said || fail "$(cat said)"
}
tune
grep -q "the weights in tune/checkpoint/step-60" said || fail "$(cat said)"
tune --without ckpt
grep -q "the weights in tuned" said || fail "$(cat said)"
tune --set model.init_from=base
grep -q "the weights in base" said || fail "$(cat said)"
grep -q 'trained in tune: ctitan generate tune$' said || fail "$(cat said)"
tune --set model.init_from=base --set model.save_to= --without ckpt
grep -q 'trained in tune: ctitan generate tune$' said || fail "a checkpoint: $(cat said)"
mv tune/checkpoint kept
tune --set model.init_from=base --set model.save_to=
! grep 'ctitan generate' said || fail "a run that has kept no weights"
mv kept tune/checkpoint

# A file that is missing is not blamed on the cache.
status=0
"$ctitan" generate tune.ini --set bpe.path=none > /dev/null 2> said || status=$?
[ $status = 2 ] || fail "exit $status without a tokenizer"
! grep cache said || fail "$(cat said)"

# The tokenizer's post-processor adds tokens around a prompt, as in transformers.
logits() {
    "$ctitan" generate tune.ini --tokens 0 --greedy --logits logits "$@" > /dev/null 2> said || fail "$(cat said)"
    cat logits
}
fox=$(printf fox | "$ctitan" tokenize --tokenizer base | paste -sd,)
[ "$(logits --prompt fox)" = "$(logits --prompt-ids "$fox")" ] || fail "a prompt is more than its text"
mkdir begun
sed 's/"post_processor":null/"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"b","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"special_tokens":{"b":{"id":"b","ids":[676],"tokens":["b"]}}}/' \
    "$bpe/tokenizer.json" > begun/tokenizer.json
[ "$(logits --prompt fox --set bpe.path=begun)" = "$(logits --prompt-ids "676,$fox")" ] || fail "a prompt is not begun"

# The tokenizer's end ends an answer, also where documents of the data do not get it.
ends_at() { # without the model's own end
    "$ctitan" generate tune.ini --prompt 'the quick brown' --tokens 9 --greedy --set bpe.add_eos=false "$@" 2> said || fail "$(cat said)"
}
got=$(ends_at --set bpe.eos_token=x)
[ "$got" = 'the quick brown fo' ] || fail "an end of the tokenizer: '$got'"
got=$(ends_at --set bpe.eos_token=x --ignore-eos)
case $got in 'the quick brown fox the'*) ;; *) fail "an ignored end of the tokenizer: '$got'" ;; esac

# A chat: turns in the format of the data or of the folder's template; answers end with their turn.
mkdir talks
sed 's/"content":"<|begin|>"/"content":"<|im_start|>"/; s/"content":"<|end|>"/"content":"<|im_end|>"/' "$bpe/tokenizer.json" > talks/tokenizer.json
for i in 1 2 3 4; do
    echo '{"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "Hi you."}, {"role": "user", "content": "bye"}, {"role": "assistant", "content": "See you."}]}'
done > talks.jsonl
talks() {
    verb=$1
    shift
    "$ctitan" "$verb" tune.ini --without ckpt --set training.seq_len=64 --set bpe.path=talks --set text.path=talks.jsonl \
        --set text.document_mask=true --set job.dump_folder=talk --set model.save_to=talked "$@"
}
talks train --set text.format=chat > log 2>&1 || fail "$(cat log)"
got=$(printf 'hello\n\nbye\n' | talks generate --set text.format=chat --chat --greedy 2> said) || fail "$(cat said)"
[ "$got" = 'Hi you.
See you.' ] || fail "talking: '$got'"
got=$(printf 'hello\n\nbye\n' | talks generate --set text.format=chat --chat --greedy -n 2 --with local --with tp --set tp.degree=2 2> said) || fail "$(cat said)"
[ "$got" = 'Hi you.
See you.' ] || fail "ranks talking: '$got'"
got=$(talks generate --set text.format=chat --chat --greedy --prompt hello --prompt hello 2> said) || fail "$(cat said)"
[ "$got" = 'Hi you.
Hi you.' ] || fail "two conversations: '$got'"
# The data verb shows labels, documents and padding, and counts faults.
shows() { talks data --set text.format=chat --set text.template=chatml "$@" > wrote 2> said; }
shows || fail "$(cat said)"
grep -q '^<|im_start|>assistant$' wrote || fail "$(cat wrote)"
grep -qF '<<Hi you.<|im_end|>>>' wrote || fail "$(cat wrote)"
grep -q '^-- document 0: tokens 0 to [0-9]*, positions 0 to [0-9]*, [0-9]* labels$' wrote || fail "$(cat wrote)"
grep -q '^-- padding: [0-9]* tokens$' wrote || fail "$(cat wrote)"
shows --check || fail "$(cat said)"
grep -q '^1000 samples of 64 tokens, 1000 documents, ' wrote || fail "$(cat wrote)"
status=0
shows --check --samples 5 --set training.seq_len=4 || status=$?
[ $status = 1 ] || fail "exit $status for data whose prompts fill their rows"
grep -q '^ *5 documents fill a row without a label' wrote || fail "$(cat wrote)"
grep -q 'the data has 5 faults' said || fail "$(cat said)"
status=0
shows --check --samples 5 --set training.seq_len=4 --set text.document_mask=false || status=$?
[ $status = 1 ] || fail "exit $status for rows without a label"
grep -q '^ *5 documents have no label' wrote || fail "$(cat wrote)"
echo '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": ""}]}' > mute.jsonl
status=0
shows --check --samples 5 --set text.path=mute.jsonl || status=$?
[ $status = 1 ] || fail "exit $status for answers that are empty"
grep -q '^ *[1-9][0-9]* documents have an empty answer' wrote || fail "$(cat wrote)"
# An answer that goes on from the row before is not empty.
end=$(grep -o '"id": *[0-9]*,"content":"<|im_end|>"' talks/tokenizer.json | grep -o '[0-9]*' | head -n 1)
echo "{\"ids\": [5, 6, 7, 8, 9, $end, 10, 10, 10], \"labels\": [-100, -100, -100, 8, 9, $end, -100, -100, -100]}" > tail.jsonl
shows --check --samples 2 --set text.path=tail.jsonl --set text.format=ids --set text.template=auto --set text.packing=concat \
    --set text.shuffle=false --set training.seq_len=4 || fail "$(cat wrote said)"
grep -q '^ *0 documents have an empty answer' wrote || fail "$(cat wrote)"
status=0
shows --sample 2 --set text.repeat=false --set text.path=talks.jsonl --set training.seq_len=4096 || status=$?
[ $status = 2 ] || fail "exit $status for a sample that is not there"
no_chat() {
    status=0
    talks generate --chat --prompt hello > wrote 2> said || status=$?
    [ $status = 2 ] || fail "exit $status without a format"
    grep -q "$1" said || fail "$(cat said)"
}
rm -f talked/chat_template.jinja
no_chat 'folder no chat template'
echo '[INST] {{ text }} [/INST]' > base/chat_template.jinja
no_chat 'does not write what user and assistant say'
cat > base/chat_template.jinja <<'END'
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' + message.content | trim + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
END
got=$(printf 'hello\n\nbye\n' | talks generate --chat --greedy 2> said) || fail "$(cat said)"
[ "$got" = 'Hi you.
See you.' ] || fail "talking by the folder's template: '$got'"
[ "$(talks generate --chat --greedy --prompt hello 2> said)" = 'Hi you.' ] || fail "the folder's format: $(cat said)"

# The recipes for fine-tuning, on that folder.
recipes=$(realpath "$here/../../recipes")
mkdir -p fine/models
cp -r base fine/models/base
rm fine/models/base/tokenizer_config.json
cp talks/tokenizer.json fine/models/base
for i in 1 2 3 4 5 6 7 8 9 10; do cat talks.jsonl; done > fine/chat.jsonl
for i in 1 2; do echo '{"prompt": "hello", "chosen": "Hi you.", "rejected": "no"}'; done > fine/pairs.jsonl
fine() { # from the folder in which a user has models/ and the data
    (cd fine && "$ctitan" "$@" --set training.seq_len=64 --set training.steps=3 --set training.mixed_precision_param=float32 \
        --set training.global_batch_size=2 --set lr_scheduler.warmup_steps=1 > ../wrote 2> ../said)
}
fine data "$recipes/finetune_distill.ini" --teacher models/base --output teacher.top --samples 20 || fail "finetune_distill: $(cat said)"
for name in full lora qlora distill dpo; do
    fine train "$recipes/finetune_$name.ini" || fail "finetune_$name: $(cat said)"
    grep -q '"step": 3,' "fine/outputs/finetune_$name/metrics.jsonl" || fail "finetune_$name: $(cat said)"
done
grep -q 'reward_chosen: ' said || fail "$(cat said)"
fine data "$recipes/finetune_lora.ini" --check || fail "$(cat wrote said)"
fine generate "$recipes/finetune_full.ini" --chat --prompt hello --tokens 9 || fail "$(cat said)"

# Folders in the place of a recipe: of a run, wherever it is now, and of a model.
mv tune moved
want=$("$ctitan" generate tune.ini --set job.dump_folder=moved --prompt 'the quick' --tokens 9 --greedy 2> said) || fail "$(cat said)"
got=$("$ctitan" generate moved --prompt 'the quick' --tokens 9 --greedy 2> said) || fail "$(cat said)"
grep -q "the weights in moved/checkpoint/step-60" said || fail "$(cat said)"
[ "$got" = "$want" ] || fail "a run's folder: '$got'"
cp "$bpe"/tokenizer*.json tuned
want=$("$ctitan" generate tune.ini --without ckpt --prompt 'the quick' --tokens 9 --greedy 2> said) || fail "$(cat said)"
got=$("$ctitan" generate tuned --prompt 'the quick' --tokens 9 --greedy 2> said) || fail "$(cat said)"
[ "$got" = "$want" ] || fail "a model's folder: '$got'"
not_a_recipe() {
    status=0
    "$ctitan" generate "$1" --prompt x > /dev/null 2> said || status=$?
    [ $status = 2 ] || fail "exit $status for $1"
    grep -q "$2" said || fail "$(cat said)"
}
not_a_recipe talks 'neither of a run'
sed 's/"model_type": *"llama"/"model_type": "lama"/' tuned/config.json > talks/config.json
not_a_recipe talks 'model_type = lama: there is no plugin'
