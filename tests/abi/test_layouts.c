/*
 * Changes of the public headers since the first minor version of this interface, beyond those
 * that a minor version may make: plugins that were built against it would be misread.
 *
 * Structs that begin with their size, or that the core alone makes, may grow at their end. All
 * others stay as they are.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "headers.h"

enum growth { FIXED, GROWS };

static const struct layout {
    const char *name; /* of a struct, or of a field: "ct_op_type.flags" */
    size_t offset, bytes, recorded_offset, recorded_bytes;
    enum growth growth;
} layouts[] = {
#define STRUCT(name, bytes, growth, fields) {#name, 0, sizeof(struct name), 0, bytes, growth},
#define NUMBER(name, number)
#include "layouts.inc"
#undef STRUCT
#undef NUMBER
};

static const struct {
    const char *name;
    long long now, recorded;
} numbers[] = {
#define STRUCT(name, bytes, growth, fields)
#define NUMBER(name, number) {#name, name, number},
#include "layouts.inc"
#undef STRUCT
#undef NUMBER
};

static int faults;

static void fault(const char *of, const char *what, size_t now, size_t recorded)
{
    print_error("%s: %s %zu, recorded %zu\n", of, what, now, recorded);
    faults++;
}

static void structs_have_their_recorded_sizes(void **state)
{
    (void)state;
    faults = 0;
    for (size_t i = 0; i < sizeof(layouts) / sizeof(*layouts); i++) {
        const struct layout *l = &layouts[i];

        if (l->growth == FIXED ? l->bytes != l->recorded_bytes : l->bytes < l->recorded_bytes)
            fault(l->name, "bytes", l->bytes, l->recorded_bytes);
    }
    assert_int_equal(faults, 0);
}

#define STRUCT(name, bytes, growth, fields)                                                        \
    static void check_##name(void)                                                                 \
    {                                                                                              \
        typedef struct name type;                                                                  \
        const char *of = #name;                                                                    \
                                                                                                   \
        fields                                                                                     \
    }
#define F(field, place, bytes)                                                                     \
    if (offsetof(type, field) != (place))                                                          \
        fault(of, "offset of " #field, offsetof(type, field), place);                              \
    if (sizeof(((type *)NULL)->field) != (bytes))                                                  \
        fault(of, "bytes of " #field, sizeof(((type *)NULL)->field), bytes);
#define NUMBER(name, number)
#include "layouts.inc"
#undef STRUCT
#undef F

static void fields_lie_where_they_were_recorded(void **state)
{
    (void)state;
    faults = 0;
#define STRUCT(name, bytes, growth, fields) check_##name();
#include "layouts.inc"
#undef STRUCT
#undef NUMBER
    assert_int_equal(faults, 0);
}

static void enumerators_keep_their_numbers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
        if (numbers[i].now != numbers[i].recorded)
            fail_msg("%s is %lld, recorded %lld", numbers[i].name, numbers[i].now,
                     numbers[i].recorded);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(structs_have_their_recorded_sizes),
        cmocka_unit_test(fields_lie_where_they_were_recorded),
        cmocka_unit_test(enumerators_keep_their_numbers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
