/* The code that is written for formulas, without compiling it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include <ctitan/lib/rows.h>

#define SQUARES 40

static int call(struct ct_pointwise *p, enum ct_pointwise_kind kind, int a, int b)
{
    return ct_pointwise_call(p, kind, (int[]){a, b, 0});
}

/* y = x * c^2^SQUARES: each square is used twice. */
static void texts_grow_with_nodes(void **state)
{
    struct ct_arena arena = {0};
    struct ct_rows_program f = {.p = {.arena = &arena},
                                .ins = 2,
                                .outs = 1,
                                .in_dtype = {CT_F32, CT_F32},
                                .out_dtype = {CT_F32}};
    int x = ct_pointwise_input(&f.p, 0, CT_BY_ROW | CT_BY_COLUMN);
    int c = ct_pointwise_input(&f.p, 1, CT_BY_COLUMN);
    struct ct_rows_code code;

    for (int i = 0; i < SQUARES; i++)
        c = call(&f.p, CT_POINTWISE_MULTIPLY, c, c);
    f.out[0] = call(&f.p, CT_POINTWISE_MULTIPLY, x, c);
    ct_rows_write(&f, CT_ROWS_KEPT, &arena, &code);
    assert_int_equal(code.buffers, 1);
    assert_in_range(strlen(code.text), SQUARES, SQUARES * 100);
    ct_rows_write(&f, 0, &arena, &code);
    assert_int_equal(code.buffers, 0);
    assert_in_range(strlen(code.text), SQUARES, SQUARES * 100);
    ct_arena_finish(&arena);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts_grow_with_nodes)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
