/*
 * Values that are cheaper to compute than to hold from the forward to the backward.
 */
#include <ctitan/lib/ops.h>

int ct_compute_again(struct ct_graph *graph, struct ct_op *op, const char *why)
{
    struct ct_value *v = op->out[0];

    ct_for_each_use_safe (use, v) {
        struct ct_builder b;
        struct ct_op *copy;

        if (use->op->section == op->section)
            continue;
        b = ct_builder_before(graph, use->op);
        b.why = why;
        copy = ct_op_clone(&b, op, NULL, "again");
        if (!copy)
            return b.status;
        ct_op_set_input(use->op, use->index, copy->out[0]);
    }
    return 0;
}
