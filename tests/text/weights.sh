#!/bin/bash
# weights.sh CTITAN SOURCE: labels with weights, and sequences that count alike. Losses and gradient norms that PyTorch computed
# (weights_oracle.py), on one rank and on meshes, packed in two ways, with accumulation; messages with weights.
source "$(dirname "$0")/../lib/test.sh"
ctitan=$(realpath "$1") data=$(realpath "$2")/tests/text/packing chat=$(realpath "$2")/tests/generate/folder
enter

recipe -tokens +text +bytes objective.name=weighted model.init_from="$data" text.path="$data/weighted.jsonl" text.format=ids \
    text.label_weights=true text.cache=none text.shuffle=false training.seq_len=256 training.local_batch_size=16 training.global_batch_size=16 \
    training.steps=3 training.mixed_precision_param=float32 adamw.lr=2e-3 adamw.beta2=0.95 adamw.eps=1e-6 adamw.weight_decay=0.1 \
    lr_scheduler.warmup_steps=0 lr_scheduler.decay_ratio=0

# as_expected WHAT ARGUMENT..: the run has the losses and norms of WHAT.expected.
as_expected() {
    rm -rf out
    train "${@:2}" && values loss grad_norm out/metrics.jsonl >got && near got "$data/$1.expected" 1e-5
}

as_expected labels
tell 'labels with weights'
as_expected sequences --set text.per_sequence=true
tell 'sequences that count alike'
as_expected labels --set training.local_batch_size=4
tell 'labels with weights, four accumulated batches'
as_expected sequences --set text.per_sequence=true --set text.packing=first_fit_decreasing --set training.seq_len=384 \
    --set training.local_batch_size=11 --set training.global_batch_size=11
tell 'other rows'
while read -r mesh; do
    read -ra arguments <<<"$mesh"
    as_expected sequences --set text.per_sequence=true "${arguments[@]}"
    tell "$mesh"
done <<END
-n 2 --with fsdp --set training.local_batch_size=8
-n 2 --with tp --set tp.degree=2
-n 2 --with cp --set cp.degree=2
-n 2 --with pp --set pp.degree=2 --set pp.microbatch_size=4
END

fails 2 '\[text\] split has no effect: an object of this format' train --set text.split=line
fails 2 'has no effect, as the objective takes no weights: set \[objective\] name = weighted' train --set objective.name=cross_entropy
tell 'weights that nobody takes are refused'
fails 2 '"weights" need \[text\] label_weights = true' train --set text.label_weights=false --set text.per_sequence=true
tell 'weights that nobody reads are refused'

# The mean of two conversations by the weights of their messages. The numbers of labels divide the losses that each has alone.
line() { echo "{\"messages\": [{\"role\": \"user\", \"content\": \"$1\"}, {\"role\": \"assistant\", \"content\": \"$2\"${3:+, \"weight\": $3}}]}"; }
line one 'a short answer' >a.jsonl
line two 'the longer one of the two answers' >b.jsonl
{ line one 'a short answer' 0.5; line two 'the longer one of the two answers'; } >both.jsonl
loss() {
    rm -rf out
    train --without bytes --with bpe --set "model.init_from=$chat" --set training.steps=1 --set training.local_batch_size=1 \
        --set training.global_batch_size=1 --set training.seq_len=512 --set text.format=chat --set "text.path=$1" --set validation.freq=1 \
        --set "text.validation_path=$1" --set validation.steps=1 --set adamw.lr=0 "${@:2}" || return
    values loss out/metrics.jsonl | head -n 1
    values validation_label_weights out/metrics.jsonl
}
{ loss a.jsonl && loss b.jsonl && loss both.jsonl; } >got &&
    paste -sd ' ' got | awk 'NF == 6 { want = ($1 * $2 * 0.5 + $3 * $4) / ($2 * 0.5 + $4); print $5; print want > "want" }' >mean &&
    near mean want 1e-5
tell 'messages with weights'
fails 2 '"weight" is neither 0 nor 1: others need \[text\] label_weights' loss both.jsonl --set text.label_weights=false --set text.per_sequence=true
tell 'a weight of a message that nobody reads is refused'
for unread in format=text format=jsonl format=alpaca 'format=chat --set text.train_on=all'; do
    read -ra arguments <<<"text.$unread"
    fails 2 'label_weights: only messages and ids have weights: set format = chat, sharegpt, prompt or ids, and not train_on = all' \
        loss both.jsonl --set "${arguments[@]}"
    tell "label_weights with $unread is refused"
done
run check weighted --quick --allow-untried
tell 'the op is what its reference says'
finish
