/*
 * The order of a step: all forwards of an accumulated batch, then all backwards, the last
 * microbatch first. As each microbatch's activations wait for the backward, this takes the most
 * memory. It shows how a plugin orders a step; pp does it for pipelines.
 */
#include <ctitan/graph.h>
#include <ctitan/model.h>
#include <ctitan/plugin.h>
#include <ctitan/program.h>

static int64_t microbatch_size(void)
{
    return 0; /* a rank's whole local batch */
}

static void append(struct ct_arena *arena, struct ct_order *order, char what, int microbatch,
                   const struct ct_section *first, const struct ct_section *second)
{
    ct_order_append(arena, order,
                    (struct ct_order_item){.name = ct_arena_printf(arena, "%c%d", what, microbatch),
                                           .run = {{first, second}, microbatch},
                                           .beside = {.microbatch = -1}});
}

/* Sections that are not listed run before and after the list. */
static int make_order(const struct ct_run *run, struct ct_graph *graph, int microbatches,
                      bool training, struct ct_arena *arena, struct ct_order *order)
{
    (void)run;
    for (int m = 0; m < microbatches; m++)
        append(arena, order, 'F', m, ct_graph_section(graph, CT_PART_F, CT_NO_GROUP), NULL);
    for (int m = microbatches - 1; training && m >= 0; m--)
        append(arena, order, 'B', m, ct_graph_section(graph, CT_PART_I, CT_NO_GROUP),
               ct_graph_section(graph, CT_PART_W, CT_NO_GROUP));
    return 0;
}

static const struct ct_order_ops order = {
    .size = sizeof(struct ct_order_ops), .microbatch_size = microbatch_size, .order = make_order};

CT_PLUGIN(.name = "forwards_first", .version = "1.0",
          .summary = "Order: all forwards of a step, then all backwards",
          .offers = CT_OFFERS({CT_ORDER, "forwards_first", &order}));
