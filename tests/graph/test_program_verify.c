/*
 * The program's verifier, by programs that are harmed in one place: it must complain about each.
 */
#include <stdio.h>

#include <ctitan/device/device.h>
#include <ctitan/lib/app/verify.h>

#include "support.h"

/* Three streams that need each other: every wait in this program is needed. */
static const char *const relay = "param %p : float64[64]\n"
                                 "input %x : float64[64]\n"
                                 "pre - /gather %r = reciprocal(%p) : float64[64]\n"
                                 "F - /copy_in %a = add(%x, %r) : float64[64]\n"
                                 "F - /compute %b = add(%a, %r) : float64[64]\n"
                                 "F - /reduce %c = add(%b, %b) : float64[64]\n"
                                 "F - /compute %s = squared_norm(%c) : float64[]\n"
                                 "fetch s = %s\n";

/* Arrays that the tests may write to; program->step is one of them afterwards. */
static void make_writable(struct ct_program *p)
{
    p->step = ct_arena_copy(p->arena, p->step, sizeof(*p->step) * p->step_count);
    for (size_t i = 0; i < p->step_count; i++) {
        struct ct_launch *l = &p->step[i].launch;

        l->in = ct_arena_copy(p->arena, l->in, sizeof(*l->in) * (size_t)l->ins);
        l->out = ct_arena_copy(p->arena, l->out, sizeof(*l->out) * (size_t)l->outs);
    }
}

static void lower_text(struct machine *m, struct ct_arena *arena, const char *text,
                       int microbatches)
{
    struct ct_graph *graph = parse(arena, text);

    assert_ok(ct_graph_verify(graph, stderr));
    machine_lower(m, graph, NULL, microbatches, FORWARD);
    make_writable(m->program);
}

static void lower_model(struct machine *m, struct ct_arena *arena, int microbatches)
{
    struct ct_graph *graph = tiny_llama(arena, (struct tiny){.layers = 1});

    assert_ok(ct_differentiate(graph));
    fetch_gradients(graph);
    machine_lower(m, graph, NULL, microbatches, SPLIT);
    make_writable(m->program);
}

static void must_complain(const struct machine *m, const char *says)
{
    assert_int_equal(ct_program_verify(m->program, NULL), CT_EINVAL);
    assert_message(says);
}

static void finish(struct machine *m, struct ct_arena *arena)
{
    machine_finish(m);
    ct_arena_finish(arena);
}

static void dropped_waits_are_found(void **state)
{
    struct ct_arena arena = {0};
    struct machine m;
    int waits = 0;

    (void)state;
    lower_text(&m, &arena, relay, 1);
    for (size_t i = 0; i < m.program->step_count; i++) {
        const int32_t *list = m.program->step[i].waits;

        for (int k = 0; list && list[k] >= 0; k++) {
            int32_t shorter[CT_STREAMS + 1], n = 0;

            for (int j = 0; list[j] >= 0; j++)
                if (j != k)
                    shorter[n++] = list[j];
            shorter[n] = -1;
            m.program->step[i].waits = shorter;
            must_complain(&m, "unordered with instruction");
            m.program->step[i].waits = list;
            waits++;
        }
    }
    assert_ok(ct_program_verify(m.program, stderr));
    assert_int_equal(waits, 4);
    finish(&m, &arena);
}

static void dropped_signals_are_found(void **state)
{
    struct ct_arena arena = {0};
    struct machine m;
    int signals = 0;

    (void)state;
    lower_text(&m, &arena, relay, 1);
    for (size_t i = 0; i < m.program->step_count; i++) {
        int32_t signal = m.program->step[i].signal;

        if (signal < 0)
            continue;
        m.program->step[i].signal = -1;
        must_complain(&m, "which none before it signals");
        m.program->step[i].signal = signal;
        signals++;
    }
    assert_int_equal(signals, m.program->events);
    finish(&m, &arena);
}

/* %c gets the memory of %a, and its stream wrote %a: only the reader of %a must be waited for. */
static void reused_memory_waits_for_its_readers(void **state)
{
    struct ct_arena arena = {0};
    struct machine m;
    struct ct_instruction *c = NULL;

    (void)state;
    lower_text(&m, &arena,
               "input %x : float64[64]\n"
               "F - /compute %a = add(%x, %x) : float64[64]\n"
               "F - /reduce %b = add(%a, %a) : float64[64]\n"
               "F - /compute %c = add(%x, %x) : float64[64]\n"
               "F - /compute %d = add(%b, %c) : float64[64]\n"
               "F - /compute %s = squared_norm(%d) : float64[]\n"
               "fetch s = %s\n",
               1);
    for (size_t i = 0; i < m.program->step_count; i++)
        if (!strcmp(m.program->step[i].op->out[0]->name, "c"))
            c = &m.program->step[i];
    assert_non_null(c);
    assert_ptr_equal(c->launch.out[0].data, m.program->step[0].launch.out[0].data);
    assert_non_null(c->waits);
    c->waits = NULL;
    must_complain(&m, "accesses %c, unordered with instruction 1");
    finish(&m, &arena);
}

static void a_workspace_is_a_buffer_of_its_own(void **state)
{
    struct ct_arena arena = {0};
    struct machine m;

    (void)state;
    lower_model(&m, &arena, 1);
    m.program->step[0].workspace = m.program->buffers[0].offset;
    must_complain(&m, "has its workspace outside");
    finish(&m, &arena);
}

static bool always(const struct ct_buffer *b)
{
    return b->first < 0 && b->last == INT64_MAX;
}

/* A buffer that is not where its tensors are, or does not live while they are used. */
static void moved_and_shortened_buffers(void **state)
{
    struct ct_arena arena = {0};
    struct machine m;
    int count = 0;

    (void)state;
    lower_model(&m, &arena, 2);
    for (size_t i = 0; i < m.program->buffer_count; i++) {
        struct ct_buffer *b = &m.program->buffers[i], old = *b;

        b->offset += 64;
        must_complain(&m, "");
        *b = old;
        b->bytes -= 1;
        must_complain(&m, "outside its buffer's life");
        *b = old;
        if (always(b))
            continue;
        b->first += 1;
        must_complain(&m, "outside its buffer's life");
        *b = old;
        if (b->last != INT64_MAX) {
            b->last -= 1;
            must_complain(&m, "outside its buffer's life");
            *b = old;
        }
        count++;
    }
    assert_true(count > 30);
    assert_ok(ct_program_verify(m.program, stderr));
    finish(&m, &arena);
}

static void shared_memory_is_found(void **state)
{
    struct ct_arena arena = {0};
    struct machine m;

    (void)state;
    lower_model(&m, &arena, 1);
    m.program->buffers[1].offset = m.program->buffers[0].offset;
    must_complain(&m, "share memory while both are live");
    m.program->buffers[1].offset = m.program->buffers[0].offset + 4; /* it begins inside */
    must_complain(&m, "share memory while both are live");
    finish(&m, &arena);
}

static void a_small_arena(void **state)
{
    struct ct_arena arena = {0};
    struct machine m;

    (void)state;
    lower_model(&m, &arena, 1);
    m.program->memory.bytes -= 256;
    must_complain(&m, "ends beyond the arena");
    finish(&m, &arena);
}

/* Neighbours that depend on each other, swapped. */
static void swapped_instructions_are_found(void **state)
{
    struct ct_arena arena = {0};
    struct machine m;
    struct ct_instruction *step, first;

    (void)state;
    lower_text(&m, &arena,
               "input %x : float64[64]\n"
               "F - %a = add(%x, %x) : float64[64]\n"
               "F - %s = squared_norm(%a) : float64[]\n"
               "fetch s = %s\n",
               1);
    step = m.program->step;
    first = step[0];
    step[0] = step[1];
    step[1] = first;
    must_complain(&m, "reads %a before anything wrote it");
    finish(&m, &arena);
}

static void adding_to_nothing(void **state)
{
    struct ct_arena arena = {0};
    struct machine m;
    int first = -1;

    (void)state;
    lower_model(&m, &arena, 2);
    for (size_t i = 0; first < 0 && i < m.program->step_count; i++)
        if (!strcmp(m.program->step[i].op->type->name, "linear_dw"))
            first = (int)i;
    assert_int_equal(m.program->step[first].launch.accumulate, 0);
    m.program->step[first].launch.accumulate = 1;
    must_complain(&m, "before anything wrote it");
    finish(&m, &arena);
}

static void all_faults_are_reported(void **state)
{
    struct ct_arena arena = {0};
    struct machine m;
    char *report;
    size_t size;
    FILE *out = open_memstream(&report, &size);

    (void)state;
    lower_text(&m, &arena, relay, 1);
    m.program->step[1].signal = -1;
    m.program->memory.bytes = 64;
    assert_int_equal(ct_program_verify(m.program, out), CT_EINVAL);
    fclose(out);
    assert_message("(and more)");
    assert_non_null(strstr(report, "ends beyond the arena"));
    assert_non_null(strstr(report, "which none before it signals"));
    free(report);
    finish(&m, &arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dropped_waits_are_found),
        cmocka_unit_test(dropped_signals_are_found),
        cmocka_unit_test(reused_memory_waits_for_its_readers),
        cmocka_unit_test(a_workspace_is_a_buffer_of_its_own),
        cmocka_unit_test(moved_and_shortened_buffers),
        cmocka_unit_test(shared_memory_is_found),
        cmocka_unit_test(a_small_arena),
        cmocka_unit_test(swapped_instructions_are_found),
        cmocka_unit_test(adding_to_nothing),
        cmocka_unit_test(all_faults_are_reported),
    };

    if (ct_ops_register() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
