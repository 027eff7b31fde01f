#!/bin/bash
# test_save_memory.sh CTITAN SOURCE: saving the weights of 4 ranks needs no more host memory on any rank than
# a few windows of rows (16 MiB each, see lib/hf/write.c), however large the model is; and loading them no more than one tensor.
source "$(dirname "$0")/../lib/test.sh"
set -euo pipefail
ctitan=$(realpath "$1") source=$2
enter

# peak COMMAND..: the MiB of memory of the largest process.
peak() {
    python3 - "$@" <<'END'
import resource, subprocess, sys
with open('log', 'w') as log:
    done = subprocess.run(sys.argv[1:], stdout=log, stderr=log)
if done.returncode:
    sys.exit(open('log').read())
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
END
}
train=("$ctitan" train "$source/recipes/debug.ini" -n 4 --with local --with fsdp
    --set "text.path=$source/LICENSE" --set text.cache=none --set llama.vocab_size=65536
    --set training.seq_len=16 --set training.local_batch_size=1 --set training.global_batch_size=4
    --set training.steps=1)
without=$(peak "${train[@]}" --set job.dump_folder=without)
with=$(peak "${train[@]}" --set job.dump_folder=with --set model.save_to=with/model)
model=$(du -sm with/model | cut -f1)
echo "a model of $model MiB; peak $without MiB, with saving $with MiB"
((model > 120 && with < without + 64))
# While a folder is read, memory has the weights so far, one tensor on its way, and what is read of that.
loading=$(peak "$ctitan" generate with/model --prompt-ids 1,2 --tokens 1 --greedy)
echo "peak $loading MiB with loading"
((loading < 5 * model / 2))
