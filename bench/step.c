/*
 * A whole training step of one model against the machine's own matrix products.
 *
 * Usage: step MODEL float32|bfloat16 [--steps N] [--json] [--products | --step-only]
 *             [section.key=value]...
 *        step MODEL --config
 *
 * Trains on random tokens and prints the median step, tokens per second, where the time goes by op
 * type, and the share of "products only": the sum over the step's matrix products of oneDNN's best
 * time for each shape, measured in the same run. Attention is not a product in that sense.
 * "debug" and "124m" are Llamas; "1b-layer" is one layer of one of 1B parameters, and its head. The
 * other models are named by their plugins or families, and have four layers of width 512 and heads
 * of 64 (of 128 in gated delta nets); of mixtures, the products of experts are taken to be even.
 *
 * --config prints the model's config.json and trains nothing.
 * --products: a row for each distinct product, the worst first, against the processor's peak. The
 * cores are probed before and after each (probe.h); products beside a slow probe are left out.
 * --step-only: without oneDNN's products, whose best take longer than the steps.
 */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/lib/hf_config.h>
#include <ctitan/lib/measure.h>
#include <ctitan/lib/ops.h>
#include <ctitan/recipe.h>
#include <ctitan/run.h>
#include <ctitan/train.h>

#include "machine.h"
#include "probe.h"

#define WARMUP 3

static const char *const common = "[job]\nname = bench\ndump_folder = %s\n"
                                  "[plugins]\nload = cpu, %s, tokens, adamw\n"
                                  "[tokens]\npath = %s/tokens.bin\nrepeat = true\n"
                                  "[adamw]\nlr = 1e-3\n"
                                  "[model]\nname = %s\nflavor = debug\n"
                                  "[training]\nmixed_precision_param = %s\nsteps = %d\n"
                                  "seq_len = %d\nlocal_batch_size = %d\n"
                                  "[%s]\n%s\n";

static const struct model {
    const char *name, *plugin;
    int sequence, batch, vocabulary, steps;
    const char *sizes;
    const char *family; /* whose flavor `debug` has these sizes; NULL: options of the plugin */
} models[] = {
    {"debug", "llama", 256, 8, 2048, 30,
     "dim = 256\nn_layers = 6\nn_heads = 16\nffn_dim = 768\nvocab_size = 2048"},
    {"124m", "llama", 512, 4, 32000, 5,
     "dim = 768\nn_layers = 12\nn_heads = 12\nffn_dim = 2048\nvocab_size = 32000"},
    {"1b-layer", "llama", 512, 2, 128256, 3,
     "dim = 2048\nn_layers = 1\nn_heads = 16\nffn_dim = 8192\nvocab_size = 128256"},
#define SMALL "dim = 512\nn_layers = 4\nn_heads = 8\nvocab_size = 8192\n"
#define MIXTURE "n_experts = 16\nexpert_dim = 512\n"
    {"gpt2", "gpt2", 512, 4, 8192, 8, SMALL "ffn_dim = 2048"},
    {"qwen3", "qwen3", 512, 4, 8192, 8, SMALL "ffn_dim = 1536\nn_kv_heads = 2\nhead_dim = 64"},
    {"qwen3_moe", "qwen3_moe", 512, 4, 8192, 8,
     SMALL MIXTURE "n_kv_heads = 2\nhead_dim = 64\nn_chosen = 4"},
    {"gpt_oss", "gpt_oss", 512, 4, 8192, 8,
     SMALL MIXTURE "n_kv_heads = 2\nhead_dim = 64\nn_chosen = 4"},
    {"llama4", "llama4", 512, 4, 8192, 8,
     SMALL MIXTURE "n_kv_heads = 2\nhead_dim = 64\ninterleave_moe_layer_step = 1"},
    {"deepseek_v3", "deepseek_v3", 512, 4, 8192, 8,
     SMALL MIXTURE "ffn_dim = 1536\nq_lora_rank = 256\nkv_lora_rank = 128\nqk_nope_head_dim = "
                   "64\nqk_rope_head_dim = 32\nv_head_dim = 64\nn_chosen = 4\nn_groups = 4\n"
                   "n_groups_chosen = 2\nn_shared_experts = 1\nn_dense_layers = 1"},
#define FAMILY "dim = 512\nlayers = 4\nheads = 8\nhead_dim = 64\nvocabulary = 8192\n"
    {"qwen3_next", "decoder", 512, 4, 8192, 8,
     FAMILY "kv_heads = 2\nexperts = 16\nexpert_dim = 512\nshared_dim = 512\nchosen = 4\n"
            "linear_key_heads = 4\nlinear_value_heads = 8\nlinear_key_dim = 128\n"
            "linear_value_dim = 128",
     "qwen3_next"},
    {"gemma2", "decoder", 512, 4, 8192, 8,
     FAMILY "kv_heads = 4\nffn_dim = 2048\nwindow = 256\nscale_of = 64", "gemma2"},
};

/* ---- time by op type ---- */

static struct share {
    const char *type;
    double seconds;
} shares[128];

static double begun;
static bool counting;

static struct share *share_of(const char *type)
{
    struct share *s = shares;

    while (s->type && strcmp(s->type, type))
        s++;
    s->type = type;
    return s;
}

/* ---- samples of products ---- */

#define QUIET 0.9 /* of the best probe */

static struct sample {
    const struct ct_instruction *instruction;
    double seconds, probe; /* the slower of the probes before and after */
} samples[1 << 16];

static size_t sample_count;
static bool sampling;
static enum ct_dtype sampled_dtype;
static double probe_before;

static bool is_product(const struct ct_instruction *i)
{
    return strstr(i->op->type->name, "linear") && i->op->type->flops;
}

static bool is_mixture(const struct ct_instruction *i)
{
    return strstr(i->op->type->name, "experts") != NULL;
}

static void sample(const struct ct_instruction *i, double seconds)
{
    double after = probe_team(sampled_dtype);

    if (sample_count < CT_COUNT(samples))
        samples[sample_count++] =
            (struct sample){i, seconds, after < probe_before ? after : probe_before};
}

static int watch(const struct ct_event_data *data, void *context)
{
    bool product = sampling && counting && is_product(data->instruction);

    (void)context;
    if (data->event == CT_EVENT_OP_BEGIN) {
        if (product)
            probe_before = probe_team(sampled_dtype);
        begun = ct_now();
    } else if (counting) {
        double seconds = ct_now() - begun;

        share_of(data->instruction->op->type->name)->seconds += seconds;
        if (product)
            sample(data->instruction, seconds);
    }
    return 0;
}

static const struct ct_hook clock_hook = {.size = sizeof(struct ct_hook),
                                          .events = 1u << CT_EVENT_OP_BEGIN | 1u << CT_EVENT_OP_END,
                                          .call = watch};

/* ---- products ---- */

static struct machine_op product_of(const struct ct_instruction *i)
{
    return machine_op(i->op, i->lowered->launch.in, i->lowered->launch.out);
}

/* GEMMs of an MoE layer: three forward, and two gradients of each. */
static double products_of_experts(const struct ct_instruction *i, enum ct_dtype dtype)
{
    const char *type = strstr(i->op->type->name, "experts");
    const struct ct_tensor *ids = i->lowered->launch.in, *gate;
    int64_t experts, rows, f, n;
    double forward, dx, dw;

    while (ids->dtype != CT_I32)
        ids++;
    gate = ids + 1;
    experts = gate->shape[0];
    f = gate->shape[1];
    n = gate->shape[2];
    rows = (ct_tensor_count(ids) + experts - 1) / experts;
    forward = 2 * machine_product(MACHINE_FORWARD, rows, f, n, dtype) +
              machine_product(MACHINE_FORWARD, rows, n, f, dtype);
    dx = 2 * machine_product(MACHINE_DX, rows, f, n, dtype) +
         machine_product(MACHINE_DX, rows, n, f, dtype);
    dw = 2 * machine_product(MACHINE_DW, rows, f, n, dtype) +
         machine_product(MACHINE_DW, rows, n, f, dtype);
    return (double)experts * (strstr(type, "_dx")     ? dx
                              : strstr(type, "_dw")   ? dw
                              : strstr(type, "_grad") ? dx + dw
                                                      : forward);
}

/* Seconds of oneDNN alone for what an instruction multiplies; 0 for others. */
static double products(const struct ct_instruction *i, enum ct_dtype dtype)
{
    struct machine_op op;

    if (is_mixture(i))
        return products_of_experts(i, dtype);
    if (!is_product(i))
        return 0;
    op = product_of(i);
    return machine_op_seconds(&op, dtype);
}

static double products_of_step(const struct ct_program *p, enum ct_dtype dtype)
{
    double seconds = 0;

    for (size_t i = 0; i < p->step_count; i++)
        seconds += products(&p->step[i], dtype);
    return seconds;
}

/* ---- the run ---- */

struct bench {
    const struct model *model;
    const char *dtype;
    int steps;
    bool json, products, step_only, config;
    char folder[64];
    double step[1024];
    int count;
};

static int keep(const struct ct_event_data *data, void *context)
{
    struct bench *b = context;

    counting = data->step >= WARMUP;
    if (data->step > WARMUP && b->count < (int)CT_COUNT(b->step))
        b->step[b->count++] = data->result->seconds;
    return 0;
}

static int by_seconds(const void *a, const void *b)
{
    const struct share *x = a, *y = b;

    return x->seconds > y->seconds ? -1 : x->seconds < y->seconds;
}

static size_t peak_bytes(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return (size_t)usage.ru_maxrss * 1024;
}

/* ---- the table of products ---- */

/* All samples of products of one type and shape. */
struct row {
    const struct ct_instruction *instruction;
    struct machine_op product;
    double *seconds; /* the quiet ones, rising */
    int quiet, all;
    double usual; /* their median */
    double share; /* of the peak */
};

static bool same_product(const struct ct_instruction *a, const struct ct_instruction *b)
{
    struct machine_op p = product_of(a), q = product_of(b);

    return a->op->type == b->op->type && p.m == q.m && p.n == q.n && p.k == q.k;
}

static int gather_rows(struct row *rows, int most, double best_probe)
{
    int count = 0;

    for (size_t i = 0; i < sample_count; i++) {
        struct row *r = rows;

        while (r < rows + count && !same_product(r->instruction, samples[i].instruction))
            r++;
        if (r == rows + most)
            continue;
        if (r == rows + count) {
            *r = (struct row){samples[i].instruction,
                              product_of(samples[i].instruction),
                              calloc(sample_count, sizeof(double)),
                              0,
                              0,
                              0};
            count++;
        }
        r->all++;
        if (r->seconds && samples[i].probe >= QUIET * best_probe)
            r->seconds[r->quiet++] = samples[i].seconds;
    }
    return count;
}

static int worst_first(const void *a, const void *b)
{
    double x = ((const struct row *)a)->share, y = ((const struct row *)b)->share;

    return (x > y) - (x < y);
}

static void print_products(enum ct_dtype dtype, int steps)
{
    struct row rows[64];
    double peak = 0;
    int count;

    for (size_t i = 0; i < sample_count; i++)
        peak = samples[i].probe > peak ? samples[i].probe : peak;
    count = gather_rows(rows, (int)CT_COUNT(rows), peak);
    for (struct row *r = rows; r < rows + count; r++) {
        r->usual = ct_median(r->seconds, (size_t)r->quiet);
        r->share = r->quiet ? r->product.flops / r->usual / (peak * omp_get_max_threads()) : 2;
    }
    qsort(rows, (size_t)count, sizeof(*rows), worst_first);
    printf("\nproducts, worst first; peak %.0f GF/s (%d threads of %s)\n",
           1e-9 * peak * omp_get_max_threads(), omp_get_max_threads(), probe_name(dtype));
    printf("%-30s %7s %7s %7s %6s %9s %9s %8s %8s %10s\n", "op", "m", "n", "k", "a step",
           "median ms", "GF/s", "of peak", "oneDNN's", "quiet");
    for (struct row *r = rows; r < rows + count; free(r->seconds), r++) {
        const struct machine_op *p = &r->product;

        printf("%-30s %7lld %7lld %7lld %6d ", r->instruction->op->type->name, (long long)p->m,
               (long long)p->n, (long long)p->k, r->all / steps);
        if (!r->quiet)
            printf("no quiet sample of %d\n", r->all);
        else
            printf("%9.3f %9.1f %8.2f %8.2f %4d of %d\n", 1e3 * r->usual,
                   1e-9 * p->flops / r->usual, r->share,
                   p->flops / products(r->instruction, dtype) / (peak * omp_get_max_threads()),
                   r->quiet, r->all);
    }
}

static void report(struct bench *b, const struct ct_run *run)
{
    enum ct_dtype dtype = strcmp(b->dtype, "bfloat16") ? CT_F32 : CT_BF16;
    double tokens = (double)(b->model->batch * b->model->sequence), seconds, only;
    size_t peak = peak_bytes();

    seconds = ct_median(b->step, (size_t)b->count);
    only = b->step_only ? 0 : products_of_step(run->program, dtype);
    if (b->json) {
        printf("{\"model\": \"%s\", \"dtype\": \"%s\", \"tokens_per_second\": %.1f, "
               "\"step_seconds\": %.6f, ",
               b->model->name, b->dtype, tokens / seconds, seconds);
        if (!b->step_only)
            printf("\"products_share\": %.4f, ", only / seconds);
        printf("\"peak_bytes\": %zu, \"arena_bytes\": %zu}\n", peak, run->arena_bytes);
        return;
    }
    printf("%s %s: %.2f ms a step (%.2f .. %.2f), %.0f tokens/s, peak %.2f GB\n", b->model->name,
           b->dtype, 1e3 * seconds, 1e3 * b->step[0], 1e3 * b->step[b->count - 1], tokens / seconds,
           (double)peak / 1e9);
    if (!b->step_only)
        printf("products only, oneDNN's best: %.2f ms, %.2f of the step\n", 1e3 * only,
               only / seconds);
    qsort(shares, CT_COUNT(shares), sizeof(*shares), by_seconds);
    for (struct share *s = shares; s->seconds > 0; s++)
        printf("  %-28s %8.2f ms  %4.1f %%\n", s->type, 1e3 * s->seconds / b->count,
               100 * s->seconds / b->count / seconds);
    if (b->products)
        print_products(dtype, b->count);
}

static int write_tokens(const struct bench *b)
{
    char path[96];
    FILE *out;
    uint32_t state = 1;

    snprintf(path, sizeof(path), "%s/tokens.bin", b->folder);
    out = fopen(path, "wb");
    if (!out)
        return ct_fail(CT_EIO, "cannot write %s", path);
    for (int i = 0; i < 1 << 17; i++) {
        uint32_t token;

        state = state * 1664525u + 1013904223u;
        token = (state >> 8) % (uint32_t)b->model->vocabulary;
        fwrite(&token, sizeof(token), 1, out);
    }
    return fclose(out) ? ct_fail(CT_EIO, "cannot write %s", path) : 0;
}

/* The section of the model's plugin. NULL: the family's description cannot be written. */
static const char *sizes_of(const struct bench *b, struct ct_arena *arena)
{
    const char *path = ct_arena_printf(arena, "%s/family.ini", b->folder);
    FILE *out = b->model->family ? fopen(path, "w") : NULL;

    if (!b->model->family)
        return b->model->sizes;
    if (!out || fprintf(out, "[family]\nlike = %s\n[flavor.debug]\n%s\n", b->model->family,
                        b->model->sizes) < 0)
        path = NULL;
    if (out && fclose(out))
        path = NULL;
    return path ? ct_arena_printf(arena, "family = %s", path) : NULL;
}

static int bench(struct bench *b, int argc, char **argv)
{
    struct ct_run_options options = {.depth = CT_RUN_READY};
    const struct ct_hook steps = {.size = sizeof(struct ct_hook),
                                  .events = 1u << CT_EVENT_STEP_END,
                                  .call = keep,
                                  .context = b};
    struct ct_arena arena = {0};
    struct ct_recipe *recipe;
    struct ct_run *run = NULL;
    const char *sizes = sizes_of(b, &arena), *text;
    int rc;

    if (!sizes)
        return ct_fail(CT_EIO, "cannot write %s/family.ini", b->folder);
    text = ct_arena_printf(&arena, common, b->folder, b->model->plugin, b->folder, b->model->plugin,
                           b->dtype, b->steps + WARMUP, b->model->sequence, b->model->batch,
                           b->model->plugin, sizes);
    rc = ct_recipe_parse(&arena, "bench", text, &recipe);
    for (int i = 0; rc == 0 && i < argc; i++)
        rc = ct_recipe_set(recipe, argv[i]);
    if (rc == 0)
        rc = ct_recipe_apply(recipe);
    if (rc == 0)
        rc = ct_hook_register(&clock_hook, NULL);
    if (rc == 0)
        rc = ct_hook_register(&steps, NULL);
    if (rc == 0)
        rc = ct_run_open(recipe, &options, &run);
    if (rc == 0 && b->config)
        rc = ct_hf_write_config(run->model_ops->description, run->model, stdout);
    else if (rc == 0)
        rc = ct_run_train(run);
    if (rc == 0 && !b->config)
        report(b, run);
    ct_run_close(run);
    ct_arena_finish(&arena);
    return rc;
}

static int usage(void)
{
    fprintf(stderr, "usage: step MODEL float32|bfloat16 [--steps N] [--json] "
                    "[--products | --step-only]\n            [section.key=value]...\n"
                    "       step MODEL --config\nmodels:");
    for (size_t i = 0; i < CT_COUNT(models); i++)
        fprintf(stderr, " %s", models[i].name);
    fprintf(stderr, "\n");
    return 2;
}

int main(int argc, char **argv)
{
    struct bench b = {0};
    char path[96];
    int at = 3, rc;

    for (size_t i = 0; argc > 2 && i < CT_COUNT(models); i++)
        if (!strcmp(argv[1], models[i].name))
            b.model = &models[i];
    if (!b.model)
        return usage();
    if (ct_ops_register() < 0)
        return 1;
    b.config = !strcmp(argv[2], "--config");
    b.dtype = b.config ? "float32" : argv[2];
    b.steps = b.model->steps;
    for (; at < argc && argv[at][0] == '-'; at++) {
        if (!strcmp(argv[at], "--json"))
            b.json = true;
        else if (!strcmp(argv[at], "--products"))
            b.products = true;
        else if (!strcmp(argv[at], "--step-only"))
            b.step_only = true;
        else if (!strcmp(argv[at], "--steps") && at + 1 < argc)
            b.steps = atoi(argv[++at]);
        else
            return usage();
    }
    if (b.products && b.step_only)
        return usage();
    snprintf(b.folder, sizeof(b.folder), "/tmp/ctitan-bench-XXXXXX");
    if (!mkdtemp(b.folder))
        return 1;
    sampling = b.products;
    sampled_dtype = strcmp(b.dtype, "bfloat16") ? CT_F32 : CT_BF16;
    rc = write_tokens(&b);
    if (rc == 0)
        rc = bench(&b, argc - at, argv + at);
    if (rc < 0)
        fprintf(stderr, "step: %s\n", ct_error_message());
    snprintf(path, sizeof(path), "%s/family.ini", b.folder);
    unlink(path);
    snprintf(path, sizeof(path), "%s/tokens.bin", b.folder);
    unlink(path);
    rmdir(b.folder);
    return rc < 0;
}
