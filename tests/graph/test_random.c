/*
 * Random graphs, lowered in many ways, give what their ops compute one by one in memory of their
 * own. So no value is overwritten that is still needed, wherever it lies: in the place of an input,
 * as a part of a whole, as columns of a matrix, or in memory that another stream used.
 */
#include <stdio.h>

#include <ctitan/app/verify.h>
#include <ctitan/core_ops.h>
#include <ctitan/text.h>

#include "shuffle.h"
#include "support.h"

enum { SEEDS = 2000, MOST = 96 };

/* ---- a graph as text ---- */

static uint64_t state;

static int draw(int below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (int)((state >> 11) % (uint64_t)below);
}

static bool chance(int percent)
{
    return draw(100) < percent;
}

/* All shapes hold 32 elements, or half of that. */
static const char *const shapes[] = {"4,8", "1,4,8", "32", "2,8", "1,2,8", "16", "4,4"};
enum shape { FULL, FULL_3, FULL_1, HALF, HALF_3, HALF_1, NARROW, SHAPES };
static const enum shape halves[] = {HALF, HALF_3, HALF_1};
static const int dims[] = {0, 1, 0}, units[] = {1, 1, 8}; /* of halves in wholes */

enum part { PRE, F, I, W, POST, PARTS };
static const char *const parts[] = {"pre", "F", "I", "W", "post"};

struct value {
    enum shape shape;
    bool wide; /* float64, not float32 */
    int part;  /* -1: a parameter; -2: an input */
    bool used; /* in a microbatch */
    bool summed;
};

struct drawing {
    struct value value[MOST];
    int count;
    FILE *out;
};

static bool repeats(int part)
{
    return part == F || part == I || part == W || part == -2;
}

/* May an op of this part take the value? */
static bool may_take(const struct value *v, int part)
{
    if (v->part == -1)
        return true;
    if (!repeats(part))
        return part == POST && !(v->part == -2 || (repeats(v->part) && v->used)) && v->part <= part;
    return v->part == -2 || (v->part <= part && !v->summed);
}

/* A value of this shape and dtype for an op of this part, mostly one of the last; -1: none. */
static int pick(struct drawing *d, int part, int shape, int wide)
{
    for (int tries = 0; tries < 24; tries++) {
        int back = 1 + draw(chance(60) ? 6 : d->count), i = d->count - back;
        struct value *v = i < 0 ? NULL : &d->value[i];

        if (!v || (shape >= 0 && v->shape != (enum shape)shape) || (wide >= 0 && v->wide != wide) ||
            !may_take(v, part))
            continue;
        v->used |= repeats(part);
        v->summed |= part == POST && repeats(v->part);
        return i;
    }
    return -1;
}

static int add(struct drawing *d, enum shape shape, bool wide, int part)
{
    d->value[d->count] = (struct value){.shape = shape, .wide = wide, .part = part};
    return d->count++;
}

static const char *type_of(const struct value *v)
{
    static char text[4][24];
    static int n;

    n = (n + 1) % 4;
    snprintf(text[n], sizeof(text[n]), "float%d[%s]", v->wide ? 64 : 32, shapes[v->shape]);
    return text[n];
}

/* "F - %v7 = " of the next value */
static void begin_op(struct drawing *d, int part)
{
    static const char *const streams[] = {"", "", "/gather ", "/reduce ", "/send "};

    fprintf(d->out, "%s - %s%s%%v%d = ", parts[part], streams[draw(5)],
            part == POST && chance(50) ? "#soon " : "", d->count);
}

static void end_op(struct drawing *d, enum shape shape, bool wide, int part)
{
    fprintf(d->out, " : %s\n", type_of(&d->value[add(d, shape, wide, part)]));
}

static void emit_binary(struct drawing *d, int part)
{
    int x = pick(d, part, -1, -1), y;

    if (x < 0)
        return;
    y = pick(d, part, (int)d->value[x].shape, d->value[x].wide);
    y = y < 0 ? x : y;
    begin_op(d, part);
    fprintf(d->out, "%s(%%v%d, %%v%d)", chance(70) ? "add" : "swiglu", x, y);
    end_op(d, d->value[x].shape, d->value[x].wide, part);
}

static void emit_unary(struct drawing *d, int part)
{
    int x = pick(d, part, -1, -1);
    bool casts = chance(30);

    if (x < 0)
        return;
    begin_op(d, part);
    if (casts)
        fprintf(d->out, "cast(%%v%d) {dtype=\"float%d\"}", x, d->value[x].wide ? 32 : 64);
    else
        fprintf(d->out, "scale(%%v%d) {factor=-0.5}", x);
    end_op(d, d->value[x].shape, d->value[x].wide != casts, part);
}

static void emit_view(struct drawing *d, int part)
{
    int x = pick(d, part, draw(HALF), -1), to = draw(HALF);

    if (x < 0)
        return;
    begin_op(d, part);
    fprintf(d->out, "view(%%v%d) {shape=\"%s\"}", x, shapes[to]);
    end_op(d, (enum shape)to, d->value[x].wide, part);
    d->value[d->count - 1].used = true; /* its input would be a sum, too */
}

static void emit_narrow(struct drawing *d, int part)
{
    int kind = draw(4), x = pick(d, part, kind == 3 ? FULL : kind, -1);
    int from = kind == 3 ? 4 * draw(2) : draw(3) * units[kind];

    if (x < 0)
        return;
    begin_op(d, part);
    fprintf(d->out, "narrow(%%v%d) {dim=%d, from=%d, size=%d}", x, kind == 3 ? 1 : dims[kind], from,
            kind == 3 ? 4 : 2 * units[kind]);
    end_op(d, kind == 3 ? NARROW : halves[kind], d->value[x].wide, part);
}

static void emit_pad(struct drawing *d, int part)
{
    int kind = draw(4), x = pick(d, part, kind == 3 ? NARROW : (int)halves[kind], -1);
    int from = kind == 3 ? draw(5) : draw(3) * units[kind];

    if (x < 0)
        return;
    begin_op(d, part);
    fprintf(d->out, "pad(%%v%d) {dim=%d, from=%d, size=%d}", x, kind == 3 ? 1 : dims[kind], from,
            kind == 3 ? 8 : 4 * units[kind]);
    end_op(d, kind == 3 ? FULL : (enum shape)kind, d->value[x].wide, part);
}

static void emit_scale(struct drawing *d, int part, int x)
{
    begin_op(d, part);
    fprintf(d->out, "scale(%%v%d) {factor=-0.5}", x);
    end_op(d, d->value[x].shape, d->value[x].wide, part);
}

/* Parts are mostly new, so that they may lie in the whole, which may be overwritten at once. */
static void emit_concat(struct drawing *d, int part)
{
    int kind = draw(4), shape = kind == 3 ? NARROW : (int)halves[kind];
    int x = pick(d, part, shape, -1), y = x < 0 ? -1 : pick(d, part, shape, d->value[x].wide);

    if (y < 0)
        return;
    for (int i = 0; i < 2; i++) {
        int *operand = i ? &y : &x;

        if (chance(80)) {
            emit_scale(d, part, *operand);
            *operand = d->count - 1;
            d->value[*operand].used = repeats(part);
        }
    }
    begin_op(d, part);
    fprintf(d->out, "concat(%%v%d, %%v%d) {dim=%d}", x, y, kind == 3 ? 1 : dims[kind]);
    end_op(d, kind == 3 ? FULL : (enum shape)kind, d->value[x].wide, part);
    if (chance(70)) {
        d->value[d->count - 1].used = repeats(part);
        emit_scale(d, part, d->count - 1);
    }
}

/* Two products of one input: their outputs prefer to lie side by side. */
static void emit_linear(struct drawing *d, int part)
{
    int x = pick(d, part, FULL, 1);

    if (x < 0 || d->count + 2 > MOST)
        return;
    fprintf(d->out, "%s - %%v%d, %%v%d = linear(%%v%d, %%w0, %%w1) : float64[4,8], float64[4,8]\n",
            parts[part], d->count, d->count + 1, x);
    add(d, FULL, true, part);
    add(d, FULL, true, part);
}

static void emit_ops(struct drawing *d, int part)
{
    static void (*const emits[])(struct drawing *, int) = {
        emit_binary, emit_binary, emit_unary,  emit_unary, emit_view,  emit_narrow,
        emit_narrow, emit_concat, emit_concat, emit_pad,   emit_linear};

    for (int n = part == PRE ? draw(4) : draw(12); n-- > 0 && d->count < MOST - 10;)
        emits[draw((int)CT_COUNT(emits))](d, part);
}

static struct ct_graph *draw_graph(struct ct_arena *arena, uint64_t seed)
{
    struct drawing d = {.count = 0};
    struct ct_graph *graph;
    char *text;
    size_t size;

    state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    d.out = open_memstream(&text, &size);
    fprintf(d.out, "param %%w0 : float64[8,8]\nparam %%w1 : float64[8,8]\n");
    for (int shape = 0; shape < SHAPES; shape++) {
        fprintf(d.out, "input %%v%d : float64[%s]\n", d.count, shapes[shape]);
        add(&d, (enum shape)shape, true, -2);
        fprintf(d.out, "param %%v%d : float64[%s]\n", d.count, shapes[shape]);
        add(&d, (enum shape)shape, true, -1);
    }
    for (int part = PRE; part < PARTS; part++)
        emit_ops(&d, part);
    for (int i = 2 * SHAPES; i < d.count; i++)
        if ((d.value[i].part == POST && chance(50)) ||
            (repeats(d.value[i].part) && !d.value[i].used))
            fprintf(d.out, "fetch v%d = %%v%d\n", i, i);
    fclose(d.out);
    graph = parse(arena, text);
    free(text);
    assert_ok(ct_graph_verify(graph, stderr));
    return graph;
}

/* ---- what the ops compute one by one ---- */

enum { ROOM = 64 * sizeof(double) };

/* By microbatch + 1, 0 for what exists once, and value. */
struct memory {
    char *data;
    size_t values;
};

static struct ct_tensor at(const struct memory *m, const struct ct_value *v, int microbatch)
{
    size_t slot = (size_t)(microbatch + 1) * m->values + v->id;

    return ct_tensor_dense(m->data + slot * ROOM, v->dtype, v->ndim, v->shape);
}

static bool is_repeated(const struct ct_value *v)
{
    return v->role == CT_ROLE_INPUT ||
           (v->producer && ct_part_is_microbatch(v->producer->section->part));
}

static void compute(const struct memory *m, const struct ct_graph *graph, const struct ct_op *op,
                    int microbatch)
{
    struct ct_tensor in[3], out[2];
    struct ct_launch l = {.op = op,
                          .in = in,
                          .out = out,
                          .ins = op->ins,
                          .outs = op->outs,
                          .mesh = &graph->mesh,
                          .graph = graph};

    for (int i = 0; i < op->ins; i++)
        in[i] = at(m, op->in[i], is_repeated(op->in[i]) ? microbatch : -1);
    for (int i = 0; i < op->outs; i++)
        out[i] = at(m, op->out[i], is_repeated(op->out[i]) ? microbatch : -1);
    if (op->type->flags & CT_OP_VIEW)
        memcpy(out[0].data, in[0].data, ROOM);
    else
        assert_ok(op->type->reference(&l));
}

/* The sum over microbatches of a value, in the place for what exists once. */
static void sum_up(const struct memory *m, const struct ct_value *v, int microbatches)
{
    struct ct_tensor sum = at(m, v, -1);

    for (int64_t i = 0; i < ct_tensor_count(&sum); i++) {
        double total = 0;

        for (int b = 0; b < microbatches; b++) {
            struct ct_tensor t = at(m, v, b);

            total += ct_tensor_load(&t, i);
        }
        ct_tensor_store(&sum, i, total);
    }
}

static void compute_all(const struct memory *m, const struct ct_graph *graph, int microbatches)
{
    ct_for_each_op (op, graph)
        if (op->section->part == CT_PART_PRE)
            compute(m, graph, op, -1);
    for (int b = 0; b < microbatches; b++)
        ct_for_each_op (op, graph)
            if (ct_part_is_microbatch(op->section->part))
                compute(m, graph, op, b);
    for (size_t i = 0; i < graph->value_count; i++)
        if (graph->values[i]->producer && is_repeated(graph->values[i]))
            sum_up(m, graph->values[i], microbatches);
    ct_for_each_op (op, graph)
        if (op->section->part == CT_PART_POST)
            compute(m, graph, op, -1);
}

static double number(const struct ct_value *v, int microbatch, int64_t i)
{
    return sin(1 + v->id + 7 * microbatch + 0.37 * (double)i);
}

/* Fill sources in both, and every other byte of memory with what it should not be. */
static void fill(const struct memory *memory, struct machine *m, int microbatches)
{
    shuffle_poison(m->program->memory.persistent, m->program->memory.bytes);
    for (size_t i = 0; i < m->graph->value_count; i++) {
        const struct ct_value *v = m->graph->values[i];
        int first = v->role == CT_ROLE_INPUT ? 0 : -1;

        for (int b = first; !v->producer && b < (first ? 0 : microbatches); b++) {
            struct ct_tensor t = at(memory, v, b);

            for (int64_t k = 0; k < ct_tensor_count(&t); k++)
                ct_tensor_store(&t, k, number(v, b, k));
            assert_ok(ct_executor_write(m->executor, v, b, t.data,
                                        (size_t)ct_tensor_count(&t) * ct_dtype_size(t.dtype)));
        }
    }
}

static void compare(const struct memory *memory, struct machine *m, uint64_t seed)
{
    for (size_t f = 0; f < m->graph->fetch_count; f++) {
        const struct ct_fetch *fetch = &m->graph->fetches[f];
        struct ct_tensor should = at(memory, fetch->value, -1);
        int64_t count;
        double *is = read_fetch(m, fetch->name, &count);

        for (int64_t i = 0; i < count; i++) {
            double expected = ct_tensor_load(&should, i);

            if (!(fabs(is[i] - expected) <= 1e-4 * (1 + fabs(expected))))
                fail_msg("seed %llu: %s [%lld] is %.9g, not %.9g", (unsigned long long)seed,
                         fetch->name, (long long)i, is[i], expected);
        }
    }
}

/* Values that lie in a buffer of another value. */
static size_t count_shared(const struct machine *m)
{
    size_t shared = 0;

    for (size_t i = 0; i < m->graph->value_count; i++) {
        const struct ct_value *v = m->graph->values[i];
        int32_t b = m->program->buffer_of[v->id * (size_t)(m->program->microbatches + 1) + 1];

        shared += v->producer && b >= 0 && m->program->buffers[b].value != v;
    }
    return shared;
}

static size_t run(uint64_t seed, int microbatches, enum order order)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = draw_graph(&arena, seed);
    struct memory memory = {.values = graph->value_count};
    struct machine m;
    size_t shared;

    memory.data = ct_arena_alloc(&arena, (size_t)(microbatches + 1) * memory.values * ROOM);
    machine_start(&m, graph, shuffle_device(seed), microbatches, order);
    for (int step = 0; step < 2; step++) {
        fill(&memory, &m, microbatches);
        compute_all(&memory, graph, microbatches);
        assert_ok(ct_executor_step(m.executor));
        compare(&memory, &m, seed);
    }
    shared = count_shared(&m);
    machine_finish(&m);
    ct_arena_finish(&arena);
    return shared;
}

static void any_graph_gives_what_its_ops_compute(void **unused)
{
    static const enum order orders[] = {IN_TURN, FORWARDS_FIRST, SPLIT};
    size_t shared = 0;

    (void)unused;
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        shared += run(seed, 1 + (int)(seed % 3), orders[seed / 3 % 3]);
    assert_true(shared > 2 * SEEDS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_graph_gives_what_its_ops_compute)};

    if (ct_ops_register() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
