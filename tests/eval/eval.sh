#!/bin/bash
# eval.sh CTITAN SOURCE: multiple-choice evaluation beside validation. Loss, acc and acc_norm that transformers computed (oracle.py), on
# one rank and on meshes; where they are shown.
source "$(dirname "$0")/../lib/test.sh"
ctitan=$(realpath "$1") own=$(realpath "$2")/tests/eval folder=$(realpath "$2")/tests/generate/folder
enter
for i in {1..9}; do echo "a text of the number $i, the quick dog ran over the hill"; done >text.txt
recipe -tokens +text +bpe +eval model.name=llama "model.init_from=$folder" text.path=text.txt text.validation_path=text.txt text.split=line text.cache=none \
    training.seq_len=48 training.local_batch_size=2 training.global_batch_size=2 training.steps=2 training.mixed_precision_param=float32 adamw.lr=0 \
    adamw.weight_decay=0 validation.freq=2 validation.steps=1 "eval.path=$own/questions.jsonl"

# scores: those of the last evaluation are expected.
scores() {
    grep '"validation_set": "questions"' out/metrics.jsonl | values validation_loss acc acc_norm /dev/stdin | tail -n 1 >got
    near got "$own/expected" 1e-5
}
train --with tensorboard && scores
tell 'loss, acc and acc_norm of transformers'
[[ $(grep -c validation_set out/metrics.jsonl) == 1 ]]
tell 'one evaluation'
grep -qE 'validate step: +2  questions  loss:' log && grep -q 'acc: 0' log
tell 'the console has them'
run watch out && grep -qE 'validation questions loss .* acc 0' log
tell 'watch has them'
grep -q validation_metrics/questions/acc_norm out/tensorboard/events.*
tell 'TensorBoard has them'
mv out one
while read -r mesh; do
    read -ra arguments <<<"$mesh"
    rm -rf out
    train "${arguments[@]}" && scores
    tell "$mesh"
done <<END
-n 2 --with fsdp --set training.local_batch_size=1
-n 2 --with tp --set tp.degree=2
-n 2 --with cp --set cp.degree=2
-n 2 --with pp --set pp.degree=2 --set pp.microbatch_size=1
--set text.document_mask=true --set eval.freq=1
END
[[ $(grep -c validation_set out/metrics.jsonl) == 2 ]]
tell 'every step, where that is asked for'
run compare one out && grep -qE 'validation questions .*acc 0.*acc_norm' log
tell 'compare has them'
run report one out --out report.html && grep -q 'acc_norm 0' report.html
tell 'the report has them'
fails 2 'scored by the program of validation: set \[validation\] freq' train --set validation.freq=0
tell 'without validation it is refused'
echo '{"prompt": "a", "choices": ["b", "c"], "answer": 2}' >bad.jsonl
fails 2 'bad.jsonl:1: "answer": expected the number of a choice' train --set eval.path=bad.jsonl
tell 'an answer that is no choice is named'
finish
