# shellcheck shell=bash
# For the tests of examples, beside lib/test.sh: `. installed.sh BUILD SOURCE [EXAMPLE]` installs the build into $work, and goes there.
# It makes the example against what was installed, checks it, and writes recipe.ini.
source "$(dirname "${BASH_SOURCE[0]}")/../lib/test.sh"
build=$1 source=$2 example=${3-}
enter

DESTDIR=$work meson install -C "$build" --no-rebuild --quiet >/dev/null
pc=$(find "$work" -name ctitan.pc)
library=$(dirname "$(find "$work" -name libctitan.so)")
ctitan=$(find "$work" -path '*/bin/ctitan')
export PKG_CONFIG_LIBDIR=${pc%/*} PKG_CONFIG_SYSROOT_DIR=$work LD_LIBRARY_PATH=$library

[[ $example ]] || return 0
cp -r "$source/examples/$example" "$work/$example"
make -s -C "$work/$example" CC="${CC:-cc} -Werror"
export CTITAN_PLUGIN_PATH=$work/$example
"$ctitan" check --quick "${check_options[@]}" "$example/$example.so" >check.log || { cat check.log; exit 1; }
recipe -tokens +text +bytes -job.dump_folder -model.init_from llama.dim=32 llama.n_layers=4 llama.n_heads=2 llama.vocab_size=320 \
    training.local_batch_size=4 training.global_batch_size=16 training.steps=6 training.mixed_precision_param=float32 \
    text.path="$source/LICENSE" lr_scheduler.warmup_steps=2
