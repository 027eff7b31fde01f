#include <string.h>

#include "machine.h"

#define STAGES 16
#define MICROBATCHES 16
#define RANKS 8

/* Which of a microbatch's values a stage has; a value is used up by its last use. */
struct values {
    bool input, output, saved, gradient_in, gradient_out, kept;
    int accumulated; /* times its gradient was added to that of the weights */
};

struct stage {
    bool whole;
    int reduced;
    struct values of[MICROBATCHES];
};

struct machine {
    const struct ct_schedule *s;
    bool own_streams;
    struct stage stage[STAGES];
    size_t next[RANKS][2]; /* of the main stream, and of receives if they have one */
    const char *wrong;
};

static bool sharded, reducing;

static bool receives(const struct ct_action *a)
{
    return a->type == CT_ACTION_RECV_F || a->type == CT_ACTION_RECV_B;
}

static int stream_of(const struct machine *x, const struct ct_action *a)
{
    return x->own_streams && receives(a);
}

static const struct ct_action *head(const struct machine *x, int rank, int stream, size_t *place)
{
    const struct ct_action_list *list = &x->s->lists[rank];

    for (*place = x->next[rank][stream]; *place < list->count; ++*place)
        if (stream_of(x, &list->item[*place]) == stream)
            return &list->item[*place];
    return NULL;
}

static bool on_rank(const struct machine *x, int rank, int stage)
{
    return stage >= 0 && stage < x->s->stages && x->s->rank_of[stage] == rank;
}

/* ---- computing: true when done, false to wait; wrong for ever ---- */

static bool fail(struct machine *x, const char *wrong)
{
    if (!x->wrong)
        x->wrong = wrong;
    return true;
}

static bool forward(struct machine *x, int s, int m)
{
    struct values *v = &x->stage[s].of[m];

    if (s > 0 && !v->input)
        return false;
    v->input = false;
    v->saved = true;
    if (s + 1 == x->s->stages)
        return true;
    v->output = true;
    if (x->s->rank_of[s + 1] == x->s->rank_of[s]) {
        v->output = false;
        x->stage[s + 1].of[m].input = true;
    }
    return true;
}

static bool backward(struct machine *x, int s, int m, bool whole)
{
    struct values *v = &x->stage[s].of[m];

    if (!v->saved || (s + 1 < x->s->stages && !v->gradient_in))
        return false;
    v->gradient_in = v->saved = false;
    v->kept = !whole;
    v->accumulated += whole;
    if (s == 0)
        return true;
    v->gradient_out = true;
    if (x->s->rank_of[s - 1] == x->s->rank_of[s]) {
        v->gradient_out = false;
        x->stage[s - 1].of[m].gradient_in = true;
    }
    return true;
}

static bool weight(struct machine *x, int s, int m)
{
    struct values *v = &x->stage[s].of[m];

    if (!v->kept)
        return false;
    v->kept = false;
    v->accumulated++;
    return true;
}

static bool compute(struct machine *x, int rank, enum ct_action_type type, int s, int m)
{
    if (!on_rank(x, rank, s) || m < 0 || m >= x->s->microbatches)
        return fail(x, "there is nothing like that on the rank");
    if (sharded && !x->stage[s].whole)
        return fail(x, "computes with parameters in shards");
    if (x->stage[s].reduced)
        return fail(x, "computes after the gradients were reduced");
    return type == CT_ACTION_F   ? forward(x, s, m)
           : type == CT_ACTION_W ? weight(x, s, m)
                                 : backward(x, s, m, type == CT_ACTION_B);
}

/* Both at the same time: neither may need the other. */
static bool overlap(struct machine *x, int rank, const struct ct_action *a)
{
    struct machine before = *x;

    if (!compute(x, rank, CT_ACTION_B, a->stage_b, a->microbatch_b))
        return false;
    if (compute(x, rank, CT_ACTION_F, a->stage, a->microbatch))
        return true;
    *x = before;
    return false;
}

static bool shard(struct machine *x, int rank, const struct ct_action *a)
{
    struct stage *stage;

    if (!on_rank(x, rank, a->stage))
        return fail(x, "there is no such stage on the rank");
    stage = &x->stage[a->stage];
    if (a->type == CT_ACTION_REDUCE_GRAD) {
        stage->reduced++;
        return true;
    }
    if (stage->whole == (a->type == CT_ACTION_UNSHARD))
        return fail(x, "gathers or frees parameters twice");
    stage->whole = !stage->whole;
    return true;
}

/* ---- transfers ---- */

/* The rank at the other end, if the transfer makes sense. */
static int other_rank(const struct machine *x, int rank, const struct ct_action *a)
{
    int step = a->type == CT_ACTION_SEND_F || a->type == CT_ACTION_RECV_B ? 1 : -1;

    if (!on_rank(x, rank, a->stage) || a->stage + step < 0 || a->stage + step >= x->s->stages ||
        a->microbatch < 0 || a->microbatch >= x->s->microbatches)
        return -1;
    return x->s->rank_of[a->stage + step];
}

/* The main stream has not come to the place of a receive. */
static bool before_main(const struct machine *x, int rank, size_t place)
{
    size_t at;

    return head(x, rank, 0, &at) && at < place;
}

/* A send to a rank whose next receive is from here: what arrives is what was sent. */
static bool send(struct machine *x, int rank, const struct ct_action *a, size_t place)
{
    bool is_forward = a->type == CT_ACTION_SEND_F;
    int to = other_rank(x, rank, a);
    const struct ct_action *r;
    struct values *v;
    bool *value;
    size_t there;

    if (to < 0 || to == rank)
        return fail(x, "sends to nowhere");
    v = &x->stage[a->stage].of[a->microbatch];
    value = is_forward ? &v->output : &v->gradient_out;
    r = head(x, to, x->own_streams, &there);
    if (!*value || !r || !receives(r) || other_rank(x, to, r) != rank ||
        (x->own_streams && before_main(x, to, there)))
        return false;
    if ((r->type == CT_ACTION_RECV_F) != is_forward ||
        r->stage != a->stage + (is_forward ? 1 : -1) || r->microbatch != a->microbatch)
        return fail(x, "takes one message for another");
    *value = false;
    v = &x->stage[r->stage].of[r->microbatch];
    *(is_forward ? &v->input : &v->gradient_in) = true;
    x->next[rank][0] = place + 1;
    x->next[to][x->own_streams] = there + 1;
    return true;
}

/* ---- the run ---- */

static bool step(struct machine *x, int rank, int stream)
{
    size_t place;
    const struct ct_action *a = head(x, rank, stream, &place);
    bool done = false;

    if (!a)
        return false;
    switch (a->type) {
    case CT_ACTION_F:
    case CT_ACTION_I:
    case CT_ACTION_W:
    case CT_ACTION_B:
        done = compute(x, rank, a->type, a->stage, a->microbatch);
        break;
    case CT_ACTION_OVERLAP_F_B:
        done = overlap(x, rank, a);
        break;
    case CT_ACTION_SEND_F:
    case CT_ACTION_SEND_B:
        return send(x, rank, a, place);
    case CT_ACTION_RECV_F:
    case CT_ACTION_RECV_B:
        return false; /* done by its send */
    default:
        done = shard(x, rank, a);
    }
    if (done)
        x->next[rank][stream] = place + 1;
    return done;
}

static bool all_done(const struct machine *x)
{
    size_t place;

    for (int r = 0; r < x->s->ranks; r++)
        for (int stream = 0; stream < 2; stream++)
            if (head(x, r, stream, &place))
                return false;
    return true;
}

static const char *what_is_left(const struct machine *x)
{
    for (int s = 0; s < x->s->stages; s++) {
        if (x->stage[s].whole)
            return "parameters stay whole";
        if (x->stage[s].reduced != reducing)
            return "gradients are not reduced, or twice";
        for (int m = 0; m < x->s->microbatches; m++) {
            const struct values *v = &x->stage[s].of[m];

            if (v->accumulated != !x->s->forward_only)
                return "a gradient is not there, or twice";
            if (v->input || v->output || v->gradient_in || v->gradient_out || v->kept ||
                v->saved != x->s->forward_only)
                return "a value is made and not used";
        }
    }
    return NULL;
}

/* Does any list ask for parameters to be gathered, for gradients to be reduced? */
static void look_for(const struct ct_schedule *s)
{
    sharded = reducing = false;
    for (int r = 0; r < s->ranks; r++)
        for (size_t i = 0; i < s->lists[r].count; i++) {
            sharded |= s->lists[r].item[i].type == CT_ACTION_UNSHARD;
            reducing |= s->lists[r].item[i].type == CT_ACTION_REDUCE_GRAD;
        }
}

const char *machine_run(const struct ct_schedule *schedule, bool own_streams)
{
    static struct machine x;
    bool moved = true;

    memset(&x, 0, sizeof(x));
    x.s = schedule;
    x.own_streams = own_streams;
    look_for(schedule);
    while (moved && !x.wrong) {
        moved = false;
        for (int r = 0; r < schedule->ranks; r++)
            for (int stream = 0; stream < 2; stream++)
                moved |= !x.wrong && step(&x, r, stream);
    }
    if (x.wrong)
        return x.wrong;
    return all_done(&x) ? what_is_left(&x) : "it is stuck";
}
