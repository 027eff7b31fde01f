/*
 * A dry run of the programs of all ranks along an axis, to prove that they terminate.
 *
 * Schedules are proven before they are lowered; this checks the result. It covers every instruction
 * of every rank, streams, events (including waits for reused memory), and transfers that end only
 * when both sides are there. Ranks that differ along other axes run the same program, so
 * collectives without this axis cannot block; those along it wait for all.
 *
 * The host is assumed to wait as it does on a CPU: an instruction after a compute instruction in
 * the program is enqueued only when that is done. in_order: all streams act as one.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/pipeline.h>

struct lane {
    size_t *item; /* instructions of one stream, in the program's order */
    size_t count, next;
};

struct dry_rank {
    const struct ct_program *program;
    struct lane lane[CT_STREAMS];
    bool *happened;  /* by event */
    size_t computed; /* all compute instructions before this one are done */
};

struct dry {
    struct dry_rank *rank;
    int count;
    bool in_order;
    const char *axis;
    struct ct_arena scratch;
};

static const struct ct_instruction *head(const struct dry_rank *r, int stream)
{
    const struct lane *l = &r->lane[stream];

    return l->next < l->count ? &r->program->step[l->item[l->next]] : NULL;
}

static bool sends(const struct ct_instruction *i)
{
    return i->op->type == &ct_op_send;
}

static bool is_transfer(const struct ct_instruction *i)
{
    return i->op->type->flags & CT_OP_RENDEZVOUS;
}

/* Does a collective wait for all ranks along the axis? */
static bool is_along_axis(const struct dry *d, const struct ct_instruction *i)
{
    int axis;

    if (!(i->op->type->flags & CT_OP_COLLECTIVE) || is_transfer(i))
        return false;
    axis = ct_mesh_find(&d->rank[0].program->graph->mesh, d->axis);
    return axis >= 0 && ct_op_axes(i->op, "axes") >> axis & 1;
}

/* Does nothing on its own rank block the head? */
static bool ready(const struct dry *d, const struct dry_rank *r, int stream)
{
    const struct ct_instruction *i = head(r, stream);
    bool ok = i && (d->in_order || stream == CT_STREAM_COMPUTE ||
                    (size_t)(i - r->program->step) < r->computed);

    for (const int32_t *w = i ? i->waits : NULL; ok && w && *w >= 0; w++)
        ok = r->happened[*w];
    return ok;
}

static void finish(struct dry_rank *r, int stream)
{
    struct lane *l = &r->lane[stream];
    const struct ct_instruction *i = head(r, stream);

    if (i->signal >= 0)
        r->happened[i->signal] = true;
    l->next++;
    if (stream == CT_STREAM_COMPUTE)
        r->computed = l->next < l->count ? l->item[l->next] : SIZE_MAX;
}

static int stream_of(const struct dry *d, int stream)
{
    return d->in_order ? CT_STREAM_COMPUTE : stream;
}

/* The other side of a transfer, if it is at its rank's head; else NULL. */
static const struct ct_instruction *partner(const struct dry *d, const struct ct_instruction *i)
{
    const struct dry_rank *r = &d->rank[ct_op_int(i->op, sends(i) ? "to" : "from")];
    const struct ct_instruction *other =
        head(r, stream_of(d, sends(i) ? CT_STREAM_RECEIVE : CT_STREAM_SEND));

    if (!other || !is_transfer(other) || sends(other) == sends(i) ||
        ct_op_int(other->op, "from") != ct_op_int(i->op, "from") ||
        ct_op_int(other->op, "to") != ct_op_int(i->op, "to"))
        return NULL;
    return other;
}

static bool all_there(const struct dry *d, int stream, const struct ct_op_type *type)
{
    for (int n = 0; n < d->count; n++) {
        const struct ct_instruction *i = head(&d->rank[n], stream);

        if (!i || i->op->type != type || !is_along_axis(d, i) || !ready(d, &d->rank[n], stream))
            return false;
    }
    return true;
}

/* Advance rank n by one step on a stream; *moved: it advanced. */
static int step(struct dry *d, int n, int stream, bool *moved)
{
    struct dry_rank *r = &d->rank[n], *there;
    const struct ct_instruction *i = head(r, stream), *other;

    if (!ready(d, r, stream))
        return 0;
    if (is_along_axis(d, i)) {
        if (!all_there(d, stream, i->op->type))
            return 0;
        for (int k = 0; k < d->count; k++)
            finish(&d->rank[k], stream);
    } else if (is_transfer(i)) {
        int far = stream_of(d, sends(i) ? CT_STREAM_RECEIVE : CT_STREAM_SEND);

        there = &d->rank[ct_op_int(i->op, sends(i) ? "to" : "from")];
        other = partner(d, i);
        if (!other || !ready(d, there, far))
            return 0;
        if (ct_op_int(other->op, "tag") != ct_op_int(i->op, "tag"))
            return ct_fail(CT_EINVAL, "rank %d: %s meets another value's", n,
                           sends(i) ? i->op->in[0]->name : i->op->out[0]->name);
        finish(there, far);
        finish(r, stream);
    } else {
        finish(r, stream);
    }
    *moved = true;
    return 0;
}

static bool at_end(const struct dry *d)
{
    for (int n = 0; n < d->count; n++)
        for (int s = 0; s < CT_STREAMS; s++)
            if (head(&d->rank[n], s))
                return false;
    return true;
}

/* Report what every rank is about to do. */
static int stuck(const struct dry *d)
{
    char text[1024] = "";

    for (int n = 0; n < d->count; n++)
        for (int s = 0; s < CT_STREAMS; s++) {
            const struct ct_instruction *i = head(&d->rank[n], s);
            size_t used = strlen(text);

            if (i && (i->op->type->flags & CT_OP_COLLECTIVE || s == CT_STREAM_COMPUTE))
                snprintf(text + used, sizeof(text) - used, "%srank %d is before %s(%%%s)",
                         used ? ", " : "", n, i->op->type->name,
                         i->op->outs ? i->op->out[0]->name : i->op->in[0]->name);
        }
    return ct_fail(CT_EINVAL, "deadlock: %s", text);
}

static void fill(struct dry *d, struct dry_rank *r, const struct ct_program *program)
{
    r->program = program;
    r->happened = ct_arena_array(&d->scratch, bool, program->events + 1);
    for (int s = 0; s < CT_STREAMS; s++)
        r->lane[s] = (struct lane){ct_arena_array(&d->scratch, size_t, program->step_count + 1)};
    for (size_t i = 0; i < program->step_count; i++) {
        struct lane *l = &r->lane[stream_of(d, program->step[i].stream)];

        l->item[l->count++] = i;
    }
    r->computed = r->lane[CT_STREAM_COMPUTE].count ? r->lane[CT_STREAM_COMPUTE].item[0] : SIZE_MAX;
}

int ct_programs_prove(const struct ct_program *const *programs, int count, int axis, bool in_order)
{
    struct dry d = {
        .count = count, .in_order = in_order, .axis = programs[0]->graph->mesh.axis[axis].name};
    bool moved = true;
    int rc = 0;

    d.rank = ct_arena_array(&d.scratch, struct dry_rank, count);
    for (int n = 0; n < count; n++)
        fill(&d, &d.rank[n], programs[n]);
    while (rc == 0 && moved) {
        moved = false;
        for (int n = 0; rc == 0 && n < count; n++)
            for (int s = 0; rc == 0 && s < CT_STREAMS; s++) {
                bool more = true;

                while (rc == 0 && more) {
                    more = false;
                    rc = step(&d, n, s, &more);
                    moved |= more;
                }
            }
    }
    if (rc == 0 && !at_end(&d))
        rc = stuck(&d);
    ct_arena_finish(&d.scratch);
    return rc;
}
