# shellcheck shell=bash
# For the tests of examples: `. installed.sh BUILD SOURCE EXAMPLE` installs the build into a folder, makes
# the example against what was installed, goes there, and writes recipe.ini.
build=$1 source=$2 example=$3
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

DESTDIR=$root meson install -C "$build" --no-rebuild --quiet >/dev/null
pc=$(find "$root" -name ctitan.pc)
library=$(dirname "$(find "$root" -name libctitan.so)")
ctitan=$(find "$root" -path '*/bin/ctitan')
export PKG_CONFIG_LIBDIR=${pc%/*} PKG_CONFIG_SYSROOT_DIR=$root LD_LIBRARY_PATH=$library

cp -r "$source/examples/$example" "$root/$example"
make -s -C "$root/$example" CC="${CC:-cc} -Werror"
export CTITAN_PLUGIN_PATH=$root/$example
cd "$root"
"$ctitan" check --quick "${check_options[@]}" "$example/$example.so" >check.log || { cat check.log; exit 1; }
cat >recipe.ini <<INI
[plugins]
load = cpu, local, llama, text, bytes, adamw, metrics
[model]
name = llama
[llama]
dim = 32
n_layers = 4
n_heads = 2
vocab_size = 320
[training]
seq_len = 64
local_batch_size = 4
global_batch_size = 16
steps = 6
mixed_precision_param = float32
[text]
path = $source/LICENSE
[lr_scheduler]
warmup_steps = 2
[metrics]
log_freq = 1
peak_tflops = 1
INI

# train FOLDER ARGUMENT...: the run's dump folder is FOLDER.
train() {
    local folder=$1
    shift
    "$ctitan" train recipe.ini --set "job.dump_folder=$folder" "$@" >"$folder.log" 2>&1 || {
        cat "$folder.log"
        exit 1
    }
}

# The digits of a value of each step, as metrics wrote them.
values() { sed -nE "s/.*\"$2\": ([^,}]*).*/\1/p" "$1/metrics.jsonl"; }

# Within 1e-5 of each other, step by step.
close() {
    paste "$1" "$2" | awk '
        { d = $1 - $2; if (d < 0) d = -d; if (d > 1e-5 * $2 || $1 == "" || $2 == "") { print "step", NR ":", $0; bad = 1 } }
        END { exit bad || !NR }'
}
