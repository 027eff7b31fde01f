#!/bin/bash
# flavors.sh CTITAN: `ctitan help MODEL` lists sizes with the counts of parameters that their plans have, and the families of decoders
# that are described. Plans are for a described device, as no machine here has the memory.
# shellcheck source=tests/lib/test.sh
source "$(dirname "$0")/../lib/test.sh"
ctitan=$(realpath "$1") data=
enter

# count MODEL FLAVOR
count() {
    recipe model.name="$1" model.flavor="$2" tokens.path=none training.seq_len=128 training.local_batch_size=1
    "$ctitan" plan recipe.ini --json --device h100-80g 2>log | sed -nE 's/^ *"parameters": ([0-9]+).*/\1/p'
}

for model in $("$ctitan" plugins --json | sed -nE 's/.*"name": "([a-z0-9_]+)".*"kind": "model".*/\1/p'); do
    "$ctitan" help "$model" | sed -nE 's/^  flavor ([^ ]+) +([0-9,]+) parameters$/\1 \2/p' | tr -d , >"$model.flavors"
    wrong=
    while read -r flavor parameters; do
        is=$(count "$model" "$flavor")
        [[ $is == "$parameters" ]] || wrong+=" $flavor: $parameters, and the plan has $is;"
    done <"$model.flavors"
    [[ ! $wrong ]]
    tell "$model: $(wc -l <"$model.flavors") flavors" "$wrong"
done
[[ $(cat ./*.flavors | wc -l) -ge 20 && $(head -n 1 llama.flavors) == debug\ * ]]
tell "models have flavors"

"$ctitan" help decoder | tr -s ' \n' ' ' >out
grep -q ' families [a-z0-9_, ]*gemma2, .*mistral, .*; \[model\] init_from chooses one by the model_type' out
tell "a plugin lists the families that it builds"
"$ctitan" help mistral >out
grep -qE '^model_type mistral is described by .*/mistral.ini$' out && grep -q '^plugin decoder' out
tell "help of a family names its description and its plugin"
run help mistrul
[[ $? == 2 ]]
tell "help of no family has status 2"
finish
