/*
 * Whether cuDNN compiles its best engine for the graphs of attention on A100, H200 and B200: it is
 * asked about devices that are only described (described_driver.c). Skipped where cuDNN is not
 * installed.
 */
#include <stdio.h>

#include "sdpa.h"

struct gpu_config gpu_config;

static const struct device {
    const char *name;
    int version, multiprocessors, shared, cache;
} devices[] = {
    {"A100", 800, 108, 166912, 41943040},
    {"H200", 900, 132, 232448, 62914560},
    {"B200", 1000, 148, 232448, 132644864},
};

/* A device in the format of cuDNN's own descriptions, as far as cuDNN reads them. */
static void describe(const struct device *d, char *text, size_t room)
{
    snprintf(
        text, room,
        "{\"version\":1,\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"
        "\"regsPerBlock\":65536,\"multiProcessorCount\":%d,\"warpSize\":32,"
        "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":%d,"
        "\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":32,"
        "\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"pciDeviceId\":0,"
        "\"isTccDriver\":0,\"supportCoopLaunch\":1,\"smClockRateKHz\":1980000,"
        "\"memClockRateKHz\":3201000,\"l2CacheSize\":%d,\"deviceName\":\"NVIDIA %s\","
        "\"deviceVer\":%d,\"driverVer\":13000,\"cudaDeviceId\":0,"
        "\"totalGlobalMem\":85520809984}",
        d->multiprocessors, d->shared, d->cache, d->name, d->version);
}

static const struct {
    const char *name;
    int64_t batch, queries, keys, heads, groups, size;
    bool causal;
    int64_t of_v;        /* 0: size; else not on A100 */
    bool floats, joined; /* joined: q, k and v of a token side by side */
    int64_t rows;        /* 0: as many as queries */
    int64_t window;
    bool packed; /* not on A100 */
    bool ordered;
} cases[] = {
    {"1B, 16 heads of 128", 8, 4096, 4096, 16, 16, 128, true, .joined = true},
    {"1B, groups of two", 8, 4096, 4096, 16, 8, 128, true, .joined = true},
    {"Llama 8B, 4096 tokens", 2, 4096, 4096, 32, 8, 128, true, .joined = true},
    {"Llama 1B, heads of 64", 4, 4096, 4096, 32, 8, 64, true},
    {"one head each", 1, 1024, 1024, 16, 16, 128, true},
    {"odd", 2, 37, 37, 3, 1, 24, true},
    {"latent", 1, 4096, 4096, 128, 128, 192, true, .of_v = 128},
    {"latent, ring", 1, 2048, 2048, 32, 32, 192, .of_v = 128, .floats = true},
    {"window", 2, 4096, 4096, 32, 8, 128, true, .window = 1024},
    {"odd window", 2, 37, 37, 3, 1, 24, true, .window = 5},
    {"ring, other keys", 1, 2048, 1024, 32, 8, 128},
    {"ring, earlier keys", 1, 2048, 2048, 32, 8, 128, .floats = true},
    {"ring, later half of the queries", 2, 1024, 2048, 32, 8, 128, .floats = true, .rows = 2048},
    {"causal, float32 results", 1, 2048, 2048, 32, 8, 128, true, .floats = true},
    {"1B, ordered", 1, 4096, 4096, 16, 8, 128, true, .joined = true, .ordered = true},
    {"Llama 8B, ordered", 1, 8192, 8192, 32, 8, 128, true, .ordered = true},
    {"window, ordered", 1, 4096, 4096, 32, 8, 128, true, .window = 1024, .ordered = true},
    {"documents, 16 heads of 128", 160, 4096, 4096, 16, 16, 128, true, .packed = true},
    {"documents, joined", 160, 4096, 4096, 16, 16, 128, true, .joined = true, .packed = true},
    {"documents, groups", 160, 4096, 4096, 16, 8, 128, true, .packed = true},
    {"documents, heads of 64", 80, 4096, 4096, 32, 8, 64, true, .packed = true},
    {"documents, latent", 20, 4096, 4096, 128, 128, 192, true, .of_v = 128, .packed = true},
    {"documents, window", 40, 4096, 4096, 32, 8, 128, true, .window = 1024, .packed = true},
    {"documents, odd", 10, 75, 75, 4, 2, 32, true, .packed = true},
};

static void strides(int64_t to[3], int64_t tokens, int64_t heads, int64_t size)
{
    to[0] = tokens * heads * size;
    to[1] = heads * size;
    to[2] = size;
}

static int number;

/* A plan that is read from the text of another needs as much. */
static int read_again(const struct dnn_graph *plan, const struct sdpa_shape *s,
                      const char *properties)
{
    struct dnn_graph again = {.status = 0};
    struct ct_arena arena = {0};
    char *text;
    size_t size;
    int rc = dnn_graph_text(plan, &arena, &text, &size);

    sdpa_describe(&again, s);
    if (rc == 0)
        rc = dnn_graph_restore(&again, NULL, properties, text, size);
    if (rc == 0 && again.workspace != plan->workspace)
        rc = ct_fail(CT_EINVAL, "read from its text, it has a workspace of %zu bytes",
                     again.workspace);
    dnn_graph_destroy(&again);
    ct_arena_finish(&arena);
    return rc;
}

static int ask(const struct device *device, size_t i, bool backward)
{
    struct sdpa_shape s = {.batch = cases[i].batch,
                           .queries = cases[i].queries,
                           .keys = cases[i].keys,
                           .rows = cases[i].rows ? cases[i].rows : cases[i].queries,
                           .heads = cases[i].heads,
                           .groups = cases[i].groups,
                           .size = cases[i].size,
                           .of_v = cases[i].of_v ? cases[i].of_v : cases[i].size,
                           .window = cases[i].window,
                           .causal = cases[i].causal,
                           .packed = cases[i].packed,
                           .ordered = backward && cases[i].ordered,
                           .backward = backward};
    int64_t wide = (s.heads + 2 * s.groups) * s.size;
    struct dnn_graph g = {.status = 0};
    char properties[1024];
    int rc;

    s.o_float = !backward && cases[i].floats;
    s.dq_sum_placed = backward && cases[i].floats;
    strides(s.q, s.queries, s.heads, s.size);
    strides(s.k, s.keys, s.groups, s.size);
    strides(s.v, s.keys, s.groups, s.of_v);
    strides(s.o, s.queries, s.heads, s.of_v);
    if (cases[i].joined) {
        s.q[0] = s.queries * wide;
        s.k[0] = s.v[0] = s.keys * wide;
        s.q[1] = s.k[1] = s.v[1] = wide;
    }
    for (int n = 0; n < 3; n++) {
        s.d_o[n] = s.o[n];
        s.dq[n] = s.q[n];
        s.dk[n] = s.k[n];
        s.dv[n] = s.v[n];
    }
    describe(device, properties, sizeof(properties));
    sdpa_describe(&g, &s);
    rc = dnn_graph_plan(&g, NULL, properties);
    if (rc == 0 && g.passed_over)
        rc = ct_context(CT_EINVAL, "the best of the engines gave no plan");
    if (rc == 0 && s.packed && g.workspace > SDPA_PACKED_BYTES(s.batch))
        rc = ct_fail(CT_EINVAL, "a workspace of %zu bytes", g.workspace);
    if (rc == 0 && s.ordered &&
        (g.workspace < SDPA_ORDERED_BYTES(&s) / 2 || g.workspace > SDPA_ORDERED_BYTES(&s) + 4096))
        rc = ct_fail(CT_EINVAL, "a workspace of %zu bytes", g.workspace);
    if (rc == 0)
        rc = read_again(&g, &s, properties);
    printf("%s %d - %s: %s, %s%s%s\n", rc < 0 ? "not ok" : "ok", ++number, device->name,
           cases[i].name, backward ? "backward" : "forward", rc < 0 ? " # " : "",
           rc < 0 ? ct_error_message() : "");
    dnn_graph_destroy(&g);
    return rc;
}

int main(void)
{
    int failed = 0;

    if (dnn_load() < 0) {
        printf("1..0 # SKIP %s\n", ct_error_message());
        return 0;
    }
    for (size_t d = 0; d < CT_COUNT(devices); d++)
        for (size_t i = 0; i < CT_COUNT(cases); i++) {
            if ((cases[i].of_v || cases[i].packed) && devices[d].version < 900)
                continue;
            failed += ask(&devices[d], i, false) < 0;
            failed += ask(&devices[d], i, true) < 0;
        }
    printf("1..%d\n", number);
    return failed != 0;
}
