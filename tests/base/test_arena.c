#include "assertions.h"

#include <sys/wait.h>
#include <unistd.h>

#include <ctitan/app/exhausted.h>
#include <ctitan/arena.h>

static void everything_is_zeroed_aligned_and_apart(void **state)
{
    static const size_t sizes[] = {0, 1, 7, 16, 100, 5000, 16 << 10, (16 << 10) + 1, 1 << 20, 3};
    struct ct_arena arena = {0};
    unsigned char *got[200];

    (void)state;
    for (size_t i = 0; i < CT_COUNT(got); i++) {
        size_t size = sizes[i % CT_COUNT(sizes)];

        got[i] = ct_arena_alloc(&arena, size);
        assert_int_equal((uintptr_t)got[i] % _Alignof(max_align_t), 0);
        for (size_t k = 0; k < size; k++)
            assert_int_equal(got[i][k], 0);
        memset(got[i], (int)(i + 1), size);
    }
    for (size_t i = 0; i < CT_COUNT(got); i++)
        for (size_t k = 0; k < sizes[i % CT_COUNT(sizes)]; k++)
            assert_int_equal(got[i][k], (unsigned char)(i + 1));
    assert_true(arena.total >= 20 * (1 << 20));
    ct_arena_finish(&arena);
    assert_null(arena.head);
    assert_int_equal(arena.total, 0);
}

static void large_objects_leave_the_head_its_room(void **state)
{
    struct ct_arena arena = {0};
    char *first = ct_arena_alloc(&arena, 16), *second;

    (void)state;
    assert_int_equal(ct_arena_taken(&arena), 16);
    ct_arena_alloc(&arena, 1 << 20);
    second = ct_arena_alloc(&arena, 16);
    assert_ptr_equal(second, first + 16);
    assert_int_equal(ct_arena_taken(&arena), 32 + (1 << 20));
    ct_arena_finish(&arena);
}

static void text_is_copied_and_formatted(void **state)
{
    struct ct_arena arena = {0};
    char longer[5001];

    (void)state;
    memset(longer, 'x', 5000);
    longer[5000] = '\0';
    assert_string_equal(ct_arena_strdup(&arena, ""), "");
    assert_string_equal(ct_arena_strdup(&arena, longer), longer);
    assert_string_equal(ct_arena_printf(&arena, "%d %s", 7, "a"), "7 a");
    assert_int_equal(strlen(ct_arena_printf(&arena, "%s%s", longer, longer)), 10000);
    assert_memory_equal(ct_arena_copy(&arena, "a\0b", 3), "a\0b", 3);
    ct_arena_finish(&arena);
}

static void arrays_grow_and_keep_their_items(void **state)
{
    struct ct_arena arena = {0};
    size_t room = 0;
    int *items = NULL;

    (void)state;
    for (int i = 0; i < 10000; i++) {
        items = ct_arena_grow(&arena, items, &room, (size_t)i + 1, sizeof(*items));
        items[i] = i;
    }
    assert_true(room >= 10000);
    for (int i = 0; i < 10000; i++)
        assert_int_equal(items[i], i);
    assert_ptr_equal(ct_arena_grow(&arena, items, &room, 5, sizeof(*items)), items);
    ct_arena_finish(&arena);
}

#define TOO_MUCH ((size_t)1 << 60)

static void end_in_order(size_t bytes)
{
    _exit(bytes == TOO_MUCH ? 7 : 1);
}

/* AddressSanitizer would end the program itself. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

static void a_program_is_told_before_it_ends_without_memory(void **state)
{
    struct ct_arena arena = {0};
    int status = 0;
    pid_t child = fork();

    (void)state;
    if (child == 0) {
        ct_arena_on_exhausted(end_in_order);
        ct_arena_alloc(&arena, TOO_MUCH);
        _exit(2);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_is_zeroed_aligned_and_apart),
        cmocka_unit_test(large_objects_leave_the_head_its_room),
        cmocka_unit_test(text_is_copied_and_formatted),
        cmocka_unit_test(arrays_grow_and_keep_their_items),
        cmocka_unit_test(a_program_is_told_before_it_ends_without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
