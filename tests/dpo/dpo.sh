#!/bin/bash
# dpo.sh CTITAN SOURCE [all]: preference pairs. Losses and gradient norms that PyTorch computed, for each loss; a reference pass beside
# adapters equals stored log-probabilities; one rank's losses on meshes (all: every loss on every mesh); metrics, wherever they are shown;
# texts as pairs.
source "$(dirname "$0")/../lib/test.sh"
set -euo pipefail
ctitan=$(realpath "$1") data=$(realpath "$2")/tests/dpo/case all=${3-}
enter

# wanted NAME: names that begin with "+" are for "all".
wanted() { [[ $1 != +* || $all ]]; }

recipe -tokens +dpo objective.name=dpo dpo.path="$data/pairs.jsonl" dpo.beta=0.3 dpo.reference=stored model.init_from="$data" \
    training.seq_len=24 training.local_batch_size=12 training.global_batch_size=12 training.mixed_precision_param=float32 adamw.lr=2e-4 \
    adamw.beta2=0.95 adamw.eps=1e-6 adamw.weight_decay=0 lr_scheduler.warmup_steps=0 lr_scheduler.decay_ratio=0

# train FOLDER ARGUMENT...: as train_to, into a new folder.
train() {
    rm -rf "$1"
    train_to "$@"
}

# of FOLDER VALUE: the digits of a value of each step, as metrics wrote them.
of() { values "$2" "$1/metrics.jsonl"; }

# refused WORDS ARGUMENT...
refused() {
    local words=$1 status=0
    shift
    run train recipe.ini "$@" || status=$?
    [[ $status == 2 ]] && grep -qF -- "$words" log || fail "exit $status: $(cat log)"
}

# as_pytorch FOLDER LOSS: the losses and norms of PyTorch.
as_pytorch() {
    near <(of "$1" loss) <(cut -d ' ' -f 1 "$data/$2.expected") 1e-5
    near <(of "$1" grad_norm) <(cut -d ' ' -f 2 "$data/$2.expected") 1e-5
}

# All weights are trained; the reference is another model, whose log-probabilities are in the file.
losses=('dpo' 'dpo_smoothed --set dpo.label_smoothing=0.1' 'robust --set dpo.loss=robust --set dpo.label_smoothing=0.1'
    'ipo --set dpo.loss=ipo --set dpo.beta=0.2' 'ipo_sum --set dpo.loss=ipo_sum --set dpo.beta=0.2' 'hinge --set dpo.loss=hinge')
for loss in "${losses[@]}"; do
    read -ra arguments <<<"$loss"
    train "${arguments[0]}" --with tensorboard "${arguments[@]:1}"
    as_pytorch "${arguments[0]}" "${arguments[0]}"
    echo "$loss: the losses and norms of PyTorch"
done
# The formula, with the log-probabilities that PyTorch computed.
train simpo --set dpo.loss=simpo --set dpo.beta=2 --set dpo.reference=pass
near <(of simpo loss | head -n 1) <(echo 1.1004029896) 1e-5

# Answers without pairs, and odds; with reference log-probabilities in the file.
kto=(--set dpo.loss=kto --set "dpo.path=$data/kto.jsonl")
train kto "${kto[@]}" --set dpo.validation_path="$data/kto.jsonl" --set validation.freq=4 --set validation.steps=1
train kto_weights "${kto[@]}" --set dpo.desirable_weight=1.5 --set dpo.undesirable_weight=0.5
train orpo --set dpo.loss=orpo --set dpo.reference=pass
for loss in kto kto_weights orpo; do
    as_pytorch $loss $loss
    echo "$loss: the losses and norms of PyTorch"
done
near <(of kto divergence | head -n 4) <(printf '%s\n' 0.766688347 0.785520554 0.804749788 0.821959198) 1e-5
# After the last step, all answers are validated: the loss that a fifth step begins with.
train fifth "${kto[@]}" --set training.steps=5
near <(of kto validation_loss) <(of fifth loss | tail -n 1) 1e-5

# on_meshes COMPARE LINE..: trains with each loss of a line, "LOSS,LOSS ARGUMENT..", and calls COMPARE with the loss.
on_meshes() {
    local compare=$1 line losses mesh loss arguments
    for line in "${@:2}"; do
        read -r losses mesh <<<"$line"
        for loss in ${losses//,/ }; do
            wanted "$loss" || continue
            loss=${loss#+}
            read -ra arguments <<<"$mesh --set dpo.loss=$loss"
            [[ $loss != kto ]] || arguments+=("${kto[@]}")
            [[ $loss != ipo ]] || arguments+=(--set dpo.beta=0.2)
            [[ $loss != orpo ]] || arguments+=(--set dpo.reference=pass)
            train many "${arguments[@]}"
            "$compare" "$loss"
            echo "$mesh: $loss as PyTorch"
        done
    done
}

# Losses, and a mesh.
norms_are_equal() { as_pytorch many "$1"; }
on_meshes norms_are_equal 'kto,+orpo -n 4 --with fsdp --with tp --set tp.degree=2 --set training.local_batch_size=6' \
    '+kto,orpo -n 2 --with cp --set cp.degree=2' 'kto,+orpo -n 2 --with pp --set pp.degree=2 --set pp.microbatch_size=12'
train many -n 2 --with pp --set pp.degree=2 --set pp.microbatch_size=2 --set dpo.loss=orpo --set dpo.reference=pass
near <(of many loss) <(cut -d ' ' -f 1 "$data/orpo.expected") 1e-5
refused '[dpo] divergence = microbatch' "${kto[@]}" --set training.local_batch_size=4
refused 'the stage from step 3 on: [dpo] loss = kto: its divergence' "${kto[@]}" --set stage.2.begin=3 --set stage.2.local_batch_size=4
train many "${kto[@]}" --set training.local_batch_size=4 --set dpo.divergence=microbatch
refused 'pairs.jsonl:1: "label": expected true or false' --set dpo.loss=kto

# Losses by sums, and by means over the answers' tokens.
accuracies_are_equal() {
    near <(of many loss) <(cut -d ' ' -f 1 "$data/$1.expected") 1e-5
    of many accuracy | cmp - <(of "$1" accuracy)
}
on_meshes accuracies_are_equal 'dpo,+ipo -n 4 --with fsdp --with tp --set tp.degree=2 --set training.local_batch_size=2' \
    '+dpo,ipo -n 2 --with cp --set cp.degree=2' 'dpo,+ipo -n 2 --with pp --set pp.degree=2 --set pp.microbatch_size=2'

# One of the six pairs, then two, four and four are right.
near <(of dpo accuracy) <(printf '%s\n' 0.1666667 0.3333333 0.6666667 0.6666667) 1e-5
grep -q 'reward_chosen: .* accuracy: 0.66667' dpo.log || fail "$(cat dpo.log)"
"$ctitan" watch dpo >log
grep -q 'accuracy 0.66667' log || fail "$(cat log)"
grep -q 'metrics/accuracy' dpo/tensorboard/events.*

# A second forward pass, with the weights without their adapters: those that the file own.jsonl was made from.
adapters=(--with lora --set adamw.lr=1e-2)
train stored "${adapters[@]}" --set "dpo.path=$data/own.jsonl"
of stored loss >expected
train pass "${adapters[@]}" --set dpo.reference=pass
near <(of pass loss) expected 1e-5
near <(of pass loss | head -n 1) <(echo 0.69314718056) 1e-5
for line in '+ -n 2 --with fsdp --set training.local_batch_size=6' '+ -n 2 --with tp --set tp.degree=2' \
    '-n 2 --with cp --set cp.degree=2' \
    '-n 4 --with fsdp --with pp --set pp.degree=2 --set pp.microbatch_size=2 --set training.local_batch_size=6'; do
    wanted "$line" || continue
    mesh=${line#+ }
    read -ra arguments <<<"$mesh"
    train many "${adapters[@]}" --set dpo.reference=pass "${arguments[@]}"
    near <(of many loss) expected 1e-5
    echo "$mesh: a reference pass as on one rank"
done

# Both passes are split along the sequence.
"$ctitan" explain recipe.ini "${adapters[@]}" --set dpo.reference=pass -n 2 --with tp --set tp.degree=2 >log 2>&1 || fail "$(cat log)"
grep '^F .* = reduce_scatter(.*{axes="tp", dim=1}' log | grep -o '%[^ ]*' | grep reduce_scatter >passes
cmp <(sed -n 's/^%reference\.//p' passes) <(sed -n '/^%reference\./!s/^%//p' passes)

run plan recipe.ini "${adapters[@]}" --set dpo.reference=pass -n 2 --with tp --set tp.degree=2 || fail "$(cat log)"
grep -q 'the logits are gathered, as the loss preference takes none' log || fail "$(head -n 3 log)"
run plan recipe.ini "${adapters[@]}" --set dpo.reference=pass -n 2 --with tp --set tp.degree=2 --set tp.loss_parallel=true || fail "$(cat log)"
grep -q 'WARNING .*loss_parallel = true has no effect: the logits are gathered' log || fail "$(head -n 3 log)"

# With magnitudes; over weights in 4 bits, which both passes decode.
magnitudes=("${adapters[@]}" --set lora.dora=true)
train stored "${magnitudes[@]}" --set "dpo.path=$data/own.jsonl"
train many "${magnitudes[@]}" --set dpo.reference=pass -n 2 --with tp --set tp.degree=2
near <(of many loss) <(of stored loss) 1e-5
never near <(of many loss) expected 1e-5 >why
train quantised --with qlora "${magnitudes[@]:2}" --set dpo.reference=pass
near <(of quantised loss | head -n 1) <(echo 0.69314718056) 1e-5
train many --with qlora "${magnitudes[@]:2}" --set dpo.reference=pass -n 2 --with fsdp --set training.local_batch_size=6
near <(of many loss) <(of quantised loss) 1e-5

# The same, stored once, on one rank; the steps are those of the pass.
run data recipe.ini "${adapters[@]}" --set dpo.path="$data/own.jsonl" --set dpo.reference_path=once.logp --reference 'once #1' || fail "$(cat log)"
mv 'once #1' once.logp
tail -c 48 once.logp | od -An -v -tf4 -w4 >got
sed 's/.*"reference": \[//; s/\].*//; s/, /\n/' "$data/own.jsonl" >want
near got want 1e-5 || fail 'the log-probabilities of the reference'
sed 's/, "reference".*/}/' "$data/pairs.jsonl" >bare.jsonl
train once "${adapters[@]}" --set dpo.path=bare.jsonl --set dpo.reference_path=once.logp
near <(of once loss) expected 1e-5
train many "${adapters[@]}" --set dpo.path=bare.jsonl --set dpo.reference_path=once.logp -n 2 --with tp --set tp.degree=2
near <(of many loss) expected 1e-5
head -n 3 bare.jsonl >less.jsonl
train less --set dpo.path=less.jsonl --set dpo.reference_path=once.logp "${adapters[@]}" # a part of them will do
sed '1s/\[[0-9]*/[7/' bare.jsonl >other.jsonl
refused 'has nothing of these tokens among its 12 samples' --set dpo.path=other.jsonl --set dpo.reference_path=once.logp
head -c -1 once.logp >cut.logp
refused 'is the file truncated?' --set dpo.path=bare.jsonl --set dpo.reference_path=cut.logp
refused '[dpo] reference_path has no effect' "${adapters[@]}" --set dpo.reference=pass --set dpo.path=bare.jsonl --set dpo.reference_path=once.logp
refused 'this loss takes no reference' --set dpo.loss=orpo --set dpo.path=bare.jsonl --set dpo.reference_path=once.logp
echo 'log-probabilities stored once'

# All weights are trained beside a second set of them, a copy of what they began as.
whole=(--set dpo.path=bare.jsonl)
train once "${whole[@]}" --set dpo.reference_path=once.logp
of once loss >expected
whole+=(--set dpo.reference=weights)
train own "${whole[@]}" --with ema --set model.save_to=trained --set ema.save_to=average
near <(of own loss) expected 1e-5
for line in '+ -n 2 --with fsdp --set training.local_batch_size=6' '-n 2 --with cp --set cp.degree=2 --with sac --set sac.mode=full' \
    '+ -n 2 --with pp --set pp.degree=2 --set pp.microbatch_size=2' \
    '-n 4 --with fsdp --with pp --set pp.degree=2 --set pp.microbatch_size=2 --set training.local_batch_size=6'; do
    wanted "$line" || continue
    mesh=${line#+ }
    read -ra arguments <<<"$mesh"
    train many "${whole[@]}" "${arguments[@]}"
    near <(of many loss) expected 1e-5
    echo "$mesh: a second set of weights as on one rank"
done
# Each pass gathers its own parameters, a layer at a time, with weights of its own and without.
for reference in weights pass; do
    "$ctitan" explain recipe.ini "${whole[@]}" --set dpo.reference=$reference -n 2 --with fsdp --with lora --set training.local_batch_size=6 \
        --set dpo.reference_from="$([[ $reference == pass ]] || echo "$data")" --dump-after fsdp.bucket >log 2>&1 || fail "$(cat log)"
    [[ $(grep -c '^F .*#reference.* = all_gather(' log) == 4 ]] || fail "$(grep ' = all_gather(' log)"
    ! grep '^F .* = all_gather(.*%reference\..*' log | grep -q '[ (]%\(model\|lm_head\)\.' || fail "$(grep ' = all_gather(' log)"
done

# Saved folders lack it: they have the parameters of the folder that training began with.
for folder in trained average; do
    ! grep -aq '"reference\.' "$folder/model.safetensors" || fail "$folder: the second set is saved"
    [[ $(grep -ao '"model\.[a-z0-9._]*"' "$folder/model.safetensors" | sort) == $(grep -ao '"model\.[a-z0-9._]*"' "$data/model.safetensors" | sort) ]] ||
        fail "$folder: other tensors"
done

# A run that goes on, on another mesh, has the same copy; its weights have moved since.
whole+=(--with ckpt --set ckpt.interval=2 --set lr_scheduler.total_steps=4)
train many "${whole[@]}" --set training.steps=2 -n 2 --with fsdp --set training.local_batch_size=6
train_to many "${whole[@]}" -n 2 --with tp --set tp.degree=2
near <(of many loss) expected 1e-5
saved() { find "$1/checkpoint/step-2" -name '*.safetensors' -printf '%s\n' | awk '{ n += $1 } END { print n }'; }
copied=$(saved many)

# Other weights, from a folder: checkpoints lack them, and the folder must stay as it is. The second set has 202 KiB.
run data recipe.ini --set dpo.path=bare.jsonl --set model.init_from=trained --set dpo.reference=pass --reference other.logp || fail "$(cat log)"
train once --set dpo.path=bare.jsonl --set dpo.reference_path=other.logp
of once loss >expected
cmp -s <(of once loss) <(of own loss) && fail 'the other weights are no others'
whole+=(--set dpo.reference_from=trained)
train many "${whole[@]}" --set training.steps=2
((copied - $(saved many) > 200000)) || fail "$copied bytes with a copy, $(saved many) with a folder"
train_to many "${whole[@]}" -n 2 --with fsdp --set training.local_batch_size=6
near <(of many loss) expected 1e-5
cp -r many changed && rm -r changed/checkpoint/step-4
refused 'reference_from = average: the folder has other files than when this run began' "${whole[@]}" \
    --set dpo.reference_from=average --set job.dump_folder=changed
mv average other && sed -i 's/"rms_norm_eps": [^,]*/"rms_norm_eps": 0.01/' other/config.json
refused 'reference_from = other: it is of a model with another forward' --set dpo.path=bare.jsonl --set dpo.reference=weights \
    --set dpo.reference_from=other
# Beside adapters: weights that are not trained need no copy, those of a folder are others.
refused '[dpo] reference_from is not set' --set dpo.path=bare.jsonl --set dpo.reference=weights --with lora
train once "${adapters[@]}" --set dpo.path=bare.jsonl --set dpo.reference_path=other.logp
of once loss >expected
train many "${adapters[@]}" --set dpo.path=bare.jsonl --set dpo.reference=weights --set dpo.reference_from=trained
near <(of many loss) expected 1e-5
refused '[dpo] reference_from has no effect' --set dpo.reference_from=trained
# Adapters to begin with change what `pass` compares with, and no weights of their own.
train many "${adapters[@]}" --set dpo.path=bare.jsonl --set dpo.reference=pass --set lora.save_to=adapter
refused 'without these adapters' "${adapters[@]}" --set dpo.path=bare.jsonl --set dpo.reference=pass --set lora.init_from=adapter
train many "${adapters[@]}" --set dpo.path=bare.jsonl --set dpo.reference=weights --set dpo.reference_from="$data" --set lora.init_from=adapter
of many loss | awk 'NR == 1 && $1 < 0.69 { found = 1 } END { exit !found }' || fail "the adapters of the beginning change no loss: $(of many loss)"
echo 'a second set of weights'

# Its weights would move with those that are trained.
refused 'the weights that the run began with, but' --set dpo.reference=pass
refused '[dpo] gamma has no effect: only the loss simpo' --set dpo.gamma=1
# Rows of options that others leave no effect: OPTION=VALUE, another setting, and words.
while IFS='|' read -r option other words; do
    refused "[dpo] ${option%%=*} has no effect: $words" --set "dpo.$option" --set "dpo.$other"
done <<END
reference=stored|loss=orpo|this loss takes no reference
reference=weights|loss=simpo|this loss takes no reference
reference_path=x|loss=orpo|this loss takes no reference
reference_from=x|loss=orpo|this loss takes no reference
reference_path=x|reference=pass|set reference = stored
reference_from=x|reference=pass|set reference = weights
gamma=1|loss=ipo|only the loss simpo has a margin
desirable_weight=2|loss=dpo|only the loss kto takes it
undesirable_weight=2|loss=dpo|only the loss kto takes it
divergence=microbatch|loss=dpo|only the loss kto takes it
END
refused '[dpo] label_smoothing: only the losses dpo and robust take it' --set dpo.loss=hinge --set dpo.label_smoothing=0.1

# Texts: the answer is trained on with the token that ends it. The model is too small for the tokens of bytes.
echo '{"prompt": "a", "chosen": "b", "rejected": "cd", "id": 123456789012345678901234567890}' >texts.jsonl
"$ctitan" data recipe.ini --with bytes --set dpo.path=texts.jsonl --set dpo.reference=pass --samples 2 >log 2>&1 || fail "$(cat log)"
grep -aqF 'a<<b<257>>>' log && grep -aqF 'a<<cd<257>>>' log || fail "$(tr -d '\0' <log)"
refused 'a text needs a tokenizer' --set dpo.path=texts.jsonl
echo '{"prompt": [1, 2], "chosen": [3], "rejected": [4]}' >pair.jsonl
"$ctitan" check dpo --quick --allow-untried --set dpo.path=pair.jsonl --set dpo.reference=pass >log 2>&1 || fail "$(cat log)"
refused 'pair.jsonl:1: "reference": expected the log-probabilities of both answers' --set dpo.path=pair.jsonl
refused '[dpo] validation_path is not set' --set validation.freq=1

# Conversations, by the folder's template: prompt and answers apart, or whole ones that differ in the last message.
cp -r "$data" told
echo "{% for m in messages %}[{{ m['role'] }}:{{ m['content'] }}] {% endfor %}{% if add_generation_prompt %}[assistant:{% endif %}" >told/chat_template.jinja
q='{"role": "user", "content": "q"}' b='{"role": "assistant", "content": "b"}' c='{"role": "assistant", "content": "cd"}'
printf '%s\n' "{\"prompt\": [$q], \"chosen\": [$b], \"rejected\": [$c]}" "{\"chosen\": [$q, $b], \"rejected\": [$q, $c]}" \
    "{\"prompt\": \"q\", \"chosen\": [$q, $b], \"rejected\": [$q, $c]}" >talks.jsonl
told=(--with bytes --set dpo.path=talks.jsonl --set dpo.reference=pass --set model.init_from=told)
"$ctitan" data recipe.ini "${told[@]}" --samples 6 >log 2>&1 || fail "$(cat log)"
[[ $(grep -acF '[user:q] [assistant:<<b]>>' log) == 3 && $(grep -acF '[user:q] [assistant:<<cd]>>' log) == 3 ]] || fail "$(tr -d '\0' <log)"
echo "{\"prompt\": [$q], \"completion\": [$c], \"label\": false}" >talk.jsonl
"$ctitan" data recipe.ini "${told[@]}" --set dpo.path=talk.jsonl --set dpo.loss=kto --sample 0 >log 2>&1 || fail "$(cat log)"
grep -aqF '[user:q] [assistant:<<cd]>>' log || fail "$(tr -d '\0' <log)"
refused 'talks.jsonl:1: messages need a chat template' "${told[@]}" --set model.init_from="$data"
echo "{\"chosen\": [$q, $b], \"rejected\": [$q, $q, $c]}" >talk.jsonl
refused 'talk.jsonl:1: "rejected" has another prompt than "chosen"' "${told[@]}" --set dpo.path=talk.jsonl
echo "{\"prompt\": [$q], \"chosen\": [$q, $b], \"rejected\": [$c]}" >talk.jsonl
refused '"chosen": expected one message of the role "assistant" behind the prompt' "${told[@]}" --set dpo.path=talk.jsonl
echo "{\"prompt\": \"q\", \"chosen\": [$b], \"rejected\": [$c]}" >talk.jsonl
refused 'write "prompt" as a list of messages' "${told[@]}" --set dpo.path=talk.jsonl
for other in '"cd"' '""' '[3]' '[]'; do
    echo "{\"chosen\": [$q, $b], \"rejected\": $other}" >talk.jsonl
    refused 'talk.jsonl:1: "rejected": expected a list of messages' "${told[@]}" --set dpo.path=talk.jsonl
done
echo "{\"prompt\": [1], \"chosen\": [$b], \"rejected\": [$c]}" >talk.jsonl
refused 'talk.jsonl:1: "prompt": expected a list of messages' "${told[@]}" --set dpo.path=talk.jsonl
echo "{\"chosen\": [$q, $b], \"rejected\": [$q, $c]}" >talk.jsonl
cp -r told mute
echo "{{ messages[1:] | map(attribute='content') | join }}" >mute/chat_template.jinja
refused 'talk.jsonl:1: "prompt": it is empty' "${told[@]}" --set dpo.path=talk.jsonl --set model.init_from=mute
echo "{{ messages[0]['content'] }}" >mute/chat_template.jinja
refused 'talk.jsonl:1: "chosen": it is empty' "${told[@]}" --set dpo.path=talk.jsonl --set model.init_from=mute

# Tools are a list of objects, or a string that holds one.
echo "{{ tools[0]['name'] if tools }}$(cat told/chat_template.jinja)" >mute/chat_template.jinja
tools() { echo "{\"chosen\": [$q, $b], \"rejected\": [$q, $c], \"tools\": $1}" >tools.jsonl; }
told+=(--set dpo.path=tools.jsonl)
for list in '[{"name": "t"}]' '"[{\"name\": \"t\"}]"'; do
    tools "$list"
    "$ctitan" data recipe.ini "${told[@]}" --set model.init_from=mute --sample 0 >log 2>&1 || fail "$(cat log)"
    grep -aqF 't[user:q] [assistant:<<b]>>' log || fail "$(tr -d '\0' <log)"
done
tools '"null"'
"$ctitan" data recipe.ini "${told[@]}" --set model.init_from=mute --sample 0 >log 2>&1 || fail "$(cat log)"
for list in '["t"]' '{"name": "t"}' '"3"' true; do
    tools "$list"
    refused 'tools.jsonl:1: "tools": expected a list of objects' "${told[@]}" --set model.init_from=mute
done

# A tokenizer that begins texts with a space does so once. A token of prompt and answer belongs to the answer.
vocabulary=$(printf '%s\n' '<unk>' '▁' '[' ']' : :e {a..z} | awk '{ printf "%s\"%s\": %d", (NR > 1 ? ", " : ""), $0, NR - 1 }')
cat >told/tokenizer.json <<END
{"added_tokens": [], "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
  {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}, "pre_tokenizer": null, "post_processor": null,
 "decoder": {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
 "model": {"type": "BPE", "unk_token": "<unk>", "vocab": {$vocabulary}, "merges": [": e"]}}
END
e='{"role": "assistant", "content": "e"}'
echo "{\"prompt\": [$q], \"chosen\": [$b], \"rejected\": [$c]}" >talk.jsonl
echo "{\"prompt\": [$q], \"chosen\": [$b], \"rejected\": [$e]}" >>talk.jsonl
"$ctitan" data recipe.ini --with bpe "${told[@]:2}" --set dpo.path=talk.jsonl --samples 4 >log 2>&1 || fail "$(cat log)"
grep -a assistant log | tr -d '\0' | sed 's/>>.*//' >got
printf ' [user:q] [assistant%s\n' ':<<b]' ':<<cd]' '<<:b]' '<<:e]' | cmp - got || fail "$(cat got log)"
# Behind another line's prompt, an answer has the tokens that the two texts together have.
echo "{\"prompt\": [$q], \"completion\": [$b], \"label\": true}" >talk.jsonl
echo "{\"prompt\": [$q], \"completion\": [$e], \"label\": false}" >>talk.jsonl
"$ctitan" data recipe.ini --with bpe "${told[@]:2}" --set dpo.path=talk.jsonl --set dpo.loss=kto --samples 4 >log 2>&1 || fail "$(cat log)"
grep -a assistant log | tr -d '\0' | sed 's/>>.*//' >got
printf ' [user:q] [assistant%s\n' ':<<b]' '<<:e]' '<<:e]' ':<<b]' | cmp - got || fail "$(cat got log)"
echo 'conversations'
refused 'more than [training] seq_len = 2' --set dpo.path=pair.jsonl --set training.seq_len=2

# A reference pass through mixtures, whose experts are on several ranks.
recipe -tokens +dpo +lora model.name=qwen3_moe model.flavor=debug qwen3_moe.dim=24 qwen3_moe.n_layers=2 qwen3_moe.n_heads=2 \
    qwen3_moe.n_kv_heads=1 qwen3_moe.head_dim=8 qwen3_moe.vocab_size=199 qwen3_moe.n_experts=4 qwen3_moe.n_chosen=2 qwen3_moe.expert_dim=10 \
    objective.name=dpo dpo.path="$data/pairs.jsonl" training.seq_len=24 training.local_batch_size=6 training.global_batch_size=12 \
    training.mixed_precision_param=float32 adamw.lr=1e-2 lora.modules='all-linear, experts.*, embed_tokens'
train one
of one loss >expected
train many -n 2 --with ep --set ep.degree=2
near <(of many loss) expected 1e-5
