# shellcheck shell=bash
# For the tests of examples, beside lib/test.sh: `. installed.sh BUILD SOURCE [EXAMPLE]` goes to $work. The build is installed into
# $installed, which all tests share and none changes. The example is made against what was installed, and checked; recipe.ini is written.
source "$(dirname "${BASH_SOURCE[0]}")/../lib/test.sh"
build=$1 source=$2 example=${3-}
enter

# what_is_installed: a hash of the files that are installed, and of where they go.
what_is_installed() {
    local list=$build/meson-info/intro-installed.json sources
    sed 's/", "/",\n"/g' "$list" | sed -nE 's/^\{?"([^"]*)": .*/\1/p' | mapfile -t sources
    { cat "$list" && find "${sources[@]}" -type f -exec sha1sum {} + || true; } 2>/dev/null | sort | sha1sum
}

# install_build: unless these are there. The first test does it, and others wait for that.
install_build() {
    local what
    what=$(what_is_installed)
    [[ ! -e $installed.whole || $(<"$installed.whole") != "$what" ]] || return 0
    rm -rf "$installed" "$installed.whole"
    DESTDIR=$installed meson install -C "$build" --no-rebuild --quiet >/dev/null
    echo "$what" >"$installed.whole"
}

installed=$build/tests/example/installed
exec {lock}>"$installed.lock"
flock "$lock"
install_build
exec {lock}>&-
pc=$(find "$installed" -name ctitan.pc)
library=$(dirname "$(find "$installed" -name libctitan.so)")
ctitan=$(find "$installed" -path '*/bin/ctitan')
export PKG_CONFIG_LIBDIR=${pc%/*} PKG_CONFIG_SYSROOT_DIR=$installed LD_LIBRARY_PATH=$library

[[ $example ]] || return 0
cp -r "$source/examples/$example" "$work/$example"
make -s -C "$work/$example" CC="${CC:-cc} -Werror"
export CTITAN_PLUGIN_PATH=$work/$example
"$ctitan" check --quick "${check_options[@]}" "$example/$example.so" >check.log || { cat check.log; exit 1; }
recipe -tokens +text +bytes -job.dump_folder -model.init_from llama.dim=32 llama.n_layers=4 llama.n_heads=2 llama.vocab_size=320 \
    training.local_batch_size=4 training.global_batch_size=16 training.steps=6 training.mixed_precision_param=float32 \
    text.path="$source/LICENSE" lr_scheduler.warmup_steps=2
