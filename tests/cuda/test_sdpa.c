/*
 * Whether cuDNN has engines for the graphs of attention on a Hopper GPU: it is asked about a device
 * that is only described. Skipped where cuDNN is not installed.
 */
#include <stdio.h>

#include "sdpa.h"

struct gpu_config gpu_config;

/* What cuDNN itself says of an H200, as far as it reads that. */
static const char h200[] =
    "{\"version\":1,\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"
    "\"regsPerBlock\":65536,\"multiProcessorCount\":132,\"warpSize\":32,"
    "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":232448,"
    "\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":32,"
    "\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"pciDeviceId\":0,\"isTccDriver\":0,"
    "\"supportCoopLaunch\":1,\"smClockRateKHz\":1980000,\"memClockRateKHz\":3201000,"
    "\"l2CacheSize\":62914560,\"deviceName\":\"NVIDIA H200\",\"deviceVer\":900,\"driverVer\":13000,"
    "\"cudaDeviceId\":0,\"totalGlobalMem\":150754820096}";

static const struct {
    const char *name;
    int64_t batch, queries, keys, heads, groups, size;
    bool bias, floats;
} cases[] = {
    {"Llama 8B, 4096 tokens", 2, 4096, 4096, 32, 8, 128, false, false},
    {"Llama 1B, heads of 64", 4, 4096, 4096, 32, 8, 64, false, false},
    {"one head each", 1, 1024, 1024, 16, 16, 128, false, false},
    {"odd", 2, 37, 37, 3, 1, 24, false, false},
    {"documents", 2, 4096, 4096, 32, 8, 128, true, false},
    {"ring, other keys", 1, 2048, 1024, 32, 8, 128, true, false},
    {"ring, float32 results", 1, 2048, 2048, 32, 8, 128, true, true},
    {"causal, float32 results", 1, 2048, 2048, 32, 8, 128, false, true},
};

static void strides(int64_t to[3], int64_t tokens, int64_t heads, int64_t size)
{
    to[0] = tokens * heads * size;
    to[1] = heads * size;
    to[2] = size;
}

static int ask(size_t i, bool backward)
{
    struct sdpa_shape s = {.batch = cases[i].batch,
                           .queries = cases[i].queries,
                           .keys = cases[i].keys,
                           .heads = cases[i].heads,
                           .groups = cases[i].groups,
                           .size = cases[i].size,
                           .bias = cases[i].bias,
                           .backward = backward};
    struct dnn_graph g = {.status = 0};
    int rc;

    s.o_float = !backward && cases[i].floats;
    s.dq_sum_placed = backward && cases[i].floats;
    strides(s.q, s.queries, s.heads, s.size);
    strides(s.k, s.keys, s.groups, s.size);
    for (int n = 0; n < 3; n++) {
        s.o[n] = s.d_o[n] = s.dq[n] = s.q[n];
        s.v[n] = s.dk[n] = s.dv[n] = s.k[n];
    }
    sdpa_describe(&g, &s);
    rc = dnn_graph_plan(&g, NULL, h200);
    dnn_graph_destroy(&g);
    printf("%s %zu - %s, %s%s%s\n", rc < 0 ? "not ok" : "ok", 2 * i + backward + 1, cases[i].name,
           backward ? "backward" : "forward", rc < 0 ? " # " : "",
           rc < 0 ? ct_error_message() : "");
    return rc;
}

int main(void)
{
    int failed = 0;

    if (dnn_load() < 0) {
        printf("1..0 # SKIP %s\n", ct_error_message());
        return 0;
    }
    printf("1..%zu\n", 2 * CT_COUNT(cases));
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        failed += ask(i, false) < 0;
        failed += ask(i, true) < 0;
    }
    return failed != 0;
}
