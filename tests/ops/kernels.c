/*
 * What every op type promises, on every sample: lib/app/check.h.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include <ctitan/error.h>
#include <ctitan/lib/app/check.h>
#include <ctitan/lib/ops.h>

#include "plugin_ops.h"

static int run(const struct ct_op_check *check, const struct ct_sample *s)
{
    int checked = 0;

    for (; s->type; s++) {
        int rc = check->check(s);

        if (rc < 0)
            fail_msg("%s: %s", check->name, ct_error_message());
        checked += rc;
    }
    return checked;
}

/* Each type gives its samples. Types without a reference kernel are collectives: they have no
   meaning on one rank. */
static void every_type_keeps_every_promise(void **state)
{
    struct ct_arena arena = {0};

    (void)state;
    assert_non_null(ct_op_at(0));
    for (const struct ct_op_check *check = ct_op_checks; check->name; check++) {
        struct ct_sample *own;
        int checked = 0;

        for (size_t i = 0; ct_op_at(i); i++) {
            if (!ct_op_at(i)->reference)
                continue;
            if (!ct_op_at(i)->samples || ct_samples_of(ct_op_at(i), &arena, &own) < 0)
                fail_msg("op type %s is not sampled", ct_op_at(i)->name);
            checked += run(check, own);
        }
        printf("%s: %d\n", check->name, checked);
        assert_true(checked >= 6); /* few types know positions */
    }
    ct_arena_finish(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_keeps_every_promise),
    };
    if (REGISTER_OPS("cp", "float8", "tp") < 0)
        return 1;
    return cmocka_run_group_tests_name("promises of op types", tests, NULL, NULL);
}
