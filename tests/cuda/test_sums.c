/*
 * Where sums of experts' codes begin anew, seen by what they lose: Hopper's tensor cores, and the
 * simulated ones, keep 13 bits after the point of the largest product of a sum, and truncate the
 * others to them (DeepSeek-V3, arXiv 2412.19437, section 3.3.2; MMA-Sim, arXiv 2511.10909).
 *
 * A line has B somewhere, -B elsewhere, and COUNT small numbers, each of whose products is below
 * 2^-13 of B's. If they are added to a sum that has B, nothing is left of them; if they begin a
 * sum, all of them. So lines fail if sums go on, or begin anew at another place than at multiples
 * of 128 codes. Runs on the simulated device.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/app/check.h>
#include <ctitan/lib/ops.h>
#include <ctitan/plugin.h>

#include "conformance.h"

#define LENGTH 384    /* of a line: three sums */
#define COUNT 32      /* small numbers: as many as an instruction adds */
#define BIG 1.75      /* 448 as a code, by a scale of 256 */
#define SMALL 0x1p-14 /* 2^-6 by it: a product with 448 is 7, the last bit of 448^2 is 8 */
#define TOLERANCE 0.1 /* of what is left: hidden layers are rounded to 8 bits */
#define LINES 4       /* also sizes that are not summed over */
#define GATE 8        /* by BIG it is open */

struct line {
    int big, opposite, small; /* places; of the first of the small numbers */
    bool lost;
};

static const struct line lines[LINES] = {
    {0, 256, 96, true}, {96, 256, 128, false}, {128, 0, 224, true}, {224, 0, 256, false}};

#define LAYER(tokens, n, f)                                                                        \
    "input %dy : float32[1," tokens "," n "]\ninput %x : float32[1," tokens "," n "]\n"            \
    "input %weights : float32[1," tokens ",1]\ninput %ids : int32[1," tokens ",1]\n"               \
    "param %gate : float32[1," f "," n "]\nparam %up : float32[1," f "," n "]\n"                   \
    "param %down : float32[1," n "," f "]\n"
#define PRODUCT(recipe)                                                                            \
    LAYER("1", "384", "4")                                                                         \
    "F - %y = float8.experts(%x, %weights, %ids, %gate, %up, %down) {recipe=" recipe               \
    "} : float32[1,1,384]\n"
#define OUTER(recipe)                                                                              \
    LAYER("384", "4", "4")                                                                         \
    "W - %dgate, %dup, %ddown = float8.experts_dw(%dy, %x, %weights, %ids, %gate, %up, %down) "    \
    "{recipe=" recipe "} : float32[1,4,4], float32[1,4,4], float32[1,4,4]\n"

struct sums_case {
    struct conformance_case test;
    int result; /* the output that has the lines' sums, `distance` apart */
    int64_t distance;
    double left; /* of a line whose small numbers are not lost */
};

#define HIDDEN(up) (GATE * BIG * BIG * (up)) /* layer */
#define CASES(recipe)                                                                              \
    {{"products, " recipe, PRODUCT(recipe), 1}, 0, 1, HIDDEN(COUNT * SMALL)},                      \
    {                                                                                              \
        {"gradients of weights, " recipe, OUTER(recipe), 1}, 2, LINES, COUNT *SMALL *HIDDEN(1)     \
    }

static const struct sums_case cases[] = {CASES("rowwise"), CASES("blockwise")};

/* ---- operands ---- */

static void put_line(double *numbers, int64_t stride, const struct line *l)
{
    numbers[l->big * stride] = BIG;
    numbers[l->opposite * stride] = -BIG;
    for (int i = 0; i < COUNT; i++)
        numbers[(l->small + i) * stride] = SMALL;
}

static double *numbers_of(struct bed *bed, const char *name, const struct ct_value **v)
{
    *v = ct_graph_find(bed->graph, name);
    return ct_arena_array(&bed->arena, double, ct_shape_count((*v)->ndim, (*v)->shape));
}

static void set(struct bed *bed, const struct ct_value *v, const double *numbers)
{
    ct_check_write(&bed->value[v->id], numbers);
    ct_check_write(&bed->exact[v->id], numbers);
}

/* `count` numbers `stride` apart, the others zero */
static void set_all(struct bed *bed, const char *name, int64_t count, int64_t stride, double x)
{
    const struct ct_value *v;
    double *numbers = numbers_of(bed, name, &v);

    for (int64_t i = 0; i < count; i++)
        numbers[i * stride] = x;
    set(bed, v, numbers);
}

/* Lines one after the other, `next` apart. */
static void set_lines(struct bed *bed, const char *name, int64_t next, int64_t stride)
{
    const struct ct_value *v;
    double *numbers = numbers_of(bed, name, &v);

    for (int i = 0; i < LINES; i++)
        put_line(numbers + i * next, stride, &lines[i]);
    set(bed, v, numbers);
}

/* The sums are hidden layers: of products of x, the same everywhere, with lines of `up`. */
static void fill_product(struct bed *bed)
{
    set_all(bed, "x", LENGTH, 1, BIG);
    set_all(bed, "weights", 1, 1, 1);
    set_all(bed, "gate", LINES, LENGTH, GATE);
    set_lines(bed, "up", LENGTH, 1);
    set_all(bed, "down", LINES, LINES + 1, 1);
}

/* The sums are gradients of `down`: of products of one hidden layer, the same for all tokens, with
   lines of dy. */
static void fill_outer(struct bed *bed)
{
    set_all(bed, "x", LENGTH, LINES, BIG);
    set_all(bed, "weights", LENGTH, 1, 1);
    set_all(bed, "gate", 1, 1, GATE);
    set_all(bed, "up", 1, 1, 1);
    set_all(bed, "down", 0, 1, 0);
    set_lines(bed, "dy", 1, LINES);
}

/* ---- the kernels' results ---- */

static void allow(const struct ct_check_case *c, const struct ct_kernel *kernel, int operand,
                  bool accumulated, struct ct_check_allowance *allowance)
{
    (void)kernel;
    (void)accumulated;
    if (operand < c->op->outs)
        allowance->own = c->context;
}

/* As the reference has them, and 0 in lines whose small numbers the truncation loses. */
static int expect(const struct sums_case *s, const struct ct_check_case *c, struct bed *bed,
                  struct ct_check_expected **expected)
{
    int rc = ct_check_expect(c, &bed->arena, expected);
    double *result = rc < 0 ? NULL : (*expected)[s->result].exact.data;

    if (result) /* there is no other result to compare with */
        (*expected)[s->result].rounded.data = NULL;
    for (int i = 0; result && i < LINES; i++) {
        if (fabs(result[i * s->distance] - s->left) > TOLERANCE * s->left)
            return ct_fail(CT_EINVAL, "the reference has %g, not %g", result[i * s->distance],
                           s->left);
        if (lines[i].lost)
            result[i * s->distance] = 0;
    }
    return rc;
}

static int try_kernels(struct ct_checker *checker, const struct ct_check_case *c,
                       const struct ct_check_expected *expected)
{
    const struct ct_kernel *kernel;
    double worst = 0;
    int rc, calls = 0;

    for (size_t i = 0; (kernel = ct_kernel_at(checker->device->name, i)); i++) {
        if (strcmp(kernel->op, c->op->type->name) != 0 || strcmp(kernel->name, "wgmma") != 0)
            continue;
        rc = ct_check_call(checker, kernel, c, expected, &worst);
        if (rc < 0)
            return rc;
        calls += rc;
    }
    printf("%s: %d calls, worst %.3f\n", c->what, calls, worst);
    return calls ? 0 : ct_fail(CT_ENOENT, "no kernel takes it");
}

static int try_case(struct ct_checker *checker, const struct sums_case *s)
{
    struct bed bed;
    int rc = bed_create(&bed, checker->device, &s->test, CT_F32, FILL_NORMAL, 1);
    struct ct_check_expected *expected;
    double own[LENGTH];

    for (int i = 0; i < LENGTH; i++)
        own[i] = TOLERANCE * s->left;
    if (rc >= 0) {
        struct ct_check_case c = {.what = s->test.name,
                                  .graph = bed.graph,
                                  .op = bed.graph->first,
                                  .value = bed.value,
                                  .allow = allow,
                                  .context = own};

        (s->result ? fill_outer : fill_product)(&bed);
        rc = expect(s, &c, &bed, &expected);
        if (rc >= 0)
            rc = try_kernels(checker, &c, expected);
    }
    bed_finish(&bed);
    return rc < 0 ? ct_context(rc, "%s", s->test.name) : 0;
}

int main(void)
{
    const struct ct_plugin *plugin;
    struct ct_checker checker = {0};
    const struct ct_offer *offer;
    int rc = ct_ops_register(), failed = 0;

    if (rc == 0)
        rc = bed_load("cuda", NULL, 0, &plugin);
    if (rc >= 0)
        rc = bed_load("float8", NULL, 0, &plugin);
    if (rc >= 0)
        rc = ct_offer_find(CT_DEVICE, "cuda", &offer);
    if (rc >= 0)
        rc = ((const struct ct_device_ops *)offer->ops)
                 ->open(&(struct ct_device_request){0, 1}, &checker.device);
    if (rc < 0)
        return printf("%s\n", ct_error_message()), 1;
    for (size_t i = 0; i < CT_COUNT(cases); i++)
        if (try_case(&checker, &cases[i]) < 0) {
            printf("%s\n", ct_error_message());
            failed = 1;
        }
    ct_checker_finish(&checker);
    checker.device->ops->close(checker.device);
    return failed;
}
