#!/bin/bash
# cplusplus.sh BUILD SOURCE: a plugin whose work is done in C++ is made from what is installed, as CUDA's authors
# write one: its descriptor in C, the rest in C++, with its options. What pkg-config says of the installation is so.
set -euo pipefail
read -ra c <<<"${CC:-cc}"
read -ra cxx <<<"${CXX:-c++}"
command -v "${cxx[0]}" >/dev/null || { echo "no C++ compiler"; exit 77; }
. "$(dirname "$0")/installed.sh" "$1" "$2" eager_1f1b

mkdir plus
cat >plus/config.h <<'C'
#include <ctitan/option.h>
enum manner { QUIET, LOUD };
struct config { bool tells; int64_t count; double rate; const char *title, *order; enum manner manner; };
CT_BEGIN_DECLS
extern const struct ct_option options[];
extern struct config config;
CT_END_DECLS
C
cat >plus/body.cc <<'CC'
#include <algorithm>
#include <ctitan/error.h>
#include <ctitan/lib/pipeline.h>
#include <ctitan/op.h>
#include "config.h"
struct config config;
const struct ct_option options[] = {
    CT_OPT_BOOL(struct config, tells, "tells", "false", "Whether it says its options, and fails"),
    CT_OPT_INT(struct config, count, "count", "1", 0, 9, "A number"),
    CT_OPT_FLOAT(struct config, rate, "rate", "1", 0, INFINITY, "Without an end"),
    CT_OPT_STRING(struct config, title, "title", "none", "A text"),
    CT_OPT_CHOICE(struct config, order, "order", "up", "up|down", "A word"),
    CT_OPT_ENUM(struct config, manner, "manner", "quiet", "quiet|loud", "A number that is a word"),
    {}};
struct attributes { enum ct_dtype dtype; struct ct_shape shape; ct_axes axes; struct ct_target target; };
extern const struct ct_option attributes[] = {
    CT_OPT_DTYPE(struct attributes, dtype, "dtype", "float32", "A dtype"),
    CT_OPT_SHAPE(struct attributes, shape, "shape", NULL, "A shape"),
    CT_OPT_AXES(struct attributes, axes, "axes", "Axes"),
    CT_OPT_SHARDING(struct attributes, target, "target", "A sharding"), {}};
#ifdef WRONG
extern const struct ct_option wrong[] = {WRONG, {}};
#endif
extern "C" int generate(const struct ct_schedule_request *request, struct ct_action_list *lists)
{
    if (config.tells)
        return ct_fail(CT_ECONFIG, "%d %g %s %s %d", (int)config.count, config.rate, config.title, config.order,
                       config.manner);
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
#include "config.h"
int generate(const struct ct_schedule_request *request, struct ct_action_list *lists);
static const struct ct_schedule_ops schedule = {.size = sizeof(struct ct_schedule_ops),
    .summary = "1f1b in C++", .stages_per_rank_min = 1, .stages_per_rank_max = 1, .generate = generate};
CT_PLUGIN(.name = "plus", .version = "1.0", .summary = "1f1b in C++", .options = options, .config = &config,
          .config_size = sizeof(config), .offers = CT_OFFERS({CT_SCHEDULE, "plus", &schedule}));
C
read -ra flags <<<"$(pkg-config --cflags ctitan)"
read -ra libs <<<"$(pkg-config --libs ctitan)"
"${c[@]}" -std=gnu11 -Wall -Wextra -Werror -fPIC -fvisibility=hidden "${flags[@]}" -c plus/plus.c -o plus/plus.o
"${cxx[@]}" -std=c++17 -Wall -Wextra -Werror -fPIC -fvisibility=hidden "${flags[@]}" -shared -Wl,-z,defs \
    -o plus/plus.so plus/plus.o plus/body.cc "${libs[@]}"

# Options of each type have their values, and no other type builds.
CTITAN_PLUGIN_PATH=plus "$ctitan" schedule plus --ranks 2 --microbatches 4 --set plus.tells=true --set plus.count=7 --set plus.rate=0.25 \
    --set plus.title=aria --set plus.order=down --set plus.manner=loud >log 2>&1 && { echo "it tells nothing"; exit 1; }
grep -q '7 0.25 aria down 1$' log || { cat log; exit 1; }
compilers=("${cxx[0]}")
[[ ! $(command -v clang++) || ${cxx[0]} == *clang* ]] || compilers+=(clang++)
for compiler in "${compilers[@]}"; do
    strict=("$compiler" -std=c++17 -Wall -Wextra -Wpedantic -Werror "${flags[@]}" -fsyntax-only plus/body.cc)
    "${strict[@]}"
    for wrong in 'CT_OPT_INT(struct config, rate, "a", "1", 0, 9, "A")' 'CT_OPT_FLOAT(struct config, count, "a", "1", 0, 9, "A")' \
        'CT_OPT_ENUM(struct config, tells, "a", "x", "x|y", "A")' 'CT_OPT_BOOL(struct config, manner, "a", "true", "A")'; do
        "${strict[@]}" -D "WRONG=$wrong" 2>log && { echo "$compiler builds $wrong"; exit 1; }
        grep -q 'the field has another type than the option' log || { cat log; exit 1; }
    done
done
"$ctitan" check plus/plus.so >log || { cat log; exit 1; }
grep -q 'schedule plus: [1-9][0-9]* cases verified' log || { cat log; exit 1; }

# A plugin needs a library of this interface, by its soname; where plugins lie and the interface are variables.
needed=$(readelf -d plus/plus.so | sed -nE 's/.*NEEDED.*\[(.*)\]/\1/p')
[[ $needed == *libctitan-lib.so.[0-9]* ]] || { echo "it needs: $needed"; exit 1; }
plugins=$(pkg-config --variable=plugindir ctitan)
[[ -e $plugins/cpu.so || -e $installed$plugins/cpu.so ]] || { echo "no plugins in $plugins"; exit 1; }
minor=$(sed -nE 's/^#define CT_ABI_MINOR ([0-9]+).*/\1/p' "$2/core/include/ctitan/plugin.h")
[[ $(pkg-config --variable=abi ctitan) == *".$minor" && $minor ]] || { echo "abi is not .$minor"; exit 1; }
