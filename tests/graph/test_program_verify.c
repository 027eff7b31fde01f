/*
 * The program's verifier, by programs that are harmed in one place: it must complain about each.
 */
#include <stdio.h>

#include <ctitan/app/verify.h>
#include <ctitan/device/device.h>

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
        struct ct_instruction *at = &p->step[i];

        at->lowered = ct_arena_copy(p->arena, at->lowered, sizeof(*at->lowered));
        at->buffers = ct_arena_copy(
            p->arena, at->buffers, sizeof(*at->buffers) * (size_t)(at->op->ins + at->op->outs + 1));
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
    assert_int_equal(ct_instruction_offset(m.program, c, 2),
                     ct_instruction_offset(m.program, &m.program->step[0], 2));
    assert_non_null(c->waits);
    c->waits = NULL;
    must_complain(&m, "accesses %c, unordered with instruction 1");
    finish(&m, &arena);
}

static void a_workspace_is_a_buffer_of_its_own(void **state)
{
    struct ct_arena arena = {0};
    struct machine m;
    struct ct_instruction *i;

    (void)state;
    lower_model(&m, &arena, 1);
    i = &m.program->step[0];
    ((struct ct_lowered *)i->lowered)->workspace = 1;
    ((int32_t *)i->buffers)[i->op->ins + i->op->outs] = 0;
    must_complain(&m, "has its workspace outside");
    finish(&m, &arena);
}

static bool always(const struct ct_buffer *b)
{
    return b->first < 0 && b->last == INT32_MAX;
}

/* A buffer that is too small for its tensors, or does not live while they are used. */
static void shortened_buffers(void **state)
{
    struct ct_arena arena = {0};
    struct machine m;
    int count = 0;

    (void)state;
    lower_model(&m, &arena, 2);
    for (size_t i = 0; i < m.program->buffer_count; i++) {
        struct ct_buffer *b = &m.program->buffers[i], old = *b;

        b->bytes -= 1;
        must_complain(&m, "outside its buffer's life");
        *b = old;
        if (always(b))
            continue;
        b->first += 1;
        must_complain(&m, "outside its buffer's life");
        *b = old;
        if (b->last != INT32_MAX) {
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

/* Operands that name no buffer, or one of another time. */
static void exchanged_buffers(void **state)
{
    struct ct_arena arena = {0};
    struct machine m;
    const struct ct_program *p;
    int count = 0;

    (void)state;
    lower_model(&m, &arena, 2);
    p = m.program;
    for (size_t i = 0; i < p->step_count; i++)
        for (int k = 0; k < p->step[i].op->ins + p->step[i].op->outs; k++) {
            int32_t *b = (int32_t *)&p->step[i].buffers[k], old = *b;

            if (old < 0)
                continue;
            *b = -1;
            must_complain(&m, "outside its buffer's life");
            for (*b = 0; p->buffers[*b].first < (int32_t)i; ++*b)
                if (p->buffers[*b].last < (int32_t)i && p->buffers[*b].first >= 0)
                    break;
            if (p->buffers[*b].last < (int32_t)i) {
                must_complain(&m, "outside its buffer's life");
                count++;
            }
            *b = old;
        }
    assert_true(count > 30);
    assert_ok(ct_program_verify(p, stderr));
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

/* %b's first taker, moved in front of its second term. */
static void sums_taken_too_early_are_found(void **state)
{
    struct ct_arena arena = {0};
    struct machine m;
    struct ct_instruction *step, second;
    size_t end;

    (void)state;
    lower_text(&m, &arena,
               "input %x : float64[64]\n"
               "F - %b = add(%x, %x) : float64[64]\n"
               "post - %s = squared_norm(%b) : float64[]\n"
               "fetch s = %s\n",
               2);
    step = m.program->step;
    second = step[m.program->step_count - 2];
    step[m.program->step_count - 2] = step[m.program->step_count - 1];
    step[m.program->step_count - 1] = second;
    end = m.program->memory.bytes;
    m.program->memory.bytes += 4096;
    for (size_t i = 0; i < m.program->buffer_count; i++) {
        struct ct_buffer *b = &m.program->buffers[i];

        if (b->first < 0)
            continue;
        *b = (struct ct_buffer){.value = b->value,
                                .bytes = b->bytes,
                                .microbatch = b->microbatch,
                                .offset = end,
                                .last = INT32_MAX};
        end += 1024;
    }
    must_complain(&m, "adds to %b, which instruction");
    finish(&m, &arena);
}

static void adding_to_nothing(void **state)
{
    struct ct_arena arena = {0};
    struct machine m;
    struct ct_lowered *of;
    int first = -1;

    (void)state;
    lower_model(&m, &arena, 2);
    for (size_t i = 0; first < 0 && i < m.program->step_count; i++)
        if (!strcmp(m.program->step[i].op->type->name, "linear_dw"))
            first = (int)i;
    of = (struct ct_lowered *)m.program->step[first].lowered;
    assert_int_equal(of->launch.accumulate, 0);
    of->launch.accumulate = 1;
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
        cmocka_unit_test(shortened_buffers),
        cmocka_unit_test(exchanged_buffers),
        cmocka_unit_test(shared_memory_is_found),
        cmocka_unit_test(a_small_arena),
        cmocka_unit_test(swapped_instructions_are_found),
        cmocka_unit_test(sums_taken_too_early_are_found),
        cmocka_unit_test(adding_to_nothing),
        cmocka_unit_test(all_faults_are_reported),
    };

    if (ct_ops_register() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
