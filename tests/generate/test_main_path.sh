#!/bin/bash
# test_main_path.sh CTITAN FOLDER LOGITS [PYTHON]: a folder of transformers and a text in: trained, interrupted, resumed on two ranks,
# exported, and generated from. LOGITS has those of transformers 5.24 for the folder, after PROMPT. With a Python that has
# transformers, what was exported is loaded there, too:
#     tests/generate/test_main_path.sh build/ctitan tests/generate/folder{,.logits} python3
source "$(dirname "$0")/../lib/test.sh"
set -euo pipefail
ctitan=$(realpath "$1") folder=$(realpath "$2") logits=$(realpath "$3") python=${4-}
prompt='Redistribution and use'
enter

generate() {
    "$ctitan" generate "$@" --prompt "$prompt" --greedy 2> said || fail "$(cat said)"
}

generate "$folder" --tokens 0 --logits first > wrote
paste <(tr ' ' '\n' < first) <(tr ' ' '\n' < "$logits") | awk '
    { d = $1 - $2; if (d < 0) d = -d; if (d > most) most = d }
    END { print "logits differ by " most + 0; exit NR != 320 || most > 1e-5 }' || fail "logits of transformers"

for ((i = 0; i < 50; i++)); do echo "Redistribution and use in source and binary forms are permitted."; done > text
recipe -tokens -metrics +text +bpe +ckpt +fsdp model.init_from="$folder" training.seq_len=32 -training.local_batch_size \
    training.steps=1000000 training.mixed_precision_param=float32 job.dump_folder=run ckpt.interval=20 ckpt.keep_latest_k=2 \
    text.path=text text.cache=none
"$ctitan" train recipe.ini > log 2>&1 &
run=$!
for ((i = 0; i < 600; i++)); do
    ! compgen -G "run/checkpoint/step-*" > /dev/null || break
    sleep 0.1
done
kill -INT $run
status=0
wait $run || status=$?
[[ $status = 1 ]] || fail "status $status of an interrupted run: $(cat log)"
step=$(sed -n 's/.*interrupted by signal 2 after step //p' log)
[[ -d run/checkpoint/step-$step ]] || fail "no checkpoint of step $step: $(cat log)"

"$ctitan" train recipe.ini -n 2 --set training.steps=$((step + 2)) > log 2>&1 || fail "$(cat log)"
grep -q "loaded .*/step-$step" log || fail "$(cat log)"
grep -q "local_batch_size = 4, so that 2 data-parallel ranks share the 8 sequences of a step" log || fail "$(cat log)"
! grep -q "changed since the checkpoint.*batch" log || fail "$(cat log)"

generate run --tokens 8 --logits before > wrote
grep -q "checkpoint/step-$((step + 2))" said || fail "$(cat said)"
"$ctitan" export run out > log 2>&1 || fail "$(cat log)"
diff <(ls "$folder") <(ls out) || fail "files of what was exported"
generate out --tokens 8 --logits after > again
cmp before after || fail "logits of what was exported"
cmp wrote again || fail "text of what was exported: $(cat again)"
! cmp -s first after || fail "training changed nothing"

# With PYTHON: what was exported loads in its transformers without a warning, and has the same ids, logits and greedy tokens.
[[ $python ]] || exit 0
printf '%s' "$prompt" > prompt
"$ctitan" tokenize --tokenizer out < prompt > ids 2> log || fail "$(cat log)"
generate out --tokens 0 --logits after > /dev/null
"$ctitan" generate out --prompt-ids "$(paste -sd, ids)" --tokens 8 --greedy > new 2> said || fail "$(cat said)"
"$python" -W error - "$work" "$prompt" 2> said << 'END' || fail "transformers: $(cat said)"
import pathlib, sys
import torch, transformers
folder, prompt = sys.argv[1:]
read = lambda name: (pathlib.Path(folder) / name).read_text()
transformers.utils.logging.set_verbosity_warning()
transformers.utils.logging.disable_progress_bar()
tokenizer = transformers.AutoTokenizer.from_pretrained(folder + '/out')
model = transformers.AutoModelForCausalLM.from_pretrained(folder + '/out', dtype=torch.float32)
ids = tokenizer(prompt, return_tensors='pt').input_ids
own = [int(x) for x in read('ids').split()]
assert ids[0].tolist() == [tokenizer.bos_token_id] + own, (ids, own)
with torch.no_grad():
    logits = model(ids).logits[0, -1]
ours = torch.tensor([float(x) for x in read('after').split()])
print('logits of transformers differ by %g' % (logits - ours).abs().max())
assert torch.allclose(logits, ours, rtol=0, atol=1e-5)
new = model.generate(torch.tensor([own]), attention_mask=torch.ones(1, len(own)), max_new_tokens=8, do_sample=False)
ends = model.generation_config.eos_token_id # ctitan does not print them
new = [id for id in new[0, len(own):].tolist() if id not in (ends if isinstance(ends, list) else [ends])]
assert new == [int(x) for x in read('new').split(',')], new
END
[[ ! -s said ]] || fail "transformers warns: $(cat said)"
