/*
 * An op with its gradient and a kernel: y = cap tanh(x / cap), which bounds logits smoothly (Gemma
 * 2). A model adds it to its graph with ct_emit1(b, "softcap", name, &x, 1, &attrs).
 */
#include <math.h>

#include <ctitan/op_author.h>
#include <ctitan/plugin.h>

struct attrs {
    double cap;
};

static const struct ct_option attrs[] = {
    CT_OPT_FLOAT(struct attrs, cap, "cap", "50", 1e-6, 1e6, "Largest magnitude of a result"), {0}};

/* ---- what it computes: any dtype and strides, in double ---- */

static int forward(const struct ct_launch *l)
{
    double cap = ((const struct attrs *)l->op->attrs)->cap;
    struct ct_reference r = ct_reference_begin(l);

    for (int64_t i = 0; i < ct_tensor_count(&l->out[0]); i++)
        r.out[0][i] = cap * tanh(r.in[0][i] / cap);
    return ct_reference_end(&r, 0);
}

/* The derivative of tanh is 1 - tanh^2, and y = cap tanh(..) is known from the forward. */
static int backward(const struct ct_launch *l)
{
    double cap = ((const struct attrs *)l->op->attrs)->cap;
    struct ct_reference r = ct_reference_begin(l);

    for (int64_t i = 0; i < ct_tensor_count(&l->out[0]); i++) {
        double share = r.in[1][i] / cap;

        r.out[0][i] = r.in[0][i] * (1 - share * share);
    }
    return ct_reference_end(&r, 0);
}

/* ---- the op types ---- */

static int vjp(struct ct_vjp *v);

/* '.' is any number of dimensions, and T any floating dtype: shapes, dtypes and how ranks may split
   x follow from that. The formula lets fuse compile the op together with its neighbours. */
static const struct ct_op_type op_type = {
    .size = sizeof(struct ct_op_type),
    .name = "softcap",
    .summary = "cap tanh(x / cap)",
    .signature = "x[.] T -> y[.] T",
    .attrs = attrs,
    .attrs_size = sizeof(struct attrs),
    .vjp = vjp,
    .reference = forward,
    .pointwise = "y = cap * tanh(x / cap)",
};

static const struct ct_op_type grad_type = {
    .size = sizeof(struct ct_op_type),
    .name = "softcap_grad",
    .summary = "gradient of softcap",
    .signature = "dy[.] T, y[.] T -> dx[.] T",
    .attrs = attrs,
    .attrs_size = sizeof(struct attrs),
    .reference = backward,
    .pointwise = "t = y / cap; dx = dy * (1 - t * t)",
};

/* Emit the gradient: its output becomes the gradient of input 0. */
static int vjp(struct ct_vjp *v)
{
    return ct_emit_gradients(v, &grad_type, (struct ct_value *[]){v->dout[0], v->op->out[0]}, 2,
                             v->op->attrs, (int[]){0}, 1);
}

/* ---- a kernel for the cpu: dense float32, on all threads ---- */

static bool accepts(const struct ct_prepare *p)
{
    return p->in[0].dtype == CT_F32;
}

static void cap(void *context, int64_t begin, int64_t end)
{
    const struct ct_launch *l = context;
    float bound = (float)((const struct attrs *)l->op->attrs)->cap;
    const float *x = l->in[0].data;
    float *y = l->out[0].data;

    for (int64_t i = begin; i < end; i++)
        y[i] = bound * tanhf(x[i] / bound);
}

static int run(const struct ct_launch *l)
{
    ct_parallel(l, ct_tensor_count(&l->out[0]), cap, (void *)(uintptr_t)l);
    return 0;
}

static const struct ct_kernel kernels[] = {
    CT_KERNEL(.op = "softcap", .name = "float32", .accepts = accepts, .run = run), {0}};

CT_PLUGIN(.name = "softcap", .version = "1.0", .summary = "Op: a smooth bound for logits",
          .offers = CT_OFFERS({CT_OP, "softcap", &op_type}, {CT_OP, "softcap_grad", &grad_type},
                              {CT_KERNELS, "cpu", kernels}));
