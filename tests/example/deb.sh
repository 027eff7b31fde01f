#!/bin/bash
# deb.sh SOURCE: the Debian packages name what they depend on, and what they contain works by itself: the program, its plugins and
# recipes, the pages, and the headers and examples for plugins of others. A plugin of another package is named with that package.
source "$(dirname "$0")/../lib/test.sh"
set -euo pipefail
source=$1
command -v dpkg-shlibdeps >/dev/null || exit 77
enter

"$source/scripts/deb" "$work/dist"
package=$(ls "$work"/dist/ctitan_*.deb)
for library in libc6 libinih libjansson libdnnl; do
    grep -q "$library" < <(dpkg-deb -f "$package" Depends) || { echo "it does not depend on $library"; exit 1; }
done
for part in dev cuda; do
    grep -q "^ctitan (= $(dpkg-deb -f "$package" Version))" < <(dpkg-deb -f "$work"/dist/ctitan-${part}_*.deb Depends) ||
        { echo "ctitan-$part does not depend on ctitan of its version"; exit 1; }
done
dpkg-deb -x "$package" "$work/fresh"
ctitan=$work/fresh/usr/bin/ctitan
unset LD_LIBRARY_PATH CTITAN_PLUGIN_PATH
"$ctitan" plugins >log
grep -q adamw log
"$ctitan" plan fresh/usr/share/ctitan/recipes/quickstart.ini --set "text.path=$source/LICENSE" >log
"$ctitan" plan fresh/usr/share/ctitan/recipes/quickstart.ini --set "text.path=$source/LICENSE" --device h100-80g 2>log && exit 1
grep -q 'plugin cuda is not installed: install the package ctitan-cuda' log
"$ctitan" new data mine 2>log && exit 1
grep -q 'ctitan-dev' log
for part in dev cuda; do dpkg-deb -x "$work"/dist/ctitan-${part}_*.deb "$work/fresh"; done
"$ctitan" plan fresh/usr/share/ctitan/recipes/quickstart.ini --set "text.path=$source/LICENSE" --device h100-80g >log
grep -q '^.TH CTITAN 1' < <(gzip -cd fresh/usr/share/man/man1/ctitan.1.gz) # a pipe that grep leaves early fails
bash -n fresh/usr/share/bash-completion/completions/ctitan*
"$ctitan" new data mine
pc=$(find "$work/fresh" -name ctitan.pc)
PKG_CONFIG_LIBDIR=${pc%/*} PKG_CONFIG_SYSROOT_DIR=$work/fresh make -s -C mine CC="${CC:-cc}"
CTITAN_PLUGIN_PATH=mine "$ctitan" check mine/mine.so
