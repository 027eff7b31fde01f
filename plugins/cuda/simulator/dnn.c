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
    /* of a tensor: */
    const int64_t *sizes, *strides;
    enum ct_dtype dtype;
    struct descriptor *begins; /* NULL: it is not packed */
    double *elements;          /* while a graph runs: by index */
    int64_t heads; /* of begins, while a graph runs: the fewest of the tensors they are of */
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

static enum ct_dtype dtype_of(int type)
{
    return type == CUDNN_DATA_BFLOAT16 ? CT_BF16
           : type == CUDNN_DATA_FLOAT  ? CT_F32
           : type == CUDNN_DATA_INT64  ? CT_I64
                                       : CT_I32;
}

/* Attributes of a tensor that each of its elements needs. */
static void note(struct descriptor *d, int attribute, void *values)
{
    if (attribute == CUDNN_ATTR_TENSOR_DIMENSIONS)
        d->sizes = values;
    else if (attribute == CUDNN_ATTR_TENSOR_STRIDES)
        d->strides = values;
    else if (attribute == CUDNN_ATTR_TENSOR_DATA_TYPE)
        d->dtype = dtype_of(*(int *)values);
    else if (attribute == CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC)
        d->begins = *(struct descriptor **)values;
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
    note(d, attribute, d->at[d->count].values);
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

static int64_t elements_of(const struct descriptor *t)
{
    const int64_t *n = t->sizes;

    return n[0] * n[1] * n[2] * n[3];
}

/* The next element's index in a tensor of sizes n. */
static void advance(int64_t index[4], const int64_t *n)
{
    for (int d = 3; d >= 0 && ++index[d] == n[d]; d--)
        index[d] = 0;
}

/* The place of an element in memory. */
static int64_t place(const struct descriptor *t, const int64_t index[4])
{
    const int64_t *s = t->strides;

    return index[0] * s[0] + index[1] * s[1] + index[2] * s[2] + index[3] * s[3];
}

/* Elements of a tensor by indices in one that is as large, or larger by whole factors: sizes of 1
   are repeated, heads are shared by groups. elements NULL: there is no tensor. */
struct view {
    const double *elements;
    int64_t share[4], step[4];
};

static struct view view_of(const struct descriptor *t, const int64_t larger[4])
{
    struct view v = {.elements = t ? t->elements : NULL};
    int64_t step = 1;

    for (int d = 3; t && d >= 0; d--) {
        v.share[d] = larger[d] / t->sizes[d] > 0 ? larger[d] / t->sizes[d] : 1;
        v.step[d] = step;
        step *= t->sizes[d];
    }
    return v;
}

static int64_t number_at(const struct view *v, const int64_t index[4])
{
    int64_t i = 0;

    for (int d = 0; d < 4; d++)
        i += (v->share[d] == 1 ? index[d] : index[d] / v->share[d]) * v->step[d];
    return i;
}

static double at(const struct view *v, const int64_t index[4])
{
    return v->elements ? v->elements[number_at(v, index)] : 0;
}

static void make_elements(struct descriptor *t)
{
    if (!t->elements)
        t->elements = calloc((size_t)elements_of(t), sizeof(double));
}

/* As the dtype holds it. */
static double held(enum ct_dtype dtype, double x)
{
    double room = 0;
    struct ct_tensor one;

    if (dtype == CT_F32)
        return (double)(float)x;
    if (dtype == CT_BF16)
        return (double)ct_bf16_to_f32(ct_f64_to_bf16(x));
    if (dtype == CT_I32 && x >= 0 && x <= INT32_MAX)
        return rint(x);
    one = ct_tensor_dense(&room, dtype, 0, NULL);
    ct_tensor_store(&one, 0, x);
    return ct_tensor_load(&one, 0);
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
    struct view of_x = view_of(x, y->sizes), of_b = view_of(b, y->sizes),
                of_t = view_of(t, y->sizes);
    int64_t index[4] = {0}, count = elements_of(y);

    make_elements(y);
    for (int64_t i = 0; i < count; i++, advance(index, y->sizes))
        y->elements[i] = held(
            y->dtype, mode == CUDNN_POINTWISE_GEN_INDEX
                          ? (double)index[*axis]
                          : pointwise(mode, at(&of_x, index), at(&of_b, index), at(&of_t, index)));
}

/* Rows, columns or inner elements of a matrix product, as far as they are limited for matrix
   index[0]. */
static int64_t extent_of(const struct descriptor *op, int attribute, const int64_t index[4],
                         int64_t whole)
{
    struct descriptor *limit = get_descriptor(op, attribute);

    return limit ? (int64_t)limit->elements[index[0]] : whole;
}

struct matrices {
    const double *row, *columns; /* of a; of b, `stride` from one row to the next */
    int64_t stride, inner, rows, n;
    double padding;
};

/* A row of c, at index: sum over k of a[k] b[k, j]; padding outside of the limits. */
static void multiply_row(const struct matrices *m, bool inside, double *sum, enum ct_dtype dtype,
                         int64_t columns)
{
    int64_t n = inside ? m->n : 0;

    memset(sum, 0, (size_t)columns * sizeof(*sum));
    for (int64_t k = 0; k < m->inner; k++)
        for (int64_t j = 0; j < n; j++)
            sum[j] += m->row[k] * m->columns[k * m->stride + j];
    for (int64_t j = 0; j < columns; j++)
        sum[j] = held(dtype, j < n ? sum[j] : m->padding);
}

static int64_t least(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

/* c[.., i, j] = sum over k of a[.., i, k] b[.., k, j] */
static void run_matmul(const struct descriptor *op)
{
    struct descriptor *a = get_descriptor(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
    struct descriptor *b = get_descriptor(op, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
    struct descriptor *c = get_descriptor(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
    const int64_t *n = c->sizes, rows[4] = {n[0], n[1], n[2], 1};
    int64_t inner = a->sizes[3], of_a[4] = {n[0], n[1], n[2], inner},
            of_b[4] = {n[0], n[1], inner, n[3]}, index[4] = {0};
    struct view left = view_of(a, of_a), right = view_of(b, of_b);
    const double *padding = get(get_descriptor(op, CUDNN_ATTR_OPERATION_MATMUL_DESC),
                                CUDNN_ATTR_MATMUL_PADDING_VALUE, NULL);
    struct matrices m = {.stride = b->sizes[3], .padding = padding ? *padding : (double)NAN};

    make_elements(c);
    for (int64_t i = 0; i < elements_of(c); i += n[3], advance(index, rows)) {
        const int64_t first[4] = {index[0], index[1], 0, 0};

        m.row = a->elements + number_at(&left, index);
        m.columns = b->elements + number_at(&right, first);
        m.rows = extent_of(op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, index, n[2]);
        m.n = least(extent_of(op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, index, n[3]),
                    n[3]);
        m.inner = extent_of(op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, index, inner);
        multiply_row(&m, index[2] < m.rows, c->elements + i, c->dtype, n[3]);
    }
}

static void run_reduction(const struct descriptor *op)
{
    struct descriptor *how = get_descriptor(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC);
    struct descriptor *x = get_descriptor(op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
    struct descriptor *y = get_descriptor(op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
    bool largest = *(int *)get(how, CUDNN_ATTR_REDUCTION_OPERATOR, NULL) == CUDNN_REDUCE_TENSOR_MAX;
    struct view of_y = view_of(y, x->sizes);
    int64_t index[4] = {0}, count = elements_of(x);

    make_elements(y);
    for (int64_t i = 0; i < elements_of(y); i++)
        y->elements[i] = largest ? -INFINITY : 0;
    for (int64_t i = 0; i < count; i++, advance(index, x->sizes)) {
        double *to = y->elements + number_at(&of_y, index);

        *to = largest ? fmax(*to, x->elements[i]) : *to + x->elements[i];
    }
    for (int64_t i = 0; i < elements_of(y); i++)
        y->elements[i] = held(y->dtype, y->elements[i]);
}

/* The same memory under other sizes and strides. */
static void run_reshape(const struct descriptor *op)
{
    struct descriptor *x = get_descriptor(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
    struct descriptor *y = get_descriptor(op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
    int64_t index[4] = {0}, end = 0;
    double *memory;

    for (int d = 0; d < 4; d++)
        end += (x->sizes[d] - 1) * x->strides[d];
    memory = malloc((size_t)(end + 1) * sizeof(*memory));
    for (int64_t i = 0; i < elements_of(x); i++, advance(index, x->sizes))
        memory[place(x, index)] = x->elements[i];
    make_elements(y);
    memset(index, 0, sizeof(index));
    for (int64_t i = 0; i < elements_of(y); i++, advance(index, y->sizes))
        y->elements[i] = held(y->dtype, memory[place(y, index)]);
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

/* The address of an element; NULL: it is outside of its packed sequence. */
static void *address(const struct descriptor *t, const int64_t index[4], char *data)
{
    const struct descriptor *begins = t->begins;
    int64_t at = place(t, index), size = (int64_t)ct_dtype_size(t->dtype), share;

    if (!begins)
        return data + at * size;
    share = t->sizes[1] / begins->heads;
    at -= index[0] * t->strides[0];
    if (at >= share * (int64_t)(begins->elements[index[0] + 1] - begins->elements[index[0]]))
        return NULL;
    return data + (share * (int64_t)begins->elements[index[0]] + at) * size;
}

static void read_tensor(struct descriptor *t, struct run *r)
{
    bool by_value = *(bool *)get(t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, NULL);
    int64_t given = find(t, r), index[4] = {0}, count = elements_of(t);
    struct ct_tensor one = {.dtype = t->dtype};

    if (given == r->count || t->elements)
        return;
    make_elements(t);
    for (int64_t i = 0; i < count; i++, advance(index, t->sizes)) {
        one.data = address(t, index, r->addresses[given]);
        t->elements[i] = by_value   ? r->scalars[given]
                         : one.data ? ct_tensor_load(&one, 0)
                                    : (double)NAN;
    }
}

static void read_begins(struct descriptor *t, struct run *r)
{
    struct descriptor *begins = t->begins;

    if (!begins)
        return;
    read_tensor(begins, r);
    if (!begins->heads || begins->heads > t->sizes[1])
        begins->heads = t->sizes[1];
}

static void drop_begins(struct descriptor *t, struct run *r)
{
    struct descriptor *begins = t->begins;

    (void)r;
    if (!begins)
        return;
    free(begins->elements);
    begins->elements = NULL;
}

static void write_tensor(struct descriptor *t, struct run *r)
{
    bool by_value = *(bool *)get(t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, NULL);
    int64_t given = find(t, r), index[4] = {0}, count = elements_of(t);
    struct ct_tensor one = {.dtype = t->dtype};

    if (given == r->count || by_value || !t->elements)
        count = 0;
    for (int64_t i = 0; i < count; i++, advance(index, t->sizes)) {
        one.data = address(t, index, r->addresses[given]);
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

    if (t->begins)
        look_for_missing(t->begins, r);
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
