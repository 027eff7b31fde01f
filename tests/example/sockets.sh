#!/bin/bash
# sockets.sh BUILD SOURCE COMM: the tests of communicators pass with a third party's; runs over it have the losses of
# local, bit for bit; ranks that die or disagree end the others at once.
set -euo pipefail
comm=$(realpath "$3")
. "$(dirname "$0")/installed.sh" "$1" "$2" sockets
trap 'kill -KILL ${ranks[@]:-} 2>/dev/null || true; rm -rf "$work"' EXIT

"$comm" "$work/sockets/sockets.so" works 1 3
for mesh in '-n 2 --with fsdp' '-n 4 --with fsdp --with tp --set tp.degree=2' \
    '-n 2 --with pp --set pp.degree=2 --set pp.microbatch_size=2'; do
    read -ra arguments <<<"$mesh"
    rm -rf by_local by_sockets
    train_to by_local "${arguments[@]}"
    train_to by_sockets --without local --with sockets "${arguments[@]}"
    cmp <(values loss by_local/metrics.jsonl) <(values loss by_sockets/metrics.jsonl)
done

# act HOW: rank 3 misbehaves after 50 calls. All others end long before the time-out of 60 s, and say why.
act() {
    ranks=()
    for rank in 0 1 2 3; do
        timeout 20 "$comm" "$work/sockets/sockets.so" rank $rank 4 "$$-$1" "$1" 60 >"$1.$rank" 2>&1 &
        ranks+=($!)
    done
    for rank in 0 1 2; do wait "${ranks[rank]}"; done
    wait "${ranks[3]}" || true
}
act die
for rank in 0 1 2; do grep -q "group 'world': rank . has left" die.$rank || { cat die.*; exit 1; }; done
grep -q 'rank 3 has left' die.[012]
for how in count dtype max other; do
    act $how
    grep -q "ranks disagree in group 'world': rank . has .*, rank . expects all_" $how.[0-3] || { cat $how.*; exit 1; }
done
