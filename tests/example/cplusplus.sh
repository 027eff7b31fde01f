#!/bin/bash
# cplusplus.sh BUILD SOURCE: a plugin whose work is done in C++ is made from what is installed, as CUDA's authors
# write one: its descriptor in C, the rest in C++. What pkg-config says of the installation is so.
set -euo pipefail
read -ra c <<<"${CC:-cc}"
read -ra cxx <<<"${CXX:-c++}"
command -v "${cxx[0]}" >/dev/null || { echo "no C++ compiler"; exit 77; }
. "$(dirname "$0")/installed.sh" "$1" "$2" eager_1f1b

mkdir plus
cat >plus/body.cc <<'CC'
#include <algorithm>
#include <ctitan/lib/pipeline.h>
extern "C" int generate(const struct ct_schedule_request *request, struct ct_action_list *lists)
{
    for (int rank = 0; rank < request->ranks; rank++) {
        int ahead = std::min(request->ranks - rank, request->microbatches), forward = 0;
        while (forward < ahead)
            ct_schedule_add(request, &lists[rank], CT_ACTION_F, rank, forward++);
        for (int m = 0; m < request->microbatches; m++) {
            ct_schedule_add(request, &lists[rank], CT_ACTION_B, rank, m);
            if (forward < request->microbatches)
                ct_schedule_add(request, &lists[rank], CT_ACTION_F, rank, forward++);
        }
    }
    return 0;
}
CC
cat >plus/plus.c <<'C'
#include <ctitan/lib/pipeline.h>
#include <ctitan/plugin.h>
int generate(const struct ct_schedule_request *request, struct ct_action_list *lists);
static const struct ct_option options[] = {
    CT_OPT_FLOAT(struct config, rate, "rate", "1", 0, INFINITY, "Without an end"), {0}};
static const struct ct_schedule_ops schedule = {.size = sizeof(struct ct_schedule_ops),
    .summary = "1f1b in C++", .stages_per_rank_min = 1, .stages_per_rank_max = 1, .generate = generate};
CT_PLUGIN(.name = "plus", .version = "1.0", .summary = "1f1b in C++", .options = options, .config = &config,
          .config_size = sizeof(config), .offers = CT_OFFERS({CT_SCHEDULE, "plus", &schedule}));
C
sed -i 's/^static const struct ct_option/static struct config { double rate; } config;\n&/' plus/plus.c
read -ra flags <<<"$(pkg-config --cflags ctitan)"
read -ra libs <<<"$(pkg-config --libs ctitan)"
"${c[@]}" -std=gnu11 -Wall -Wextra -Werror -fPIC -fvisibility=hidden "${flags[@]}" -c plus/plus.c -o plus/plus.o
"${cxx[@]}" -std=c++17 -Wall -Wextra -Werror -fPIC -fvisibility=hidden "${flags[@]}" -shared -Wl,-z,defs \
    -o plus/plus.so plus/plus.o plus/body.cc "${libs[@]}"
"$ctitan" check plus/plus.so >log || { cat log; exit 1; }
grep -q 'schedule plus: [1-9][0-9]* cases verified' log || { cat log; exit 1; }

# A plugin needs a library of this interface, by its soname; where plugins lie and the interface are variables.
needed=$(readelf -d plus/plus.so | sed -nE 's/.*NEEDED.*\[(.*)\]/\1/p')
[[ $needed == *libctitan-lib.so.[0-9]* ]] || { echo "it needs: $needed"; exit 1; }
plugins=$(pkg-config --variable=plugindir ctitan)
[[ -e $plugins/cpu.so || -e $root$plugins/cpu.so ]] || { echo "no plugins in $plugins"; exit 1; }
minor=$(sed -nE 's/^#define CT_ABI_MINOR ([0-9]+).*/\1/p' "$2/core/include/ctitan/plugin.h")
[[ $(pkg-config --variable=abi ctitan) == *".$minor" && $minor ]] || { echo "abi is not .$minor"; exit 1; }
