/*
 * Assigns the model's regions to stages.
 *
 * Regions (embedding, layers, head) stay whole and in order. Without split points, the splits
 * minimise the cost of the costliest stage, in floating-point operations of the forward. Among
 * those the most even ones are taken. With layers_per_stage every region costs the same.
 */
#include <float.h>
#include <string.h>

#include <ctitan/error.h>

#include "pp.h"

struct regions {
    const char **name;
    double *cost;
    int count;
    struct ct_arena arena;
};

static int find(const struct regions *r, const char *name)
{
    for (int i = 0; i < r->count; i++)
        if (!strcmp(r->name[i], name))
            return i;
    return -1;
}

/* In the order of their first ops. */
static void find_regions(const struct ct_graph *graph, struct regions *r)
{
    size_t names = 0, costs = 0;

    *r = (struct regions){0};
    ct_for_each_op (op, graph) {
        int i;

        if (op->section->part != CT_PART_F)
            continue;
        i = find(r, op->region);
        if (i < 0) {
            i = r->count++;
            r->name = ct_arena_grow(&r->arena, r->name, &names, (size_t)r->count, sizeof(*r->name));
            r->cost = ct_arena_grow(&r->arena, r->cost, &costs, (size_t)r->count, sizeof(*r->cost));
            r->name[i] = op->region;
            r->cost[i] = 0;
        }
        r->cost[i] += ct_op_flops(graph, op, -1);
    }
}

/* ---- splits ---- */

/* The best splits of the first n regions into s stages. */
struct best {
    double costliest, squares; /* cost of the costliest stage; sum of squared costs */
    int last;                  /* first region of the last stage */
};

static bool better(double costliest, double squares, const struct best *than)
{
    double slack = 1e-9 * costliest;

    if (costliest < than->costliest - slack)
        return true;
    return costliest <= than->costliest + slack && squares < than->squares * (1 - 1e-9);
}

static void extend(const struct regions *r, const struct best *shorter, struct best *b, int n)
{
    double sum = 0;

    *b = (struct best){DBL_MAX, DBL_MAX, -1};
    for (int first = n - 1; first >= 0; first--) {
        double costliest, squares;

        sum += r->cost[first];
        if (shorter[first].last < 0 && first > 0)
            continue;
        costliest = shorter[first].costliest > sum ? shorter[first].costliest : sum;
        squares = shorter[first].squares + sum * sum;
        if (shorter[first].costliest < DBL_MAX && better(costliest, squares, b))
            *b = (struct best){costliest, squares, first};
    }
}

/* begins[i]: region i is the first of a stage. */
static void balance(struct regions *r, int stages, bool *begins)
{
    int room = r->count + 1;
    struct best *table =
        ct_arena_array(&r->arena, struct best, (size_t)room * ((size_t)stages + 1));

    for (int n = 0; n < room; n++)
        table[n] = (struct best){n ? DBL_MAX : 0, n ? DBL_MAX : 0, n ? -1 : 0};
    for (int s = 1; s <= stages; s++) {
        table[s * room] = (struct best){DBL_MAX, DBL_MAX, -1};
        for (int n = 1; n < room; n++)
            extend(r, &table[(s - 1) * room], &table[s * room + n], n);
    }
    for (int s = stages, n = r->count; s > 0; s--) {
        n = table[s * room + n].last;
        begins[n] = true;
    }
}

/* The next name of [pp] split_points, cut off the text at *rest; NULL: there is none. */
static char *next_point(char **rest)
{
    char *name;

    while ((name = strsep(rest, ","))) {
        name += strspn(name, " \t");
        name[strcspn(name, " \t")] = '\0';
        if (*name)
            break;
    }
    return name;
}

/* CT_ECONFIG: a name is not a region. */
static int read_points(struct regions *r, bool *begins)
{
    char *rest = ct_arena_strdup(&r->arena, pp_config.split_points), *name;

    begins[0] = true;
    while ((name = next_point(&rest))) {
        int i = find(r, name);

        if (i < 0)
            return ct_fail(
                CT_ECONFIG,
                "[pp] split_points: the model has no region '%s'; its regions are %s, %s "
                ".. %s%s",
                name, r->name[0], r->name[r->count > 1], r->name[r->count - 1],
                ct_did_you_mean(name, r->name, (size_t)r->count));
        if (begins[i])
            return ct_fail(CT_ECONFIG,
                           "[pp] split_points: %s is listed twice, or is the first region", name);
        begins[i] = true;
    }
    return 0;
}

int pp_count_stages(const struct ct_graph *graph)
{
    int each = (int)pp_config.layers_per_stage, stages = 0;
    struct regions r;
    char *rest;

    if (!each && !*pp_config.split_points)
        return 0;
    find_regions(graph, &r);
    rest = ct_arena_strdup(&r.arena, pp_config.split_points);
    if (*rest)
        for (stages = 1; next_point(&rest);)
            stages++;
    else
        stages = (r.count + each - 1) / each;
    ct_arena_finish(&r.arena);
    return stages;
}

/* ---- stages of ops ---- */

static void set_stages(struct ct_graph *graph, const struct regions *r, const bool *begins)
{
    ct_for_each_op (op, graph) {
        int region = find(r, op->region), stage = -1;

        for (int i = 0; i <= region; i++)
            stage += begins[i];
        op->section = ct_graph_section(graph, op->section->part, stage < 0 ? 0 : stage);
    }
}

int pp_check_points(const struct ct_graph *graph)
{
    struct regions r;
    int rc = 0;

    if (*pp_config.split_points && pp_config.layers_per_stage)
        return ct_fail(CT_ECONFIG, "[pp] split_points and layers_per_stage: give one of them, as "
                                   "each says where stages begin");
    if (!*pp_config.split_points)
        return 0;
    find_regions(graph, &r);
    rc = read_points(&r, ct_arena_array(&r.arena, bool, r.count + 1));
    ct_arena_finish(&r.arena);
    return rc;
}

int pp_partition(struct ct_graph *graph, int stages)
{
    struct regions r;
    bool *begins;
    int rc = 0;

    find_regions(graph, &r);
    begins = ct_arena_array(&r.arena, bool, r.count + 1);
    if (stages > r.count)
        rc = ct_fail(CT_ECONFIG,
                     "%d pipeline stages, but the model has only %d regions (embedding, layers, "
                     "head): lower [pp] degree, or choose a schedule with fewer stages per rank",
                     stages, r.count);
    for (int i = 0; pp_config.layers_per_stage && i < r.count; i++)
        r.cost[i] = 1;
    if (rc == 0 && *pp_config.split_points)
        rc = read_points(&r, begins);
    else if (rc == 0)
        balance(&r, stages, begins);
    if (rc == 0)
        set_stages(graph, &r, begins);
    ct_arena_finish(&r.arena);
    return rc;
}
