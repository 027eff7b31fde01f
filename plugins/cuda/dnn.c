/*
 * Graphs of cuDNN.
 */
#include <stdio.h>

#include "dnn.h"

#define PLANS 8            /* of those that the heuristic offers */
#define FIRST_VIRTUAL 1000 /* id: greater than those that tensors are given */

static struct {
    void *library;
#define X(name, parameters) int(*name) parameters;
    GPU_DNN_CALLS(X)
#undef X
    void (*last_error)(char *text, size_t room);
    size_t (*version)(void);
} dnn;

static const struct gpu_call calls[] = {
#define X(name, parameters) {#name, &dnn.name},
    GPU_DNN_CALLS(X)
#undef X
        {"cudnnGetLastErrorString", &dnn.last_error},
    {"cudnnGetVersion", &dnn.version}};

int dnn_load(void)
{
    static const char *const names[] = {"libcudnn.so.9", NULL};
    const char *missing;
    void *library;
    int rc;

    if (dnn.library)
        return 0;
    rc = gpu_library(names, &library);
    if (rc < 0)
        return ct_context(rc, "cuDNN 9 is not installed");
    missing = gpu_find_calls(library, calls, CT_COUNT(calls));
    if (missing)
        return ct_fail(CT_ENOENT, "this cuDNN has no %s", missing);
    dnn.library = library;
    return 0;
}

int dnn_version(void)
{
    return (int)dnn.version();
}

static int check(int status, const char *what)
{
    char text[512] = "";

    if (status == CUDNN_STATUS_SUCCESS)
        return 0;
    dnn.last_error(text, sizeof(text));
    return ct_fail(CT_EIO, "cuDNN: %s: status %d%s%s", what, status, *text ? ": " : "", text);
}

/* ---- descriptors ---- */

static cudnnBackendDescriptor_t create(struct dnn_graph *g, int type)
{
    cudnnBackendDescriptor_t d = NULL;

    if (g->status == 0 && g->descriptors == DNN_DESCRIPTORS)
        g->status = ct_fail(CT_EINVAL, "cuDNN: a graph of more than %d parts", DNN_DESCRIPTORS);
    if (g->status == 0)
        g->status = check(dnn.cudnnBackendCreateDescriptor(type, &d), "describing a graph");
    if (g->status < 0)
        return NULL;
    g->all[g->descriptors++] = d;
    return d;
}

/* The place of a descriptor in its graph, which is the same whenever it is described. */
static int64_t number_of(const struct dnn_graph *g, cudnnBackendDescriptor_t d)
{
    int64_t i = 0;

    while (i < g->descriptors && g->all[i] != d)
        i++;
    return i;
}

static void hash_bytes(struct dnn_graph *g, const void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        g->hash = (g->hash ^ ((const unsigned char *)bytes)[i]) * 1099511628211u;
}

/* An attribute, with descriptors by their places instead of their addresses. */
static void hash_attribute(struct dnn_graph *g, const int64_t of[4], const void *values)
{
    int64_t count = of[3], number;

    hash_bytes(g, of, 4 * sizeof(*of));
    for (int64_t i = 0; of[2] == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < count; i++) {
        number = number_of(g, ((const cudnnBackendDescriptor_t *)values)[i]);
        hash_bytes(g, &number, sizeof(number));
    }
    if (of[2] != CUDNN_TYPE_BACKEND_DESCRIPTOR && of[2] != CUDNN_TYPE_HANDLE &&
        of[2] != CUDNN_TYPE_VOID_PTR)
        hash_bytes(g, values, (size_t)count * dnn_value_bytes((int)of[2]));
}

static void set(struct dnn_graph *g, cudnnBackendDescriptor_t d, int attribute, int type,
                int64_t count, const void *values)
{
    hash_attribute(g, (int64_t[4]){number_of(g, d), attribute, type, count}, values);
    if (g->status == 0)
        g->status = check(dnn.cudnnBackendSetAttribute(d, attribute, type, count, values),
                          "describing a graph");
}

static void set_descriptor(struct dnn_graph *g, cudnnBackendDescriptor_t d, int attribute,
                           cudnnBackendDescriptor_t value)
{
    if (value)
        set(g, d, attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void finalize(struct dnn_graph *g, cudnnBackendDescriptor_t d)
{
    if (g->status == 0)
        g->status = check(dnn.cudnnBackendFinalize(d), "describing a graph");
}

static dnn_tensor make_tensor(struct dnn_graph *g, int64_t id, int type, const int64_t size[4],
                              const int64_t stride[4], bool by_value, dnn_tensor offsets)
{
    bool is_virtual = id == 0;
    int64_t align = type == CUDNN_DATA_FLOAT && !is_virtual && !by_value ? 4 : 16;
    dnn_tensor t = create(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);

    if (is_virtual)
        id = FIRST_VIRTUAL + g->virtuals++;
    set(g, t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(g, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, size);
    set(g, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride);
    set(g, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set(g, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
    set(g, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    set(g, t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    set_descriptor(g, t, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, offsets);
    finalize(g, t);
    return t;
}

dnn_tensor dnn_tensor_new(struct dnn_graph *g, int64_t id, int type, const int64_t size[4],
                          const int64_t stride[4])
{
    return make_tensor(g, id, type, size, stride, false, NULL);
}

dnn_tensor dnn_packed_tensor_new(struct dnn_graph *g, int64_t id, int type, const int64_t size[4],
                                 const int64_t stride[4], dnn_tensor offsets)
{
    return make_tensor(g, id, type, size, stride, false, offsets);
}

dnn_tensor dnn_scalar_new(struct dnn_graph *g, int64_t id)
{
    static const int64_t one[4] = {1, 1, 1, 1};

    return make_tensor(g, id, CUDNN_DATA_FLOAT, one, one, true, NULL);
}

/* ---- operations ---- */

static cudnnBackendDescriptor_t begin_operation(struct dnn_graph *g, int type)
{
    cudnnBackendDescriptor_t o = create(g, type);

    if (g->status == 0 && g->operations == DNN_OPERATIONS)
        g->status = ct_fail(CT_EINVAL, "cuDNN: more than %d operations", DNN_OPERATIONS);
    if (g->status == 0)
        g->operation[g->operations++] = o;
    return o;
}

void dnn_pointwise(struct dnn_graph *g, int mode, int precision, dnn_tensor x, dnn_tensor b,
                   dnn_tensor t, dnn_tensor y, int axis)
{
    cudnnBackendDescriptor_t p = create(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR), o;
    int64_t along = axis;

    set(g, p, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set(g, p, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &precision);
    if (axis >= 0)
        set(g, p, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &along);
    finalize(g, p);
    o = begin_operation(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_descriptor(g, o, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, p);
    set_descriptor(g, o, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    set_descriptor(g, o, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    set_descriptor(g, o, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    set_descriptor(g, o, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    finalize(g, o);
}

void dnn_matmul(struct dnn_graph *g, dnn_tensor a, dnn_tensor b, dnn_tensor c,
                const struct dnn_extent *extent)
{
    cudnnBackendDescriptor_t p = create(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR), o;
    int type = CUDNN_DATA_FLOAT;
    double zero = 0;

    set(g, p, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    if (extent->zero_outside)
        set(g, p, CUDNN_ATTR_MATMUL_PADDING_VALUE, CUDNN_TYPE_DOUBLE, 1, &zero);
    finalize(g, p);
    o = begin_operation(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_descriptor(g, o, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_descriptor(g, o, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_descriptor(g, o, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    set_descriptor(g, o, CUDNN_ATTR_OPERATION_MATMUL_DESC, p);
    set_descriptor(g, o, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, extent->rows);
    set_descriptor(g, o, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, extent->columns);
    set_descriptor(g, o, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, extent->inner);
    finalize(g, o);
}

void dnn_reduce(struct dnn_graph *g, int op, dnn_tensor x, dnn_tensor y)
{
    cudnnBackendDescriptor_t p = create(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR), o;
    int type = CUDNN_DATA_FLOAT;

    set(g, p, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &op);
    set(g, p, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    finalize(g, p);
    o = begin_operation(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_descriptor(g, o, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_descriptor(g, o, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    set_descriptor(g, o, CUDNN_ATTR_OPERATION_REDUCTION_DESC, p);
    finalize(g, o);
}

void dnn_reshape(struct dnn_graph *g, dnn_tensor x, dnn_tensor y)
{
    cudnnBackendDescriptor_t o = begin_operation(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);

    set_descriptor(g, o, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_descriptor(g, o, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    finalize(g, o);
}

/* ---- plans ---- */

static cudnnBackendDescriptor_t describe_device(struct dnn_graph *g, const char *properties)
{
    cudnnBackendDescriptor_t d = create(g, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);

    set(g, d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
        (int64_t)strlen(properties), properties);
    finalize(g, d);
    return d;
}

/* Engines with their settings, the best first; returns how many. */
static int ask_heuristic(struct dnn_graph *g, cudnnHandle_t handle, cudnnBackendDescriptor_t device,
                         cudnnBackendDescriptor_t *configs)
{
    cudnnBackendDescriptor_t graph = create(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR), heuristic;
    int mode = CUDNN_HEUR_MODE_A;
    int64_t count = 0;

    set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->operations,
        g->operation);
    if (handle)
        set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    finalize(g, graph);
    heuristic = create(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_descriptor(g, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(g, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    set_descriptor(g, heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device);
    finalize(g, heuristic);
    for (int i = 0; i < PLANS; i++)
        configs[i] = create(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (g->status == 0)
        g->status = check(dnn.cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                       CUDNN_TYPE_BACKEND_DESCRIPTOR, PLANS, &count,
                                                       configs),
                          "looking for an engine");
    return (int)(count < PLANS ? count : PLANS);
}

static cudnnBackendDescriptor_t begin_plan(struct dnn_graph *g, cudnnHandle_t handle,
                                           cudnnBackendDescriptor_t device)
{
    cudnnBackendDescriptor_t plan = create(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);

    if (handle)
        set(g, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    set_descriptor(g, plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, device);
    return plan;
}

static int finish_plan(struct dnn_graph *g, cudnnBackendDescriptor_t plan)
{
    int64_t count = 0, bytes = 0;

    finalize(g, plan);
    if (g->status == 0)
        g->status =
            check(dnn.cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                               CUDNN_TYPE_INT64, 1, &count, &bytes),
                  "a plan");
    g->workspace = (size_t)bytes;
    g->plan = plan;
    return g->status;
}

static int try_config(struct dnn_graph *g, cudnnHandle_t handle, cudnnBackendDescriptor_t device,
                      cudnnBackendDescriptor_t config)
{
    cudnnBackendDescriptor_t plan = begin_plan(g, handle, device);

    set_descriptor(g, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    return finish_plan(g, plan);
}

int dnn_graph_plan(struct dnn_graph *g, cudnnHandle_t handle, const char *properties)
{
    cudnnBackendDescriptor_t configs[PLANS] = {NULL};
    cudnnBackendDescriptor_t device = properties ? describe_device(g, properties) : NULL;
    int count = ask_heuristic(g, handle, device, configs), status;

    if (g->status == 0 && count == 0)
        g->status = ct_fail(CT_EINVAL, "cuDNN has no engine for this graph");
    if (g->status < 0)
        return g->status;
    for (g->passed_over = 0; g->passed_over < count; g->passed_over++) {
        status = try_config(g, handle, device, configs[g->passed_over]);
        if (status == 0)
            return 0;
        g->status = 0; /* the next one may do */
    }
    return g->status = ct_context(CT_EINVAL, "no plan of cuDNN works");
}

/* ---- plans as text ---- */

int dnn_graph_restore(struct dnn_graph *g, cudnnHandle_t handle, const char *properties,
                      const char *text, size_t size)
{
    cudnnBackendDescriptor_t device = properties ? describe_device(g, properties) : NULL, plan;
    int status = g->status;

    plan = begin_plan(g, handle, device);
    set(g, plan, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)size,
        text);
    finish_plan(g, plan);
    if (status < 0 || g->status == 0)
        return g->status;
    status = g->status;
    g->status = 0; /* a plan can be made */
    return status;
}

int dnn_graph_text(const struct dnn_graph *g, struct ct_arena *arena, char **text, size_t *size)
{
    int64_t room = 0, bytes = 0;
    int status = dnn.cudnnBackendGetAttribute(
        g->plan, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, 0, &room, NULL);

    *text = ct_arena_alloc(arena, (size_t)room + 1);
    if (status == CUDNN_STATUS_SUCCESS)
        status =
            dnn.cudnnBackendGetAttribute(g->plan, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION,
                                         CUDNN_TYPE_CHAR, room, &bytes, *text);
    *size = (size_t)bytes;
    return check(status, "a plan as text");
}

void dnn_graph_destroy(struct dnn_graph *g)
{
    while (g->descriptors > 0)
        dnn.cudnnBackendDestroyDescriptor(g->all[--g->descriptors]);
}

/* ---- running ---- */

int dnn_handle_create(cudnnHandle_t *handle)
{
    return check(dnn.cudnnCreate(handle), "starting");
}

void dnn_handle_destroy(cudnnHandle_t handle)
{
    if (handle)
        dnn.cudnnDestroy(handle);
}

int dnn_run(const struct dnn_graph *plan, cudnnHandle_t handle, void *stream, const int64_t *ids,
            void **addresses, int count, void *workspace)
{
    struct dnn_graph g = {.status = 0};
    cudnnBackendDescriptor_t pack;

    g.status = check(dnn.cudnnSetStream(handle, stream), "the stream");
    pack = create(&g, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    set(&g, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids);
    set(&g, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, addresses);
    set(&g, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    finalize(&g, pack);
    if (g.status == 0)
        g.status = check(dnn.cudnnBackendExecute(handle, plan->plan, pack), "running a plan");
    dnn_graph_destroy(&g);
    return g.status;
}
