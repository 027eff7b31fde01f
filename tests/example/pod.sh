#!/bin/bash
# An axis that ctitan does not know has its place in the mesh, and a mesh with it has one rank's losses.
set -euo pipefail
. "$(dirname "$0")/installed.sh" "$1" "$2" pod

train one
values one loss >expected
for mesh in '-n 2 --with pod --set pod.degree=2' '-n 4 --with pod --set pod.degree=2 --with fsdp' \
    '-n 4 --with pod --set pod.degree=2 --with tp --set tp.degree=2'; do
    read -ra arguments <<<"$mesh"
    rm -rf many
    train many "${arguments[@]}"
    values many loss >losses
    close losses expected
    echo "$mesh: one rank's losses"
done
"$ctitan" plan recipe.ini -n 2 --with pod --set pod.degree=2 >log
grep -q 'all_reduce  *pod ' log
"$ctitan" plan recipe.ini -n 4 --with pod --set pod.degree=2 --with fsdp >log
grep -q 'all_gather  *pod.dp_shard ' log
