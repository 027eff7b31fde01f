#!/bin/bash
# A run that was saved goes on: on the same mesh bit for bit, on another with the same losses. What is saved is whole
# or absent.
set -euo pipefail
check_options=(--set resume.folder=checked)
. "$(dirname "$0")/installed.sh" "$1" "$2" resume
trap 'kill -KILL ${run:-} 2>/dev/null || true; rm -rf "$work"' EXIT

sed -i 's/^steps = .*/steps = 8/' recipe.ini
declare -A mesh=(
    [one]='' [accumulated]='--set training.local_batch_size=2' [fsdp]='-n 2 --with fsdp'
    [fsdp_tp]='-n 4 --with fsdp --with tp --set tp.degree=2'
    [hsdp]='-n 4 --with fsdp --set fsdp.replicate_degree=2'
    [pp_fsdp]='-n 4 --with fsdp --with pp --set pp.degree=2 --set pp.schedule=interleaved_1f1b --set pp.microbatch_size=2'
)

# whole MESH: eight steps, saved behind the third and sixth; saving changes nothing.
whole() {
    local arguments
    read -ra arguments <<<"${mesh[$1]}"
    train_to "$1.plain" "${arguments[@]}"
    train_to "$1.whole" --with resume --set "resume.folder=$1.saved" --set resume.every=3 "${arguments[@]}"
    cmp <(values loss "$1.plain/metrics.jsonl") <(values loss "$1.whole/metrics.jsonl")
    [[ $(ls "$1.saved") == "step-3"$'\n'"step-6" ]]
}

# go_on FROM TO: behind FROM's third step, on the mesh TO.
go_on() {
    local arguments
    read -ra arguments <<<"${mesh[$2]}"
    rm -rf again again.saved
    mkdir again.saved
    cp -r "$1.saved/step-3" again.saved/
    train_to again --with resume --set resume.folder=again.saved --set resume.every=3 "${arguments[@]}"
    grep -q 'resuming from again.saved/step-3' again.log
    [[ $(cut -d' ' -f1-4 "$1.saved/step-6/progress") == "$(cut -d' ' -f1-4 again.saved/step-6/progress)" ]]
    for value in loss grad_norm lr; do
        values $value "$1.whole/metrics.jsonl" | tail -n 5 >expected
        values $value again/metrics.jsonl >losses
        if [[ $1 == "$2" ]]; then cmp expected losses; else near losses expected 1e-5; fi
    done
    # Parameters and moments too.
    [[ $1 != "$2" ]] || diff -r "$1.saved/step-6" again.saved/step-6
    echo "$1 goes on as $2"
}

for from in one fsdp_tp pp_fsdp; do
    whole $from
    go_on $from $from
done
go_on one fsdp
go_on one hsdp
go_on fsdp_tp pp_fsdp
go_on fsdp_tp accumulated
go_on pp_fsdp fsdp_tp
go_on pp_fsdp one

# Killed at any time, a run leaves saves that are whole.
for steps in 2 4; do
    rm -rf killed
    "$ctitan" train recipe.ini --with resume --set job.dump_folder=out --set resume.folder=killed \
        --set resume.every=1 --set training.steps=100000 >killed.log 2>&1 &
    run=$!
    until [[ -e killed/step-$steps ]]; do sleep 0.01; done
    kill -KILL $run
    wait $run || true
    last=$(find killed -maxdepth 1 -name 'step-*[0-9]' | sed 's/.*-//' | sort -n | tail -n 1)
    train_to out --with resume --set resume.folder=killed --set training.steps=$((last + 2))
    grep -q "resuming from killed/step-$last$" out.log
done

# refused WORDS ARGUMENT...
refused() {
    local words=$1
    shift
    if "$ctitan" train recipe.ini --with resume --set job.dump_folder=out --set resume.folder=harmed "$@" >log 2>&1; then
        exit 1
    fi
    grep -q -- "$words" log || { cat log; exit 1; }
}
cp -r one.saved harmed
refused 'harmed/step-6/rank-0: dimension 1 of model.embed_tokens.weight: a box of 32 from 0 on is outside the size 16' --set llama.dim=16
refused 'rank-0: .*layers.2.* is not a state of this run' --set llama.n_layers=2
truncate -s -100 harmed/step-6/rank-0
refused 'harmed/step-6/rank-0: it ends within adamw'
sed -i '/layers.3.*down_proj/d' harmed/step-6/rank-0
refused 'harmed/step-6/rank-0: it continues after its last shard'
rm harmed/step-6/rank-0
refused 'harmed/step-6/rank-0: No such file'
rm -r harmed
cp -r fsdp_tp.saved harmed
sed -i 's/ 4$/ 3/' harmed/step-6/progress # of four ranks
refused 'harmed/step-6 lacks a part of model.embed_tokens.weight'
