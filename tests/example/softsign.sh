#!/bin/bash
# An op of a third party with kernels for both devices: each instruction set, and CUDA on the simulated GPU. A wrong kernel
# is found, a model trains alike on both, and a build without nvcc says what it lacks.
set -euo pipefail
check_options=(--allow-untried) # this machine need not have a GPU
. "$(dirname "$0")/installed.sh" "$1" "$2" softsign

for isa in portable avx2 avx512 avx512bf16; do
    grep -qE "^(ok|untried) +kernel $isa of softsign_grad" check.log || { cat check.log; exit 1; }
done
grep -q '^ok .*kernel portable of softsign on cpu: [1-9]' check.log
rm softsign/objects/softsign.o softsign/softsign.so
make -s -C softsign CC="${CC:-cc}" NVCC= >log
grep -q 'softsign.so has no kernels for CUDA: they need nvcc' log

command -v "${CXX:-c++}" >/dev/null || { echo "no C++ compiler: not tried on the simulated GPU"; exit 0; }
simulated() { make -s -C "$1" check-simulated CC="${CC:-cc}" CXX="${CXX:-c++}" CTITAN="$ctitan" check_options=--quick; }
simulated softsign >log || { cat log; exit 1; }
for op in softsign softsign_grad; do
    grep -q "^ok .*kernel elements of $op on cuda: [1-9]" log || { cat log; exit 1; }
done

cp -a softsign harmed
sed -i 's/x \/ (1.0f + fabsf(x))/x \/ (1.001f + fabsf(x))/' harmed/softsign.cu
if simulated harmed >log 2>&1; then cat log; exit 1; fi
grep -q 'kernel elements of softsign on cuda.*dense, float32' log || { cat log; exit 1; }

# A model with it.
cp -r "$source/examples/palm" palm
sed -i 's/    ct_graph_fetch(graph, "logits", \(ct_linear(.*)\));/    x = \1;\n    ct_graph_fetch(graph, "logits", ct_emit1(\&m.b, "softsign", NULL, \&x, 1, NULL));/' palm/palm.c
grep -q softsign palm/palm.c
make -s -C palm CC="${CC:-cc}"
sed -i 's/^load = .*/&, softsign/' recipe.ini
model=(--without llama --with palm --set model.name=palm --set palm.dim=32 --set palm.n_layers=2 --set palm.n_heads=2
    --set palm.vocab_size=320)
export CTITAN_PLUGIN_PATH=$work/softsign:$work/palm
train_to one "${model[@]}"
values loss one/metrics.jsonl >expected
simulator=$(pkg-config --variable=plugindir ctitan)/simulator
LD_LIBRARY_PATH=$simulator:$LD_LIBRARY_PATH CTITAN_PLUGIN_PATH=$simulator:$work/softsign/simulated:$work/palm \
    SIMULATOR_COUNTS=counts train_to gpu "${model[@]}" --without cpu --with cuda
values loss gpu/metrics.jsonl >losses
near losses expected 1e-5
grep -qE '^[1-9][0-9]* +softsign_grad_float32$|^softsign_grad_float32 +[1-9]' counts.0 || { cat counts.0; exit 1; }
