/*
 * `ctitan check`: compilers. Small kernels in the language of rows (lib/compiler.h), which use all
 * of it, are compiled and run on the compiler's device, and compared with the same in C.
 */
#include <math.h>
#include <string.h>

#include <ctitan/device/device.h>
#include <ctitan/error.h>
#include <ctitan/lib/compiler.h>
#include <ctitan/op_author.h>
#include <ctitan/rng.h>
#include <ctitan/tensor.h>

#include "check.h"

#define GAP 3 /* elements between rows */
#define OPERANDS 8
#define KERNEL_BEGIN                                                                               \
    "#include \"" CT_COMPILER_HEADER "\"\n"                                                        \
    "#define OUT(k) (float *)out[k].data + i * out[k].stride, j, column_end\n"                     \
    "ROW_KERNEL\n{\n"

/* A call's numbers, dense. */
struct rows {
    int64_t rows, columns;
    double *in[OPERANDS], *out[OPERANDS]; /* sums are outputs, too, of one row */
};

struct source {
    const char *what, *text;
    int ins, outs, sums;
    enum ct_dtype in[2], out[OPERANDS]; /* of sums behind those of outputs */
    bool by_row[OPERANDS];              /* an output has one number for each row */
    bool flat;
    double tolerance; /* of a number, relative to it or 1; of bfloat16 as much as rounding beside */
    void (*compute)(const struct rows *r, int64_t row, int64_t column);
};

/* ---- the kernels ---- */

static void compute_elements(const struct rows *r, int64_t i, int64_t j)
{
    int64_t at = i * r->columns + j;

    r->out[0][at] = (r->in[0][at] - 2 * r->in[1][at]) / 3 + 1;
    r->out[1][at] = -r->in[0][at] * r->in[1][at];
}

static const char elements[] = KERNEL_BEGIN
    "FOR_ROWS(i) {\n"
    "    const float *a = (const float *)in[0].data + i * in[0].stride;\n"
    "    const uint16_t *b = (const uint16_t *)in[1].data + i * in[1].stride;\n"
    "    float *c = (float *)out[0].data + i * out[0].stride;\n"
    "    uint16_t *d = (uint16_t *)out[1].data + i * out[1].stride;\n"
    "    FOR_COLUMNS(j) {\n"
    "        vf x = v_get(CT_F32, a, j, column_end), y = v_get(CT_BF16, b, j, column_end);\n"
    "        vh z = v_narrow(-x * y);\n"
    "        v_put(CT_F32, c, j, column_end, (x - 2.0f * y) / 3.0f + 1.0f);\n"
    "        put_narrow(d, j, column_end, z);\n"
    "    }\n"
    "}\n}\n";

static void compute_functions(const struct rows *r, int64_t i, int64_t j)
{
    int64_t at = i * r->columns + j;
    double x = r->in[0][at], y = r->in[1][at], size = fabs(x);

    r->out[0][at] = exp(x);
    r->out[1][at] = log(size + 0.01) + log1p(size);
    r->out[2][at] = tanh(x) + 1 / (1 + exp(-y));
    r->out[3][at] = erf(x);
    r->out[4][at] = sin(x) + cos(y);
    r->out[5][at] = sqrt(size) + pow(size + 0.5, y);
}

static const char functions[] = KERNEL_BEGIN
    "FOR_ROWS(i) {\n"
    "    const float *a = (const float *)in[0].data + i * in[0].stride;\n"
    "    const float *b = (const float *)in[1].data + i * in[1].stride;\n"
    "    FOR_COLUMNS(j) {\n"
    "        vf x = v_get(CT_F32, a, j, column_end), y = v_get(CT_F32, b, j, column_end);\n"
    "        v_put(CT_F32, OUT(0), w_exp(x));\n"
    "        v_put(CT_F32, OUT(1), w_log(w_abs(x) + 0.01f) + w_log1p(w_abs(x)));\n"
    "        v_put(CT_F32, OUT(2), w_tanh(x) + w_sigmoid(y));\n"
    "        v_put(CT_F32, OUT(3), w_erf(x));\n"
    "        v_put(CT_F32, OUT(4), w_sin(x) + w_cos(y));\n"
    "        v_put(CT_F32, OUT(5), w_sqrt(w_abs(x)) + w_pow(w_abs(x) + 0.5f, y));\n"
    "    }\n"
    "}\n}\n";

static double rounded(double x)
{
    double room = 0;
    struct ct_tensor one = ct_tensor_dense(&room, CT_BF16, 0, NULL);

    ct_tensor_store(&one, 0, x);
    return ct_tensor_load(&one, 0);
}

static void compute_choices(const struct rows *r, int64_t i, int64_t j)
{
    int64_t at = i * r->columns + j;
    double x = r->in[0][at], y = r->in[1][at];

    r->out[0][at] = fmin(x, y) - 3 * fmax(x, y);
    r->out[1][at] = (x < y) + 2 * (x > y);
    r->out[2][at] = x < y ? y : x + y;
    r->out[3][at] = rounded(x);
}

static const char choices[] = KERNEL_BEGIN
    "FOR_ROWS(i) {\n"
    "    const float *a = (const float *)in[0].data + i * in[0].stride;\n"
    "    const float *b = (const float *)in[1].data + i * in[1].stride;\n"
    "    FOR_COLUMNS(j) {\n"
    "        vf x = v_get(CT_F32, a, j, column_end), y = v_get(CT_F32, b, j, column_end);\n"
    "        v_put(CT_F32, OUT(0), w_min(x, y) - 3.0f * w_max(x, y));\n"
    "        v_put(CT_F32, OUT(1), w_less(x, y) + 2.0f * w_greater(x, y));\n"
    "        v_put(CT_F32, OUT(2), w_select(w_less(x, y), y, x + y));\n"
    "        v_put(CT_F32, OUT(3), v_widen(v_narrow(w_bfloat16(x))));\n"
    "    }\n"
    "}\n}\n";

/* A softmax, and the logarithm of each row's sum. */
static void compute_rows(const struct rows *r, int64_t i, int64_t j)
{
    const double *x = r->in[0] + i * r->columns;
    double top = -INFINITY, sum = 0;

    for (int64_t k = 0; k < r->columns; k++)
        top = fmax(top, x[k]);
    for (int64_t k = 0; k < r->columns; k++)
        sum += exp(x[k] - top);
    r->out[0][i * r->columns + j] = exp(x[j] - top) / sum;
    r->out[1][i] = top + log(sum);
}

static const char rows[] = KERNEL_BEGIN
    "FOR_ROWS(i) {\n"
    "    const float *a = (const float *)in[0].data + i * in[0].stride;\n"
    "    float *y = (float *)out[0].data + i * out[0].stride;\n"
    "    PARTS(tops, -INFINITY);\n"
    "    FOR_STEPS(j, s)\n"
    "        tops[s] = v_max(tops[s], first(v_get(CT_F32, a, j, column_end), column_end - j, "
    "-INFINITY));\n"
    "    float top = largest(tops);\n"
    "    PARTS(parts, 0);\n"
    "    FOR_STEPS(j, s) {\n"
    "        vf x = w_exp(v_get(CT_F32, a, j, column_end) - top);\n"
    "        parts[s] += first(x, column_end - j, 0);\n"
    "        v_put(CT_F32, y, j, column_end, x);\n"
    "    }\n"
    "    float sum = total(parts);\n"
    "    FOR_COLUMNS(j)\n"
    "        v_put(CT_F32, y, j, column_end, v_get(CT_F32, y, j, column_end) * v_set(1.0f / "
    "sum));\n"
    "    ROW_RESULTS\n"
    "        ((float *)out[1].data)[i] = f_max(top, top + f_log(sum));\n"
    "}\n}\n";

/* Sums over rows, beside an output. */
static void compute_sums(const struct rows *r, int64_t i, int64_t j)
{
    int64_t at = i * r->columns + j;

    r->out[0][at] = r->in[0][at] + r->in[1][at];
    r->out[1][j] += r->in[0][at];
    r->out[2][j] += r->in[0][at] * r->in[1][at];
}

static const char sums[] = KERNEL_BEGIN
    "FOR_ROWS(i) {\n"
    "    const float *a = (const float *)in[0].data + i * in[0].stride;\n"
    "    const float *b = (const float *)in[1].data + i * in[1].stride;\n"
    "    float *c = (float *)out[0].data + i * out[0].stride;\n"
    "    float *s = SUM(0), *t = SUM(1);\n"
    "    FOR_COLUMNS(j) {\n"
    "        vf x = v_get(CT_F32, a, j, column_end), y = v_get(CT_F32, b, j, column_end);\n"
    "        v_put(CT_F32, c, j, column_end, x + y);\n"
    "        v_put(CT_F32, s, j, column_end, v_get(CT_F32, s, j, column_end) + x);\n"
    "        v_put(CT_F32, t, j, column_end, v_get(CT_F32, t, j, column_end) + x * y);\n"
    "    }\n"
    "}\n}\n";

static const struct source sources[] = {
    {.what = "elements",
     .text = elements,
     .ins = 2,
     .outs = 2,
     .in = {CT_F32, CT_BF16},
     .out = {CT_F32, CT_BF16},
     .flat = true,
     .tolerance = 1e-6,
     .compute = compute_elements},
    {.what = "functions",
     .text = functions,
     .ins = 2,
     .outs = 6,
     .tolerance = 4e-6,
     .compute = compute_functions},
    {.what = "choices",
     .text = choices,
     .ins = 2,
     .outs = 4,
     .tolerance = 1e-6,
     .compute = compute_choices},
    {.what = "results of rows",
     .text = rows,
     .ins = 1,
     .outs = 2,
     .by_row = {false, true},
     .tolerance = 4e-6,
     .compute = compute_rows},
    {.what = "sums over rows",
     .text = sums,
     .ins = 2,
     .outs = 1,
     .sums = 2,
     .out = {CT_F32, CT_F32, CT_BF16},
     .tolerance = 1e-5,
     .compute = compute_sums},
};

/* ---- running one ---- */

struct trial {
    const struct source *source;
    struct ct_device *device;
    const struct ct_compiler_ops *ops;
    void *function;
    struct ct_compiled_call call;
    struct rows rows;
    char *base, *host; /* the device's memory, and what the host gives and takes */
    size_t used;
    bool flat;
};

#define ROOM ((size_t)1 << 22)

static const struct size {
    int64_t rows, columns;
} sizes[] = {{1, 1}, {2, 7}, {5, 64}, {67, 33}, {3, 1030}, {257, 130}};

static int outputs(const struct source *s)
{
    return s->outs + s->sums;
}

static enum ct_dtype dtype_of(const struct source *s, int k)
{
    return k < s->ins ? s->in[k] : s->out[k - s->ins];
}

/* Operand k, of inputs, outputs and sums: as a tensor of rows in the host's copy. */
static struct ct_tensor operand_of(const struct trial *t, int k, size_t at)
{
    const struct source *s = t->source;
    bool one = k >= s->ins && s->by_row[k - s->ins], sum = k >= s->ins + s->outs;
    int64_t shape[2] = {sum ? 1 : t->rows.rows, one ? 1 : t->rows.columns};
    struct ct_tensor tensor = ct_tensor_dense(t->host + at, dtype_of(s, k), 2, shape);

    if (!one && !sum && !t->flat)
        tensor.stride[0] += GAP;
    return tensor;
}

static size_t bytes_of(const struct ct_tensor *tensor)
{
    return (size_t)(tensor->shape[0] * tensor->stride[0]) * ct_dtype_size(tensor->dtype);
}

/* Where operand k begins; the end of all for k = ins + outputs. */
static size_t place_of(const struct trial *t, int k)
{
    size_t at = 0;

    for (int i = 0; i < k; i++) {
        struct ct_tensor tensor = operand_of(t, i, 0);

        at += (bytes_of(&tensor) + 255) / 256 * 256;
    }
    return at;
}

static void fill(struct trial *t)
{
    const struct source *s = t->source;
    struct rows *r = &t->rows;

    memset(t->host, 0x5a, ROOM);
    for (int k = 0; k < s->ins; k++) {
        struct ct_tensor in = operand_of(t, k, place_of(t, k));

        for (int64_t i = 0; i < r->rows * r->columns; i++) {
            ct_tensor_store(&in, i, 2 * (double)ct_normal(7, (uint64_t)k, (uint64_t)i) / 3);
            r->in[k][i] = ct_tensor_load(&in, i);
        }
    }
    for (int k = 0; k < outputs(s); k++)
        memset(r->out[k], 0, (size_t)(r->rows * r->columns) * sizeof(double));
    for (int64_t i = 0; i < r->rows; i++)
        for (int64_t j = 0; j < r->columns; j++)
            s->compute(r, i, j);
}

static void make_call(struct trial *t)
{
    const struct source *s = t->source;
    int all = s->ins + outputs(s);

    t->call = (struct ct_compiled_call){.rows = t->flat ? 1 : t->rows.rows,
                                        .columns = t->rows.columns * (t->flat ? t->rows.rows : 1),
                                        .flat = t->flat,
                                        .sums = s->sums};
    for (int k = 0; k < all; k++) {
        struct ct_tensor tensor = operand_of(t, k, 0);
        struct ct_compiled_operand o = {t->base + place_of(t, k), tensor.stride[0]};

        if (k < s->ins)
            t->call.in[k] = o;
        else if (k < s->ins + s->outs)
            t->call.out[k - s->ins] = o;
        else
            t->call.sum[k - s->ins - s->outs] = o.data;
        if (k >= s->ins + s->outs)
            t->call.sum_dtype[k - s->ins - s->outs] = tensor.dtype;
    }
    t->used = place_of(t, all);
    t->call.scratch = (float *)(void *)(t->base + t->used);
}

static int launch_fused(const struct ct_launch *l)
{
    const struct trial *t = l->state;

    return t->ops->launch(l, t->function, &t->call);
}

static const struct ct_kernel kernel = CT_KERNEL("fused", "check", 0, NULL, NULL, launch_fused);

static int compare(const struct trial *t, int k)
{
    const struct source *s = t->source;
    struct ct_tensor out = operand_of(t, s->ins + k, place_of(t, s->ins + k));
    double bound = out.dtype == CT_BF16 ? 0x1p-8 : 0;
    int64_t count = ct_tensor_count(&out), width = out.shape[1];

    for (int64_t i = 0; i < count; i++) {
        double x = ct_tensor_load(&out, i), y = t->rows.out[k][i];
        double allowed = (s->tolerance + bound) * fmax(1, fabs(y));

        if (!(fabs(x - y) <= allowed))
            return ct_fail(CT_EINVAL,
                           "%lld rows of %lld columns%s: row %lld, column %lld of %s %d is %g, "
                           "not %g",
                           (long long)t->rows.rows, (long long)t->rows.columns,
                           t->flat ? " as one row" : "", (long long)(i / width),
                           (long long)(i % width), k < s->outs ? "output" : "sum",
                           k < s->outs ? k : k - s->outs, x, y);
    }
    return 0;
}

/* Between rows nothing may be written. */
static int check_gaps(const struct trial *t, int k)
{
    const struct source *s = t->source;
    struct ct_tensor out = operand_of(t, s->ins + k, place_of(t, s->ins + k));
    size_t item = ct_dtype_size(out.dtype);
    int64_t gap = out.stride[0] - out.shape[1];

    for (int64_t i = 0; i < out.shape[0]; i++)
        for (size_t b = 0; b < (size_t)gap * item; b++)
            if (((char *)out.data)[(size_t)(i * out.stride[0] + out.shape[1]) * item + b] != 0x5a)
                return ct_fail(
                    CT_EINVAL, "%lld rows of %lld columns: output %d is written behind row %lld",
                    (long long)t->rows.rows, (long long)t->rows.columns, k, (long long)i);
    return 0;
}

static int run_size(struct trial *t, const struct size *size)
{
    struct ct_launch launch = {.device = t->device, .state = t};
    const struct ct_device_ops *device = t->device->ops;
    int rc;

    t->rows.rows = size->rows;
    t->rows.columns = size->columns;
    fill(t);
    make_call(t);
    rc = device->copy_in(t->device, t->base, t->host, t->used);
    if (rc == 0)
        rc = device->enqueue(t->device, 0, &kernel, &launch);
    if (rc == 0)
        rc = device->synchronize(t->device);
    if (rc == 0)
        rc = device->copy_out(t->device, t->host, t->base, t->used);
    for (int k = 0; rc == 0 && k < outputs(t->source); k++) {
        rc = compare(t, k);
        if (rc == 0 && k < t->source->outs)
            rc = check_gaps(t, k);
    }
    return rc;
}

static int run_source(struct check *c, struct trial *t)
{
    void *object = NULL;
    size_t bytes = 0;
    int rc = t->ops->compile(t->device, t->source->text, &c->arena, &object, &bytes);

    if (rc == 0 && !bytes)
        rc = ct_fail(CT_EINVAL, "`compile` gives no object");
    if (rc == 0)
        rc = t->ops->load(t->device, object, bytes, &t->function);
    for (int flat = 0; flat <= t->source->flat; flat++)
        for (size_t i = 0; rc == 0 && i < CT_COUNT(sizes); i++) {
            t->flat = flat;
            rc = run_size(t, &sizes[i]);
        }
    return rc;
}

/* ---- a compiler ---- */

/* Objects are kept from run to run by what `version` says. */
static int check_version(const struct ct_compiler_ops *ops, struct ct_device *device)
{
    char first[512] = "", again[512] = "";
    int rc = ops->version(device, first, sizeof(first));

    if (rc == 0)
        rc = ops->version(device, again, sizeof(again));
    if (rc == 0 && !*first)
        rc = ct_fail(CT_EINVAL,
                     "`version` says nothing: kernels of another compiler would be taken");
    if (rc == 0 && strcmp(first, again))
        rc = ct_fail(CT_EINVAL,
                     "`version` changes from call to call, \"%s\" and \"%s\": kernels that are "
                     "kept would never be found again",
                     first, again);
    return rc;
}

static int check_refusal(struct check *c, const struct ct_compiler_ops *ops,
                         struct ct_device *device)
{
    void *object = NULL;
    size_t bytes = 0;
    int rc = ops->compile(device, "this is no source\n", &c->arena, &object, &bytes);

    return rc < 0 ? 0 : ct_fail(CT_EINVAL, "`compile` takes what is no source");
}

static int check_workers(const struct ct_compiler_ops *ops, struct ct_device *device)
{
    for (size_t i = 0; i < CT_COUNT(sizes); i++) {
        int64_t count = ops->workers(device, sizes[i].rows, sizes[i].columns);

        if (count < 1 || count != ops->workers(device, sizes[i].rows, sizes[i].columns))
            return ct_fail(CT_EINVAL, "`workers` of %lld rows of %lld columns is %lld, or changes",
                           (long long)sizes[i].rows, (long long)sizes[i].columns, (long long)count);
    }
    return 0;
}

static int run_sources(struct check *c, const struct ct_compiler_ops *ops, struct ct_device *device,
                       const char *name)
{
    struct trial t = {.ops = ops, .device = device};
    void *base = NULL;
    int rc = device->ops->reserve(device, 2 * ROOM, &base);

    t.base = base;
    t.host = ct_arena_alloc(&c->arena, ROOM);
    for (int k = 0; k < OPERANDS; k++) {
        t.rows.in[k] = ct_arena_array(&c->arena, double, ROOM / 64);
        t.rows.out[k] = ct_arena_array(&c->arena, double, ROOM / 64);
    }
    for (size_t i = 0; rc == 0 && i < CT_COUNT(sources); i++) {
        t.source = &sources[i];
        check_result(c, run_source(c, &t), "compiler %s: %s", name, sources[i].what);
    }
    if (base)
        device->ops->release(device, base, 2 * ROOM);
    return rc;
}

int check_compiler(struct check *c, const struct ct_offer *offer)
{
    const size_t least = offsetof(struct ct_compiler_ops, launch) + sizeof(void (*)(void));
    const struct ct_compiler_ops *ops;
    const void *widened = NULL;
    struct ct_device *device = check_open_device(offer->name);
    int rc;

    if (!device) {
        check_untried(c, ct_arena_printf(&c->arena, "compiler %s", offer->name),
                      ct_error_message());
        return 0;
    }
    rc = ct_struct_widen(offer->ops, least, sizeof(*ops), &widened);
    ops = widened;
    if (rc == 0)
        rc = check_version(ops, device);
    if (rc == 0)
        rc = check_refusal(c, ops, device);
    if (rc == 0)
        rc = check_workers(ops, device);
    if (rc == CT_ENOENT)
        check_untried(c, ct_arena_printf(&c->arena, "compiler %s", offer->name),
                      ct_error_message());
    else
        check_result(c, rc, "compiler %s: version, refusal and workers", offer->name);
    if (rc == 0)
        rc = run_sources(c, ops, device, offer->name);
    else
        rc = 0;
    device->ops->close(device);
    return rc;
}
