/*
 * What a run keeps from step to step: the list of it, and the host's access to it.
 *
 * The list is made of the whole graph, once shardings are known and before a rank leaves out what
 * is not its own, so that it is the same on all ranks.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/pass.h>
#include <ctitan/run.h>

#include "run/executor.h"
#include "run/states.h"

/* ---- the list ---- */

/* A state is where the parameter is that is updated with it. */
static uint64_t holders_of(const struct ct_value *v)
{
    if (v->role == CT_ROLE_PARAM || v->holders)
        return v->holders;
    ct_for_each_use (use, v)
        for (int k = 0; use->op->section->part == CT_PART_POST && k < use->op->ins; k++)
            if (use->op->in[k] && use->op->in[k]->role == CT_ROLE_PARAM)
                return use->op->in[k]->holders;
    return 0;
}

static int note_states(struct ct_graph *graph, struct ct_run *run)
{
    if (run->states) /* validation's graph has the same parameters, and no more */
        return 0;
    run->states = ct_arena_array(&run->arena, struct ct_state, graph->value_count + 1);
    for (size_t i = 0; i < graph->value_count; i++) {
        const struct ct_value *v = graph->values[i];
        struct ct_state *state = &run->states[run->state_count];

        if (v->role != CT_ROLE_PARAM && v->role != CT_ROLE_STATE)
            continue;
        *state = (struct ct_state){.name = v->name,
                                   .role = v->role,
                                   .dtype = v->dtype,
                                   .ndim = v->ndim,
                                   .sharding = v->sharding};
        memcpy(state->shape, v->shape, sizeof(state->shape));
        state->holders = graph->partition_axis < 0 ? 0 : holders_of(v);
        if (v->role == CT_ROLE_PARAM)
            run->parameters += ct_shape_count(v->ndim, v->shape);
        run->state_count++;
    }
    return 0;
}

const struct ct_transform ct_pass_states = {
    .size = sizeof(struct ct_transform),
    .name = "list",
    .summary = "notes every parameter and state, and which ranks have what of it",
    .phase = CT_PHASE_COLLECTIVE,
    .needs = (const char *const[]){"collectives", NULL},
    .gives = (const char *const[]){"listed", NULL},
    .evaluation = true,
    .apply = note_states,
};

void ct_states_bind(struct ct_run *run)
{
    for (size_t i = 0; i < run->state_count; i++) {
        const struct ct_value *v = ct_graph_find(run->graph, run->states[i].name);

        run->states[i].value =
            v && (v->role == CT_ROLE_PARAM || v->role == CT_ROLE_STATE) ? v : NULL;
    }
}

/* ---- who has what ---- */

const struct ct_state *ct_run_state(const struct ct_run *run, const char *name)
{
    for (size_t i = 0; i < run->state_count; i++)
        if (!strcmp(run->states[i].name, name))
            return &run->states[i];
    return NULL;
}

static bool holds(const struct ct_run *run, const struct ct_state *state, int64_t rank)
{
    int axis = run->graph->partition_axis;

    return !state->holders || state->holders >> ct_mesh_coordinate(&run->mesh, rank, axis) & 1;
}

bool ct_run_shard(const struct ct_run *run, const struct ct_state *state, int64_t rank,
                  int64_t *shape, int64_t *offset)
{
    int64_t local[CT_MAX_DIMS];

    ct_sharding_local(&state->sharding, &run->mesh, rank, state->ndim, state->shape,
                      shape ? shape : local, offset);
    return holds(run, state, rank);
}

/* Ranks with equal shards differ only along axes that the state is not split by. */
bool ct_run_shard_first(const struct ct_run *run, const struct ct_state *state, int64_t rank)
{
    ct_axes split = ct_sharding_axes(&state->sharding);
    int partition = state->holders ? run->graph->partition_axis : -1;

    for (int a = 0; a < run->mesh.count; a++) {
        int64_t at = ct_mesh_coordinate(&run->mesh, rank, a);

        if (a == partition ? at != __builtin_ctzll(state->holders) : !(split >> a & 1) && at)
            return false;
    }
    return true;
}

/* ---- access ---- */

/* A box of a dense local tensor, row by row: first byte of each, in bytes. */
struct rows {
    size_t bytes, count;
    int ndim;
    int64_t shape[CT_MAX_DIMS], offset[CT_MAX_DIMS], local[CT_MAX_DIMS];
    size_t item;
};

/* Trailing dimensions that the box covers whole are one row. */
static struct rows rows_of(const struct ct_state *s, const int64_t *local, const int64_t *offset,
                           const int64_t *shape)
{
    struct rows r = {.bytes = ct_dtype_size(s->dtype), .count = 1, .ndim = s->ndim};
    bool whole = true;

    r.item = r.bytes;
    for (int d = s->ndim - 1; d >= 0; d--) {
        r.local[d] = local[d];
        r.offset[d] = offset ? offset[d] : 0;
        r.shape[d] = shape ? shape[d] : local[d];
        if (whole)
            r.bytes *= (size_t)r.shape[d];
        else
            r.count *= (size_t)r.shape[d];
        if (whole)
            r.ndim = d;
        whole = whole && r.shape[d] == local[d];
    }
    return r;
}

static size_t row_at(const struct rows *r, int ndim, size_t number)
{
    size_t at = 0, stride = r->item;

    for (int d = ndim - 1; d >= 0; d--) {
        size_t index = (size_t)r->offset[d];

        if (d < r->ndim) {
            index += number % (size_t)r->shape[d];
            number /= (size_t)r->shape[d];
        }
        at += index * stride;
        stride *= (size_t)r->local[d];
    }
    return at;
}

static int check_box(const struct ct_run *run, const struct ct_state *s, const int64_t *offset,
                     const int64_t *shape, int64_t *local)
{
    if (!s->value)
        return ct_fail(CT_EINVAL, "%s is not on rank %lld", s->name, (long long)run->rank);
    ct_sharding_local(&s->sharding, &run->mesh, run->rank, s->ndim, s->shape, local, NULL);
    for (int d = 0; shape && d < s->ndim; d++)
        if (shape[d] < 0 || (offset ? offset[d] : 0) < 0 ||
            (offset ? offset[d] : 0) + shape[d] > local[d])
            return ct_fail(CT_EINVAL, "dimension %d of %s: a box that ends at %lld of %lld here", d,
                           s->name, (long long)((offset ? offset[d] : 0) + shape[d]),
                           (long long)local[d]);
    return 0;
}

static int move_box(struct ct_run *run, const struct ct_state *s, const int64_t *offset,
                    const int64_t *shape, char *host, bool out)
{
    int64_t local[CT_MAX_DIMS];
    struct ct_tensor t;
    struct rows r;
    int rc = check_box(run, s, offset, shape, local);

    if (rc < 0)
        return rc;
    t = ct_executor_tensor(run->executor, s->value, -1);
    if (!t.data || !ct_tensor_is_dense(&t))
        return ct_fail(CT_EINVAL, "%s has no place of its own", s->name);
    r = rows_of(s, local, offset, shape);
    for (size_t i = 0; rc == 0 && i < r.count; i++)
        rc = ct_executor_move(run->executor, s->value, (char *)t.data + row_at(&r, s->ndim, i),
                              host + i * r.bytes, r.bytes, out);
    return rc;
}

int ct_run_read(struct ct_run *run, const struct ct_state *state, const int64_t *offset,
                const int64_t *shape, void *host)
{
    return move_box(run, state, offset, shape, host, true);
}

int ct_run_write(struct ct_run *run, const struct ct_state *state, const int64_t *offset,
                 const int64_t *shape, const void *host)
{
    int rc = ct_executor_copy_out_wait(run->executor, true);

    return rc < 0 ? rc : move_box(run, state, offset, shape, (char *)(uintptr_t)host, false);
}

/* ---- copies while steps run ---- */

size_t ct_run_shard_bytes(const struct ct_run *run, const struct ct_state *state)
{
    int64_t local[CT_MAX_DIMS];

    ct_sharding_local(&state->sharding, &run->mesh, run->rank, state->ndim, state->shape, local,
                      NULL);
    return (size_t)ct_shape_count(state->ndim, local) * ct_dtype_size(state->dtype);
}

int ct_run_copy_out_begin(struct ct_run *run, const struct ct_state *state, void *staging)
{
    if (!state->value)
        return ct_fail(CT_EINVAL, "%s is not on rank %lld", state->name, (long long)run->rank);
    return ct_executor_copy_out_begin(run->executor, state->value, staging,
                                      ct_run_shard_bytes(run, state));
}

int ct_run_copy_out_wait(struct ct_run *run, bool block)
{
    return ct_executor_copy_out_wait(run->executor, block);
}

int ct_run_staging(struct ct_run *run, size_t bytes, void **staging)
{
    const struct ct_device_ops *ops = run->device_ops;

    if (ops->reserve_host)
        return ops->reserve_host(run->device, bytes ? bytes : 1, staging);
    *staging = malloc(bytes ? bytes : 1);
    return *staging ? 0 : ct_fail(CT_ENOMEM, "%zu bytes of staging", bytes);
}

void ct_run_staging_free(struct ct_run *run, void *staging, size_t bytes)
{
    const struct ct_device_ops *ops = run->device_ops;

    if (staging && ops->release_host)
        ops->release_host(run->device, staging, bytes ? bytes : 1);
    else
        free(staging);
}
