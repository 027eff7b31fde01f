/*
 * The registry of op types and kernels, factor rules written out, and the functions of ops.h.
 */
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>
#include <sys/mman.h>
#include <unistd.h>

#include <ctitan/app/verify.h>
#include <ctitan/error.h>
#include <ctitan/lib/app/check.h>
#include <ctitan/lib/ops.h>
#include <ctitan/pointwise.h>
#include <ctitan/op_author.h>
#include <ctitan/pass.h>
#include <ctitan/rule.h>

#include "plugin_ops.h"

/* ---- types ---- */

static void types_are_found_by_name(void **state)
{
    (void)state;
    assert_string_equal(ct_op_find("linear")->name, "linear");
    assert_null(ct_op_find("liner"));
    assert_string_equal(ct_error_message(), "no op type is named liner; did you mean linear?");
    assert_null(ct_op_find("fourier"));
    assert_string_equal(ct_error_message(), "no op type is named fourier");
    for (size_t i = 0; ct_op_at(i); i++)
        assert_ptr_equal(ct_op_find(ct_op_at(i)->name), ct_op_at(i));
}

static void every_type_says_what_it_is(void **state)
{
    (void)state;
    for (size_t i = 0; ct_op_at(i); i++) {
        assert_non_null(ct_op_at(i)->summary);
        assert_int_equal(ct_op_at(i)->size, sizeof(struct ct_op_type));
    }
}

static int register_as(const char *name, const char *signature)
{
    struct ct_op_type type = {
        .size = sizeof(type), .name = name, .summary = "bad", .signature = signature};

    return ct_op_register(&type);
}

static void a_wrong_table_is_refused_with_the_reason(void **state)
{
    static const struct {
        const char *name, *signature, *message;
    } bad[] = {
        {"linear", "x[] T -> y[] T", "a second op type named linear"},
        {"Bad Op", "x[] T", "op type \"Bad Op\": a name has letters, digits, '_' and '.'"},
        {"", "x[] T", "op type \"\": a name has letters, digits, '_' and '.'"},
        {"bad", NULL, "op type bad: it has no signature"},
        {"bad", "x T -> y Q", "op type bad: operand \"y Q\" is not a name and a dtype letter"},
        {"bad", "x -> y T", "op type bad: operand \"x\" is not a name and a dtype letter"},
        {"bad", "x[] T -> y[] T y T",
         "op type bad: \"x[] T -> y[] T y T\" does not go on with \"y T\""},
        {"bad", "x[.] T -> y[.] T, mean rstd W",
         "op type bad: operand \"mean rstd W\" is not a name and a dtype letter"},
        {"bad", "x[k] T -> y[.k] T",
         "op type bad: the leading dimensions of an output stand in no input"},
        {"bad", "x[k2] T -> y[k] T", "op type bad: factor '2' is not a letter"},
        {"bad", "x[k", "op type bad: \"x[k\" does not go on with \"\""},
        {"bad", "x[.k.] T", "op type bad: x has too many factors"},
        {"bad", "x[k] T -> y[k] T -> z[k] T",
         "op type bad: \"x[k] T -> y[k] T -> z[k] T\" does not go on with \"-> z[k] T\""},
        {"bad", "*(x T, y T -> z T",
         "op type bad: \"*(x T, y T -> z T\" does not go on with \"-> z T\""},
        {"bad", "x[k] T -> y[k] T | k:j", "op type bad: tie \"k:j\" is not two factors"},
        {"bad", "x[k] T -> y[k] T | j%size", "op type bad: \"j%size\": j is not a factor"},
        {"bad", "x[k] T -> y[k] T | k%size",
         "op type bad: \"size\" is no attribute that is a whole number"},
        {"bad", "x[k] T -> y[k] T | @t", "op type bad: \"@t\" is not a factor"},
        {"bad", "x[k] T -> y[k] T | @", "op type bad: \"@\" is not a factor"},
        {"bad", "x[k] T -> y[k] T | widths",
         "op type bad: \"x[k] T -> y[k] T | widths\" does not go on with \"widths\""},
        {"bad", "x[k] T -> *y[k] T | *widths",
         "op type bad: \"widths\" is no attribute with a size for each output"},
        {"bad", "x[k] T -> *y[k] T",
         "op type bad: outputs repeat as the inputs do, or as one attribute says"},
        {"bad", "x[k] T -> ?y[k] T", "op type bad: output y is optional or updated"},
        {"bad", "x[k] T max -> y[k] T", "op type bad: input x is a maximum"},
        {"bad", "x[k] T -> y T",
         "op type bad: \"x[k] T -> y T\" gives factors to some operands only"},
        {"bad", "x T -> y T",
         "op type bad: neither factors nor infer say the shapes of its outputs"},
    };
    static const struct ct_op_type old = {.size = 16, .name = "bad", .signature = "x[] T"};

    (void)state;
    for (size_t i = 0; i < CT_COUNT(bad); i++) {
        assert_int_equal(register_as(bad[i].name, bad[i].signature), CT_EINVAL);
        assert_string_equal(ct_error_message(), bad[i].message);
    }
    assert_int_equal(ct_op_register(&old), CT_EINVAL);
    assert_non_null(strstr(ct_error_message(), "struct has 16 bytes"));
}

static double one_flop(const struct ct_op *op, const struct ct_tensor *in,
                       const struct ct_tensor *out)
{
    (void)op, (void)in, (void)out;
    return 1;
}

static void a_formula_counts_no_flops(void **state)
{
    static const struct ct_op_type counted = {.size = sizeof(counted),
                                              .name = "counted",
                                              .summary = "x",
                                              .signature = "x[.] T -> y[.] T",
                                              .flops = one_flop,
                                              CT_FORMULA("y = x * x")};

    (void)state;
    assert_int_equal(ct_op_register(&counted), CT_EINVAL);
    assert_string_equal(ct_error_message(),
                        "op type counted: it is a formula, which counts no FLOPs: remove `flops`");
}

/* A copy that ends where memory ends: who reads behind it is killed. */
static const struct ct_op_type *at_the_end(const struct ct_op_type *type)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *memory = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_true(memory != MAP_FAILED && type->size <= page);
    assert_int_equal(mprotect(memory + page, page, PROT_NONE), 0);
    return memcpy(memory + page - type->size, type, type->size);
}

static int copy(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);

    for (int64_t i = 0; i < ct_tensor_count(&l->out[0]); i++)
        r.out[0][i] = r.in[0][i];
    return ct_reference_end(&r, 0);
}

/* As a plugin that was built before `pointwise` and what follows it were there. */
static void a_type_of_a_shorter_struct_works(void **state)
{
    static const struct ct_op_type shorter = {.size = CT_OP_TYPE_SMALLEST,
                                              .name = "test_shorter",
                                              .summary = "shorter",
                                              .signature = "x[.] T -> y[.] T",
                                              .reference = copy};
    const struct ct_op_type *old = at_the_end(&shorter);
    struct ct_sample *samples;
    unsigned level[2];
    struct ct_arena arena = {0};
    struct ct_graph *g = ct_graph_create(&arena, "shorter");
    struct ct_builder b = ct_builder_at_end(g, CT_PART_F, "");
    struct ct_value *x = ct_graph_source(g, CT_ROLE_INPUT, "x", CT_F32, 1, (int64_t[]){4});
    struct ct_value **joined;
    struct ct_op *op;

    (void)state;
    op = ct_emit_type(&b, old, "y", &x, 1, NULL);
    assert_non_null(op);
    assert_ptr_equal(op->type, old);
    assert_int_equal(ct_op_join(op, &joined), 0);
    assert_ptr_equal(ct_op_find("test_shorter"), old);
    assert_int_equal(ct_pointwise_levels(op, level), CT_EINVAL);
    assert_int_equal(ct_samples_of(old, &arena, &samples), 0);
    for (const struct ct_op_check *c = ct_op_checks; c->name; c++)
        assert_true(c->check(samples) >= 0);
    ct_graph_fetch(g, "y", op->out[0]);
    g->mesh = (struct ct_mesh){.count = 1, .axis = {{"tp", 2}}};
    x->sharding = (struct ct_sharding){.count = {1}, .axis = {{0}}};
    assert_int_equal(ct_pass_propagate.apply(g, NULL), 0);
    assert_true(ct_sharding_equal(&op->out[0]->sharding, &x->sharding));
    ct_arena_finish(&arena);
}

/* Another's type: repeated in pairs, an input updated in place, attributes of every kind. */
struct paired {
    double a;
    int64_t b;
    bool c;
    const char *d, *e;
};

static const struct ct_op_type paired = {
    .size = sizeof(struct ct_op_type),
    .name = "test_paired",
    .summary = "pairs",
    .signature = "?scale[] f, *(!x[.] T, p[.] F) -> *y[.] T",
    .attrs = (const struct ct_option[]){CT_OPT_FLOAT(struct paired, a, "a", "1.5", 0, 9, "A"),
                                        CT_OPT_INT(struct paired, b, "b", "7", 0, 9, "B"),
                                        CT_OPT_BOOL(struct paired, c, "c", "true", "C"),
                                        CT_OPT_STRING(struct paired, d, "d", "text", "D"),
                                        CT_OPT_CHOICE(struct paired, e, "e", "one", "one|two", "E"),
                                        {0}},
    .attrs_size = sizeof(struct paired),
};

static struct ct_value *temp(struct ct_graph *g, enum ct_dtype dtype, int rank, int64_t a,
                             int64_t b)
{
    return ct_graph_source(g, CT_ROLE_PARAM, "v", dtype, rank, (int64_t[]){a, b});
}

static void plugins_register_types(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *g = ct_graph_create(&arena, "own");
    struct ct_builder b = ct_builder_at_end(g, CT_PART_POST, "");
    struct ct_value *in[] = {NULL, temp(g, CT_BF16, 1, 4, 0), temp(g, CT_F32, 1, 4, 0),
                             temp(g, CT_BF16, 2, 2, 3), temp(g, CT_F64, 2, 2, 3)};
    char name[32];
    struct ct_op *op;

    (void)state;
    assert_int_equal(ct_op_register(&paired), 0);
    assert_int_equal(ct_op_register(&paired), CT_EINVAL);
    op = ct_emit(&b, "test_paired", "y", in, 5, NULL);
    assert_non_null(op);
    assert_int_equal(op->outs, 2);
    assert_int_equal(op->out[1]->ndim, 2);
    assert_int_equal(op->out[1]->shape[1], 3);
    assert_int_equal(op->out[1]->dtype, CT_BF16);
    assert_int_equal(ct_operand_name(op, 3, name, sizeof(name)), 3);
    assert_string_equal(name, "x.1");
    assert_true(ct_op_mutates(op, 1) && !ct_op_mutates(op, 2));
    assert_true(ct_op_float(op, "a") == 1.5);
    assert_int_equal(ct_op_int(op, "b"), 7);
    assert_true(ct_op_bool(op, "c"));
    assert_string_equal(ct_op_string(op, "d"), "text");
    assert_string_equal(ct_op_string(op, "e"), "one");
    ct_arena_finish(&arena);
}

/* ---- factors ---- */

static const struct ct_factor *factor_of(const struct ct_rule *rule, int operand, int dim)
{
    return &rule->factor[rule->operand[operand].factor[dim]];
}

static void linear_has_its_factors(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *g = ct_graph_create(&arena, "factors");
    struct ct_builder b = ct_builder_at_end(g, CT_PART_F, "");
    struct ct_value *in[] = {temp(g, CT_F32, 2, 6, 4), temp(g, CT_F32, 2, 8, 4),
                             temp(g, CT_F32, 2, 2, 4)};
    struct ct_op *op = ct_emit(&b, "linear", "y", in, 3, NULL);
    struct ct_rule rule;
    int k, n0;

    (void)state;
    assert_int_equal(ct_rule_apply(op, &arena, &rule), 0);
    assert_int_equal(rule.count, 4); /* rows, k, n.0, n.1 */
    k = rule.operand[0].factor[1];
    n0 = rule.operand[1].factor[0];
    assert_int_equal(rule.operand[2].factor[1], k);
    assert_int_equal(rule.factor[k].kind, CT_FACTOR_REDUCTION);
    assert_int_equal(rule.factor[k].letter, 'k');
    assert_int_equal(rule.factor[k].size, 4);
    assert_int_equal(rule.factor[n0].kind, CT_FACTOR_PARALLEL);
    assert_int_equal(rule.factor[n0].repetition, 0);
    assert_int_equal(factor_of(&rule, 2, 0)->repetition, 1);
    assert_int_equal(rule.operand[3].factor[1], n0);
    assert_int_equal(factor_of(&rule, 3, 0)->letter, '.');
    assert_true(ct_rule_reduces(&rule, op, k, 0) && ct_rule_reduces(&rule, op, k, 1));
    assert_false(ct_rule_reduces(&rule, op, n0, 0) || ct_rule_reduces(&rule, op, n0, 1));
    ct_arena_finish(&arena);
}

/* Queries may be split, keys not, unless both are split alike; heads with their groups. */
static void attention_has_its_factors(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *g = ct_graph_create(&arena, "factors");
    struct ct_builder b = ct_builder_at_end(g, CT_PART_F, "");
    struct ct_value *q =
        ct_graph_source(g, CT_ROLE_INPUT, "q", CT_F32, 4, (int64_t[]){2, 6, 8, 16});
    struct ct_value *kv =
        ct_graph_source(g, CT_ROLE_INPUT, "kv", CT_F32, 4, (int64_t[]){2, 6, 4, 16});
    struct ct_value *ids = ct_graph_source(g, CT_ROLE_INPUT, "ids", CT_I32, 2, q->shape);
    struct ct_op *op = ct_attention(&b, "o", q, kv, kv, NULL, NULL)->producer;
    struct ct_rule rule;

    (void)state;
    assert_int_equal(ct_rule_apply(op, &arena, &rule), 0);
    assert_int_equal(rule.tie[0], rule.operand[0].factor[2]);
    assert_int_equal(rule.tie[1], rule.operand[1].factor[2]);
    assert_int_equal(rule.factor[rule.tie[1]].kind, CT_FACTOR_PARALLEL);
    assert_false(ct_rule_reduces(&rule, op, rule.tie[1], 0));
    assert_int_equal(factor_of(&rule, 0, 1)->kind, CT_FACTOR_PARALLEL);
    assert_int_equal(factor_of(&rule, 1, 1)->kind, CT_FACTOR_WHOLE);
    assert_int_equal(rule.operand[3].ndim, -1);
    op = ct_attention(&b, "o", q, kv, kv, ids, NULL)->producer;
    assert_int_equal(ct_rule_apply(op, &arena, &rule), 0);
    assert_int_equal(factor_of(&rule, 0, 1)->kind, CT_FACTOR_WHOLE);
    op = ct_emit(&b, "attention", "o", (struct ct_value *[]){q, kv, kv}, 3,
                 &(struct ct_attention){.causal = true, .blockwise = true});
    assert_int_equal(ct_rule_apply(op, &arena, &rule), 0);
    assert_int_equal(factor_of(&rule, 0, 1)->kind, CT_FACTOR_PARALLEL);
    assert_int_equal(rule.operand[0].factor[1], rule.operand[1].factor[1]);
    ct_arena_finish(&arena);
}

/* A split of the queries leaves sums over them pending: the gradients of keys and values. */
static void attention_grad_has_its_factors(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *g = ct_graph_create(&arena, "factors");
    struct ct_builder b = ct_builder_at_end(g, CT_PART_I, "");
    struct ct_value *q = ct_graph_source(g, CT_ROLE_INPUT, "q", CT_F32, 4, (int64_t[]){2, 6, 2, 4});
    struct ct_value *k = ct_graph_source(g, CT_ROLE_INPUT, "k", CT_F32, 4, (int64_t[]){2, 6, 2, 4});
    struct ct_value *lse = ct_graph_source(g, CT_ROLE_INPUT, "l", CT_F32, 3, (int64_t[]){2, 2, 6});
    struct ct_value *in[] = {q, q, k, k, q, lse};
    struct ct_op *op = ct_emit(&b, "attention_grad", "dq", in, 6, NULL);
    struct ct_rule rule;

    (void)state;
    assert_int_equal(ct_rule_apply(op, &arena, &rule), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(ct_rule_reduces(&rule, op, rule.operand[0].factor[1], i), i > 0);
    op = ct_emit(&b, "attention_grad", "dq", in, 6,
                 &(struct ct_attention){.causal = true, .blockwise = true});
    assert_int_equal(ct_rule_apply(op, &arena, &rule), 0);
    for (int i = 0; i < 3; i++)
        assert_false(ct_rule_reduces(&rule, op, rule.operand[0].factor[1], i));
    ct_arena_finish(&arena);
}

/* Heads out of features: what splits one splits the other. */
static void view_has_its_factors(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *g = ct_graph_create(&arena, "factors");
    struct ct_builder b = ct_builder_at_end(g, CT_PART_F, "");
    struct ct_value *x = temp(g, CT_F32, 2, 6, 8);
    struct ct_value *y = ct_view(&b, "y", x, 3, (int64_t[]){6, 4, 2});
    struct ct_rule rule;

    (void)state;
    assert_int_equal(ct_rule_apply(y->producer, &arena, &rule), 0);
    assert_int_equal(rule.operand[0].factor[0], rule.operand[1].factor[0]);
    assert_int_equal(rule.tie[0], rule.operand[0].factor[1]);
    assert_int_equal(rule.tie[1], rule.operand[1].factor[1]);
    assert_int_equal(factor_of(&rule, 0, 1)->kind, CT_FACTOR_PARALLEL);
    assert_int_equal(factor_of(&rule, 1, 1)->kind, CT_FACTOR_PARALLEL);
    assert_int_equal(factor_of(&rule, 1, 2)->kind, CT_FACTOR_WHOLE);
    ct_arena_finish(&arena);
}

/* ---- kernels ---- */

static int no_run(const struct ct_launch *l)
{
    (void)l;
    return 0;
}

static bool refuses(const struct ct_prepare *request)
{
    (void)request;
    return false;
}

static void kernels_are_found_by_device(void **state)
{
    static const struct ct_kernel never =
        CT_KERNEL("add", "never", CT_KERNEL_ACCUMULATES, refuses, NULL, no_run);
    static const struct ct_kernel other = CT_KERNEL("swiglu", "other", ~0u, NULL, NULL, no_run);
    static const struct ct_kernel varies =
        CT_KERNEL("add", "varies", CT_KERNEL_VARIES, NULL, NULL, no_run);
    static const struct ct_kernel dense = CT_KERNEL("add", "dense", 0, NULL, NULL, no_run);
    static const struct ct_kernel adds =
        CT_KERNEL("add", "adds", CT_KERNEL_ACCUMULATES, NULL, NULL, no_run);
    static const struct ct_kernel any =
        CT_KERNEL("add", "any", CT_KERNEL_STRIDED, NULL, NULL, no_run);
    static const struct ct_kernel *const all[] = {&never, &other, &varies, &dense, &adds, &any};
    struct ct_tensor t[2] = {ct_tensor_dense(NULL, CT_F32, 2, (int64_t[]){4, 4})};
    struct ct_op op = {.type = ct_op_find("add")};
    struct ct_prepare request = {.op = &op, .in = t, .out = t, .ins = 2, .outs = 1};

    (void)state;
    t[1] = t[0];
    for (size_t i = 0; i < CT_COUNT(all); i++)
        assert_int_equal(ct_kernel_register("imaginary", all[i]), 0);
    assert_ptr_equal(ct_kernel_at("imaginary", 5), &any);
    assert_null(ct_kernel_at("imaginary", 6));
    assert_null(ct_kernel_find("nowhere", &request));
    assert_ptr_equal(ct_kernel_find("imaginary", &request), &varies);
    request.repeatable = true;
    assert_ptr_equal(ct_kernel_find("imaginary", &request), &dense);
    request.accumulate = 1;
    assert_ptr_equal(ct_kernel_find("imaginary", &request), &adds);
    t[1].stride[0] = 5;
    assert_null(ct_kernel_find("imaginary", &request));
    request.accumulate = 0;
    assert_ptr_equal(ct_kernel_find("imaginary", &request), &any);
    request.present = (const bool[]){true, false};
    assert_ptr_equal(ct_kernel_find("imaginary", &request), &dense);
    assert_int_equal(
        ct_kernel_register("imaginary", &(struct ct_kernel)CT_KERNEL("add", "idle", 0)), CT_EINVAL);
}

/* ---- ops.h ---- */

static void linears_share_one_op(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *g = ct_graph_create(&arena, "linears");
    struct ct_builder b = ct_builder_at_end(g, CT_PART_F, "");
    struct ct_value *x = temp(g, CT_F32, 2, 6, 4), *y[2], **joined;
    struct ct_value *w[] = {temp(g, CT_F32, 2, 8, 4), temp(g, CT_F32, 2, 2, 4)};

    (void)state;
    ct_linears(&b, (const char *[]){"q", "k"}, x, w, 2, y);
    assert_string_equal(y[0]->name, "q");
    assert_string_equal(y[1]->name, "k");
    assert_ptr_equal(y[0]->producer, y[1]->producer);
    assert_ptr_equal(ct_graph_find(g, "k"), y[1]);
    assert_int_equal(ct_op_join(y[0]->producer, &joined), 2);
    assert_ptr_equal(joined, y[0]->producer->out);
    ct_linears(&b, (const char *[]){"o"}, x, w, 1, y);
    assert_int_equal(ct_op_join(y[0]->producer, &joined), 0);
    ct_arena_finish(&arena);
}

/* Init ops stand in front, in order, whatever was built before. */
static void init_ops_come_first(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *g = ct_graph_create(&arena, "parameters");
    struct ct_builder b = ct_builder_at_end(g, CT_PART_F, "layers.0");
    struct ct_value *w, *norm;

    (void)state;
    g->seed = 42;
    w = ct_parameter(&b, "w", 2, (int64_t[]){4, 4},
                     (struct ct_init){CT_INIT_NORMAL, .a = 0.02, .truncate = 3});
    ct_linear(&b, "y", w, w);
    norm = ct_parameter(&b, "norm", 1, (int64_t[]){4}, CT_INIT_ONE);
    assert_int_equal(b.status, 0);
    assert_int_equal(w->role, CT_ROLE_PARAM);
    assert_int_equal(w->dtype, CT_F32);
    assert_string_equal(g->first->type->name, "init_normal");
    assert_ptr_equal(g->first->in[0], w);
    assert_true(ct_op_float(g->first, "std") == 0.02 && ct_op_float(g->first, "truncate") == 3);
    assert_int_equal(ct_op_int(g->first, "seed"), 42);
    assert_true(ct_op_mutates(g->first, 0));
    assert_string_equal(g->first->next->type->name, "init_constant");
    assert_ptr_equal(g->first->next->in[0], norm);
    assert_true(ct_op_float(g->first->next, "value") == 1);
    assert_string_equal(g->last->type->name, "linear");
    assert_int_equal(ct_graph_verify(g, NULL), 0);
    ct_arena_finish(&arena);
}

/* After a failure everything returns NULL and the first message stays. */
static void a_failed_builder_keeps_its_first_message(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *g = ct_graph_create(&arena, "failed");
    struct ct_builder b = ct_builder_at_end(g, CT_PART_F, "");
    struct ct_value *x = temp(g, CT_F32, 2, 6, 4), *y = ct_linear(&b, "y", x, x), *sum = x;
    struct ct_value *parts[2] = {x, x};
    struct ct_rope rope = {.theta = 100, .factor = 1};
    size_t values = g->value_count;

    (void)state;
    assert_non_null(y);
    values = g->value_count;
    assert_null(ct_add(&b, "z", x, y));
    assert_int_equal(b.status, CT_EINVAL);
    assert_null(ct_embedding(&b, "e", NULL, NULL));
    assert_null(ct_linear(&b, "e", x, NULL));
    assert_null(ct_rms_norm(&b, "e", NULL, NULL, 1e-5));
    assert_null(ct_add_rms_norm(&b, "e", NULL, NULL, NULL, 1e-5, &sum));
    assert_null(sum);
    assert_null(ct_rms_norm_plain(&b, "e", NULL, 1e-5));
    assert_null(ct_rope(&b, "e", NULL, NULL, &rope));
    assert_null(ct_temper(&b, "e", NULL, NULL, NULL));
    assert_null(ct_document_chunks(&b, "e", NULL, NULL, NULL, NULL));
    assert_null(ct_scale_rows(&b, "e", NULL, NULL));
    assert_null(ct_ones(&b, "e", NULL));
    ct_split(&b, (const char *[]){"e", "f"}, NULL, (const int64_t[]){2, 2}, 2, parts);
    assert_null(parts[1]);
    assert_null(ct_expand_latent(&b, (const char *[2]){"e", "f"}, NULL, NULL, 2, &sum));
    assert_null(sum);
    assert_null(ct_attention(&b, "e", NULL, NULL, NULL, NULL, NULL));
    assert_null(ct_attention_with_sink(&b, "e", NULL, NULL, NULL, NULL, NULL, NULL));
    assert_null(ct_swiglu(&b, "e", NULL, NULL));
    assert_null(ct_view(&b, "e", NULL, 1, (int64_t[]){24}));
    assert_null(ct_cast(&b, "e", NULL, CT_BF16));
    assert_null(ct_linear_cross_entropy(&b, "e", NULL, NULL, NULL));
    assert_null(ct_cross_entropy(&b, "e", NULL, NULL));
    assert_null(ct_parameter(&b, "p", 1, (int64_t[]){4}, (struct ct_init){0}));
    ct_linears(&b, (const char *[]){"q"}, NULL, &sum, 1, &y);
    assert_null(y);
    assert_int_equal(b.status, CT_EINVAL);
    assert_non_null(strstr(ct_error_message(), "add(%z): leading dimension 1 is 4 in x %v"));
    assert_true(g->value_count == values + 1); /* z, which the failing op leaves behind */
    ct_arena_finish(&arena);
}

/* FLOPs of attention of 8 tokens, as a share of those of all pairs; its gradient has 2.5 times as
   many. */
static double attention_share(const struct ct_attention *how)
{
    struct ct_arena arena = {0};
    struct ct_graph *g = ct_graph_create(&arena, "g");
    struct ct_builder b = ct_builder_at_end(g, CT_PART_F, "");
    struct ct_value *q =
        ct_graph_source(g, CT_ROLE_INPUT, "q", CT_F32, 4, (int64_t[]){2, 8, 4, 16});
    struct ct_value *o = ct_attention(&b, "o", q, q, q, NULL, how);
    struct ct_value *in[] = {o, q, q, q, o, o->producer->out[1]};
    struct ct_op *grad = ct_emit_type(&b, &ct_op_attention_grad, "g", in, 6, o->producer->attrs);
    double flops = ct_op_flops(g, o->producer, -1);

    assert_true(ct_op_flops(g, grad, -1) == 2.5 * flops);
    ct_arena_finish(&arena);
    return flops / (4.0 * 2 * 4 * 8 * 8 * 16);
}

static void attention_counts_pairs_that_are_seen(void **state)
{
    (void)state;
    assert_true(attention_share(NULL) == 0.5);
    assert_true(attention_share(&(struct ct_attention){.causal = true}) == 0.5);
    assert_true(attention_share(&(struct ct_attention){.causal = true, .window = 8}) == 0.5);
    assert_true(attention_share(&(struct ct_attention){.causal = false}) == 1);
    assert_true(attention_share(&(struct ct_attention){.causal = true, .window = 3}) == 21.0 / 64);
    assert_true(attention_share(&(struct ct_attention){.window = 3}) == 34.0 / 64);
    assert_true(attention_share(&(struct ct_attention){.window = 1}) == 8.0 / 64);
}

/* q of 24, v of 16: scores are products of q, results of v, in the gradient three and two. */
static void attention_counts_values_of_their_own_size(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *g = ct_graph_create(&arena, "g");
    struct ct_builder b = ct_builder_at_end(g, CT_PART_F, "");
    struct ct_value *q =
        ct_graph_source(g, CT_ROLE_INPUT, "q", CT_F32, 4, (int64_t[]){2, 8, 4, 24});
    struct ct_value *v =
        ct_graph_source(g, CT_ROLE_INPUT, "v", CT_F32, 4, (int64_t[]){2, 8, 4, 16});
    struct ct_value *o = ct_attention(&b, "o", q, q, v, NULL, NULL), *lse = o->producer->out[1];
    struct ct_op *grad = ct_emit_type(&b, &ct_op_attention_grad, "g",
                                      (struct ct_value *[]){o, q, q, v, o, lse}, 6, NULL);

    (void)state;
    assert_true(ct_op_flops(g, o->producer, -1) == 2 * 8 * 4 * 8 * (24 + 16));
    assert_true(ct_op_flops(g, grad, -1) == 2 * 8 * 4 * 8 * (3 * 24 + 2 * 16));
    ct_arena_finish(&arena);
}

/* A call with so many inputs and outputs. */
static double flops_of(const char *type, int ins, int outs, const struct ct_tensor *in,
                       const struct ct_tensor *out)
{
    const struct ct_op op = {.type = ct_op_find(type), .ins = ins, .outs = outs};

    return op.type->flops(&op, in, out);
}

/* 2 m n k. */
static void flops_are_counted(void **state)
{
    struct ct_tensor x = ct_tensor_dense(NULL, CT_F32, 2, (int64_t[]){3, 5});
    struct ct_tensor w = ct_tensor_dense(NULL, CT_F32, 2, (int64_t[]){7, 5});
    struct ct_tensor y = ct_tensor_dense(NULL, CT_F32, 2, (int64_t[]){3, 7});
    struct ct_tensor lin[] = {x, w}, dx[] = {y, w}, dw[] = {x, y}, loss[] = {y, x, w};

    (void)state;
    assert_true(flops_of("linear", 2, 1, lin, &y) == 2 * 3 * 5 * 7);
    assert_true(flops_of("linear_dx", 2, 1, dx, &x) == 2 * 3 * 5 * 7);
    assert_true(flops_of("linear_dw", 2, 1, dw, &w) == 2 * 3 * 5 * 7);
    assert_true(flops_of("linear_cross_entropy", 3, 1, lin, &y) == 2 * 3 * 5 * 7);
    assert_true(flops_of("linear_cross_entropy_grad", 4, 3, loss, &y) == 6 * 3 * 5 * 7);
    assert_true(flops_of("linear_cross_entropy_dx", 4, 2, loss, &y) == 4 * 3 * 5 * 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(types_are_found_by_name),
        cmocka_unit_test(every_type_says_what_it_is),
        cmocka_unit_test(a_wrong_table_is_refused_with_the_reason),
        cmocka_unit_test(a_formula_counts_no_flops),
        cmocka_unit_test(a_type_of_a_shorter_struct_works),
        cmocka_unit_test(plugins_register_types),
        cmocka_unit_test(linear_has_its_factors),
        cmocka_unit_test(attention_has_its_factors),
        cmocka_unit_test(attention_grad_has_its_factors),
        cmocka_unit_test(view_has_its_factors),
        cmocka_unit_test(kernels_are_found_by_device),
        cmocka_unit_test(linears_share_one_op),
        cmocka_unit_test(init_ops_come_first),
        cmocka_unit_test(a_failed_builder_keeps_its_first_message),
        cmocka_unit_test(flops_are_counted),
        cmocka_unit_test(attention_counts_pairs_that_are_seen),
        cmocka_unit_test(attention_counts_values_of_their_own_size),
    };
    if (REGISTER_OPS("cp", "float8", "tp") < 0)
        return 1;
    return cmocka_run_group_tests_name("op registry", tests, NULL, NULL);
}
