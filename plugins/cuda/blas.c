/*
 * Matrix products through cuBLASLt.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include <ctitan/lib/facts.h>
#include <ctitan/log.h>

#include "blas.h"
#include "blas_library.h"
#include "fastest.h"
#include "graph.h"

#define SEARCH 1 /* rises when the algorithms that are offered, or how they are timed, change */
#define TRIES 4  /* calls of a product whose operands are looked at before it is searched for */

static struct {
    void *library;
#define X(name, parameters) int(*name) parameters;
    GPU_BLAS_CALLS(X)
#undef X
} lt;

static const struct gpu_call calls[] = {
#define X(name, parameters) {#name, &lt.name},
    GPU_BLAS_CALLS(X)
#undef X
};

/* Key of a choice of algorithm. */
struct key {
    int64_t m, n, k, a_stride, b_stride, c_stride;
    int32_t a_dtype, b_dtype, c_dtype;
    uint32_t a_align, b_align, c_align;
    uint32_t flags; /* a_by_k, b_by_k, whether and how it is scaled, fast */
    int32_t units;  /* multiprocessors that it may use; 0: all */
};

#define OFFERS 8

struct plan {
    struct plan *next;
    struct key key;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;                /* as cuBLASLt sees them */
    cublasLtMatmulHeuristicResult_t offer[OFFERS]; /* algorithms, the best first by its heuristic */
    int offers, chosen;                            /* chosen: -1 until the first call */
    bool looked_up;                                /* among the kept algorithms */
    bool timed;                                    /* no search, or none any more */
    int tries;                                     /* calls that were not fit for a search */
};

struct gpu_blas {
    cublasLtHandle_t handle;
    struct plan *plans;
    const struct ct_graph *graph; /* the last call's */
    bool shared;                  /* it has collectives beside what is computed */
    struct ct_facts *facts;       /* the fastest algorithms; NULL: not asked for yet */
    struct gpu_warm warm;
    bool unkept; /* no file can be written */
};

static int check(int status, const char *what)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return 0;
    return ct_fail(CT_EIO, "cuBLASLt: %s: status %d", what, status);
}

/* ---- opening ---- */

static int load(void)
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", NULL};
    const char *missing;
    void *library;
    int rc;

    if (lt.library)
        return 0;
    rc = gpu_library(names, &library);
    if (rc < 0)
        return ct_context(rc, "cuBLASLt, of the CUDA toolkit, is not installed");
    missing = gpu_find_calls(library, calls, CT_COUNT(calls));
    if (missing)
        return ct_fail(CT_ENOENT, "this cuBLASLt has no %s", missing);
    lt.library = library;
    return 0;
}

int gpu_blas_version(void)
{
    int major = 0, minor = 0;

    if (!lt.library || lt.cublasLtGetProperty(0, &major) || lt.cublasLtGetProperty(1, &minor))
        return 0;
    return 100 * major + minor;
}

int gpu_blas_open(struct gpu *gpu)
{
    int rc = load();

    if (rc < 0)
        return rc;
    gpu->blas = calloc(1, sizeof(*gpu->blas));
    if (!gpu->blas)
        return ct_fail(CT_ENOMEM, "cuBLASLt");
    return check(lt.cublasLtCreate(&gpu->blas->handle), "starting");
}

static void plan_destroy(struct plan *p)
{
    if (p->desc)
        lt.cublasLtMatmulDescDestroy(p->desc);
    if (p->a)
        lt.cublasLtMatrixLayoutDestroy(p->a);
    if (p->b)
        lt.cublasLtMatrixLayoutDestroy(p->b);
    if (p->c)
        lt.cublasLtMatrixLayoutDestroy(p->c);
    free(p);
}

/* Say where the heuristic's first algorithm did not run: a fault, or a loss of speed. */
static void report_refusals(const struct gpu_blas *blas)
{
    int shapes = 0, refused = 0;

    for (const struct plan *p = blas->plans; p; p = p->next) {
        shapes++;
        refused += p->chosen > 0 && !p->timed;
    }
    if (refused)
        ct_info("cuda: cuBLASLt refused its heuristic's first algorithm for %d of %d shapes of "
                "products",
                refused, shapes);
}

void gpu_blas_close(struct gpu *gpu)
{
    if (!gpu->blas)
        return;
    report_refusals(gpu->blas);
    for (struct plan *p = gpu->blas->plans, *next; p; p = next) {
        next = p->next;
        plan_destroy(p);
    }
    if (gpu->blas->handle)
        lt.cublasLtDestroy(gpu->blas->handle);
    free(gpu->blas);
}

/* ---- choosing ---- */

static int type_of(enum ct_dtype dtype)
{
    switch (dtype) {
    case CT_F32:
        return CUDA_R_32F;
    case CT_BF16:
        return CUDA_R_16BF;
    case CT_E4M3:
        return CUDA_R_8F_E4M3;
    default:
        return CUDA_R_8F_E5M2;
    }
}

static uint32_t alignment(const void *p)
{
    uint32_t align = 256;

    while ((uintptr_t)p % align)
        align /= 2;
    return align;
}

/* Does the launch's graph have collectives on streams of their own? */
static bool has_collectives(struct gpu_blas *blas, const struct ct_launch *l)
{
    if (l->graph == blas->graph)
        return blas->shared;
    blas->graph = l->graph;
    blas->shared = false;
    for (const struct ct_op *op = l->graph ? l->graph->first : NULL; op; op = op->next)
        blas->shared |= (op->type->flags & CT_OP_COLLECTIVE) && op->stream != l->op->stream;
    return blas->shared;
}

static int32_t units_for(const struct ct_launch *l)
{
    const struct gpu *gpu = gpu_of(l->device);

    return gpu_config.spare > 0 && has_collectives(gpu->blas, l)
               ? gpu->cuda.multiprocessors - (int32_t)gpu_config.spare
               : 0;
}

static struct key key_of(const struct gpu_product *p, int32_t units)
{
    struct key key;

    memset(&key, 0, sizeof(key)); /* padding too: keys are compared whole */
    key.m = p->m;
    key.n = p->n;
    key.k = p->k;
    key.a_stride = p->a_stride;
    key.b_stride = p->b_stride;
    key.c_stride = p->c_stride;
    key.a_dtype = (int32_t)p->a_dtype;
    key.b_dtype = (int32_t)p->b_dtype;
    key.c_dtype = (int32_t)p->c_dtype;
    key.units = units;
    key.a_align = alignment(p->a);
    key.b_align = alignment(p->b);
    key.c_align = alignment(p->c);
    key.flags = (uint32_t)p->a_by_k | (uint32_t)p->b_by_k << 1 |
                (uint32_t)(p->scaled != GPU_NOT_SCALED) << 2 |
                (uint32_t)(p->scaled == GPU_SCALED_ROWS) << 3 |
                (uint32_t)p->fast_accumulation << 4 |
                (uint32_t)(p->scaled == GPU_SCALED_BLOCKS_32) << 5 |
                (uint32_t)(p->scaled == GPU_SCALED_BLOCKS_16) << 6;
    return key;
}

static int set(cublasLtMatmulDesc_t desc, int attribute, const void *value, size_t bytes)
{
    return check(lt.cublasLtMatmulDescSetAttribute(desc, attribute, value, bytes),
                 "describing a product");
}

static int32_t scale_mode(enum gpu_scaled scaled)
{
    return scaled == GPU_SCALED_BLOCKS_32   ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0
           : scaled == GPU_SCALED_BLOCKS_16 ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3
                                            : CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
}

/* Factors that turn Float8 back. */
static int describe_scales(struct plan *plan, const struct gpu_product *p)
{
    int32_t mode = scale_mode(p->scaled), on_device = CUBLASLT_POINTER_MODE_DEVICE;
    int8_t fast = p->fast_accumulation;
    int rc = set(plan->desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof(fast));

    if (rc == 0 && p->scaled != GPU_SCALED_WHOLE)
        rc = set(plan->desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode, sizeof(mode));
    if (rc == 0 && p->scaled != GPU_SCALED_WHOLE)
        rc = set(plan->desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode, sizeof(mode));
    if (rc == 0 && p->scaled == GPU_SCALED_BLOCKS_16)
        rc = set(plan->desc, CUBLASLT_MATMUL_DESC_POINTER_MODE, &on_device, sizeof(on_device));
    return rc;
}

/* cuBLASLt's first matrix is b. */
static int set_scales(struct plan *plan, const struct gpu_product *p)
{
    int rc;

    if (p->scaled == GPU_NOT_SCALED)
        return 0;
    rc = set(plan->desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &p->b_scale, sizeof(p->b_scale));
    if (rc == 0)
        rc = set(plan->desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &p->a_scale, sizeof(p->a_scale));
    return rc;
}

static int describe(struct plan *plan, const struct gpu_product *p)
{
    int32_t units = plan->key.units;
    int32_t first = p->b_by_k ? CUBLAS_OP_N : CUBLAS_OP_T;
    int32_t second = p->a_by_k ? CUBLAS_OP_T : CUBLAS_OP_N;
    int compute =
        p->a_dtype == CT_F32 && gpu_config.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    int rc = check(lt.cublasLtMatmulDescCreate(&plan->desc, compute, CUDA_R_32F),
                   "describing a product");

    if (rc == 0)
        rc = set(plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first));
    if (rc == 0)
        rc = set(plan->desc, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second));
    if (rc == 0 && units)
        rc = set(plan->desc, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &units, sizeof(units));
    if (rc == 0 && p->scaled != GPU_NOT_SCALED)
        rc = describe_scales(plan, p);
    return rc < 0 ? rc : set_scales(plan, p);
}

static int lay_out(cublasLtMatrixLayout_t *layout, int type, int64_t rows, int64_t columns,
                   int64_t stride)
{
    return check(
        lt.cublasLtMatrixLayoutCreate(layout, type, (uint64_t)rows, (uint64_t)columns, stride),
        "describing a matrix");
}

static int operand_type(const struct gpu_product *p, enum ct_dtype dtype)
{
    return p->scaled == GPU_SCALED_BLOCKS_16 ? CUDA_R_4F_E2M1 : type_of(dtype);
}

/* A row-major matrix is its own transpose in columns. */
static int lay_out_all(struct plan *plan, const struct gpu_product *p)
{
    int rc = lay_out(&plan->a, operand_type(p, p->b_dtype), p->b_by_k ? p->n : p->k,
                     p->b_by_k ? p->k : p->n, p->b_stride);

    if (rc == 0)
        rc = lay_out(&plan->b, operand_type(p, p->a_dtype), p->a_by_k ? p->m : p->k,
                     p->a_by_k ? p->k : p->m, p->a_stride);
    if (rc == 0)
        rc = lay_out(&plan->c, type_of(p->c_dtype), p->n, p->m, p->c_stride);
    return rc;
}

static int prefer(cublasLtMatmulPreference_t preference, const struct key *key)
{
    static const int attributes[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    uint32_t align[] = {key->b_align, key->a_align, key->c_align, key->c_align};
    uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    size_t workspace = GPU_BLAS_WORKSPACE;
    int status = lt.cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace));

    /* Parts of a sum are added in float32 and in order. */
    if (status == 0)
        status = lt.cublasLtMatmulPreferenceSetAttribute(
            preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof(reduction));
    for (size_t i = 0; status == 0 && i < CT_COUNT(attributes); i++)
        status = lt.cublasLtMatmulPreferenceSetAttribute(preference, attributes[i], &align[i],
                                                         sizeof(align[i]));
    return check(status, "choosing an algorithm");
}

static int ask_heuristic(struct gpu_blas *blas, struct plan *plan)
{
    cublasLtMatmulPreference_t preference = NULL;
    const struct key *key = &plan->key;
    int rc = check(lt.cublasLtMatmulPreferenceCreate(&preference), "choosing an algorithm");

    if (rc == 0)
        rc = prefer(preference, key);
    if (rc == 0)
        rc = check(lt.cublasLtMatmulAlgoGetHeuristic(blas->handle, plan->desc, plan->a, plan->b,
                                                     plan->c, plan->c, preference, OFFERS,
                                                     plan->offer, &plan->offers),
                   "choosing an algorithm");
    if (preference)
        lt.cublasLtMatmulPreferenceDestroy(preference);
    if (rc == 0 && plan->offers < 1)
        rc = ct_fail(CT_EIO, "cuBLASLt has no algorithm");
    return rc;
}

static int find_plan(struct gpu_blas *blas, const struct gpu_product *p, int32_t units,
                     struct plan **plan)
{
    struct key key = key_of(p, units);
    int rc;

    for (*plan = blas->plans; *plan; *plan = (*plan)->next)
        if (!memcmp(&(*plan)->key, &key, sizeof(key)))
            return set_scales(*plan, p);
    *plan = calloc(1, sizeof(**plan));
    if (!*plan)
        return ct_fail(CT_ENOMEM, "a matrix product");
    (*plan)->key = key;
    rc = describe(*plan, p);
    if (rc == 0)
        rc = lay_out_all(*plan, p);
    if (rc == 0)
        rc = ask_heuristic(blas, *plan);
    if (rc < 0) {
        plan_destroy(*plan);
        return rc;
    }
    (*plan)->chosen = -1;
    (*plan)->next = blas->plans;
    blas->plans = *plan;
    return 0;
}

/* ---- running ---- */

struct product_call {
    const struct ct_launch *l;
    const struct gpu_product *p;
    struct plan *plan;
    void *workspace;
};

static int run_offer(const struct product_call *c, int i)
{
    const struct plan *plan = c->plan;
    const cublasLtMatmulHeuristicResult_t *offer = &plan->offer[i];
    const float here[] = {1, c->p->accumulate}, *factor = c->p->factor ? c->p->factor : here;

    if (offer->state != CUBLAS_STATUS_SUCCESS)
        return offer->state;
    return lt.cublasLtMatmul(gpu_of(c->l->device)->blas->handle, plan->desc, factor, c->p->b,
                             plan->a, c->p->a, plan->b, factor + 1, c->p->c, plan->c, c->p->c,
                             plan->c, &offer->algo, c->workspace, offer->workspaceSize,
                             c->l->stream);
}

/* The first that runs: some are refused only when they are called. */
static int choose_first(const struct product_call *c)
{
    int status = CUBLAS_STATUS_NOT_SUPPORTED;

    for (int i = 0; i < c->plan->offers; i++) {
        status = run_offer(c, i);
        if (status == CUBLAS_STATUS_SUCCESS) {
            c->plan->chosen = i;
            return 0;
        }
    }
    return check(status, "no algorithm runs");
}

/* ---- the fastest ---- */

#define ALGORITHM 16 /* characters of a word, and of the checksum behind all words */

static void print_algorithm(const cublasLtMatmulAlgo_t *algo, char text[CT_FACT_ROOM])
{
    int used = 0;

    for (size_t i = 0; i < CT_COUNT(algo->data); i++)
        used += snprintf(text + used, CT_FACT_ROOM - (size_t)used, "%016llx",
                         (unsigned long long)algo->data[i]);
    snprintf(text + used, CT_FACT_ROOM - (size_t)used, "%016llx",
             (unsigned long long)ct_hash(text));
}

static bool is_algorithm(const char *text)
{
    size_t words = ALGORITHM * CT_COUNT(((cublasLtMatmulAlgo_t *)0)->data);
    char copy[CT_FACT_ROOM], sum[ALGORITHM + 1];

    if (strlen(text) != words + ALGORITHM)
        return false;
    memcpy(copy, text, words);
    copy[words] = '\0';
    snprintf(sum, sizeof(sum), "%016llx", (unsigned long long)ct_hash(copy));
    return !strcmp(text + words, sum);
}

static struct ct_facts *facts_of(struct gpu *gpu)
{
    char device[160], version[64], file[256];
    size_t used;

    if (gpu->blas->facts)
        return gpu->blas->facts;
    gpu_identify(gpu, device, sizeof(device));
    snprintf(version, sizeof(version), " cuBLASLt %d search %d", gpu_blas_version(), SEARCH);
    used = ct_facts_name(file, 0, sizeof(file) - 4, device);
    used = ct_facts_name(file, used, sizeof(file) - 4, version);
    strcpy(file + used, ".txt");
    return gpu->blas->facts = ct_facts_create("cuda", file, is_algorithm);
}

static void name_product(const struct key *k, char name[CT_FACT_ROOM])
{
    snprintf(name, CT_FACT_ROOM, "%lldx%lldx%lld,%lld,%lld,%lld,%s,%s,%s,%u,%u,%u,%x,%d",
             (long long)k->m, (long long)k->n, (long long)k->k, (long long)k->a_stride,
             (long long)k->b_stride, (long long)k->c_stride,
             ct_dtype_name((enum ct_dtype)k->a_dtype), ct_dtype_name((enum ct_dtype)k->b_dtype),
             ct_dtype_name((enum ct_dtype)k->c_dtype), k->a_align, k->b_align, k->c_align, k->flags,
             k->units);
}

/* The offer that a fact names; -1: there is none. */
static int offer_of(const struct plan *plan, const char *fact)
{
    char text[CT_FACT_ROOM];

    for (int i = 0; fact && i < plan->offers; i++) {
        print_algorithm(&plan->offer[i].algo, text);
        if (!strcmp(text, fact))
            return i;
    }
    return -1;
}

static int run_way(const void *context, int i)
{
    return run_offer(context, i) == CUBLAS_STATUS_SUCCESS ? 0 : CT_EIO;
}

static int copy_fact(void *context, char value[CT_FACT_ROOM])
{
    print_algorithm(context, value);
    return 0;
}

/* The algorithm that an earlier run has kept. One that is not offered now is not searched for
   again: the file would not take another. */
static int look_up(const struct product_call *c)
{
    struct ct_facts *facts = facts_of(gpu_of(c->l->device));
    struct plan *plan = c->plan;
    char name[CT_FACT_ROOM];
    const char *fact;

    if (!facts)
        return ct_fail(CT_ENOMEM, "the fastest algorithms");
    name_product(&plan->key, name);
    fact = ct_fact_find(facts, name);
    plan->looked_up = true;
    plan->timed = fact != NULL;
    plan->chosen = offer_of(plan, fact);
    if (fact && plan->chosen < 0)
        ct_warn("cuda: cuBLASLt no longer offers the algorithm that was kept for the product %s: "
                "its heuristic's first is taken",
                name);
    return 0;
}

/* Ranks search at once, as one that waited for another could wait for ever: the other may need its
   collectives. The first algorithm that is found counts for all; where none can be kept, the
   heuristic's first does. */
static int choose_fastest(const struct product_call *c)
{
    struct gpu *gpu = gpu_of(c->l->device);
    struct plan *plan = c->plan;
    char name[CT_FACT_ROOM];
    const char *fact;
    struct gpu_ways ways = {plan->offers, run_way, c, c->l->stream};
    int rc = gpu_find_fastest(&gpu->blas->warm, &ways, &plan->chosen);

    if (rc < 0 || plan->chosen < 0)
        return rc < 0 ? rc : choose_first(c);
    name_product(&plan->key, name);
    fact = ct_fact(facts_of(gpu), name, copy_fact, &plan->offer[plan->chosen].algo);
    gpu->blas->unkept = !fact;
    plan->chosen = offer_of(plan, fact);
    if (plan->chosen < 0)
        return choose_first(c);
    return check(run_offer(c, plan->chosen), "a matrix product");
}

/* Some numbers in the middle of a matrix differ: multiplying equal ones takes less power, and so
   less time, than a training does. */
static bool differs_within(const struct product_call *c, const void *matrix, int64_t rows,
                           int64_t columns, int64_t stride, enum ct_dtype dtype)
{
    unsigned char sample[256];
    size_t pair = c->p->scaled == GPU_SCALED_BLOCKS_16 ? 2 : 1; /* numbers of a byte */
    size_t size = ct_dtype_size(dtype), row = (size_t)columns * size / pair;
    size_t bytes = row < sizeof(sample) ? row : sizeof(sample), i = 1;
    uintptr_t at = (uintptr_t)matrix + (size_t)(rows / 2 * stride) * size / pair;

    if (gpu_driver.cuMemcpyDtoHAsync(sample, at, bytes, c->l->stream) ||
        gpu_driver.cuStreamSynchronize(c->l->stream))
        return false;
    while (i < bytes / size && !memcmp(sample, sample + i * size, size))
        i++;
    return i < bytes / size;
}

static bool is_tuned(const struct product_call *c)
{
    return gpu_config.tune && c->p->a_dtype != CT_F32 && c->plan->offers > 1;
}

/* A product that adds to c cannot be repeated, and takes the choice of one that does not. Nothing
   is measured while a step is captured. */
static bool is_fit_for_search(const struct product_call *c)
{
    const struct gpu *gpu = gpu_of(c->l->device);
    const struct gpu_product *p = c->p;
    struct plan *plan = c->plan;

    if (!is_tuned(c) || p->accumulate || plan->timed || plan->tries >= TRIES || gpu->blas->unkept ||
        !gpu_graph_is_plain(gpu))
        return false;
    plan->tries++;
    return differs_within(c, p->a, p->a_by_k ? p->k : p->m, p->a_by_k ? p->m : p->k, p->a_stride,
                          p->a_dtype) &&
           differs_within(c, p->b, p->b_by_k ? p->k : p->n, p->b_by_k ? p->n : p->k, p->b_stride,
                          p->b_dtype);
}

static int run_product(const struct product_call *c)
{
    struct plan *plan = c->plan;
    int rc = is_tuned(c) && !plan->looked_up ? look_up(c) : 0;

    if (rc < 0)
        return rc;
    if (is_fit_for_search(c)) {
        plan->timed = true;
        return choose_fastest(c);
    }
    if (plan->chosen < 0)
        return choose_first(c);
    return check(run_offer(c, plan->chosen), "a matrix product");
}

int gpu_multiply(const struct ct_launch *l, const struct gpu_product *p, void *workspace)
{
    struct product_call call = {l, p, NULL, workspace};
    int rc;

    if (p->m == 0 || p->n == 0)
        return 0;
    assert((uintptr_t)workspace % 256 == 0);
    rc = find_plan(gpu_of(l->device)->blas, p, units_for(l), &call.plan);
    if (rc == 0)
        rc = run_product(&call);
    if (rc == 0)
        return 0;
    return ct_context(rc, "the product of %s [%lld, %lld] and %s [%lld, %lld]",
                      ct_dtype_name(p->a_dtype), (long long)p->m, (long long)p->k,
                      ct_dtype_name(p->b_dtype), (long long)p->k, (long long)p->n);
}
