/*
 * The host's access to parameters and states: boxes of shards, and copies while steps run.
 */
#include <assert.h>
#include <string.h>
#include <sys/mman.h>

#include <ctitan/error.h>
#include <ctitan/state.h>

#define PREFIXES 16

static char *prefixes[PREFIXES]; /* as long as the process */

void ct_state_follow(const char *prefix)
{
    int i = 0;

    while (i < PREFIXES && prefixes[i] && strcmp(prefixes[i], prefix) != 0)
        i++;
    assert(i < PREFIXES);
    if (!prefixes[i])
        prefixes[i] = strdup(prefix);
    assert(prefixes[i]);
}

const char *ct_state_followed(const char *name)
{
    for (int i = 0; i < PREFIXES && prefixes[i]; i++)
        if (!strncmp(name, prefixes[i], strlen(prefixes[i])))
            return name + strlen(prefixes[i]);
    return NULL;
}

/* ---- which rank holds what ---- */

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

    return !state->holders.words ||
           ct_ranks_have(&state->holders, ct_mesh_coordinate(&run->mesh, rank, axis));
}

bool ct_run_shard(const struct ct_run *run, const struct ct_state *state, int64_t rank,
                  int64_t *shape, int64_t *offset)
{
    int64_t local[CT_MAX_DIMS];

    ct_sharding_local(&state->sharding, &run->mesh, rank, state->ndim, state->shape,
                      shape ? shape : local, offset);
    return holds(run, state, rank);
}

/* Ranks with equal shards differ only along axes that do not split the state. */
int64_t ct_run_shard_copies(const struct ct_run *run, const struct ct_state *state, int64_t rank,
                            int64_t *number)
{
    ct_axes split = ct_sharding_axes(&state->sharding);
    int partition = state->holders.words ? run->graph->partition_axis : -1;
    int64_t copies = 1;

    *number = 0;
    for (int a = 0; a < run->mesh.count; a++) {
        int64_t size = run->mesh.axis[a].size, at = ct_mesh_coordinate(&run->mesh, rank, a);

        if (split >> a & 1)
            continue;
        if (a == partition) { /* among the holders */
            size = ct_ranks_below(&state->holders, size);
            at = ct_ranks_below(&state->holders, at);
        }
        copies *= size;
        *number = *number * size + at;
    }
    return copies;
}

bool ct_run_shard_first(const struct ct_run *run, const struct ct_state *state, int64_t rank)
{
    int64_t number;

    ct_run_shard_copies(run, state, rank, &number);
    return holds(run, state, rank) && number == 0;
}

/* ---- access ---- */

/* The sizes of a dense tensor, and the offset of a box in it. */
struct place {
    int64_t size[CT_MAX_DIMS], offset[CT_MAX_DIMS];
};

/* Iterates over the rows of a box. */
struct rows {
    size_t bytes, count, item;
    int ndim;
    int64_t shape[CT_MAX_DIMS];
};

/* Trailing dimensions that the box spans in both tensors are merged into one row. */
static struct rows rows_of(const struct ct_state *s, const int64_t *shape, const struct place *a,
                           const struct place *b)
{
    /* of what a place counts: elements, or bytes of smaller ones (in_bytes) */
    struct rows r = {.bytes = ct_dtype_bytes(s->dtype, 0, NULL), .count = 1, .ndim = s->ndim};
    bool whole = true;

    r.item = r.bytes;
    for (int d = s->ndim - 1; d >= 0; d--) {
        r.shape[d] = shape[d];
        if (whole)
            r.bytes *= (size_t)shape[d];
        else
            r.count *= (size_t)shape[d];
        if (whole)
            r.ndim = d;
        whole = whole && shape[d] == a->size[d] && shape[d] == b->size[d];
    }
    return r;
}

/* The first byte of a row in a tensor of ndim dimensions. */
static size_t row_at(const struct rows *r, const struct place *in, int ndim, size_t number)
{
    size_t at = 0, stride = r->item;

    for (int d = ndim - 1; d >= 0; d--) {
        size_t index = (size_t)in->offset[d];

        if (d < r->ndim) {
            index += number % (size_t)r->shape[d];
            number /= (size_t)r->shape[d];
        }
        at += index * stride;
        stride *= (size_t)in->size[d];
    }
    return at;
}

/* Copy the bytes of a value, at `here`, to the host (out) or from it. */
static int move(struct ct_run *run, const struct ct_value *v, char *here, char *host, size_t bytes,
                bool out)
{
    const struct ct_device_ops *ops = run->device->ops;

    if (bytes == 0)
        return 0;
    if (v->space != CT_SPACE_DEVICE) {
        memcpy(out ? host : here, out ? here : host, bytes);
        return 0;
    }
    return out ? ops->copy_out(run->device, host, here, bytes)
               : ops->copy_in(run->device, here, host, bytes);
}

static int move_rows(struct ct_run *run, const struct ct_state *s, char *data, const int64_t *shape,
                     const struct place *here, char *host, const struct place *there, bool out)
{
    struct rows r = rows_of(s, shape, here, there);
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < r.count; i++)
        rc = move(run, s->value, data + row_at(&r, here, s->ndim, i),
                  host + row_at(&r, there, s->ndim, i), r.bytes, out);
    return rc;
}

/* ---- elements smaller than a byte ---- */

/* Whether a box of a row begins and ends with a byte, or ends with the row. */
static bool is_whole(const struct place *p, int last, int64_t size, int64_t in_byte)
{
    return p->offset[last] % in_byte == 0 &&
           (size % in_byte == 0 || p->offset[last] + size == p->size[last]);
}

/* The bytes that hold the elements of a place's last dimension. */
static struct place in_bytes(struct place p, int last, int64_t in_byte)
{
    p.size[last] = (p.size[last] + in_byte - 1) / in_byte;
    p.offset[last] /= in_byte;
    return p;
}

/* One row, whose elements lie differently in their bytes on the two sides. bytes: those that hold
   them on the device, row: room for these. */
static int shift_row(struct ct_run *run, const struct ct_state *s, char *data, size_t bytes,
                     int64_t at, struct ct_tensor host, int64_t there, int64_t count, char *row,
                     bool out)
{
    struct ct_tensor mine = ct_tensor_dense(row, s->dtype, 1, (int64_t[]){at + count});
    int rc = move(run, s->value, data, row, bytes, true);

    for (int64_t i = 0; rc == 0 && i < count; i++)
        if (out)
            ct_tensor_store(&host, there + i, ct_tensor_load(&mine, at + i));
        else
            ct_tensor_store(&mine, at + i, ct_tensor_load(&host, there + i));
    return rc == 0 && !out ? move(run, s->value, data, row, bytes, false) : rc;
}

static int shift_rows(struct ct_run *run, const struct ct_state *s, char *data,
                      const int64_t *shape, const struct place *here, char *host,
                      const struct place *there, bool out)
{
    int last = s->ndim - 1;
    int64_t in_byte = 8 / ct_dtype_bits(s->dtype), size[CT_MAX_DIMS];
    struct place here_bytes = in_bytes(*here, last, in_byte),
                 there_bytes = in_bytes(*there, last, in_byte);
    int64_t at = here->offset[last] % in_byte, behind = there->offset[last] % in_byte;
    size_t bytes = (size_t)((at + shape[last] + in_byte - 1) / in_byte);
    struct ct_arena scratch = {0};
    char *row = ct_arena_alloc(&scratch, bytes + 1);
    struct rows r;
    int rc = 0;

    memcpy(size, shape, sizeof(*size) * (size_t)s->ndim);
    size[last] = 0; /* no two rows are one */
    r = rows_of(s, size, &here_bytes, &there_bytes);
    for (size_t i = 0; rc == 0 && i < r.count; i++) {
        char *to = host + row_at(&r, &there_bytes, s->ndim, i);
        struct ct_tensor mine = ct_tensor_dense(to, s->dtype, 1, (int64_t[]){behind + shape[last]});

        rc = shift_row(run, s, data + row_at(&r, &here_bytes, s->ndim, i), bytes, at, mine, behind,
                       shape[last], row, out);
    }
    ct_arena_finish(&scratch);
    return rc;
}

/* Copy a box between this rank's shard and host memory. */
static int move_box(struct ct_run *run, const struct ct_state *s, const int64_t *shape,
                    const struct place *here, char *host, const struct place *there, bool out)
{
    struct ct_tensor t = ct_executor_tensor(run->executor, s->value, -1);
    int64_t in_byte = ct_dtype_bits(s->dtype) < 8 ? 8 / ct_dtype_bits(s->dtype) : 1;
    int64_t size[CT_MAX_DIMS];
    struct place a, b;
    int last = s->ndim - 1;

    if (!t.data || !ct_tensor_is_dense(&t))
        return ct_fail(CT_EINVAL, "%s has no memory of its own", s->name);
    if (in_byte == 1)
        return move_rows(run, s, t.data, shape, here, host, there, out);
    if (!is_whole(here, last, shape[last], in_byte) || !is_whole(there, last, shape[last], in_byte))
        return shift_rows(run, s, t.data, shape, here, host, there, out);
    a = in_bytes(*here, last, in_byte);
    b = in_bytes(*there, last, in_byte);
    memcpy(size, shape, sizeof(*size) * (size_t)s->ndim);
    size[last] = (size[last] + in_byte - 1) / in_byte;
    return move_rows(run, s, t.data, size, &a, host, &b, out);
}

/* Copy a box of the shard; the host memory holds just that box. */
static int move_own(struct ct_run *run, const struct ct_state *s, const int64_t *offset,
                    const int64_t *shape, char *host, bool out)
{
    struct place here = {{0}, {0}}, there = {{0}, {0}};

    if (!s->value)
        return ct_fail(CT_EINVAL, "%s is not on rank %lld", s->name, (long long)run->rank);
    ct_run_shard(run, s, run->rank, here.size, NULL);
    for (int d = 0; d < s->ndim; d++) {
        here.offset[d] = offset ? offset[d] : 0;
        there.size[d] = shape ? shape[d] : here.size[d];
        if (there.size[d] < 0 || here.offset[d] < 0 ||
            here.offset[d] > here.size[d] - there.size[d])
            return ct_fail(
                CT_EINVAL,
                "dimension %d of %s: the box ends at %lld, but this rank's shard at %lld", d,
                s->name, (long long)(here.offset[d] + there.size[d]), (long long)here.size[d]);
    }
    return move_box(run, s, there.size, &here, host, &there, out);
}

int ct_run_read(struct ct_run *run, const struct ct_state *state, const int64_t *offset,
                const int64_t *shape, void *host)
{
    return move_own(run, state, offset, shape, host, true);
}

int ct_run_write(struct ct_run *run, const struct ct_state *state, const int64_t *offset,
                 const int64_t *shape, const void *host)
{
    if (state->value)
        ct_executor_await(run->executor, state->value);
    return move_own(run, state, offset, shape, (char *)(uintptr_t)host, false);
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int ct_run_fill(struct ct_run *run, const struct ct_state *s, const int64_t *offset,
                const int64_t *shape, const void *host)
{
    int64_t begin[CT_MAX_DIMS], part[CT_MAX_DIMS]; /* of this rank's shard; the overlap */
    struct place here = {{0}, {0}}, there = {{0}, {0}};

    for (int d = 0; d < s->ndim; d++)
        if (offset[d] < 0 || shape[d] < 0 || offset[d] > s->shape[d] - shape[d])
            return ct_fail(
                CT_EINVAL,
                "dimension %d of %s: a box of %lld from %lld on is outside the size %lld", d,
                s->name, (long long)shape[d], (long long)offset[d], (long long)s->shape[d]);
    if (!s->value || !ct_run_shard(run, s, run->rank, here.size, begin))
        return 0;
    for (int d = 0; d < s->ndim; d++) {
        int64_t first = offset[d] > begin[d] ? offset[d] : begin[d];

        part[d] = least(offset[d] + shape[d], begin[d] + here.size[d]) - first;
        here.offset[d] = first - begin[d];
        there.offset[d] = first - offset[d];
        there.size[d] = shape[d];
        if (part[d] <= 0)
            return 0;
    }
    ct_executor_await(run->executor, s->value);
    return move_box(run, s, part, &here, (char *)(uintptr_t)host, &there, false);
}

/* ---- copies while steps run ---- */

size_t ct_run_shard_bytes(const struct ct_run *run, const struct ct_state *state)
{
    int64_t local[CT_MAX_DIMS];

    ct_sharding_local(&state->sharding, &run->mesh, run->rank, state->ndim, state->shape, local,
                      NULL);
    return ct_dtype_bytes(state->dtype, state->ndim, local);
}

void ct_run_hold(struct ct_run *run, const struct ct_state *state)
{
    if (state->value)
        ct_executor_hold(run->executor, state->value);
}

void ct_run_release(struct ct_run *run, const struct ct_state *state)
{
    if (state->value)
        ct_executor_release(run->executor, state->value);
}

const void *ct_run_memory(const struct ct_run *run, const struct ct_state *state)
{
    struct ct_tensor t;

    if (!state->value || state->value->space != CT_SPACE_DEVICE || !run->device->host_memory)
        return NULL;
    t = ct_executor_tensor(run->executor, state->value, -1);
    return t.data && ct_tensor_is_dense(&t) ? t.data : NULL;
}

bool ct_run_waits(const struct ct_run *run)
{
    return ct_executor_waits(run->executor);
}

double ct_run_waited(const struct ct_run *run)
{
    return ct_executor_waited(run->executor);
}

int ct_run_copy_out(struct ct_run *run, const struct ct_state *state, size_t from, size_t bytes,
                    void *host)
{
    size_t all = ct_run_shard_bytes(run, state);

    if (!state->value)
        return ct_fail(CT_EINVAL, "%s is not on rank %lld", state->name, (long long)run->rank);
    if (from > all || bytes > all - from)
        return ct_fail(CT_EINVAL, "%zu bytes from byte %zu on are outside the %zu bytes of %s",
                       bytes, from, all, state->name);
    return ct_executor_copy_out(run->executor, state->value, from, bytes, host);
}

/* A device that computes in host memory can copy to any; its host memory may be on a disk. */
static bool has_staging(const struct ct_run *run)
{
    return run->device_ops->reserve_host && !run->device->host_memory;
}

int ct_run_staging(struct ct_run *run, size_t bytes, void **staging)
{
    if (has_staging(run))
        return run->device_ops->reserve_host(run->device, bytes ? bytes : 1, staging);
    *staging =
        mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (*staging != MAP_FAILED)
        return 0;
    *staging = NULL;
    return ct_fail(CT_ENOMEM, "%zu bytes of staging", bytes);
}

void ct_run_staging_free(struct ct_run *run, void *staging, size_t bytes)
{
    if (staging && has_staging(run))
        run->device_ops->release_host(run->device, staging, bytes ? bytes : 1);
    else if (staging)
        munmap(staging, bytes ? bytes : 1);
}
