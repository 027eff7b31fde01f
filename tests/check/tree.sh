#!/bin/bash
# tree.sh CTITAN BUILD SOURCE: `ctitan check` passes all plugins of the tree.
set -uo pipefail
ctitan=$1 build=$2 source=$3 status=0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
head -c 8192 /dev/zero >"$scratch/tokens"
for plugin in "$build"/plugins/*/*.so "$build"/models/*/*.so; do
    name=$(basename "$plugin" .so)
    case $name in
    text) # a mixture, with a part that is held out
        arguments=(--with bytes --set "text.path=$source/LICENSE,$source/README.md" --set text.weights=1,2
            --set text.split=line --set text.validation_fraction=0.1) ;;
    tokens) arguments=(--set "tokens.path=$scratch/tokens") ;;
    bpe) arguments=(--set "bpe.path=$source/tests/bpe/tokenizer.json") ;;
    offload) arguments=(--set "cpu.offload_folder=$scratch") ;;
    ep) arguments=(--with qwen3_moe) ;;
    float8) arguments=(--tolerance 0.01 --mesh-tolerance 0.01) ;; # 8-bit products
    lora) arguments=(--tolerance 1 --allow-untried) ;; # trains other parameters
    qlora) arguments=(--allow-untried) ;;              # it needs a folder of weights: tests/qlora trains
    distill | dpo | eval | spikes | weighted) arguments=(--allow-untried) ;; # kernels for a device: tests/cuda tries them
    freeze) arguments=(--set "freeze.trains=layers.*" --tolerance 1) ;;
    describe) arguments=(--set "describe.file=$scratch/machine") ;;
    cpu | cuda | mpi) arguments=(--allow-untried) ;; # tests/conformance has their kernels, tests/mpi mpirun
    *) arguments=() ;;
    esac
    if "$ctitan" check "$plugin" "${arguments[@]}" >"$scratch/log" 2>&1; then
        tail -1 "$scratch/log"
    else
        cat "$scratch/log"
        status=1
    fi
done
exit $status
