#!/bin/bash
# The records of all ranks fit together: each call of a group is in the record of each of its ranks, once, with the
# same op and bytes, in the group's order, and its times follow each other. A run that hangs leaves the call behind
# that waited.
set -euo pipefail
. "$(dirname "$0")/installed.sh" "$1" "$2" collectives

# pair RECORD...: of one run.
pair() {
    awk '
        function bad(why) { print why ": " $0; failed = 1 }
        function field(name,    text) {
            if (!match($0, "\"" name "\": (\"[^\"]*\"|[^,}]*)")) bad("no " name)
            text = substr($0, RSTART + length(name) + 4, RLENGTH - length(name) - 4)
            gsub(/"/, "", text)
            return text
        }
        !/^\{.*\}$/ || !match($0, /\[[0-9, ]*\]/) { bad("not a call of a group"); next }
        {
            ranks = substr($0, RSTART + 1, RLENGTH - 2); size = split(ranks, list, ", ")
            group = ranks "|" field("group") "|" field("instance"); number = field("sequence")
            op = field("op"); sub("receive", "send", op) # a receive is the other end of a send
            call = group "|" number; what = op "|" field("bytes") "|" field("step"); rank = field("rank")
            if (field("enqueued") + 0 > field("started") + 0 || field("started") + 0 > field("finished") + 0)
                bad("times")
            for (i = size; i > 0 && list[i] != rank; i--) ;
            if (!i) bad("a stranger")
            if ((call, rank) in seen) bad("twice")
            seen[call, rank] = 1
            if (!(call in first)) { first[call] = what; wanted[call] = size; calls++ }
            if (first[call] != what) bad("another call than " first[call])
            members[call]++
            if (number > last[group]) last[group] = number + 0
        }
        END {
            for (c in wanted) if (members[c] != wanted[c]) { print c, "is on", members[c], "of", wanted[c]; failed = 1 }
            for (g in last) for (n = 1; n <= last[g]; n++) if (!((g "|" n) in first)) { print g, "lacks", n; failed = 1 }
            print calls " calls"
            exit failed || calls < 100
        }' "$@"
}

for mesh in '--with fsdp --with tp --set tp.degree=2' \
    '--with fsdp --with pp --set pp.degree=2 --set pp.schedule=interleaved_1f1b --set pp.microbatch_size=2'; do
    read -ra arguments <<<"$mesh"
    rm -rf out
    train_to out -n 4 --with collectives --set training.steps=3 "${arguments[@]}"
    ls out/collectives-{0,1,2,3}.jsonl >/dev/null
    pair out/collectives-*.jsonl
done
grep -q '"op": "send".* "section": "0SEND_F", "microbatch": [01],' out/collectives-0.jsonl
grep -q '"op": "receive".* "section": "0RECV_B", "microbatch": [01],' out/collectives-0.jsonl

# Rank 1 stops; rank 0 is left with a call that has begun.
rm -rf out
timeout 60 "$ctitan" train recipe.ini --set job.dump_folder=out -n 2 --with fsdp --with collectives \
    --set training.steps=1000000 --set comm.timeout=2 >log 2>&1 &
run=$!
trap 'kill "$run" 2>/dev/null || true; rm -rf "$work"' EXIT
until [[ $(wc -l 2>/dev/null <out/collectives-1.jsonl) -gt 100 ]]; do sleep 0.1; done
rank1=
for process in $(pgrep -P "$(pgrep -P "$run")"); do
    if tr '\0' '\n' <"/proc/$process/environ" | grep -qx RANK=1; then rank1=$process; fi
done
kill -STOP "$rank1"
never wait "$run"
grep '"started": [0-9.]*, "finished": null}$' out/collectives-0.jsonl | tee open
grep -q '"ranks": \[0, 1\]' open
