/*
 * Lowering: one graph, run in many ways, gives the same numbers, and its program is sound. Ways:
 * microbatches, orders of actions, streams in any order that events allow, kernels that add and
 * kernels that cannot, memory that was never cleared.
 */
#include <stdio.h>

#include <ctitan/app/verify.h>
#include <ctitan/device/device.h>
#include <ctitan/log.h>
#include <ctitan/rng.h>
#include <ctitan/text.h>

#include "reference.h"
#include "shuffle.h"
#include "support.h"

/* ---- a kernel set that cannot accumulate, for the device that shuffles ---- */

static bool plain_kernels; /* offer them */

static bool offered(const struct ct_prepare *p)
{
    return plain_kernels && p->device->host_memory;
}

static int run_reference(const struct ct_launch *launch)
{
    struct ct_launch plain = *launch;

    assert_int_equal(launch->accumulate, 0);
    assert_non_null(launch->workspace);
    memset(launch->workspace, 0x7f, 100);
    return launch->op->type->reference(&plain);
}

static int known_distances; /* between outputs of calls of these kernels */

static int ask_for_workspace(struct ct_prepare *p)
{
    ptrdiff_t bytes;

    assert_int_equal(p->accumulate, 0);
    p->workspace = 100;
    for (int i = 1; i < p->outs; i++)
        known_distances += ct_prepare_distance(p, p->ins, p->ins + i, &bytes);
    return 0;
}

static int stack_outputs(const struct ct_op *op, struct ct_value ***values)
{
    *values = op->out;
    return op->outs;
}

static const struct ct_kernel plain[] = {
    CT_KERNEL("linear_dw", "plain", CT_KERNEL_STRIDED, offered, ask_for_workspace, run_reference,
              .stack = stack_outputs),
    CT_KERNEL("embedding_grad", "plain", 0, offered, ask_for_workspace, run_reference),
    CT_KERNEL("linear_cross_entropy_grad", "plain", 0, offered, ask_for_workspace, run_reference),
};

/* ---- kernels that can add unless their operands are strided ---- */

static bool dense_kernels; /* offer them */

static bool offered_dense(const struct ct_prepare *p)
{
    return dense_kernels && p->device->host_memory;
}

static int run_dense(const struct ct_launch *launch)
{
    return launch->op->type->reference(launch);
}

static int run_strided(const struct ct_launch *launch)
{
    assert_int_equal(launch->accumulate, 0);
    return launch->op->type->reference(launch);
}

static const struct ct_kernel dense[] = {
    CT_KERNEL("scale", "dense", CT_KERNEL_ACCUMULATES, offered_dense, NULL, run_dense),
    CT_KERNEL("scale", "strided", CT_KERNEL_STRIDED, offered_dense, NULL, run_strided),
};

/* ---- a kernel that supports strides, but not all ---- */

static bool matrix_kernels; /* offer it */

/* One stride between rows. */
static bool offered_matrices(const struct ct_prepare *p)
{
    struct ct_matrix m;

    return matrix_kernels && p->device->host_memory && ct_tensor_as_matrix(&p->in[0], &m) &&
           ct_tensor_as_matrix(&p->out[0], &m);
}

static const struct ct_kernel matrices =
    CT_KERNEL("scale", "matrices", CT_KERNEL_STRIDED, offered_matrices, NULL, run_dense);

static int register_kernels(void **state)
{
    (void)state;
    for (size_t i = 0; i < CT_COUNT(plain); i++)
        assert_ok(ct_kernel_register("shuffle", &plain[i]));
    for (size_t i = 0; i < CT_COUNT(dense); i++)
        assert_ok(ct_kernel_register("shuffle", &dense[i]));
    assert_ok(ct_kernel_register("shuffle", &matrices));
    return 0;
}

/* ---- the same numbers in every way ---- */

enum { SAMPLES = 4 };

static struct ct_graph *step_graph(struct ct_arena *arena, struct tiny tiny, int microbatches)
{
    struct ct_graph *graph;

    tiny.batch = SAMPLES / microbatches;
    tiny.dtype = CT_F64;
    graph = tiny_llama(arena, tiny);
    assert_ok(ct_differentiate(graph));
    fetch_gradients(graph);
    return graph;
}

/* Every op on a stream drawn by its name. Every third stream keeps inputs. */
static void spread_over_streams(struct ct_graph *graph, uint64_t seed)
{
    char name[16];

    declare_streams();
    for (int i = ct_stream_count(); i < CT_STREAMS; i++) {
        snprintf(name, sizeof(name), "any_%d", i);
        assert_int_equal(ct_stream(name, i % 3 ? 0 : CT_STREAM_KEEPS), i);
    }
    ct_for_each_op (op, graph)
        op->stream =
            (int)(ct_philox(seed, ct_rng_stream(op->outs ? op->out[0]->name : ""), 0).v[0] %
                  CT_STREAMS);
}

static size_t count_added_sums(const struct ct_program *program)
{
    size_t count = 0;

    for (size_t i = 0; i < program->step_count; i++)
        count += program->step[i].op->why && !strcmp(program->step[i].op->why, "adds to a sum");
    return count;
}

static void poison(const struct machine *m)
{
    if (m->device != reference_device())
        shuffle_poison(m->program->memory.persistent, m->program->memory.bytes);
}

/* All fetches equal those of `expected`, within tolerance. */
static void compare(struct machine *m, struct machine *expected, double tolerance)
{
    for (size_t f = 0; f < expected->graph->fetch_count; f++) {
        const char *name = expected->graph->fetches[f].name;
        int64_t count, other;
        double *is = read_fetch(m, name, &count), *should = read_fetch(expected, name, &other);

        assert_int_equal(count, other);
        for (int64_t i = 0; i < count; i++)
            if (!(fabs(is[i] - should[i]) <= tolerance))
                fail_msg("%s [%lld] is %.15g, not %.15g", name, (long long)i, is[i], should[i]);
    }
}

/* Two steps over memory that held nothing, compared after each. */
static void run_and_compare(struct machine *m, struct machine *expected, double tolerance)
{
    for (int step = 0; step < 2; step++) {
        poison(m);
        feed_samples(m);
        assert_ok(ct_executor_step(m->executor));
        compare(m, expected, tolerance);
    }
    machine_finish(m);
}

static void start_expected(struct machine *expected, struct ct_arena *arena, struct tiny tiny)
{
    machine_start(expected, step_graph(arena, tiny, 1), NULL, 1, IN_TURN);
    feed_samples(expected);
    assert_ok(ct_executor_step(expected->executor));
}

static const struct tiny shape = {.tied = true, .documents = true, .heads = 4, .kv_heads = 2};

static void microbatches_and_orders(void **state)
{
    static const enum order orders[] = {IN_TURN, FORWARDS_FIRST, SPLIT};
    struct ct_arena arena = {0};
    struct machine expected, m;

    (void)state;
    start_expected(&expected, &arena, shape);
    for (int microbatches = 1; microbatches <= SAMPLES; microbatches *= 2)
        for (size_t o = 0; o < CT_COUNT(orders); o++) {
            machine_start(&m, step_graph(&arena, shape, microbatches), shuffle_device(1),
                          microbatches, orders[o]);
            run_and_compare(&m, &expected, 1e-12);
        }
    machine_finish(&expected);
    ct_arena_finish(&arena);
}

static void streams_in_any_order(void **state)
{
    enum { SEEDS = 8 };
    struct ct_arena arena = {0};

    (void)state;
    for (int microbatches = 1; microbatches <= 2; microbatches++) {
        struct machine expected, m;

        machine_start(&expected, step_graph(&arena, shape, microbatches), NULL, microbatches,
                      SPLIT);
        feed_samples(&expected);
        assert_ok(ct_executor_step(expected.executor));
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            struct ct_graph *graph = step_graph(&arena, shape, microbatches);

            spread_over_streams(graph, seed);
            machine_start(&m, graph, shuffle_device(seed), microbatches, SPLIT);
            assert_true(m.program->events > 10);
            run_and_compare(&m, &expected, 0);
        }
        machine_finish(&expected);
    }
    ct_arena_finish(&arena);
}

static void sums_by_kernels_and_behind_them(void **state)
{
    struct ct_arena arena = {0};
    struct machine expected, m;

    (void)state;
    start_expected(&expected, &arena, shape);
    for (int microbatches = 1; microbatches <= SAMPLES; microbatches *= 2)
        for (int streams = 0; streams < 2; streams++) {
            struct ct_graph *graph = step_graph(&arena, shape, microbatches);

            if (streams)
                spread_over_streams(graph, 3);
            plain_kernels = true;
            known_distances = 0;
            machine_start(&m, graph, shuffle_device(5), microbatches, FORWARDS_FIRST);
            plain_kernels = false;
            /* gradients lie one after the other, but terms of later microbatches do not */
            assert_int_equal(known_distances > 0, microbatches == 1);
            /* of each later microbatch: the loss, and in each layer seven weights */
            assert_int_equal(count_added_sums(m.program), (microbatches - 1) * (1 + 2 * 7));
            run_and_compare(&m, &expected, 1e-12);
        }
    machine_finish(&expected);
    ct_arena_finish(&arena);
}

/* Instructions that add two values to make this one. */
static size_t count_adds(const struct ct_program *program, const struct ct_value *sum)
{
    size_t count = 0;

    for (size_t i = 0; i < program->step_count; i++)
        count += program->step[i].op->type == &ct_op_add && program->step[i].op->out[0] == sum;
    return count;
}

/* Buffers of values of this dtype and shape that microbatches make. */
static size_t count_buffers(const struct ct_program *program, const struct ct_value *like)
{
    size_t count = 0;

    for (size_t i = 0; i < program->buffer_count; i++) {
        const struct ct_value *v = program->buffers[i].value;

        count += v && v->producer && ct_part_is_microbatch(v->producer->section->part) &&
                 v->dtype == like->dtype && v->ndim == like->ndim &&
                 !memcmp(v->shape, like->shape, sizeof(*v->shape) * (size_t)v->ndim);
    }
    return count;
}

/* The tied table has two gradients: of the head, and of the embedding, which adds to it. */
static void terms_are_made_in_their_sum(void **state)
{
    static const enum order orders[] = {IN_TURN, FORWARDS_FIRST, SPLIT};
    struct ct_arena arena = {0};
    struct machine expected, m;

    (void)state;
    start_expected(&expected, &arena, shape);
    for (int microbatches = 1; microbatches <= SAMPLES; microbatches *= 2)
        for (size_t o = 0; o < CT_COUNT(orders); o++) {
            struct ct_graph *graph = step_graph(&arena, shape, microbatches);
            struct ct_value *table = ct_graph_find(graph, "embedding.table");
            size_t adds = 0;

            ct_for_each_op (op, graph)
                adds += op->type == &ct_op_add && op->out[0] == table->grad;
            assert_int_equal(adds, 1);
            machine_start(&m, graph, shuffle_device(1), microbatches, orders[o]);
            assert_int_equal(count_adds(m.program, table->grad), 0);
            assert_int_equal(count_buffers(m.program, table), 1);
            run_and_compare(&m, &expected, 1e-12);
        }
    machine_finish(&expected);
    ct_arena_finish(&arena);
}

/* Position of the only instruction that makes the value. */
static size_t position(const struct ct_program *p, const char *name)
{
    size_t at = SIZE_MAX;

    for (size_t i = 0; i < p->step_count; i++)
        if (p->step[i].op->outs && !strcmp(p->step[i].op->out[0]->name, name)) {
            assert_int_equal(at, SIZE_MAX);
            at = i;
        }
    assert_int_not_equal(at, SIZE_MAX);
    return at;
}

/* Once in a step, in the last microbatch; behind a view, too. One that takes a parameter waits. */
static void marked_ops_follow_the_last_term_of_their_sums(void **state)
{
    static const enum order orders[] = {IN_TURN, FORWARDS_FIRST, SPLIT};
    struct ct_arena arena = {0};
    struct ct_graph *graph =
        parse(&arena, "param %w : float64[8]\n"
                      "input %x : float64[8]\n"
                      "F - %a = scale(%x) {factor=2} : float64[8]\n"
                      "I - %b = scale(%a) {factor=3} : float64[8]\n"
                      "W - %c = scale(%b) {factor=5} : float64[8]\n"
                      "W - %last = scale(%b) {factor=7} : float64[8]\n"
                      "post - %n = squared_norm(%last) : float64[]\n"
                      "post - %row = view(%c) {shape=\"1,8\"} : float64[1,8]\n"
                      "post - /reduce #soon %d = scale(%row) {factor=11} : float64[1,8]\n"
                      "post - /reduce #soon %e = scale(%d) {factor=13} : float64[1,8]\n"
                      "post - /reduce #soon %late = add(%last, %w) : float64[8]\n"
                      "fetch n = %n\nfetch d = %d\nfetch e = %e\nfetch late = %late\n");

    (void)state;
    assert_ok(ct_graph_verify(graph, stderr));
    for (int microbatches = 1; microbatches <= SAMPLES; microbatches *= 2)
        for (size_t o = 0; o < CT_COUNT(orders); o++) {
            struct machine m;
            const struct ct_program *p;
            size_t d;

            machine_lower(&m, graph, shuffle_device(1), microbatches, orders[o]);
            p = m.program;
            d = position(p, "d");
            assert_int_equal(position(p, "e"), d + 1);
            assert_string_equal(p->step[d - 1].op->out[0]->name, "c");
            assert_string_equal(p->step[d + 2].op->out[0]->name, "last");
            assert_int_equal(p->step[d].microbatch, -1);
            assert_int_equal(p->step[d].item, p->step[d - 1].item);
            assert_int_equal(position(p, "n"), d + 3);
            assert_int_equal(position(p, "late"), d + 4);
            machine_finish(&m);
        }
    ct_arena_finish(&arena);
}

/* The buffer of a value of no microbatch. */
static int32_t buffer_of_step(const struct ct_program *p, const char *name)
{
    int32_t b = p->buffer_of[ct_graph_find(p->graph, name)->id * (size_t)(p->microbatches + 1)];

    assert_true(b >= 0);
    return b;
}

/* An op that the order lists may overwrite its input only if all others that take it have run. */
static void listed_sections_write_in_place(void **state)
{
    static const char *const listed[] = {"F", "0REDUCE"};
    struct ct_arena arena = {0};
    struct ct_graph *graph =
        parse(&arena, "section 0REDUCE part=post group=0\n"
                      "input %x : float64[8]\n"
                      "F - %a = scale(%x) {factor=2} : float64[8]\n"
                      "0REDUCE - %b = scale(%a) {factor=3} : float64[8]\n"
                      "0REDUCE - #soon %c = scale(%b) {factor=5} : float64[8]\n"
                      "0REDUCE - %d = scale(%a) {factor=7} : float64[8]\n"
                      "post - %n = squared_norm(%d) : float64[]\n"
                      "0REDUCE - %e = scale(%d) {factor=5} : float64[8]\n"
                      "fetch c = %c\nfetch n = %n\nfetch e = %e\n");
    struct machine m = {.graph = graph, .device = shuffle_device(1)};
    struct ct_order order = {0};
    struct ct_lower_request request = {
        .graph = graph, .order = &order, .microbatches = 1, .device = m.device, .arena = &m.arena};

    (void)state;
    assert_ok(ct_graph_verify(graph, stderr));
    for (int i = 0; i < 2; i++)
        ct_order_append(
            &m.arena, &order,
            (struct ct_order_item){.name = listed[i],
                                   .run = {{ct_graph_section_find(graph, listed[i])}, -i},
                                   .beside = {.microbatch = -1}});
    assert_ok(ct_lower(&request, &m.program));
    assert_ok(ct_program_verify(m.program, stderr));
    assert_int_equal(buffer_of_step(m.program, "c"), buffer_of_step(m.program, "b"));
    assert_int_not_equal(buffer_of_step(m.program, "e"), buffer_of_step(m.program, "d"));
    machine_finish(&m);
    ct_arena_finish(&arena);
}

/* F of both groups, then their backwards, the other way round. */
static void groups_of_sections_run_as_the_order_says(void **state)
{
    static const char *const names[] = {"0F", "1F", "1I", "0I"};
    struct ct_arena arena = {0};
    struct machine expected, m = {.device = shuffle_device(1)};
    struct ct_graph *graph = step_graph(&arena, shape, 2);
    struct ct_order order = {0};
    struct ct_lower_request request = {
        .graph = graph, .order = &order, .microbatches = 2, .device = m.device, .arena = &m.arena};

    (void)state;
    start_expected(&expected, &arena, shape);
    m.graph = graph;
    ct_for_each_op (op, graph)
        op->section =
            ct_graph_section(graph, op->section->part,
                             !strcmp(op->region, "layers.1") || !strcmp(op->region, "head"));
    assert_ok(ct_graph_verify(graph, stderr));
    for (int i = 0; i < 8; i++) {
        const struct ct_section *s = ct_graph_section_find(graph, names[i % 4]);
        const struct ct_section *w =
            s->part == CT_PART_I ? ct_graph_section(graph, CT_PART_W, s->group) : NULL;

        ct_order_append(&m.arena, &order,
                        (struct ct_order_item){.name = names[i % 4],
                                               .run = {{s, w}, i / 4},
                                               .beside = {.microbatch = -1}});
    }
    assert_ok(ct_lower(&request, &m.program));
    assert_ok(ct_program_verify(m.program, stderr));
    assert_ok(ct_executor_create(m.program, m.device, NULL, &m.executor));
    assert_ok(ct_executor_init(m.executor));
    run_and_compare(&m, &expected, 1e-12);
    machine_finish(&expected);
    ct_arena_finish(&arena);
}

/* ---- the plan ---- */

/* The instructions that touch a buffer, first and last. */
static void touched(const struct ct_program *p, const struct ct_buffer *b, int64_t *first,
                    int64_t *last)
{
    *first = INT64_MAX;
    *last = -1;
    for (size_t n = 0; n < p->step_count; n++) {
        const struct ct_instruction *i = &p->step[n];
        bool here = false;

        for (int k = 0; k <= i->op->ins + i->op->outs; k++) {
            size_t at = ct_instruction_offset(p, i, k);

            here |= at != SIZE_MAX && at >= b->offset && at < b->offset + b->bytes;
        }
        if (!here || (int64_t)n < b->first || (int64_t)n > b->last)
            continue;
        *first = *first < (int64_t)n ? *first : (int64_t)n;
        *last = (int64_t)n;
    }
}

static size_t aligned(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* Lives begin and end where memory is touched, the arena ends where the highest buffer does, and
   what the categories hold at the peak fits into it. */
static void check_exact(const struct ct_program *p)
{
    size_t highest = 0, at_peak = 0, persistent = 0;

    for (size_t i = 0; i < p->buffer_count; i++) {
        const struct ct_buffer *b = &p->buffers[i];
        int64_t first, last;

        assert_int_equal(b->offset % 256, 0);
        if (b->offset + aligned(b->bytes) > highest)
            highest = b->offset + aligned(b->bytes);
        if (b->first < 0 && b->last == INT32_MAX) {
            persistent += aligned(b->bytes);
            continue;
        }
        touched(p, b, &first, &last);
        assert_int_equal(b->first, first);
        if (b->last != INT32_MAX)
            assert_int_equal(b->last, last);
    }
    for (int c = 0; c < CT_CATEGORY_COUNT; c++) {
        assert_true(p->memory.at_peak[c] <= p->memory.peak[c]);
        at_peak += p->memory.at_peak[c];
    }
    assert_int_equal(p->memory.bytes, highest);
    assert_int_equal(p->memory.persistent, persistent);
    assert_true(at_peak <= p->memory.bytes);
    assert_true(at_peak >= p->memory.persistent);
}

static void plans_are_exact(void **state)
{
    (void)state;
    for (int microbatches = 1; microbatches <= SAMPLES; microbatches *= 2)
        for (int order = IN_TURN; order <= SPLIT; order++) {
            struct ct_arena arena = {0};
            struct machine m;

            plain_kernels = microbatches == 4;
            machine_lower(&m, step_graph(&arena, shape, microbatches), shuffle_device(1),
                          microbatches, (enum order)order);
            plain_kernels = false;
            check_exact(m.program);
            machine_finish(&m);
            ct_arena_finish(&arena);
        }
}

/* Running a microbatch backward before the next one forward needs less memory than all forwards
   first, whether weights are last or not. */
static void orders_differ_in_memory(void **state)
{
    struct ct_arena arena = {0};
    size_t bytes[3];

    (void)state;
    for (int order = IN_TURN; order <= SPLIT; order++) {
        struct machine m;

        machine_lower(&m, step_graph(&arena, shape, 4), NULL, 4, (enum order)order);
        bytes[order - IN_TURN] = m.program->memory.bytes;
        machine_finish(&m);
    }
    assert_true(bytes[0] < bytes[1]);
    assert_true(bytes[0] < bytes[2]);
    ct_arena_finish(&arena);
}

/* More microbatches make more instructions, but no more of what an op has once; the estimate that
   is made before lowering is at least what they take, and at most twice as much. */
static void microbatches_share_what_an_op_has(void **state)
{
    struct ct_program_size size[2];
    size_t lowered[2], instructions[2], executor[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct ct_arena arena = {0};
        struct machine m;
        double estimate;

        machine_lower(&m, step_graph(&arena, shape, 4), shuffle_device(1), i ? 64 : 4, IN_TURN);
        lowered[i] = m.program->lowered_count;
        instructions[i] = m.program->step_count;
        size[i] = m.program->size;
        executor[i] = ct_executor_bytes(m.program);
        estimate = ct_program_estimate(m.program->graph, m.program->microbatches) -
                   ct_program_estimate(m.program->graph, 0);
        if (i)
            assert_in_range((uintmax_t)estimate, size[1].program + executor[1],
                            2 * (size[1].program + executor[1]));
        machine_finish(&m);
        ct_arena_finish(&arena);
    }
    assert_int_equal(lowered[1], lowered[0]);
    assert_int_equal(size[1].kernels, size[0].kernels);
    assert_true(instructions[1] > 10 * instructions[0]);
    assert_true(size[1].program + executor[1] - size[0].program - executor[0] <
                256 * (instructions[1] - instructions[0]));
}

static int32_t buffer_of(const struct ct_program *p, const char *name)
{
    const struct ct_value *v = ct_graph_find(p->graph, name);

    assert_non_null(v);
    return p->buffer_of[(size_t)v->id * (size_t)(p->microbatches + 1) + 1];
}

static const struct ct_tensor *tensor(const struct ct_program *p, const char *name)
{
    const struct ct_value *v = ct_graph_find(p->graph, name);

    assert_non_null(v);
    return &p->tensors[v->id];
}

static void outputs_lie_side_by_side(void **state)
{
    struct ct_arena arena = {0};
    struct machine m;
    const struct ct_tensor *q, *k, *gate;

    (void)state;
    machine_lower(&m, step_graph(&arena, shape, 1), NULL, 1, IN_TURN);
    q = tensor(m.program, "q");
    k = tensor(m.program, "k");
    gate = tensor(m.program, "gate");
    assert_int_equal(buffer_of(m.program, "q"), buffer_of(m.program, "k"));
    assert_int_equal(buffer_of(m.program, "q"), buffer_of(m.program, "v.heads"));
    assert_int_equal(q->stride[1], 16 + 8 + 8); /* four heads and two pairs of two, of 4 */
    assert_int_equal(k->stride[1], q->stride[1]);
    assert_int_equal(m.program->offsets[ct_graph_find(m.graph, "k")->id], 16 * sizeof(double));
    assert_int_equal(tensor(m.program, "v.heads")->stride[2], 4);
    assert_int_equal(gate->stride[1], 2 * 12);
    machine_finish(&m);
    ct_arena_finish(&arena);
}

static void outputs_take_over_inputs_that_die(void **state)
{
    struct ct_arena arena = {0};
    struct machine m;

    (void)state;
    machine_lower(&m, step_graph(&arena, shape, 1), NULL, 1, IN_TURN);
    assert_int_equal(buffer_of(m.program, "q.rope"), buffer_of(m.program, "q"));
    assert_int_equal(buffer_of(m.program, "d.gate"), buffer_of(m.program, "gate"));
    machine_finish(&m);
    ct_arena_finish(&arena);
}

/* ---- ops that would work in the place of what does not fit ---- */

static int never_run(const struct ct_launch *launch)
{
    return ct_fail(CT_EINVAL, "%s is only lowered", launch->op->type->name);
}

static const int8_t over_first[][2] = {{0, 0}, {-1, -1}};
static const struct ct_op_type widens = {.size = sizeof(struct ct_op_type),
                                         .name = "test_widen",
                                         .summary = "in statistics' dtype",
                                         .signature = "x[.] T -> y[.] W",
                                         .reference = never_run,
                                         .inplace = over_first};
static const struct ct_op_type twins = {.size = sizeof(struct ct_op_type),
                                        .name = "test_twins",
                                        .summary = "two copies",
                                        .signature = "x[.] T -> y[.] T, z[.] T",
                                        .reference = never_run,
                                        .inplace = (const int8_t[][2]){{0, 0}, {1, 0}, {-1, -1}}};
static const struct ct_op_type turns = {.size = sizeof(struct ct_op_type),
                                        .name = "test_turn",
                                        .summary = "x with its dimensions exchanged",
                                        .signature = "x[ab] T -> y[ba] T",
                                        .reference = never_run,
                                        .inplace = over_first};

/* Memory is taken over only by a value of the same dtype and shape, and by one of them. */
static void what_does_not_fit_is_not_taken_over(void **state)
{
    struct ct_arena arena = {0};
    struct machine m;
    static const struct ct_op_type *const types[] = {&widens, &twins, &turns};

    (void)state;
    for (size_t i = 0; i < CT_COUNT(types); i++)
        assert_ok(ct_op_need(types[i]));
    machine_lower(&m,
                  parse(&arena, "input %x : float64[4,4]\n"
                                "input %r : float64[2,8]\n"
                                "F - %a = cast(%x) {dtype=\"bfloat16\"} : bfloat16[4,4]\n"
                                "F - %wide = test_widen(%a) : float32[4,4]\n"
                                "F - %b = add(%x, %x) : float64[4,4]\n"
                                "F - %y, %z = test_twins(%b) : float64[4,4], float64[4,4]\n"
                                "F - %c = add(%r, %r) : float64[2,8]\n"
                                "F - %t = test_turn(%c) : float64[8,2]\n"
                                "F - %w = cast(%wide) {dtype=\"float64\"} : float64[4,4]\n"
                                "F - %sum = add(%y, %z) : float64[4,4]\n"
                                "F - %more = add(%sum, %w) : float64[4,4]\n"
                                "F - %end = squared_norm(%more) : float64[]\n"
                                "F - %other = squared_norm(%t) : float64[]\n"
                                "fetch end = %end\nfetch other = %other\n"),
                  NULL, 1, FORWARD);
    assert_int_not_equal(buffer_of(m.program, "wide"), buffer_of(m.program, "a"));
    assert_int_equal(buffer_of(m.program, "y"), buffer_of(m.program, "b"));
    assert_int_not_equal(buffer_of(m.program, "z"), buffer_of(m.program, "b"));
    assert_int_not_equal(buffer_of(m.program, "t"), buffer_of(m.program, "c"));
    machine_finish(&m);
    ct_arena_finish(&arena);
}

/* ---- views, and what must not be overwritten ---- */

static void start_text(struct machine *m, struct ct_arena *arena, const char *text,
                       int microbatches)
{
    struct ct_graph *graph = parse(arena, text);

    assert_ok(ct_graph_verify(graph, stderr));
    machine_start(m, graph, shuffle_device(1), microbatches, FORWARD);
}

static void set(struct machine *m, const char *name, int microbatch, double first)
{
    const struct ct_value *v = ct_graph_find(m->graph, name);
    int64_t count = ct_shape_count(v->ndim, v->shape);
    double *elements = ct_arena_array(&m->arena, double, count);

    for (int64_t i = 0; i < count; i++)
        elements[i] = first + (double)i;
    assert_ok(
        ct_executor_write(m->executor, v, microbatch, elements, sizeof(double) * (size_t)count));
}

static double element(struct machine *m, const char *name, int microbatch, int64_t i)
{
    struct ct_tensor t = ct_executor_tensor(m->executor, ct_graph_find(m->graph, name), microbatch);

    assert_non_null(t.data);
    return ct_tensor_load(&t, i);
}

static void views_of_parameters_in_the_forward(void **state)
{
    struct ct_arena arena = {0};
    struct machine m;

    (void)state;
    start_text(&m, &arena,
               "param %w : float64[8]\n"
               "input %x : float64[3,2]\n"
               "F - %v = view(%w) {shape=\"4,2\"} : float64[4,2]\n"
               "F - %y = linear(%x, %v) : float64[3,4]\n"
               "F - %s = squared_norm(%y) : float64[]\n"
               "F - %flat = view(%s) {shape=\"1\"} : float64[1]\n"
               "fetch s = %flat\n",
               2);
    set(&m, "w", -1, 1);
    set(&m, "x", 0, 0);
    set(&m, "x", 1, 2);
    poison(&m);
    assert_ok(ct_executor_step(m.executor));
    {
        double sum = 0;

        for (int b = 0; b < 2; b++)
            for (int i = 0; i < 3; i++)
                for (int j = 0; j < 4; j++) {
                    double x0 = 2 * b + 2 * i, y = x0 * (1 + 2 * j) + (x0 + 1) * (2 + 2 * j);

                    sum += y * y;
                }
        assert_near(*read_fetch(&m, "s", NULL), sum, 1e-15);
    }
    machine_finish(&m);
    ct_arena_finish(&arena);
}

static int count_copies(const struct ct_program *p)
{
    int count = 0;

    for (size_t n = 0; n < p->step_count; n++)
        count += !strcmp(p->step[n].op->type->name, "narrow") ||
                 !strcmp(p->step[n].op->type->name, "concat");
    return count;
}

/* Twice x, doubled by parts. */
static void contiguous_parts_are_not_copied(void **state)
{
    static const struct {
        const char *all, *half, *part, *whole, *more;
        int copies;
    } cases[] = {
        {"[4,8]", "[2,8]", "dim=0, from=2, size=2", "%a", "", 0},
        {"[1,4,8]", "[1,2,8]", "dim=1, from=2, size=2", "%a", "", 0},
        {"[4,5]", "[2,5]", "dim=0, from=2, size=2", "%a", "", 2},     /* not aligned */
        {"[2,4,8]", "[2,2,8]", "dim=1, from=2, size=2", "%a", "", 3}, /* not contiguous */
        {"[4,8]", "[2,8]", "dim=0, from=2, size=2", "%x", "", 2},     /* parts of an input */
        {"[4,8]", "[2,8]", "dim=0, from=2, size=2", "%a",             /* used behind the whole */
         "F - %e = scale(%y0) {factor=1} : float64[2,8]\nfetch e = %e\n", 1},
    };

    (void)state;
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        struct ct_arena arena = {0};
        const char *all = cases[i].all, *half = cases[i].half;
        bool input = !strcmp(cases[i].whole, "%x");
        struct machine m;
        int64_t count;
        double *z;

        start_text(&m, &arena,
                   ct_arena_printf(&arena,
                                   "input %%x : float64%s\n"
                                   "F - %%a = scale(%%x) {factor=2} : float64%s\n"
                                   "F - %%n0 = narrow(%s) {dim=%c, size=2} : float64%s\n"
                                   "F - %%n1 = narrow(%s) {%s} : float64%s\n"
                                   "F - %%y0 = add(%%n0, %%n0) : float64%s\n"
                                   "F - %%y1 = add(%%n1, %%n1) : float64%s\n"
                                   "F - %%c = concat(%%y0, %%y1) {dim=%c} : float64%s\n"
                                   "F - %%z = scale(%%c) {factor=1} : float64%s\n"
                                   "%sfetch z = %%z\n",
                                   all, all, cases[i].whole, cases[i].part[4], half, cases[i].whole,
                                   cases[i].part, half, half, half, cases[i].part[4], all, all,
                                   cases[i].more),
                   1);
        set(&m, "x", 0, 1);
        poison(&m);
        assert_ok(ct_executor_step(m.executor));
        z = read_fetch(&m, "z", &count);
        for (int64_t k = 0; k < count; k++)
            assert_near(z[k], (input ? 2 : 4) * (double)(1 + k), 0);
        if (count_copies(m.program) != cases[i].copies)
            fail_msg("case %zu: %d copies", i, count_copies(m.program));
        machine_finish(&m);
        ct_arena_finish(&arena);
    }
}

/* rope would like to work in the place of its input; here that is somebody else's memory. */
/* A sum becomes columns of a matrix, where its terms' kernels cannot add: an add follows. */
static void terms_of_strided_sums(void **state)
{
    static const char text[] = "input %x : float64[4,3]\n"
                               "input %y : float64[4,3]\n"
                               "input %z : float64[4,5]\n"
                               "input %w : float64[3,2]\n"
                               "input %v : float64[5,2]\n"
                               "F - %a = scale(%x) {factor=2} : float64[4,3]\n"
                               "F - %b = scale(%y) {factor=3} : float64[4,3]\n"
                               "F - %sum = add(%a, %b) : float64[4,3]\n"
                               "F - %c = scale(%z) {factor=5} : float64[4,5]\n"
                               "F - %dx = linear_dx(%sum, %c, %w, %v) : float64[4,2]\n"
                               "F - %end = squared_norm(%dx) : float64[]\n"
                               "fetch end = %end\n";
    static const char *const inputs[] = {"x", "y", "z", "w", "v"};
    double end[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct ct_arena arena = {0};
        struct machine m;
        int64_t count;

        dense_kernels = i;
        start_text(&m, &arena, text, 2);
        assert_int_equal(tensor(m.program, "a")->stride[0], 8);
        poison(&m);
        for (int microbatch = 0; microbatch < 2; microbatch++)
            for (size_t k = 0; k < CT_COUNT(inputs); k++)
                set(&m, inputs[k], microbatch, (double)k + 10 * microbatch);
        assert_ok(ct_executor_step(m.executor));
        end[i] = *read_fetch(&m, "end", &count);
        /* of each microbatch the second term */
        assert_int_equal(count_added_sums(m.program), 2 * i);
        machine_finish(&m);
        ct_arena_finish(&arena);
    }
    dense_kernels = false;
    assert_true(end[0] > 0 && end[0] == end[1]);
}

/* A kernel runs on columns of one matrix if it supports their strides. Where heads of rows of a
   matrix have two strides, which it does not, each value has a buffer of its own. */
static void no_reference_takes_over_for_columns(void **state)
{
    static const struct {
        const char *shape;
        bool joined;
    } cases[] = {{"3,6", true}, {"3,2,3", false}};

    (void)state;
    matrix_kernels = true;
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        struct ct_arena arena = {0};
        const struct ct_program *p;
        struct machine m;

        machine_lower(&m,
                      parse(&arena, ct_arena_printf(
                                        &arena,
                                        "input %%x : float64[%s]\n"
                                        "input %%z : float64[3,4]\n"
                                        "input %%w : float64[6,2]\n"
                                        "input %%v : float64[4,2]\n"
                                        "F - %%a = scale(%%x) {factor=2} : float64[%s]\n"
                                        "F - %%c = view(%%a) {shape=\"3,6\"} : float64[3,6]\n"
                                        "F - %%b = scale(%%z) {factor=3} : float64[3,4]\n"
                                        "F - %%dx = linear_dx(%%c, %%b, %%w, %%v) : float64[3,2]\n"
                                        "F - %%end = squared_norm(%%dx) : float64[]\n"
                                        "fetch end = %%end\n",
                                        cases[i].shape, cases[i].shape)),
                      shuffle_device(1), 1, FORWARD);
        p = m.program;
        assert_int_equal(buffer_of(p, "c") == buffer_of(p, "b"), cases[i].joined);
        assert_int_equal(tensor(p, "c")->stride[0], cases[i].joined ? 10 : 6);
        for (size_t k = 0; k < p->step_count; k++)
            if (!strcmp(p->step[k].op->type->name, "scale"))
                assert_string_equal(p->step[k].lowered->kernel->name, "matrices");
        check_exact(p);
        machine_finish(&m);
        ct_arena_finish(&arena);
    }
    matrix_kernels = false;
}

static void in_place_spares_what_lives_on(void **state)
{
    static const char *const text = "param %p : float64[1,3,1,2]\n"
                                    "input %x : float64[1,3,2]\n"
                                    "pre - %c = cast(%p) {dtype=\"float64\"} : float64[1,3,1,2]\n"
                                    "pre - %flat = view(%p) {shape=\"1,6\"} : float64[1,6]\n"
                                    "pre - %r = reciprocal(%flat) : float64[1,6]\n"
                                    "F - %xv = view(%x) {shape=\"1,3,1,2\"} : float64[1,3,1,2]\n"
                                    "F - %a = rope(%xv, _) : float64[1,3,1,2]\n"
                                    "F - %cv = view(%c) {shape=\"1,3,1,2\"} : float64[1,3,1,2]\n"
                                    "F - %b = rope(%cv, _) : float64[1,3,1,2]\n"
                                    "F - %s = add(%a, %b) : float64[1,3,1,2]\n"
                                    "post - %h = reciprocal(%s) : float64[1,3,1,2]\n"
                                    "post - %k = reciprocal(%h) : float64[1,3,1,2]\n"
                                    "post - %g = reciprocal(%s) : float64[1,3,1,2]\n"
                                    "post - %gv = view(%g) {shape=\"1,6\"} : float64[1,6]\n"
                                    "post - %l = reciprocal(%g) : float64[1,3,1,2]\n"
                                    "fetch gv = %gv\n"
                                    "fetch l = %l\n"
                                    "fetch r = %r\n"
                                    "fetch s = %s\n"
                                    "fetch h = %h\n"
                                    "fetch k = %k\n";
    struct ct_arena arena = {0};
    struct machine m;
    double once[6];

    (void)state;
    start_text(&m, &arena, text, 2);
    set(&m, "p", -1, 1);
    for (int step = 0; step < 2; step++) {
        poison(&m);
        for (int b = 0; b < 2; b++)
            if (step == 0)
                set(&m, "x", b, 10);
        assert_ok(ct_executor_step(m.executor));
        for (int i = 0; i < 6; i++) {
            double s = read_fetch(&m, "s", NULL)[i];

            once[i] = step ? once[i] : s;
            assert_near(s, once[i], 0);
            assert_near(element(&m, "p", -1, i), 1 + i, 0);
            assert_near(element(&m, "x", 1, i), 10 + i, 0);
            assert_near(read_fetch(&m, "r", NULL)[i], 1.0 / (1 + i), 1e-15);
            assert_near(read_fetch(&m, "h", NULL)[i], 1 / s, 1e-15);
            assert_near(read_fetch(&m, "k", NULL)[i], s, 1e-14);
            assert_near(read_fetch(&m, "gv", NULL)[i], 1 / s, 1e-15);
            assert_near(read_fetch(&m, "l", NULL)[i], s, 1e-14);
        }
    }
    assert_near(once[0], 2 * (10 + 1), 1e-15); /* position 0 is not turned */
    machine_finish(&m);
    ct_arena_finish(&arena);
}

/* ---- refusals, and the text of a program ---- */

static void refuse_order(struct ct_lower_request *request, struct ct_order_item item,
                         const char *message)
{
    struct ct_order order = {0};
    struct ct_program *program;

    for (size_t i = 0; i < request->order->count; i++)
        ct_order_append(request->arena, &order, request->order->item[i]);
    item.name = "item";
    ct_order_append(request->arena, &order, item);
    request->order = &order;
    assert_int_equal(ct_lower(request, &program), CT_EINVAL);
    assert_message(message);
}

/* linear with so many outputs, all of them sums over the microbatches, which the host reads. */
static struct ct_graph *many_outputs(struct ct_arena *arena, int count)
{
    struct ct_graph *graph = parse(arena, "graph \"many outputs\"\ninput %x : float64[1,2]\n");
    struct ct_value **in = ct_arena_array(arena, struct ct_value *, count + 1);
    struct ct_builder b = ct_builder_at_end(graph, CT_PART_F, "");
    const struct ct_op *op;

    in[0] = ct_graph_find(graph, "x");
    for (int i = 1; i <= count; i++)
        in[i] = ct_graph_source(graph, CT_ROLE_PARAM, ct_arena_printf(arena, "w%d", i), CT_F64, 2,
                                (const int64_t[]){1, 2});
    op = ct_emit_type(&b, &ct_op_linear, "y", in, count + 1, NULL);
    assert_non_null(op);
    for (int i = 0; i < count; i++)
        ct_graph_fetch(graph, op->out[i]->name, op->out[i]);
    return graph;
}

static void only_so_many_outputs_are_summed(void **state)
{
    struct ct_arena arena = {0};
    struct ct_lower_request request = {.graph = many_outputs(&arena, 32),
                                       .microbatches = 2,
                                       .device = reference_device(),
                                       .arena = &arena};
    struct ct_program *program;

    (void)state;
    assert_ok(ct_lower(&request, &program));
    request.graph = many_outputs(&arena, 33);
    assert_int_equal(ct_lower(&request, &program), CT_EINVAL);
    assert_message("linear: output 32 of an op cannot be summed");
    request.microbatches = 1;
    assert_ok(ct_lower(&request, &program));
    ct_arena_finish(&arena);
}

static void what_cannot_be_lowered(void **state)
{
    struct ct_device bare = {.ops = &ct_device_reference, .name = "bare"};
    struct ct_arena arena = {0};
    struct ct_graph *graph = step_graph(&arena, shape, 1), *other = step_graph(&arena, shape, 1);
    struct ct_order order, none = {0};
    struct ct_lower_request request = {
        .graph = graph, .microbatches = 1, .device = &bare, .arena = &arena};
    const struct ct_section *f = ct_graph_section(graph, CT_PART_F, CT_NO_GROUP);
    const struct ct_section *b = ct_graph_section(graph, CT_PART_I, CT_NO_GROUP);
    const struct ct_section *w = ct_graph_section(graph, CT_PART_W, CT_NO_GROUP);
    struct ct_program *program;

    (void)state;
    assert_int_equal(ct_lower(&request, &program), CT_ENOENT);
    assert_message("device bare has no kernel for ");
    request.device = reference_device();
    ct_order_default(graph, 1, &arena, &order);
    request.order = &order;
    assert_ok(ct_lower(&request, &program));
    refuse_order(&request, (struct ct_order_item){.run = {{f}, 0}},
                 "item: section F runs a second time");
    request.order = &none;
    refuse_order(&request, (struct ct_order_item){.run = {{f}, 1}},
                 "item: section F, microbatch 1 of 1");
    request.order = &none;
    refuse_order(
        &request,
        (struct ct_order_item){.run = {{ct_graph_section(graph, CT_PART_INIT, CT_NO_GROUP)}, -1}},
        "item: section init runs before the first step");
    request.order = &none;
    refuse_order(&request,
                 (struct ct_order_item){.run = {{ct_graph_section(other, CT_PART_F, 7)}, 0}},
                 "item: section 7F is not of this graph");
    request.order = &none;
    refuse_order(&request, (struct ct_order_item){.run = {{f}, 0}},
                 "the order of the step never runs section I, microbatch 0");
    order.item[0].run = (struct ct_span){{b, w}, 0};
    order.item[1].run = (struct ct_span){{f}, 0};
    request.order = &order;
    assert_int_equal(ct_lower(&request, &program), CT_EINVAL);
    assert_message("which nothing before it makes");
    ct_arena_finish(&arena);
}

static void programs_are_printed(void **state)
{
    struct ct_arena arena = {0};
    struct machine m;
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);

    (void)state;
    start_text(&m, &arena,
               "param %p : float64[2]\n"
               "input %x : float64[3,2]\n"
               "pre - /gather %r = reciprocal(%p) : float64[2]\n"
               "F head %y, %y.rstd = rms_norm(%x, %r) : float64[3,2], float64[3]\n"
               "F head %s = squared_norm(%y) : float64[]\n"
               "fetch s = %s\n",
               2);
    ct_program_print(m.program, out);
    fclose(out);
    assert_golden("program.txt", text);
    free(text);
    machine_finish(&m);
    ct_arena_finish(&arena);
}

static void flops_are_counted(void **state)
{
    struct ct_arena arena = {0};
    struct machine one, four;

    (void)state;
    machine_lower(&one, step_graph(&arena, shape, 1), NULL, 1, IN_TURN);
    machine_lower(&four, step_graph(&arena, shape, 4), NULL, 4, IN_TURN);
    assert_true(one.program->flops > 0);
    assert_true(one.program->flops == four.program->flops);
    machine_finish(&one);
    machine_finish(&four);
    ct_arena_finish(&arena);
}

/* ---- references in the place of kernels ---- */

static char said[2][512];
static int lines_said;

static void keep_line(enum ct_log_level level, const char *line, void *context)
{
    (void)context;
    assert_int_equal(level, CT_LOG_WARNING);
    assert_true(lines_said < 2);
    snprintf(said[lines_said++], sizeof(said[0]), "%s", line);
}

static bool two_rows(const struct ct_prepare *p)
{
    return p->in[0].shape[0] == 2 ||
           ct_fail(CT_ENOENT, "%lld rows are not two", (long long)p->in[0].shape[0]) == 0;
}

static void assert_said(const char *line)
{
    if (strcmp(said[0], line) && strcmp(said[1], line))
        fail_msg("neither \"%s\" nor \"%s\"", said[0], said[1]);
}

static void a_reference_that_runs_is_explained_once(void **state)
{
    static const struct ct_kernel two =
        CT_KERNEL("rms_norm", "two", 0, two_rows, NULL, run_reference);
    static struct ct_device_ops ops;
    struct ct_device picky = {.ops = &ops, .name = "picky", .host_memory = true};
    struct ct_arena arena = {0};
    struct ct_graph *graph =
        parse(&arena, "graph \"g\"\n"
                      "input %x : float32[4,3]\n"
                      "input %u : float32[2,3]\n"
                      "param %w : float32[3]\n"
                      "F - %y, %y.rstd = rms_norm(%x, %w) {eps=0.5} : float32[4,3], float32[4]\n"
                      "F - %v, %v.rstd = rms_norm(%u, %w) {eps=0.5} : float32[2,3], float32[2]\n"
                      "F - %z = add(%y, %x) : float32[4,3]\n"
                      "fetch v = %v\nfetch z = %z\n");
    struct ct_lower_request request = {
        .graph = graph, .microbatches = 1, .device = &picky, .arena = &arena};
    struct ct_program *program;

    (void)state;
    ops = ct_device_reference;
    assert_ok(ct_kernel_register("picky", &two));
    ct_log_to(keep_line, NULL, CT_LOG_WARNING);
    assert_ok(ct_lower(&request, &program));
    assert_ok(ct_lower(&request, &program));
    ct_log_to(NULL, NULL, CT_LOG_WARNING);
    assert_int_equal(lines_said, 2);
    assert_said(
        "picky: 1 of 2 calls of rms_norm run its slow reference: kernel two does not take x "
        "float32[4,3], w float32[3] -> y float32[4,3], rstd float32[4] {eps=0.5, offset=0}, as "
        "4 rows are not two; it has a "
        "formula, "
        "which --with fuse compiles");
    assert_said("picky: 1 of 1 calls of add run its slow reference: no plugin that is loaded has a "
                "kernel for it; it has a formula, which --with fuse compiles");
    ct_arena_finish(&arena);
}

/* A device that is only described plans for ops without a kernel, names each once, and cannot run
   them. Values are not joined for such an op: its kernel may take no strides. */
static void a_described_device_lacks_kernels(void **state)
{
    struct ct_device sketch = {.ops = &ct_device_reference, .name = "sketch", .described = true};
    struct ct_arena arena = {0};
    struct ct_graph *graph = parse(&arena, "input %x : float64[3,6]\n"
                                           "input %z : float64[3,4]\n"
                                           "input %w : float64[6,2]\n"
                                           "input %v : float64[4,2]\n"
                                           "F - %a = scale(%x) {factor=2} : float64[3,6]\n"
                                           "F - %b = scale(%z) {factor=3} : float64[3,4]\n"
                                           "F - %dx = linear_dx(%a, %b, %w, %v) : float64[3,2]\n"
                                           "fetch dx = %dx\n");
    struct ct_lower_request request = {
        .graph = graph, .microbatches = 1, .device = &sketch, .arena = &arena};
    struct ct_program *p;

    (void)state;
    lines_said = 0;
    ct_log_to(keep_line, NULL, CT_LOG_WARNING);
    assert_ok(ct_lower(&request, &p));
    assert_ok(ct_lower(&request, &p));
    ct_log_to(NULL, NULL, CT_LOG_WARNING);
    assert_int_equal(lines_said, 2);
    assert_said("no kernel of sketch for scale: its time is taken from bytes and FLOPs: no plugin "
                "that is loaded has a kernel for it; it has a formula, which --with fuse compiles");
    assert_said("no kernel of sketch for linear_dx: its time is taken from bytes and FLOPs: no "
                "plugin that is loaded has a kernel for it");
    assert_int_equal(p->step_count, 3);
    for (size_t i = 0; i < p->step_count; i++) {
        const struct ct_lowered *lowered = p->step[i].lowered;

        assert_true(ct_kernel_is_none(lowered->kernel));
        assert_int_equal(lowered->kernel->run(&lowered->launch), CT_ENOENT);
        assert_message("there is no kernel for ");
    }
    assert_int_equal(tensor(p, "a")->stride[0], 6);
    ct_arena_finish(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(microbatches_and_orders),
        cmocka_unit_test(streams_in_any_order),
        cmocka_unit_test(sums_by_kernels_and_behind_them),
        cmocka_unit_test(terms_are_made_in_their_sum),
        cmocka_unit_test(marked_ops_follow_the_last_term_of_their_sums),
        cmocka_unit_test(listed_sections_write_in_place),
        cmocka_unit_test(groups_of_sections_run_as_the_order_says),
        cmocka_unit_test(plans_are_exact),
        cmocka_unit_test(microbatches_share_what_an_op_has),
        cmocka_unit_test(orders_differ_in_memory),
        cmocka_unit_test(outputs_lie_side_by_side),
        cmocka_unit_test(outputs_take_over_inputs_that_die),
        cmocka_unit_test(what_does_not_fit_is_not_taken_over),
        cmocka_unit_test(views_of_parameters_in_the_forward),
        cmocka_unit_test(terms_of_strided_sums),
        cmocka_unit_test(no_reference_takes_over_for_columns),
        cmocka_unit_test(in_place_spares_what_lives_on),
        cmocka_unit_test(contiguous_parts_are_not_copied),
        cmocka_unit_test(only_so_many_outputs_are_summed),
        cmocka_unit_test(what_cannot_be_lowered),
        cmocka_unit_test(a_reference_that_runs_is_explained_once),
        cmocka_unit_test(a_described_device_lacks_kernels),
        cmocka_unit_test(programs_are_printed),
        cmocka_unit_test(flops_are_counted),
    };

    if (ct_ops_register() < 0)
        return 1;
    return cmocka_run_group_tests(tests, register_kernels, NULL);
}
