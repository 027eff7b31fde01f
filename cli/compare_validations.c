/*
 * The last validation of each set of two runs, side by side.
 */
#include <math.h>
#include <string.h>

#include <ctitan/lib/json.h>

#include "compare_validations.h"

static const struct run_validation *find(const struct run_log *log, const char *set)
{
    const struct run_validation *v = NULL;

    for (size_t i = 0; (v = run_last_validation(log, i)) && strcmp(v->set, set) != 0; i++)
        ;
    return v;
}

/* Set number `index` of A's, and then of those that B alone has; NULL: there are fewer. */
static const char *set_at(const struct run_log *a, const struct run_log *b, size_t index)
{
    const struct run_validation *v;

    for (size_t i = 0; (v = run_last_validation(a, i)); i++)
        if (index-- == 0)
            return v->set;
    for (size_t i = 0; (v = run_last_validation(b, i)); i++)
        if (!find(a, v->set) && index-- == 0)
            return v->set;
    return NULL;
}

static void print_one(const struct run_validation *v)
{
    if (v)
        printf(" %10.5f after step %-6lld%s", v->loss, (long long)v->step, v->metrics);
    else
        printf(" %10s %18s", "none", "");
}

void compare_print_validations(const struct run_log *a, const struct run_log *b)
{
    const char *set;

    for (size_t i = 0; (set = set_at(a, b, i)); i++) {
        printf("validation%s%-21s", *set ? " " : "", set);
        print_one(find(a, set));
        print_one(find(b, set));
        printf("\n");
    }
}

json_t *compare_json_validations(const struct run_log *a, const struct run_log *b)
{
    json_t *list = json_array();
    const char *set;

    for (size_t i = 0; (set = set_at(a, b, i)); i++) {
        const struct run_validation *one = find(a, set), *two = find(b, set);

        json_array_append_new(list, json_pack("{ss so so sI sI ss ss}", "set", set, "loss_a",
                                              ct_json_number(one ? one->loss : NAN), "loss_b",
                                              ct_json_number(two ? two->loss : NAN), "step_a",
                                              (json_int_t)(one ? one->step : 0), "step_b",
                                              (json_int_t)(two ? two->step : 0), "metrics_a",
                                              one ? one->metrics : "", "metrics_b",
                                              two ? two->metrics : ""));
    }
    return list;
}
