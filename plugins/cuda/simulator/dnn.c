/*
 * The simulated cuDNN: libcudnn.so.9. Graphs of its backend interface are interpreted, one
 * operation after the other, on tensors of doubles that are rounded to their dtype; so a graph that
 * describes the wrong thing gives wrong numbers. Whether cuDNN has an engine for a graph is not
 * simulated (test_sdpa.c asks the real one).
 *
 * What is outside of a packed sequence is NaN, and is not written. As in cuDNN, a tensor of more
 * heads than another one with the same begins has its own at as many times of them.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/tensor.h>

#include "dnn_library.h"
#include <ctitan/lib/cuda/simulator.h>

#define X(name, parameters) CT_API int name parameters;
GPU_DNN_CALLS(X)
#undef X
CT_API void cudnnGetLastErrorString(char *text, size_t room);
CT_API size_t cudnnGetVersion(void);

#define ATTRIBUTES 12
#define PARTS 512 /* descriptors of a plan */
#define BAD_PARAM 2000

/* The attributes of a descriptor. */
struct descriptor {
    int type, count;
    struct {
        int attribute, type;
        int64_t count;
        void *values;
    } at[ATTRIBUTES];
    double *elements; /* of a tensor, while a graph runs: by index */
    int64_t heads;    /* of begins, while a graph runs: the fewest of the tensors they are of */
};

static char last_error[256];

void cudnnGetLastErrorString(char *text, size_t room)
{
    snprintf(text, room, "%s", last_error);
}

struct cudnnContext {
    void *stream;
};

size_t cudnnGetVersion(void)
{
    return 91900;
}

int cudnnCreate(cudnnHandle_t *handle)
{
    *handle = calloc(1, sizeof(**handle));
    return CUDNN_STATUS_SUCCESS;
}

int cudnnDestroy(cudnnHandle_t handle)
{
    free(handle);
    return CUDNN_STATUS_SUCCESS;
}

int cudnnSetStream(cudnnHandle_t handle, void *stream)
{
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- descriptors ---- */

int cudnnBackendCreateDescriptor(int type, cudnnBackendDescriptor_t *descriptor)
{
    struct descriptor *d = calloc(1, sizeof(*d));

    d->type = type;
    *descriptor = d;
    return CUDNN_STATUS_SUCCESS;
}

int cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor)
{
    struct descriptor *d = descriptor;

    for (int i = 0; i < d->count; i++)
        free(d->at[i].values);
    free(d);
    return CUDNN_STATUS_SUCCESS;
}

int cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, int attribute, int type,
                             int64_t count, const void *values)
{
    struct descriptor *d = descriptor;
    size_t bytes = (size_t)count * dnn_value_bytes(type);

    if (d->count == ATTRIBUTES)
        return BAD_PARAM;
    d->at[d->count].attribute = attribute;
    d->at[d->count].type = type;
    d->at[d->count].count = count;
    d->at[d->count].values = memcpy(malloc(bytes), values, bytes);
    d->count++;
    return CUDNN_STATUS_SUCCESS;
}

static void *get(const struct descriptor *d, int attribute, int64_t *count)
{
    for (int i = 0; d && i < d->count; i++)
        if (d->at[i].attribute == attribute) {
            if (count)
                *count = d->at[i].count;
            return d->at[i].values;
        }
    return NULL;
}

static struct descriptor *get_descriptor(const struct descriptor *d, int attribute)
{
    struct descriptor **value = get(d, attribute, NULL);

    return value ? *value : NULL;
}

/* ---- plans as text: "{type attribute:type:count:bytes ..} .." of parts, by number ---- */

struct parts {
    struct descriptor *all[PARTS];
    int count;
};

static int number_of(struct parts *p, struct descriptor *d)
{
    int i = 0;

    while (i < p->count && p->all[i] != d)
        i++;
    if (i == p->count && i < PARTS)
        p->all[p->count++] = d;
    return i;
}

static void write_values(struct parts *p, FILE *out, const struct descriptor *d, int i)
{
    size_t bytes = (size_t)d->at[i].count * dnn_value_bytes(d->at[i].type);

    fprintf(out, " %d:%d:%lld:", d->at[i].attribute, d->at[i].type, (long long)d->at[i].count);
    for (int64_t k = 0; d->at[i].type == CUDNN_TYPE_BACKEND_DESCRIPTOR && k < d->at[i].count; k++)
        fprintf(out, "%08x", number_of(p, ((struct descriptor **)d->at[i].values)[k]));
    for (size_t k = 0; d->at[i].type != CUDNN_TYPE_BACKEND_DESCRIPTOR && k < bytes; k++)
        fprintf(out, "%02x", ((unsigned char *)d->at[i].values)[k]);
}

/* The engine of a plan, with all that it leads to. */
static char *write_text(const struct descriptor *plan)
{
    struct parts parts = {.count = 0};
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);

    number_of(&parts, get_descriptor(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG));
    for (int n = 0; n < parts.count; n++) {
        fprintf(out, "{%d", parts.all[n]->type);
        for (int i = 0; i < parts.all[n]->count; i++)
            if (parts.all[n]->at[i].type != CUDNN_TYPE_HANDLE)
                write_values(&parts, out, parts.all[n], i);
        fputs("}", out);
    }
    fclose(out);
    return text;
}

static const char *read_values(struct descriptor **all, struct descriptor *d, const char *at)
{
    char values[4096];
    int attribute, type, used;
    long long count;
    unsigned n;

    if (sscanf(at, " %d:%d:%lld:%n", &attribute, &type, &count, &used) != 3)
        return NULL;
    at += used;
    for (int64_t k = 0; type == CUDNN_TYPE_BACKEND_DESCRIPTOR && k < count; k++, at += 8) {
        if (sscanf(at, "%8x", &n) != 1 || n >= PARTS)
            return NULL;
        memcpy(values + 8 * k, &all[n], 8);
    }
    for (size_t k = 0;
         type != CUDNN_TYPE_BACKEND_DESCRIPTOR && k < (size_t)count * dnn_value_bytes(type);
         k++, at += 2) {
        if (sscanf(at, "%2x", &n) != 1)
            return NULL;
        values[k] = (char)n;
    }
    return cudnnBackendSetAttribute(d, attribute, type, count, values) ? NULL : at;
}

/* NULL: it is no such text. All parts stay until the process ends. */
static struct descriptor *read_text(const char *at)
{
    struct descriptor **all = calloc(PARTS, sizeof(struct descriptor *));
    int type, used;

    for (int n = 0; n < PARTS; n++)
        cudnnBackendCreateDescriptor(-1, (cudnnBackendDescriptor_t *)&all[n]);
    for (int n = 0; at && n < PARTS && sscanf(at, "{%d%n", &type, &used) == 1; n++) {
        all[n]->type = type;
        for (at += used; at && *at == ' ';)
            at = read_values(all, all[n], at);
        at = at && *at == '}' ? at + 1 : NULL;
    }
    return at && !*at && all[0]->type == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR ? all[0] : NULL;
}

/* A plan that has only a text gets the engine that the text says. */
int cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor)
{
    struct descriptor *plan = descriptor, *engine;
    int64_t size = 0;
    const char *text = get(plan, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, &size);
    char *copy;

    if (!text)
        return CUDNN_STATUS_SUCCESS;
    copy = strndup(text, (size_t)size);
    engine = read_text(copy);
    free(copy);
    simulated_count("a plan of cuDNN is read");
    return engine ? cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                             CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine)
                  : BAD_PARAM;
}

static int get_text(const struct descriptor *plan, int64_t wanted, int64_t *count, char *to)
{
    char *text = write_text(plan);

    *count = (int64_t)strlen(text);
    if (to)
        memcpy(to, text, (size_t)(wanted < *count ? wanted : *count));
    free(text);
    return CUDNN_STATUS_SUCCESS;
}

/* One engine, its configuration made of the graph; a plan needs some workspace, to see it given. */
int cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, int attribute, int type,
                             int64_t wanted, int64_t *count, void *values)
{
    struct descriptor *d = descriptor;

    (void)type;
    if (attribute == CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION)
        return get_text(d, wanted, count, values);
    *count = 1;
    if (attribute == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
        *(int64_t *)values = 4096;
        return CUDNN_STATUS_SUCCESS;
    }
    simulated_count("a plan of cuDNN is made");
    return cudnnBackendSetAttribute(
        *(cudnnBackendDescriptor_t *)values, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
        CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, get(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, NULL));
}

/* ---- tensors ---- */

static const int64_t *sizes(const struct descriptor *t)
{
    return get(t, CUDNN_ATTR_TENSOR_DIMENSIONS, NULL);
}

static int64_t elements_of(const struct descriptor *t)
{
    const int64_t *n = sizes(t);

    return n[0] * n[1] * n[2] * n[3];
}

/* Index of element i along each dimension; the place in memory. */
static int64_t place(const struct descriptor *t, int64_t i, int64_t index[4])
{
    const int64_t *n = sizes(t), *stride = get(t, CUDNN_ATTR_TENSOR_STRIDES, NULL);
    int64_t at = 0;

    for (int d = 3; d >= 0; d--) {
        index[d] = i % n[d];
        at += index[d] * stride[d];
        i /= n[d];
    }
    return at;
}

static enum ct_dtype dtype_of(const struct descriptor *t)
{
    int type = *(int *)get(t, CUDNN_ATTR_TENSOR_DATA_TYPE, NULL);

    return type == CUDNN_DATA_BFLOAT16 ? CT_BF16
           : type == CUDNN_DATA_FLOAT  ? CT_F32
           : type == CUDNN_DATA_INT64  ? CT_I64
                                       : CT_I32;
}

/* The number of t's element for index in a tensor that is as large, or larger by whole factors:
   sizes of 1 are repeated, heads are shared by groups. */
static int64_t number_at(const struct descriptor *t, const int64_t index[4],
                         const int64_t larger[4])
{
    const int64_t *n = sizes(t);
    int64_t i = 0;

    for (int d = 0; d < 4; d++)
        i = i * n[d] + index[d] / (larger[d] / n[d] > 0 ? larger[d] / n[d] : 1);
    return i;
}

static double at(const struct descriptor *t, const int64_t index[4], const int64_t larger[4])
{
    return t->elements[number_at(t, index, larger)];
}

static void make_elements(struct descriptor *t)
{
    if (!t->elements)
        t->elements = calloc((size_t)elements_of(t), sizeof(double));
}

/* As its dtype holds it. */
static void put(struct descriptor *t, int64_t i, double x)
{
    double room = 0;
    struct ct_tensor one = ct_tensor_dense(&room, dtype_of(t), 0, NULL);

    ct_tensor_store(&one, 0, x);
    t->elements[i] = ct_tensor_load(&one, 0);
}

/* ---- operations ---- */

static double pointwise(int mode, double x, double b, double t)
{
    switch (mode) {
    case CUDNN_POINTWISE_ADD:
        return x + b;
    case CUDNN_POINTWISE_SUB:
        return x - b;
    case CUDNN_POINTWISE_MUL:
        return x * b;
    case CUDNN_POINTWISE_DIV:
        return x / b;
    case CUDNN_POINTWISE_EXP:
        return exp(x);
    case CUDNN_POINTWISE_LOG:
        return log(x);
    case CUDNN_POINTWISE_CMP_GT:
        return x > b;
    case CUDNN_POINTWISE_CMP_GE:
        return x >= b;
    case CUDNN_POINTWISE_CMP_LT:
        return x < b;
    case CUDNN_POINTWISE_LOGICAL_AND:
        return x != 0 && b != 0;
    case CUDNN_POINTWISE_BINARY_SELECT:
        return t != 0 ? x : b;
    case CUDNN_POINTWISE_IDENTITY:
        return x;
    default:
        return NAN;
    }
}

static void run_pointwise(const struct descriptor *op)
{
    struct descriptor *how = get_descriptor(op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    struct descriptor *x = get_descriptor(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
    struct descriptor *b = get_descriptor(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    struct descriptor *t = get_descriptor(op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
    struct descriptor *y = get_descriptor(op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
    int mode = *(int *)get(how, CUDNN_ATTR_POINTWISE_MODE, NULL);
    const int64_t *axis = get(how, CUDNN_ATTR_POINTWISE_AXIS, NULL);

    make_elements(y);
    for (int64_t i = 0; i < elements_of(y); i++) {
        int64_t index[4];

        place(y, i, index);
        put(y, i,
            mode == CUDNN_POINTWISE_GEN_INDEX
                ? (double)index[*axis]
                : pointwise(mode, at(x, index, sizes(y)), b ? at(b, index, sizes(y)) : 0,
                            t ? at(t, index, sizes(y)) : 0));
    }
}

/* Rows, columns or inner elements of a matrix product, as far as they are limited for matrix
   index[0]. */
static int64_t extent_of(const struct descriptor *op, int attribute, const int64_t index[4],
                         int64_t whole)
{
    struct descriptor *limit = get_descriptor(op, attribute);

    return limit ? (int64_t)limit->elements[index[0]] : whole;
}

/* c[.., i, j] = sum over k of a[.., i, k] b[.., k, j] */
static void run_matmul(const struct descriptor *op)
{
    struct descriptor *a = get_descriptor(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
    struct descriptor *b = get_descriptor(op, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
    struct descriptor *c = get_descriptor(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
    const int64_t *n = sizes(c);
    int64_t inner = sizes(a)[3];
    int64_t of_a[4] = {n[0], n[1], n[2], inner}, of_b[4] = {n[0], n[1], inner, n[3]};
    int64_t stride = sizes(b)[3];
    const double *padding = get(get_descriptor(op, CUDNN_ATTR_OPERATION_MATMUL_DESC),
                                CUDNN_ATTR_MATMUL_PADDING_VALUE, NULL);

    make_elements(c);
    for (int64_t i = 0; i < elements_of(c); i++) {
        int64_t index[4], left[4], right[4];
        const double *row, *column;
        double sum = 0;
        int64_t most;

        place(c, i, index);
        if (index[2] >=
                extent_of(op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, index, n[2]) ||
            index[3] >=
                extent_of(op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, index, n[3])) {
            put(c, i, padding ? *padding : (double)NAN);
            continue;
        }
        most = extent_of(op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, index, inner);
        memcpy(left, index, sizeof(left));
        memcpy(right, index, sizeof(right));
        left[3] = right[2] = 0;
        row = a->elements + number_at(a, left, of_a);
        column = b->elements + number_at(b, right, of_b);
        for (int64_t k = 0; k < most; k++)
            sum += row[k] * column[k * stride];
        put(c, i, sum);
    }
}

static void run_reduction(const struct descriptor *op)
{
    struct descriptor *how = get_descriptor(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC);
    struct descriptor *x = get_descriptor(op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
    struct descriptor *y = get_descriptor(op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
    bool largest = *(int *)get(how, CUDNN_ATTR_REDUCTION_OPERATOR, NULL) == CUDNN_REDUCE_TENSOR_MAX;
    const int64_t *n = sizes(x), *m = sizes(y);
    double *sum = malloc((size_t)elements_of(y) * sizeof(*sum));

    for (int64_t i = 0; i < elements_of(y); i++)
        sum[i] = largest ? -INFINITY : 0;
    for (int64_t i = 0; i < elements_of(x); i++) {
        int64_t index[4], to = 0;

        place(x, i, index);
        for (int d = 0; d < 4; d++)
            to = to * m[d] + index[d] / (n[d] / m[d]);
        sum[to] = largest ? fmax(sum[to], x->elements[i]) : sum[to] + x->elements[i];
    }
    make_elements(y);
    for (int64_t i = 0; i < elements_of(y); i++)
        put(y, i, sum[i]);
    free(sum);
}

/* The same memory under other sizes and strides. */
static void run_reshape(const struct descriptor *op)
{
    struct descriptor *x = get_descriptor(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
    struct descriptor *y = get_descriptor(op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
    int64_t index[4], end = 0;
    double *memory;

    for (int64_t i = 0; i < elements_of(x); i++) {
        int64_t p = place(x, i, index);

        end = p > end ? p : end;
    }
    memory = malloc((size_t)(end + 1) * sizeof(*memory));
    for (int64_t i = 0; i < elements_of(x); i++)
        memory[place(x, i, index)] = x->elements[i];
    make_elements(y);
    for (int64_t i = 0; i < elements_of(y); i++)
        put(y, i, memory[place(y, i, index)]);
    free(memory);
}

/* ---- graphs ---- */

struct run {
    const struct descriptor *plan;
    int64_t ids[32], count;
    void *addresses[32];
    double scalars[32]; /* as they were when the call was made */
    void *workspace;
};

static struct descriptor *graph_of(const struct descriptor *plan)
{
    return get_descriptor(get_descriptor(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG),
                          CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
}

/* Calls f for every tensor of an operation. */
static void each_tensor(const struct descriptor *op, struct run *r,
                        void (*f)(struct descriptor *t, struct run *r))
{
    for (int i = 0; i < op->count; i++) {
        struct descriptor *t;

        if (op->at[i].attribute == CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR ||
            op->at[i].attribute == CUDNN_ATTR_OPERATION_MATMUL_DESC ||
            op->at[i].attribute == CUDNN_ATTR_OPERATION_REDUCTION_DESC)
            continue;
        memcpy(&t, op->at[i].values, sizeof(t));
        f(t, r);
    }
}

static int64_t find(const struct descriptor *t, const struct run *r)
{
    int64_t id = *(int64_t *)get(t, CUDNN_ATTR_TENSOR_UNIQUE_ID, NULL), i = 0;

    while (i < r->count && r->ids[i] != id)
        i++;
    return i;
}

static struct descriptor *begins_of(const struct descriptor *t)
{
    return get_descriptor(t, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC);
}

/* The address of element i; NULL: it is outside of its packed sequence. */
static void *address(const struct descriptor *t, int64_t i, char *data)
{
    const struct descriptor *begins = begins_of(t);
    int64_t index[4], at = place(t, i, index), size = (int64_t)ct_dtype_size(dtype_of(t)), share;
    const int64_t *stride = get(t, CUDNN_ATTR_TENSOR_STRIDES, NULL);

    if (!begins)
        return data + at * size;
    share = sizes(t)[1] / begins->heads;
    at -= index[0] * stride[0];
    if (at >= share * (int64_t)(begins->elements[index[0] + 1] - begins->elements[index[0]]))
        return NULL;
    return data + (share * (int64_t)begins->elements[index[0]] + at) * size;
}

static void read_tensor(struct descriptor *t, struct run *r)
{
    bool by_value = *(bool *)get(t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, NULL);
    int64_t given = find(t, r);
    struct ct_tensor one = {.dtype = dtype_of(t)};

    if (given == r->count || t->elements)
        return;
    make_elements(t);
    for (int64_t i = 0; i < elements_of(t); i++) {
        one.data = address(t, i, r->addresses[given]);
        t->elements[i] = by_value   ? r->scalars[given]
                         : one.data ? ct_tensor_load(&one, 0)
                                    : (double)NAN;
    }
}

static void read_begins(struct descriptor *t, struct run *r)
{
    struct descriptor *begins = begins_of(t);

    if (!begins)
        return;
    read_tensor(begins, r);
    if (!begins->heads || begins->heads > sizes(t)[1])
        begins->heads = sizes(t)[1];
}

static void drop_begins(struct descriptor *t, struct run *r)
{
    struct descriptor *begins = begins_of(t);

    (void)r;
    if (!begins)
        return;
    free(begins->elements);
    begins->elements = NULL;
}

static void write_tensor(struct descriptor *t, struct run *r)
{
    bool by_value = *(bool *)get(t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, NULL);
    int64_t given = find(t, r);
    struct ct_tensor one = {.dtype = dtype_of(t)};

    for (int64_t i = 0; given < r->count && !by_value && t->elements && i < elements_of(t); i++) {
        one.data = address(t, i, r->addresses[given]);
        if (one.data)
            ct_tensor_store(&one, 0, t->elements[i]);
    }
    free(t->elements);
    t->elements = NULL;
}

/* How many tokens packed sequences have. */
static void count_packed(const struct descriptor *op)
{
    struct descriptor *lengths =
        get_descriptor(op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC);
    double tokens = 0;

    for (int64_t i = 0; lengths && i < elements_of(lengths); i++)
        tokens += lengths->elements[i];
    if (lengths)
        simulated_count("product of %lld packed tokens", (long long)tokens);
}

static int run_graph(const void *arguments)
{
    struct run copy = *(const struct run *)arguments, *r = &copy;
    int64_t count;
    struct descriptor **ops = get(graph_of(r->plan), CUDNN_ATTR_OPERATIONGRAPH_OPS, &count);

    memset(r->workspace, 0xff, 4096);
    for (int64_t i = 0; i < count; i++)
        each_tensor(ops[i], r, read_begins);
    for (int64_t i = 0; i < count; i++)
        each_tensor(ops[i], r, read_tensor);
    for (int64_t i = 0; i < count; i++)
        switch (ops[i]->type) {
        case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
            run_pointwise(ops[i]);
            break;
        case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
            count_packed(ops[i]);
            run_matmul(ops[i]);
            break;
        case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
            run_reduction(ops[i]);
            break;
        default:
            run_reshape(ops[i]);
        }
    for (int64_t i = 0; i < count; i++)
        each_tensor(ops[i], r, write_tensor);
    for (int64_t i = 0; i < count; i++)
        each_tensor(ops[i], r, drop_begins);
    return CUDNN_STATUS_SUCCESS;
}

static int missing;

/* Every tensor that is not virtual must have an address, those of 16-byte vectors a round one. */
static void look_for_missing(struct descriptor *t, struct run *r)
{
    bool is_virtual = *(bool *)get(t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, NULL);
    int64_t align = *(int64_t *)get(t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, NULL);
    int64_t given = find(t, r);

    if (begins_of(t))
        look_for_missing(begins_of(t), r);
    if (is_virtual)
        return;
    missing += given == r->count;
    if (given < r->count && !*(bool *)get(t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, NULL))
        missing += (uintptr_t)r->addresses[given] % (uintptr_t)align != 0;
}

static void take_scalar(struct descriptor *t, struct run *r)
{
    int64_t given = find(t, r);

    if (given < r->count && *(bool *)get(t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, NULL))
        r->scalars[given] = (double)*(float *)r->addresses[given];
}

int cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                        cudnnBackendDescriptor_t pack)
{
    struct run r = {.plan = plan};
    int64_t count;
    const int64_t *ids;
    struct descriptor **ops = get(graph_of(plan), CUDNN_ATTR_OPERATIONGRAPH_OPS, &count);
    void **workspace = get(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, NULL);

    ids = get(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, &r.count);
    memcpy(r.ids, ids, (size_t)r.count * sizeof(*r.ids));
    memcpy(r.addresses, get(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, NULL),
           (size_t)r.count * sizeof(*r.addresses));
    simulated_count("cudnnBackendExecute of %lld", (long long)count);
    missing = 0;
    for (int64_t i = 0; i < count; i++)
        each_tensor(ops[i], &r, look_for_missing);
    if (missing || !workspace || (uintptr_t)*workspace % 256) {
        snprintf(last_error, sizeof(last_error),
                 "%d tensors without an address, workspace at %p (simulated)", missing,
                 workspace ? *workspace : NULL);
        return BAD_PARAM;
    }
    r.workspace = *workspace;
    for (int64_t i = 0; i < count; i++)
        each_tensor(ops[i], &r, take_scalar);
    return simulated_submit(handle->stream, run_graph, &r, sizeof(r));
}
