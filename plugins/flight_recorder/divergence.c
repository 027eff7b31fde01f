/*
 * Values that should be the same on several ranks, compared by their hashes.
 *
 * In a step that is compared, every parameter and state is hashed before it, and every result of an
 * instruction as soon as it is computed. Ranks that differ only along axes on which a value is
 * replicated must have the same hash. The first entry that differs, in the order of the program, is
 * where ranks part. On devices whose results the host cannot read, only states are compared.
 */
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include <ctitan/comm.h>
#include <ctitan/error.h>
#include <ctitan/log.h>
#include <ctitan/run.h>
#include <ctitan/state.h>

#include "flight.h"

/* One value of one instruction, or a state (state not NULL). */
struct entry {
    const struct ct_state *state;
    const struct ct_value *value;
    int64_t index; /* of the instruction */
    int operand;   /* output, or, from -1 downwards, an input that is updated */
    ct_axes axes;  /* along which it is replicated */
};

static struct entry *entries;
static uint64_t *hashes;
static size_t count, *first; /* first entry by instruction */
static bool active;

/* ---- which ---- */

static ct_axes replicated(const struct ct_run *run, const struct ct_sharding *s)
{
    ct_axes all = (ct_axes)((1u << run->mesh.count) - 1);
    int partition = run->graph->partition_axis;

    if (partition >= 0)
        all &= ~(1u << partition); /* its ranks have other programs */
    return all & ~ct_sharding_axes(s) & ~s->unreduced;
}

static void add(const struct ct_run *run, struct entry e, const struct ct_sharding *sharding)
{
    e.axes = replicated(run, sharding);
    if (!e.axes)
        return;
    if ((count & (count - 1)) == 0) {
        entries = realloc(entries, sizeof(*entries) * (count ? 2 * count : 1));
        if (!entries)
            abort();
    }
    entries[count++] = e;
}

static void add_instruction(const struct ct_run *run, const struct ct_instruction *i, int64_t index)
{
    for (int o = 0; o < i->op->outs; o++)
        if (!i->op->out[o]->opaque_bytes)
            add(run, (struct entry){.value = i->op->out[o], .index = index, .operand = o},
                &i->op->out[o]->sharding);
    for (int o = 0; o < i->op->ins; o++)
        if (i->op->in[o] && ct_op_mutates(i->op, o))
            add(run, (struct entry){.value = i->op->in[o], .index = index, .operand = -1 - o},
                &i->op->in[o]->sharding);
}

int flight_divergence_begin(const struct ct_run *run)
{
    const struct ct_program *p = run->program;

    free(entries);
    free(first);
    free(hashes);
    entries = NULL;
    count = 0;
    first = calloc(p->step_count + 1, sizeof(*first));
    for (size_t s = 0; s < run->state_count; s++)
        if (run->states[s].value)
            add(run, (struct entry){.state = &run->states[s], .value = run->states[s].value},
                &run->states[s].sharding);
    for (size_t i = 0; first && i < p->step_count; i++) {
        first[i] = count;
        if (run->device->host_memory && !run->device->enqueues)
            add_instruction(run, &p->step[i], (int64_t)i);
    }
    if (first)
        first[p->step_count] = count;
    hashes = calloc(count + 1, sizeof(*hashes));
    return first && hashes ? 0 : ct_fail(CT_ENOMEM, "hashes of %zu values", count);
}

/* ---- hashing ---- */

static uint64_t hash(const struct ct_tensor *t)
{
    struct ct_matrix m;
    uint64_t h = 1;
    size_t size;

    if (t->ndim < 0 || !t->data)
        return 0;
    if (ct_tensor_is_dense(t))
        return XXH3_64bits(t->data, ct_tensor_bytes(t)) | 1;
    if (!ct_tensor_as_matrix(t, &m))
        return 0;
    size = ct_dtype_size(t->dtype);
    for (int64_t r = 0; r < m.rows; r++)
        h = XXH3_64bits_withSeed((const char *)t->data + size * (size_t)(r * m.stride),
                                 size * (size_t)m.columns, h);
    return h | 1;
}

void flight_divergence_op(const struct ct_event_data *d)
{
    const struct ct_launch *l = d->launch;

    if (!active || d->index < 0 || d->program != d->run->program)
        return;
    for (size_t e = first[d->index]; e < first[d->index + 1]; e++) {
        int o = entries[e].operand;

        hashes[e] = hash(o >= 0 ? &l->out[o] : &l->in[-1 - o]);
    }
}

static int hash_states(struct ct_run *run)
{
    void *data = NULL;
    int rc = 0;

    for (size_t e = 0; rc == 0 && e < count && entries[e].state; e++) {
        size_t bytes = ct_run_shard_bytes(run, entries[e].state);

        data = realloc(data, bytes + 1);
        if (!data)
            return ct_fail(CT_ENOMEM, "a copy of %s", entries[e].state->name);
        rc = ct_run_read(run, entries[e].state, NULL, NULL, data);
        if (rc == 0)
            hashes[e] = XXH3_64bits(data, bytes) | 1;
    }
    free(data);
    return rc;
}

int flight_divergence_step_begin(struct ct_run *run, int64_t step)
{
    active = step % flight_config.divergence_freq == 0;
    if (!active)
        return 0;
    memset(hashes, 0, sizeof(*hashes) * count);
    return hash_states(run);
}

/* ---- comparing ---- */

/* The rank of a group with the rarest hash. */
static int64_t odd_one(const int64_t *ranks, int64_t n, const uint64_t *all, size_t stride,
                       size_t e)
{
    int64_t odd = ranks[n - 1], fewest = n + 1;

    for (int64_t i = n - 1; i >= 0; i--) {
        int64_t like = 0;

        for (int64_t k = 0; k < n; k++)
            like += all[(size_t)ranks[k] * stride + e] == all[(size_t)ranks[i] * stride + e];
        if (like < fewest) {
            fewest = like;
            odd = ranks[i];
        }
    }
    return odd;
}

struct finding {
    uint64_t entry; /* UINT64_MAX: none */
    int64_t rank, group;
};

/* The first entry of this rank in which its group differs. */
static struct finding find(const struct ct_run *run, const uint64_t *all, size_t stride)
{
    struct finding f = {.entry = UINT64_MAX};
    int64_t *ranks = calloc((size_t)run->world, sizeof(*ranks));

    for (size_t e = 0; ranks && e < count && f.entry == UINT64_MAX; e++) {
        int64_t n = ct_mesh_group(&run->mesh, run->rank, entries[e].axes, ranks);

        for (int64_t i = 0; i < n && f.entry == UINT64_MAX; i++) {
            uint64_t other = all[(size_t)ranks[i] * stride + e];

            if (hashes[e] && other && other != hashes[e])
                f = (struct finding){e, odd_one(ranks, n, all, stride, e), ranks[0]};
        }
    }
    free(ranks);
    return f;
}

static void describe(const struct ct_run *run, const struct finding *f, int64_t step)
{
    const struct entry *e = &entries[f->entry];
    char *text = flight_own->diverged;
    size_t room = sizeof(flight_own->diverged);

    if (e->state) {
        snprintf(text, room,
                 "rank %lld diverges: %s differs from its value on other ranks before step "
                 "%lld",
                 (long long)f->rank, e->state->name, (long long)step);
    } else {
        const struct ct_instruction *i = &run->program->step[e->index];

        snprintf(text, room,
                 "rank %lld diverges: in step %lld, instruction %lld, %s %s %%%s (%s, microbatch "
                 "%d), is the first one whose result differs from that on other ranks",
                 (long long)f->rank, (long long)step, (long long)e->index, i->op->type->name,
                 e->operand < 0 ? "updating" : "making", e->value->name, i->op->section->name,
                 i->microbatch);
    }
    ct_log(CT_LOG_ERROR, "%s", text);
}

static int compare(const struct ct_run *run, int64_t step)
{
    struct ct_group *world = ct_run_world(run);
    uint64_t most = count, *all = NULL, *mine = NULL, least = UINT64_MAX;
    struct finding f, *findings = NULL;
    int rc =
        ct_group_all_reduce(world, &(int64_t){(int64_t)count}, &most, 1, CT_I64, CT_REDUCE_MAX);

    if (rc == 0) {
        all = calloc((size_t)run->world * (most + 1), sizeof(*all));
        mine = calloc(most + 1, sizeof(*mine));
        findings = calloc((size_t)run->world, sizeof(*findings));
        rc = all && mine && findings ? 0 : ct_fail(CT_ENOMEM, "hashes of all ranks");
    }
    if (rc == 0) {
        memcpy(mine, hashes, sizeof(*hashes) * count);
        rc = ct_group_all_gather(world, mine, all, sizeof(*mine) * (most + 1), CT_U8);
    }
    if (rc == 0) {
        f = find(run, all, most + 1);
        rc = ct_group_all_gather(world, &f, findings, sizeof(f), CT_U8);
    }
    for (int64_t r = 0; rc == 0 && r < run->world; r++)
        if (findings[r].entry < least)
            least = findings[r].entry;
    if (rc == 0 && least != UINT64_MAX && f.entry == least && f.group == run->rank &&
        !*flight_own->diverged)
        describe(run, &f, step);
    free(all);
    free(mine);
    free(findings);
    return rc;
}

int flight_divergence_step_end(const struct ct_run *run, int64_t step)
{
    if (!active)
        return 0;
    active = false;
    return run->world > 1 ? compare(run, step) : 0;
}
