/*
 * Fusion: joins chains of pointwise ops and row reductions into one kernel each, which the system's
 * compiler makes.
 *
 * What an op computes is a property of its type, a formula. So ops of any plugin are fused, and
 * those without a formula are borders. Kernels depend on formulas and dtypes, not on sizes: layers
 * share them, and so do ranks and later runs.
 */
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/log.h>
#include <ctitan/plugin.h>

#include <ctitan/file.h>

#include "fuse.h"

struct fuse_config fuse_config;

static const struct ct_option options[] = {
    CT_OPT_STRING(struct fuse_config, cache, "cache", "",
                  "Folder for compiled kernels; empty: ctitan/kernels in $XDG_CACHE_HOME or "
                  "~/.cache"),
    CT_OPT_STRING(struct fuse_config, compiler, "compiler", "",
                  "C compiler and its first arguments; empty: $CC, or cc"),
    CT_OPT_STRING(struct fuse_config, flags, "flags",
                  "-std=gnu11 -O3 -march=native -fno-math-errno -fno-trapping-math",
                  "Flags of the C compiler"),
    CT_OPT_STRING(struct fuse_config, dump, "dump", "",
                  "Folder to write the source code of kernels to; -: print it, which is what "
                  "--dump-kernels does; empty: neither"),
    CT_OPT_BOOL(struct fuse_config, always, "always", "false",
                "Compile every op that can be compiled, even where the device's own kernels are "
                "predicted to be as fast; for measurements"),
    {0}};

/* ---- the graph ---- */

static const char *reason(const struct fuse_group *g, struct ct_arena *arena)
{
    const char *text = g->lone ? "compiled: the device has no kernel for " : "fused: ";

    for (int i = 0; i < g->count; i++)
        text = ct_arena_printf(arena, "%s%s%s", text, i ? ", " : "", g->op[i]->type->name);
    return g->lone ? text : ct_arena_printf(arena, "%s; %.3g MB less", text, g->saved / 1e6);
}

static int replace(struct ct_graph *graph, const struct fuse_group *g)
{
    struct ct_builder b = ct_builder_before(graph, g->op[g->count - 1]);
    struct fuse_attrs attrs = {g->attrs.outputs, ct_arena_strdup(graph->arena, g->attrs.program)};
    struct ct_op *fused;

    b.why = reason(g, graph->arena);
    for (int i = 0; i < g->count; i++)
        b.marks |= g->op[i]->marks;
    fused = ct_emit_type(&b, &fuse_op, NULL, g->in, g->program.ins, &attrs);
    for (int i = 0; fused && i < fused->outs; i++)
        ct_op_set_output(fused, i, g->out[i]);
    for (int i = g->count; fused && i-- > 0;)
        ct_graph_remove(graph, g->op[i]);
    return b.status;
}

/* ---- kernels ---- */

/* The code of the op that the group will be: from its text, as the op's kernel will write it. */
static int write_code(const struct fuse_plan *plan, const struct fuse_group *g,
                      struct ct_rows_code *code)
{
    struct ct_arena *arena = plan->arena;
    struct ct_rows_program f;
    int rc = fuse_parse(&g->attrs, g->program.ins, g->program.outs, arena, &f);

    if (rc < 0)
        return ct_context(rc, "%s", g->attrs.program);
    memcpy(f.in_dtype, g->program.in_dtype, sizeof(f.in_dtype));
    ct_rows_write(&f, plan->target.ops ? 0 : CT_ROWS_KEPT, arena, code);
    return 0;
}

struct kernels {
    struct ct_rows_code *code;
    const struct fuse_group **first; /* that uses it */
    int *uses, count;
};

static int distinct(const struct fuse_plan *plan, struct kernels *k)
{
    *k = (struct kernels){ct_arena_array(plan->arena, struct ct_rows_code, plan->count + 1),
                          ct_arena_array(plan->arena, const struct fuse_group *, plan->count + 1),
                          ct_arena_array(plan->arena, int, plan->count + 1), 0};

    for (size_t i = 0; i < plan->count; i++) {
        int at = 0, rc = write_code(plan, plan->group[i], &k->code[k->count]);

        if (rc < 0)
            return rc;
        while (strcmp(k->code[at].text, k->code[k->count].text))
            at++;
        if (k->uses[at]++ == 0)
            k->first[k->count++] = plan->group[i];
    }
    return 0;
}

/* Before anything is compiled. */
static int check_dump(void)
{
    if (*fuse_config.dump && strcmp(fuse_config.dump, "-") != 0 &&
        ct_file_try_folder(fuse_config.dump) < 0)
        return ct_context(CT_ECONFIG, "[fuse] dump = %s", fuse_config.dump);
    return 0;
}

static int dump(const struct fuse_plan *plan, const struct kernels *k)
{
    const char *header = plan->target.ops ? CT_COMPILER_HEADER : fuse_header_name();
    bool print = !strcmp(fuse_config.dump, "-");
    struct ct_arena *arena = plan->arena;
    int rc = 0;

    if (!*fuse_config.dump || (print && plan->rank > 0))
        return 0;
    if (!print && !plan->target.ops)
        rc = fuse_write_header(fuse_config.dump);
    for (int i = 0; rc == 0 && i < k->count; i++) {
        const struct fuse_group *g = k->first[i];
        const char *path = ct_arena_printf(arena, "%s/%s.c", fuse_config.dump, g->out[0]->name);
        const char *text =
            ct_arena_printf(arena, "/* %s. First of %d: %%%s */\n#include \"%s\"\n\n%s",
                            reason(g, arena), k->uses[i], g->out[0]->name, header, k->code[i].text);

        if (print)
            printf("%s\n", text);
        else
            rc = ct_file_write(path, text, strlen(text));
    }
    return rc;
}

static void report(const struct fuse_plan *plan, const struct kernels *k,
                   const struct fuse_result *result)
{
    double bytes = 0;

    for (size_t i = 0; i < plan->count; i++)
        bytes += plan->group[i]->saved;
    ct_info("fuse: %zu fused ops by %d kernels (%d compiled in %.2f s, %d from the cache), %.1f MB "
            "less read and written per microbatch, of %.1f MB by ops with formulas and %.1f MB by "
            "all",
            plan->count, k->count, result->compiled, result->seconds, result->found, bytes / 1e6,
            plan->moved_by_formula / 1e6, plan->moved / 1e6);
}

/* ---- the transform ---- */

static const char *device_name(const struct ct_run *run)
{
    const struct ct_offer *offer;

    if (run->device)
        return run->device->name;
    for (size_t i = 0; (offer = ct_offer_at(CT_DEVICE, i)); i++)
        if (offer->ops == run->device_ops)
            return offer->name;
    return "";
}

static void give_up(const char *why)
{
    static bool said;

    if (!said)
        ct_warn("fuse: no ops are fused: %s", why);
    said = true;
}

static int fuse(struct fuse_plan *plan)
{
    struct fuse_result result;
    struct kernels k = {0};
    int rc = check_dump();

    if (rc == 0)
        rc = distinct(plan, &k);
    if (rc < 0)
        return rc;
    rc = fuse_compile(&plan->target, k.code, k.count, &result);
    if (rc == CT_ECONFIG)
        return rc;
    if (rc < 0) {
        give_up(ct_error_message());
        return 0;
    }
    rc = dump(plan, &k);
    for (size_t i = 0; rc == 0 && i < plan->count; i++)
        rc = replace(plan->graph, plan->group[i]);
    if (rc == 0)
        report(plan, &k, &result);
    return rc;
}

static int apply(struct ct_graph *graph, struct ct_run *run)
{
    struct ct_arena scratch = {0};
    struct fuse_plan plan = {
        .arena = &scratch, .graph = graph, .device = device_name(run), .rank = run->rank};
    int rc;

    if (fuse_find_target(plan.device, run->device, &plan.target) < 0) {
        give_up(ct_error_message());
        ct_arena_finish(&scratch);
        return 0;
    }
    rc = fuse_find(&plan);
    if (rc == 0 && plan.count)
        rc = fuse(&plan);
    ct_arena_finish(&scratch);
    return rc;
}

static const struct ct_transform transform = {
    .size = sizeof(struct ct_transform),
    .name = "fuse",
    .summary = "joins chains of pointwise ops and row reductions into one kernel each",
    .phase = CT_PHASE_FUSE,
    .gives = CT_NAMES("compiled_formulas"),
    .after = CT_NAMES("preferred"),
    .evaluation = true,
    .apply = apply,
};

CT_PLUGIN(.name = "fuse", .version = "1.0",
          .summary = "Pointwise ops and row reductions, compiled together", .options = options,
          .config = &fuse_config, .config_size = sizeof(fuse_config),
          .offers = CT_OFFERS({CT_TRANSFORM, "fuse", &transform}, {CT_OP, "fused", &fuse_op},
                              {CT_KERNELS, "cpu", fuse_cpu_kernels}));
