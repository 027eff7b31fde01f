/*
 * Executors: what hooks see and in which order, programs that borrow another's parameters, access
 * from the host, and failures on the way.
 */
#include <stdio.h>

#include <ctitan/app/verify.h>
#include <ctitan/device/device.h>
#include <ctitan/hook.h>
#include <ctitan/lib/pipeline.h>

#include "shuffle.h"
#include "support.h"

/* ---- hooks ---- */

static struct watch {
    const struct machine *machine; /* NULL: not watching */
    char seen[4096];
    size_t fail_at, calls; /* the call that fails, from 1; 0: none */
} watch;

static void note(const char *text)
{
    size_t length = strlen(watch.seen);

    snprintf(watch.seen + length, sizeof(watch.seen) - length, "%s", text);
}

static int see(const struct ct_event_data *data, void *context)
{
    const struct ct_program *program = watch.machine ? watch.machine->program : NULL;
    const struct ct_instruction *i = data->instruction;

    assert_ptr_equal(context, &watch);
    if (!program)
        return 0;
    if (++watch.calls == watch.fail_at)
        return ct_fail(CT_EIO, "the disk is full");
    if (data->event == CT_EVENT_SECTION_BEGIN || data->event == CT_EVENT_SECTION_END) {
        note(data->event == CT_EVENT_SECTION_BEGIN ? "<" : ">");
        note(program->order.item[i->item].name);
    } else {
        note(data->event == CT_EVENT_OP_BEGIN ? "(" : ")");
        note(i->op->type->name);
    }
    note(" ");
    return 0;
}

static const struct ct_hook hook = {.size = sizeof(struct ct_hook),
                                    .events = 1u << CT_EVENT_SECTION_BEGIN |
                                              1u << CT_EVENT_SECTION_END | 1u << CT_EVENT_OP_BEGIN |
                                              1u << CT_EVENT_OP_END,
                                    .call = see,
                                    .context = &watch};

static int register_hook(void **state)
{
    (void)state;
    return ct_hook_register(&hook, NULL);
}

static void start_watching(const struct machine *m, size_t fail_at)
{
    watch = (struct watch){.machine = m, .fail_at = fail_at};
}

static const char *const small = "param %p : float64[4]\n"
                                 "input %x : float64[2,4]\n"
                                 "init - init_constant(%p) {value=2}\n"
                                 "pre - %r = reciprocal(%p) : float64[4]\n"
                                 "F - %y, %rstd = rms_norm(%x, %r) : float64[2,4], float64[2]\n"
                                 "F - %s = squared_norm(%y) : float64[]\n"
                                 "W - %n = squared_norm(%x) : float64[]\n"
                                 "post - %norm, %c = clip_coefficient(%n) : float32[], float32[]\n"
                                 "fetch s = %s\n"
                                 "fetch norm = %norm\n";

static void hooks_see_everything_in_order(void **state)
{
    struct ct_arena arena = {0};
    struct machine m;

    (void)state;
    machine_start(&m, parse(&arena, small), NULL, 2, IN_TURN);
    start_watching(&m, 0);
    assert_ok(ct_executor_step(m.executor));
    assert_string_equal(watch.seen, "(reciprocal )reciprocal "
                                    "<F0 (rms_norm )rms_norm (squared_norm )squared_norm >F0 "
                                    "<B0 (squared_norm )squared_norm >B0 "
                                    "<F1 (rms_norm )rms_norm (squared_norm )squared_norm >F1 "
                                    "<B1 (squared_norm )squared_norm >B1 "
                                    "(clip_coefficient )clip_coefficient ");
    start_watching(&m, 0);
    assert_ok(ct_executor_init(m.executor));
    assert_string_equal(watch.seen, "(init_constant )init_constant ");
    start_watching(NULL, 0);
    machine_finish(&m);
    ct_arena_finish(&arena);
}

static void a_device_without_stamps_is_not_timed(void **state)
{
    struct ct_arena arena = {0};
    struct machine m;

    (void)state;
    machine_start(&m, parse(&arena, small), NULL, 1, IN_TURN);
    assert_int_equal(ct_executor_time_next(m.executor), CT_EINVAL);
    assert_message("does not time instructions");
    assert_ok(ct_executor_step(m.executor));
    assert_null(ct_executor_times(m.executor));
    machine_finish(&m);
    ct_arena_finish(&arena);
}

static void a_failing_hook_ends_the_step(void **state)
{
    struct ct_arena arena = {0};
    struct machine m;

    (void)state;
    machine_start(&m, parse(&arena, small), NULL, 1, IN_TURN);
    for (size_t at = 1; at <= 14; at++) {
        start_watching(&m, at);
        assert_int_equal(ct_executor_step(m.executor), CT_EIO);
        assert_message("the disk is full");
        assert_int_equal(watch.calls, at);
    }
    start_watching(NULL, 0);
    assert_ok(ct_executor_step(m.executor));
    machine_finish(&m);
    ct_arena_finish(&arena);
}

/* ---- states that init makes from parameters ---- */

static int copied(const struct ct_launch *l)
{
    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++)
        ct_tensor_store(&l->in[0], i, ct_tensor_load(&l->in[1], i));
    return 0;
}

static const struct ct_op_type copied_type = {.size = sizeof(struct ct_op_type),
                                              .name = "copied",
                                              .summary = "y = x",
                                              .signature = "!y[.] F, x[.] F",
                                              .reference = copied};

static double first_of(struct machine *m, const char *name)
{
    double x[4];

    assert_ok(ct_executor_read(m->executor, ct_graph_find(m->graph, name), x, sizeof(x)));
    return x[0];
}

static void put(struct machine *m, const char *name, double value)
{
    assert_ok(ct_executor_write(m->executor, ct_graph_find(m->graph, name), -1,
                                (double[4]){value, value, value, value}, 4 * sizeof(double)));
}

static void states_follow_parameters_that_the_host_writes(void **state)
{
    struct ct_arena arena = {0};
    struct machine m;

    (void)state;
    machine_start(&m,
                  parse(&arena, "param %p : float64[4]\n"
                                "state %c : float64![4]\n"
                                "state %other : float64![4]\n"
                                "init - init_constant(%p) {value=2}\n"
                                "init - init_constant(%other) {value=5}\n"
                                "init - copied(%c, %p)\n"
                                "F - %s = squared_norm(%c) : float64[]\n"
                                "fetch s = %s\n"),
                  NULL, 1, IN_TURN);
    assert_ok(ct_executor_init(m.executor));
    assert_true(first_of(&m, "c") == 2);
    put(&m, "p", 7);
    put(&m, "other", 6);
    assert_ok(ct_executor_step(m.executor));
    assert_true(first_of(&m, "p") == 7 && first_of(&m, "c") == 7 && first_of(&m, "other") == 6);
    put(&m, "c", 9); /* nothing repeats without a reason */
    assert_ok(ct_executor_step(m.executor));
    assert_true(first_of(&m, "c") == 9);
    machine_finish(&m);
    ct_arena_finish(&arena);
}

/* ---- failures of kernels ---- */

static void a_failing_kernel_is_named(void **state)
{
    struct ct_arena arena = {0};
    struct machine m;

    (void)state;
    machine_start(&m, tiny_llama(&arena, (struct tiny){0}), NULL, 1, FORWARD);
    feed_samples(&m);
    assert_ok(ct_executor_write(m.executor, ct_graph_find(m.graph, "tokens"), 0,
                                (int32_t[10]){3, 11}, 10 * sizeof(int32_t)));
    assert_int_equal(ct_executor_step(m.executor), CT_EINVAL);
    assert_message("embedding of %embedding: ");
    assert_message("token 11");
    feed_samples(&m);
    assert_ok(ct_executor_step(m.executor));
    machine_finish(&m);
    ct_arena_finish(&arena);
}

/* ---- borrowing ---- */

static int lower_borrowing(struct machine *m, const struct ct_graph *graph, bool borrow)
{
    struct ct_lower_request request = {.graph = graph,
                                       .microbatches = 1,
                                       .device = m->device,
                                       .borrow = borrow,
                                       .arena = graph->arena};

    m->graph = graph;
    return ct_lower(&request, &m->program);
}

static struct ct_graph *trained(struct ct_arena *arena)
{
    struct ct_graph *graph = tiny_llama(arena, (struct tiny){0});

    assert_ok(ct_differentiate(graph));
    return graph;
}

static void start_owner(struct machine *owner, struct ct_arena *arena, size_t more)
{
    machine_lower(owner, trained(arena), shuffle_device(1), 1, IN_TURN);
    assert_ok(ct_executor_create(
        owner->program, owner->device,
        &(struct ct_executor_memory){.bytes = owner->program->memory.bytes + more},
        &owner->executor));
    assert_ok(ct_executor_init(owner->executor));
}

/* A forward with the parameters of a training step gives that step's loss, wherever in the owner's
   arena it works, and takes no memory for them. */
static void parameters_are_borrowed(void **state)
{
    struct ct_arena arena = {0};
    struct machine owner, guest = {.device = shuffle_device(1)};
    struct ct_graph *graph = tiny_llama(&arena, (struct tiny){0});

    (void)state;
    ct_for_each_op (op, graph)
        op->stream = strcmp(op->region, "head") ? CT_STREAM_COMPUTE : ct_stream("copy_in", 0);
    start_owner(&owner, &arena, 1 << 16);
    assert_ok(lower_borrowing(&guest, graph, true));
    assert_ok(ct_program_verify(guest.program, stderr));
    assert_int_equal(guest.program->init_count, 0);
    assert_int_equal(guest.program->memory.peak[CT_CATEGORY_PARAMETER], 0);
    assert_ok(ct_executor_create_borrowing(guest.program, owner.executor, &guest.executor));
    for (int round = 0; round < 3; round++) {
        double loss;

        feed_samples(&owner);
        assert_ok(ct_executor_step(owner.executor));
        loss = *read_fetch(&owner, "loss", NULL);
        feed_samples(&guest);
        assert_ok(ct_executor_step(guest.executor));
        assert_near(*read_fetch(&guest, "loss", NULL), loss, 0);
    }
    machine_finish(&guest);
    machine_finish(&owner);
    ct_arena_finish(&arena);
}

static const char *const lent = "param %w : float64[8]\n"
                                "init - init_constant(%w) {value=3}\n"
                                "pre - %s = squared_norm(%w) : float64[]\n"
                                "fetch s = %s\n";

/* Through a view, in the microbatch; a change that the owner makes is seen. */
static void views_of_borrowed_parameters(void **state)
{
    struct ct_arena arena = {0};
    struct machine owner, guest = {.device = shuffle_device(1)};
    struct ct_graph *graph = parse(&arena, "param %w : float64[8]\n"
                                           "F - %v = view(%w) {shape=\"4,2\"} : float64[4,2]\n"
                                           "F - %s = squared_norm(%v) : float64[]\n"
                                           "fetch s = %s\n");

    (void)state;
    machine_lower(&owner, parse(&arena, lent), guest.device, 1, FORWARD);
    assert_ok(ct_executor_create(owner.program, owner.device,
                                 &(struct ct_executor_memory){.bytes = 4096}, &owner.executor));
    assert_ok(ct_executor_init(owner.executor));
    assert_ok(lower_borrowing(&guest, graph, true));
    assert_ok(ct_program_verify(guest.program, stderr));
    assert_ok(ct_executor_create_borrowing(guest.program, owner.executor, &guest.executor));
    assert_ok(ct_executor_step(guest.executor));
    assert_near(*read_fetch(&guest, "s", NULL), 8 * 9, 0);
    assert_ok(ct_executor_write(owner.executor, ct_graph_find(owner.graph, "w"), -1, (double[8]){5},
                                8 * sizeof(double)));
    assert_ok(ct_executor_step(guest.executor));
    assert_near(*read_fetch(&guest, "s", NULL), 25, 0);
    assert_near(*read_value(&guest, ct_graph_find(graph, "w"), NULL), 5, 0);
    machine_finish(&guest);
    machine_finish(&owner);
    ct_arena_finish(&arena);
}

static void what_cannot_be_borrowed(void **state)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"param %u : float64[8]\npre - %s = squared_norm(%u) : float64[]\nfetch s = %s\n",
         "%u is not there to borrow"},
        {"param %w : float64[9]\npre - %s = squared_norm(%w) : float64[]\nfetch s = %s\n",
         "%w cannot be borrowed: its shapes differ"},
        {"param %w : float32[8]\npre - %s = squared_norm(%w) : float64[]\nfetch s = %s\n",
         "%w cannot be borrowed: its shapes differ"},
        {"param %w : float64[8]\n"
         "pre - %c = cast(%w) {dtype=\"float64\"} : float64[8]\n"
         "pre - %d = cast(%c) {dtype=\"float64\"} : float64[8]\n"
         "pre - %s = squared_norm(%c, %d) : float64[]\n"
         "fetch s = %s\n",
         "no room for a second program of"},
    };
    struct ct_arena arena = {0};
    struct machine owner, guest = {.device = reference_device()};

    (void)state;
    machine_start(&owner, parse(&arena, lent), NULL, 1, FORWARD);
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        assert_ok(lower_borrowing(&guest, parse(&arena, cases[i].text), true));
        assert_int_equal(
            ct_executor_create_borrowing(guest.program, owner.executor, &guest.executor),
            CT_EINVAL);
        assert_message(cases[i].says);
    }
    machine_finish(&owner);
    ct_arena_finish(&arena);
}

/* ---- memory that a communicator gives ---- */

static void lent_memory_is_used(void **state)
{
    struct ct_arena arena = {0};
    struct machine m;
    char *base;

    (void)state;
    machine_lower(&m, parse(&arena, lent), NULL, 1, FORWARD);
    base = ct_arena_alloc(&arena, m.program->memory.bytes);
    assert_ok(ct_executor_create(
        m.program, m.device,
        &(struct ct_executor_memory){.bytes = m.program->memory.bytes, .base = base}, &m.executor));
    assert_ok(ct_executor_init(m.executor));
    assert_ptr_equal(ct_executor_tensor(m.executor, ct_graph_find(m.graph, "w"), -1).data, base);
    assert_near(*(double *)base, 3, 0);
    machine_finish(&m);
    ct_arena_finish(&arena);
}

/* ---- access from the host ---- */

static void what_has_no_place_cannot_be_read(void **state)
{
    struct ct_arena arena = {0};
    struct machine m;
    double room[16];

    (void)state;
    machine_start(&m, parse(&arena, small), NULL, 1, IN_TURN);
    assert_int_equal(
        ct_executor_read(m.executor, ct_graph_find(m.graph, "y"), room, 8 * sizeof(double)),
        CT_EINVAL);
    assert_message("%y has no place of its own after the step");
    assert_non_null(ct_executor_tensor(m.executor, ct_graph_find(m.graph, "x"), 0).data);
    assert_null(ct_executor_tensor(m.executor, ct_graph_find(m.graph, "x"), -1).data);
    machine_finish(&m);
    ct_executor_destroy(NULL);
    ct_arena_finish(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hooks_see_everything_in_order),
        cmocka_unit_test(a_device_without_stamps_is_not_timed),
        cmocka_unit_test(a_failing_hook_ends_the_step),
        cmocka_unit_test(states_follow_parameters_that_the_host_writes),
        cmocka_unit_test(a_failing_kernel_is_named),
        cmocka_unit_test(parameters_are_borrowed),
        cmocka_unit_test(views_of_borrowed_parameters),
        cmocka_unit_test(what_cannot_be_borrowed),
        cmocka_unit_test(lent_memory_is_used),
        cmocka_unit_test(what_has_no_place_cannot_be_read),
    };

    if (ct_ops_register() < 0 || ct_op_register(&copied_type) < 0)
        return 1;
    return cmocka_run_group_tests(tests, register_hook, NULL);
}
