#!/bin/bash
# distill.sh CTITAN SOURCE: distillation from a file of another model's likeliest tokens. Losses, norms and divergences that PyTorch
# computed (oracle.py), with packed documents, on one rank and on meshes, with accumulation, and resumed on another mesh; the file that
# `ctitan data` writes; a model that is its own teacher; what is refused.
source "$(dirname "$0")/../lib/test.sh"
ctitan=$(realpath "$1") own=$(realpath "$2")/tests/distill/case folder=$(realpath "$2")/tests/generate/folder
enter
recipe -tokens +text +bpe objective.name=distill model.name=llama "model.init_from=$folder" "text.path=$own/documents.jsonl" text.format=ids \
    text.cache=none text.shuffle=false training.seq_len=24 training.local_batch_size=8 training.global_batch_size=8 training.steps=4 \
    training.mixed_precision_param=float32 adamw.lr=2e-3 adamw.beta2=0.95 adamw.eps=1e-6 adamw.weight_decay=0 \
    lr_scheduler.warmup_steps=0 lr_scheduler.decay_ratio=0 "distill.path=$own/teacher.top" distill.k=4 distill.temperature=2 \
    distill.hard_weight=0.3
reverse=(--set distill.k=6 --set distill.temperature=1.5 --set distill.hard_weight=0.1 --set distill.divergence=reverse)

# as_expected WHAT ARGUMENT..: the run has the losses, norms and metrics of WHAT.expected.
as_expected() {
    rm -rf out
    train "${@:2}" && values loss grad_norm divergence cross_entropy out/metrics.jsonl >got && near got "$own/$1.expected" 1e-5
}

as_expected forward
tell 'forward divergence and cross entropy'
grep -q 'divergence: 4.42' log
tell 'the console has the divergence'
mv out one
as_expected reverse "${reverse[@]}"
tell 'reverse divergence'
as_expected plain --set distill.k=6 --set distill.temperature=1 --set distill.hard_weight=0
tell 'the divergence alone'
while read -r loss mesh; do
    read -ra arguments <<<"$mesh"
    [[ $loss == forward ]] || arguments+=("${reverse[@]}")
    as_expected "$loss" "${arguments[@]}"
    tell "$loss: $mesh"
done <<END
forward --set training.local_batch_size=2
forward --set stage.2.begin=3 --set stage.2.local_batch_size=2
forward -n 2 --with fsdp --set training.local_batch_size=2
reverse -n 2 --with tp --set tp.degree=2 --set tp.loss_parallel=true
reverse -n 2 --with cp --set cp.degree=2
forward -n 2 --with cp --set cp.degree=2 --set cp.load_balancer=none
reverse -n 2 --with pp --set pp.degree=2 --set pp.microbatch_size=2
forward -n 4 --with fsdp --with sac --with pp --set pp.degree=2 --set pp.microbatch_size=2 --set training.local_batch_size=4
END

# Two steps on one mesh, two on another.
rm -rf out
train --with ckpt --set ckpt.interval=2 --set training.steps=2 --set lr_scheduler.total_steps=4 -n 2 --with fsdp --set training.local_batch_size=4 &&
    train --with ckpt --set ckpt.interval=2 -n 2 --with cp --set cp.degree=2 &&
    values loss out/metrics.jsonl >got && near got <(cut -d ' ' -f 1 "$own/forward.expected") 1e-5
tell 'resumed on another mesh'

# The order of samples does not matter, nor does the epoch; validation has no teacher.
rm -rf out
train --set text.shuffle=true --set training.seed=5 --set text.validation_path="$own/documents.jsonl" --set validation.freq=4 --set validation.steps=1 &&
    values loss out/metrics.jsonl >got && near got <(cut -d ' ' -f 1 "$own/forward.expected") 1e-5 && grep -q '"validation_loss": 5' out/metrics.jsonl
tell 'another order, and validation'

# The file that ctitan writes has the numbers of transformers.
run data recipe.ini --teacher "$folder" --output three.top --top-k 3 --samples 8
tell 'a file of the likeliest tokens'
# Prints those of the rows' 24 positions that are not 0: ids and log-probabilities follow the hashes.
bytes=$((8 * 24 * 3 * 4)) size=$(stat -c %s three.top)
paste -d ' ' <(tail -c $((2 * bytes)) three.top | head -c $bytes | od -An -v -td4 -w12) <(tail -c $bytes three.top | od -An -v -tf4 -w12) |
    awk '$4 != 0 { print $1, $4, $2, $5, $3, $6 }' >got
near got "$own/top.expected" 1e-5
tell 'the tokens and log-probabilities of transformers'

# A key of the teacher's config.json that is not known here.
cp -r "$folder" odd && sed -i '0,/{/s//{ "odd_key": 3,/' odd/config.json
fails 2 'odd_key = 3 is not known here, .*--set model.ignore=odd_key' run data recipe.ini --teacher odd -o odd.top --samples 1
run data recipe.ini --teacher odd -o odd.top --samples 1 --set model.ignore=odd_key
tell 'a key that the recipe lets be ignored'

# With all tokens, a model that begins as its own teacher has no divergence; beside adapters, its base is that teacher.
run data recipe.ini --teacher "$folder" -o all.top --top-k 320
teacher=(--with lora --set lora.rank=4 --set adamw.lr=1e-2 --set distill.hard_weight=0.5)
rm -rf out
train "${teacher[@]}" --set distill.path=all.top --set distill.k=320 && values loss divergence out/metrics.jsonl >stored &&
    awk 'NR == 1 { first = $2 } { last = $2 } END { exit !(first < 1e-6 && first > -1e-6 && last > 1e-6) }' stored
tell 'a model that is its own teacher'
while read -r mesh; do
    read -ra arguments <<<"$mesh"
    rm -rf out
    train "${teacher[@]}" --set distill.path= --unset distill.k --set distill.teacher=base "${arguments[@]}" && values loss out/metrics.jsonl >got &&
        near got <(cut -d ' ' -f 1 stored) 1e-5
    tell "the base in a second pass: $mesh"
done <<END
--set training.local_batch_size=4
-n 2 --with fsdp --set training.local_batch_size=4
-n 2 --with tp --set tp.degree=2
-n 2 --with pp --set pp.degree=2 --set pp.microbatch_size=2
END
# The same from weights of a folder, beside a model that is trained whole.
teacher=(--set distill.hard_weight=0.5 --set adamw.lr=1e-2)
rm -rf out
train "${teacher[@]}" --set distill.path=all.top --set distill.k=320 && values loss out/metrics.jsonl >stored
while read -r mesh; do
    read -ra arguments <<<"$mesh"
    rm -rf out
    train "${teacher[@]}" --set distill.path= --unset distill.k --set "distill.teacher=$folder" "${arguments[@]}" && values loss out/metrics.jsonl >got &&
        near got stored 1e-5
    tell "a folder in a second pass: $mesh"
done <<END
--set training.local_batch_size=4
-n 2 --with fsdp --set training.local_batch_size=4
-n 2 --with cp --set cp.degree=2
-n 2 --with pp --set pp.degree=2 --set pp.microbatch_size=2
END

fails 2 'make it by ctitan data RECIPE --teacher' train --set distill.path=absent.top
tell 'a file that is not there'
head -c $((size - 1)) three.top >cut.top
fails 2 'cut.top: .*is the file truncated' train --set distill.path=cut.top --set distill.k=3
tell 'a file that is cut'
fails 2 'it has 3 tokens of the teacher at each position, fewer than \[distill\] k = 4' train --set distill.path=three.top
tell 'too few tokens'
fails 2 'sample [0-9]+: \[distill\] path: .*three.top has nothing of these tokens among its 8 samples' train --set distill.path=three.top --set distill.k=3 \
    --set text.packing=concat --set text.shuffle=true --set text.document_mask=true
tell 'other rows'
fails 2 'its samples have 24 tokens, and \[training\] seq_len is 48' train --set training.seq_len=48
tell 'rows of another length'
fails 2 "the teacher's tokens are not those of this run's tokenizer" train --without bpe --with bytes --set distill.path=three.top --set distill.k=3
tell 'another vocabulary'
fails 2 'its tokenizer is not that of the recipe' run data recipe.ini --without bpe --with bytes --teacher "$folder" -o no.top
tell 'a teacher with another tokenizer'
fails 2 'the weights that the run began with, but' train --set distill.path= --unset distill.k --set distill.teacher=base
tell 'a base that would be trained'
fails 2 '\[distill\] path has no effect' train --set distill.teacher=base
tell 'a file that nobody reads'
fails 2 '\[distill\] k has no effect' train --set distill.path= --set distill.teacher=base
tell 'a number of tokens that nobody reads'
fails 2 'its message is above' run data recipe.ini --set text.path=absent.jsonl --teacher "$folder" -o no.top
tell 'data that cannot be read'
[[ ! -e no.top ]]
tell 'no file is left'
fails 2 'have no effect with --world' run data recipe.ini --world 2 --check
tell 'a check beside the work of ranks'
fails 2 'have no effect with --reference' run data recipe.ini --reference no.logp --samples 2
tell 'samples beside a reference'
fails 2 'have no effect with --teacher' run data recipe.ini --check --teacher "$folder" -o no.top
tell 'options that do nothing'

# Experts on several ranks.
recipe -tokens +text +bytes model.name=qwen3_moe model.flavor=debug qwen3_moe.dim=24 qwen3_moe.n_layers=2 qwen3_moe.n_heads=2 \
    qwen3_moe.n_kv_heads=1 qwen3_moe.head_dim=8 qwen3_moe.vocab_size=320 qwen3_moe.n_experts=4 qwen3_moe.n_chosen=2 qwen3_moe.expert_dim=10 \
    objective.name=distill "text.path=$own/documents.jsonl" text.format=ids text.cache=none training.seq_len=24 training.local_batch_size=4 \
    training.global_batch_size=8 training.mixed_precision_param=float32 adamw.lr=1e-2 "distill.path=$own/teacher.top" distill.k=6
rm -rf out
train && values loss out/metrics.jsonl >want
rm -rf out
train -n 2 --with ep --set ep.degree=2 && values loss out/metrics.jsonl >got && near got want 1e-5
tell 'experts on two ranks'
run check distill --quick --allow-untried
tell 'conformance'
finish
