#!/bin/bash
# eval.sh CTITAN SOURCE: evaluation beside validation: loss, acc and acc_norm of choices that transformers computed (oracle.py), and the
# answers that it writes (oracle_answers.py), on one rank and on meshes; where they are shown.
source "$(dirname "$0")/../lib/test.sh"
ctitan=$(realpath "$1") own=$(realpath "$2")/tests/eval folder=$(realpath "$2")/tests/generate/folder
enter
for i in {1..9}; do echo "a text of the number $i, the quick dog ran over the hill"; done >text.txt
recipe -tokens +text +bpe +eval model.name=llama "model.init_from=$folder" text.path=text.txt text.validation_path=text.txt text.split=line text.cache=none bpe.add_bos=false \
    training.seq_len=48 training.local_batch_size=2 training.global_batch_size=2 training.steps=2 training.mixed_precision_param=float32 adamw.lr=0 \
    adamw.weight_decay=0 validation.freq=2 validation.steps=1 "eval.path=$own/questions.jsonl, $own/answers.jsonl" \
    eval.answer_tokens=6 eval.stop=then

# of TASK KEY..: the numbers of its last evaluation.
of() { grep "\"validation_set\": \"$1\"" out/metrics.jsonl | values "${@:2}" /dev/stdin | tail -n 1; }

# scores: those of the last evaluation are expected. A token more in front of a prompt changes the loss by 7e-6.
scores() {
    of questions validation_loss acc acc_norm >got && near got "$own/expected" 1e-6 &&
        of answers validation_loss exact_match >got && near got <(head -n 1 "$own/answers.expected") 1e-6
}
train --with tensorboard && scores
tell 'loss, acc, acc_norm and exact_match of transformers'
[[ $(grep -c validation_set out/metrics.jsonl) == 2 ]]
tell 'one evaluation of each task'
grep -qE 'validate step: +2  questions  loss:' log && grep -q 'acc: 0' log && grep -q 'exact_match: 0' log
tell 'the console has them'
run watch out && grep -qE 'validation questions loss .* acc 0' log && grep -qE 'validation answers loss .* exact_match 0' log
tell 'watch has them'
grep -q validation_metrics/questions/acc_norm out/tensorboard/events.* && grep -q validation_metrics/answers/exact_match out/tensorboard/events.*
tell 'TensorBoard has them'
mv out one
while read -r mesh; do
    read -ra arguments <<<"$mesh"
    rm -rf out
    train "${arguments[@]}" && scores
    tell "$mesh"
done <<END
--set stage.2.begin=2 --set stage.2.local_batch_size=1
-n 2 --with fsdp --set training.local_batch_size=1
-n 2 --with tp --set tp.degree=2
-n 2 --with cp --set cp.degree=2
-n 2 --with pp --set pp.degree=2 --set pp.microbatch_size=1
--set objective.name=weighted --set text.per_sequence=true --set text.document_mask=true
--set text.document_mask=true --set eval.freq=1
END
[[ $(grep -c validation_set out/metrics.jsonl) == 4 ]]
tell 'every step, where that is asked for'
run compare one out && grep -qE 'validation questions .*acc 0.*acc_norm' log && grep -qE 'validation answers .*exact_match 0' log
tell 'compare has them'
run report one out --out report.html && grep -q 'acc_norm 0' report.html && grep -q 'exact_match 0' report.html
tell 'the report has them'
rm -rf out
train --set "eval.path=$own/answers.jsonl" --set eval.ignore_case=true --set eval.ignore_punctuation=true --set eval.ignore_numbers=true &&
    of answers validation_loss exact_match >got && near got <(tail -n 1 "$own/answers.expected") 1e-6
tell 'letters, punctuation and digits that do not count'
# A stop within what is written; an expected answer whose tokens are the likeliest, and that the limit ends.
echo '{"prompt": "river over", "answer": "\u0016u"}' >stop.jsonl
echo '{"prompt": "moon ran under hill green", "answer": " p"}' >limit.jsonl
while read -r task tokens; do
    rm -rf out
    train --set "eval.path=$task.jsonl" --set eval.stop=an --set "eval.answer_tokens=$tokens" && near <(of "$task" exact_match) <(echo 1) 1e-9
    tell "an answer that ends by its $task"
done <<END
stop 6
limit 1
END
# Prompts are longer than a row in different degrees; the end that a row holds is the same.
for n in 3 150 200; do
    echo "{\"prompt\": \"dog$(printf ' hill%.0s' $(seq $n))\", \"choices\": [\" ran\", \" dog\"], \"answer\": 0}" >long$n.jsonl
done
rm -rf out
train --set eval.path=long3.jsonl,long150.jsonl,long200.jsonl && [[ $(of long150 validation_loss) == "$(of long200 validation_loss)" ]] &&
    [[ $(of long150 validation_loss) != "$(of long3 validation_loss)" ]]
tell 'a prompt that is longer than the row'
echo '{"prompt": "dog", "choices": [" ran", ""], "answer": 0}' >empty.jsonl
fails 2 'empty.jsonl:1: a choice adds no token to its prompt' train --set eval.path=empty.jsonl
tell 'a choice without a token'
cat "$own/questions.jsonl" "$own/answers.jsonl" >both.jsonl
fails 2 'both.jsonl:25: questions with choices, and without, need files of their own' train --set eval.path=both.jsonl
tell 'two kinds of questions in a file'
fails 2 'answer_tokens = 64 leave no room' train --set eval.answer_tokens=64
tell 'answers longer than a row'
fails 2 'scored by the program of validation: set \[validation\] freq' train --set validation.freq=0
tell 'without validation it is refused'
echo '{"prompt": "a", "choices": ["b", "c"], "answer": 2}' >bad.jsonl
fails 2 'bad.jsonl:1: "answer": expected the number of a choice' train --set eval.path=bad.jsonl
tell 'an answer that is no choice is named'
finish
