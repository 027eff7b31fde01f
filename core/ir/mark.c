/*
 * The names of marks: a short, process-wide table.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/graph.h>

static struct {
    struct ct_arena arena;
    const char *name[CT_MARKS];
    int count;
} table;

ct_marks ct_mark(const char *name)
{
    int i = 0;

    while (i < table.count && strcmp(table.name[i], name) != 0)
        i++;
    if (i == CT_MARKS) {
        ct_fail(CT_EINVAL, "no room for mark \"%s\": there are %d already", name, CT_MARKS);
        return 0;
    }
    if (i == table.count)
        table.name[table.count++] = ct_arena_strdup(&table.arena, name);
    return (ct_marks)1 << i;
}

const char *ct_mark_name(int index)
{
    return index < table.count ? table.name[index] : NULL;
}
