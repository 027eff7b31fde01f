/*
 * Which values share memory.
 *
 * Values form classes; each class has one buffer. A view shares its input's memory. An output may
 * take over the memory of an input that dies there (in place). A part that is contiguous in the
 * whole lies there, and is not copied. Values that an op prefers contiguous
 * become columns of one matrix (join), if every kernel that accesses them supports strides. Strides
 * follow: in a matrix of S columns, an element of row r and column c of a member that begins at
 * column o is at r S + o + c, whatever shape the member is viewed in. Values that a kernel prefers
 * one after the other lie so (stack), if they are made together and used together.
 */
#include <string.h>

#include <ctitan/core_ops.h>
#include <ctitan/error.h>

#include "lower/lower.h"

static bool is_view(const struct ct_op *op)
{
    return op->type->flags & CT_OP_VIEW;
}

/* Ops that copy between a whole and its parts, with any strides. */
static bool is_part(const struct ct_op *op)
{
    return ct_op_type_whole(op->type)->part;
}

void ct_lower_number_ops(struct ct_lowering *l)
{
    const struct ct_graph *g = l->graph;

    ct_for_each_op (op, g)
        l->op_count++;
    l->op_at = ct_arena_array(&l->scratch, struct ct_op *, l->op_count + 1);
    l->ops = ct_arena_array(&l->scratch, struct ct_lowered_op, l->op_count + 1);
    l->order = ct_arena_array(&l->scratch, int32_t, g->value_count + 1);
    memset(l->order, -1, sizeof(*l->order) * (g->value_count + 1));
    l->op_count = 0;
    ct_for_each_op (op, g) {
        for (int i = 0; i < op->outs; i++)
            l->order[op->out[i]->id] = (int32_t)l->op_count;
        l->ops[l->op_count].order = (int32_t)l->op_count;
        l->op_at[l->op_count++] = op;
    }
}

static void local_tensors(struct ct_lowering *l)
{
    const struct ct_graph *g = l->graph;

    l->program->tensors = ct_arena_array(l->arena, struct ct_tensor, g->value_count + 1);
    l->program->offsets = ct_arena_array(l->arena, size_t, g->value_count + 1);
    l->root = ct_arena_array(&l->scratch, uint32_t, g->value_count + 1);
    l->next = ct_arena_array(&l->scratch, uint32_t, g->value_count + 1);
    l->bytes = ct_arena_array(&l->scratch, size_t, g->value_count + 1);
    l->offset = ct_arena_array(&l->scratch, size_t, g->value_count + 1);
    for (uint32_t id = 0; id < g->value_count; id++) {
        const struct ct_value *v = g->values[id];
        int64_t local[CT_MAX_DIMS];

        ct_sharding_local(&v->sharding, &g->mesh, l->request->rank, v->ndim, v->shape, local, NULL);
        l->program->tensors[id] = ct_tensor_dense(NULL, v->dtype, v->ndim, local);
        l->root[id] = l->next[id] = id;
        l->bytes[id] = ct_value_bytes(g, v, l->request->rank);
    }
}

static uint32_t find(const struct ct_lowering *l, uint32_t id)
{
    while (l->root[id] != id)
        id = l->root[id] = l->root[l->root[id]];
    return id;
}

/* Merge two classes; `to` becomes the root. */
static void merge(struct ct_lowering *l, uint32_t to, uint32_t from)
{
    uint32_t next = l->next[to];

    l->root[from] = to;
    l->next[to] = l->next[from];
    l->next[from] = next;
}

/* The last use of the values of a class, by root. */
struct last_use {
    bool fetched;
    enum ct_part part; /* latest part among its users that are not views */
    int32_t order;     /* position of its last user */
};

static void merge_uses(struct last_use *to, const struct last_use *from)
{
    to->fetched |= from->fetched;
    if (from->part > to->part)
        to->part = from->part;
    if (from->order > to->order)
        to->order = from->order;
}

static struct last_use *find_last_uses(const struct ct_lowering *l, struct ct_arena *scratch)
{
    const struct ct_graph *g = l->graph;
    struct last_use *last = ct_arena_array(scratch, struct last_use, g->value_count + 1);

    for (size_t i = 0; i < g->fetch_count; i++)
        last[g->fetches[i].value->id].fetched = true;
    for (size_t n = 0; n < l->op_count; n++) {
        const struct ct_op *op = l->op_at[n];
        struct last_use use = {.part = is_view(op) ? CT_PART_INIT : op->section->part,
                               .order = op->outs ? (int32_t)n : INT32_MAX}; /* a send runs late */

        for (int i = 0; i < op->ins; i++)
            if (op->in[i])
                merge_uses(&last[op->in[i]->id], &use);
    }
    return last;
}

/* May anything use the class after op, a user of it at position n? */
static bool used_after(const struct last_use *last, const struct ct_op *op, size_t n)
{
    return last->fetched || last->part > op->section->part || last->order > (int32_t)n;
}

static bool has_form_of(const struct ct_lowering *l, const struct ct_value *a,
                        const struct ct_value *b)
{
    return a->dtype == b->dtype && a->ndim == b->ndim &&
           !memcmp(a->shape, b->shape, sizeof(*b->shape) * (size_t)b->ndim) &&
           l->bytes[a->id] == l->bytes[b->id];
}

/* Does op touch a class by other operands than these two? */
static bool touches_otherwise(const struct ct_lowering *l, const struct ct_op *op, uint32_t class,
                              int out, int in)
{
    for (int i = 0; i < op->ins; i++)
        if (i != in && op->in[i] && find(l, op->in[i]->id) == class)
            return true;
    for (int i = 0; i < op->outs; i++)
        if (i != out && find(l, op->out[i]->id) == class)
            return true;
    return false;
}

/* Do both run for each microbatch, or in the same part of the step? */
static bool runs_as_often(const struct ct_section *a, const struct ct_section *b)
{
    return a->part == b->part || (ct_part_is_microbatch(a->part) && ct_part_is_microbatch(b->part));
}

/* Is everything in a class made, and used for the last time, by the ops of a section up to op? */
static bool ends_with(const struct ct_lowering *l, uint32_t root, const struct ct_op *op)
{
    uint32_t id = root;

    do {
        const struct ct_value *v = l->graph->values[id];

        if (v->producer->section != op->section || l->order[id] > l->order[op->out[0]->id] ||
            v->fetch_count)
            return false;
        ct_for_each_use (use, v)
            if (use->op->section != op->section || !use->op->outs ||
                l->order[use->op->out[0]->id] > l->order[op->out[0]->id])
                return false;
    } while ((id = l->next[id]) != root);
    return true;
}

/* Has all that precedes op in the graph, and touches the class, run before op? */
static bool runs_in_turn(const struct ct_lowering *l, const struct ct_op *op, uint32_t class)
{
    const struct ct_section *s = op->section;

    if (l->ops[l->order[op->out[0]->id]].soon)
        return false;
    return !l->listed[s->id] || ct_part_is_microbatch(s->part) || ends_with(l, class, op);
}

static bool may_overwrite(const struct ct_lowering *l, const struct ct_op *op, int out, int in)
{
    const struct ct_value *to = op->out[out], *from = op->in[in];
    const struct ct_value *root = from ? l->graph->values[find(l, from->id)] : NULL;

    if (!root || !root->producer || l->summed[to->id] || l->summed[root->id])
        return false;
    return runs_as_often(root->producer->section, op->section) && !root->opaque_bytes &&
           !to->opaque_bytes && has_form_of(l, from, to) &&
           !touches_otherwise(l, op, root->id, out, in) && runs_in_turn(l, op, root->id);
}

/* ---- parts ---- */

#define ALIGNMENT 64 /* of what is no column of a matrix */

/* Is part i contiguous in its whole? Then *offset is where it begins. */
static bool is_contiguous(const struct ct_lowering *l, const struct ct_op *op, int i,
                          size_t *offset)
{
    const struct ct_value *whole = op->ins == 1 ? op->in[0] : op->out[0];
    const struct ct_tensor *t = &l->program->tensors[whole->id];
    int dim;
    int64_t from = op->type->part(op, &l->graph->mesh, l->request->rank, i, &dim);

    for (int d = 0; d < dim; d++)
        if (t->shape[d] != 1)
            return false;
    *offset = (size_t)(from * t->stride[dim]) * ct_dtype_size(t->dtype);
    return *offset % ALIGNMENT == 0;
}

/* One buffer can hold values of both: one for each microbatch, or one for the step. */
static bool lives_with(const struct ct_section *a, const struct ct_section *b)
{
    return a == b || (ct_part_is_microbatch(a->part) && ct_part_is_microbatch(b->part));
}

/* Can values of these classes share a buffer, in parts? */
static bool may_share(const struct ct_lowering *l, uint32_t a, uint32_t b)
{
    const struct ct_value *v = l->graph->values[a], *w = l->graph->values[b];

    return a != b && v->producer && w->producer && !l->summed[a] && !l->summed[b] &&
           !v->opaque_bytes && !w->opaque_bytes && l->bytes[a] && l->bytes[b] &&
           v->space == w->space && lives_with(v->producer->section, w->producer->section);
}

static void shift(struct ct_lowering *l, uint32_t root, size_t offset)
{
    uint32_t id = root;

    do {
        l->offset[id] += offset;
        l->program->offsets[id] = l->offset[id];
    } while ((id = l->next[id]) != root);
}

/* The part of a whole that lives as long: it lies in the whole. */
static bool narrow_in_place(struct ct_lowering *l, const struct ct_op *op, struct last_use *last)
{
    const struct ct_value *part = op->out[0], *whole = op->in[0];
    uint32_t class = find(l, whole->id);
    size_t offset;

    if (!is_contiguous(l, op, 0, &offset) || !may_share(l, class, part->id) ||
        l->summed[whole->id] || last[part->id].part > last[class].part || last[part->id].fetched)
        return false;
    shift(l, part->id, l->offset[whole->id] + offset);
    merge(l, class, part->id);
    merge_uses(&last[class], &last[part->id]);
    return true;
}

/* May the class of this part be made in the whole? It must be all of its class. */
static bool may_be_part(const struct ct_lowering *l, const struct ct_op *op, int i)
{
    uint32_t root = l->root[op->in[i]->id];

    for (int k = 0; k < i; k++)
        if (l->root[op->in[k]->id] == root)
            return false;
    return may_share(l, l->root[op->out[0]->id], root) &&
           l->bytes[root] == l->bytes[op->in[i]->id] && l->offset[op->in[i]->id] == 0 &&
           ends_with(l, root, op);
}

static void set_root(struct ct_lowering *l, uint32_t to, uint32_t from)
{
    uint32_t id = from;

    do {
        l->root[id] = to;
    } while ((id = l->next[id]) != from);
    merge(l, to, from);
}

static bool concat_in_place(struct ct_lowering *l, const struct ct_op *op)
{
    uint32_t whole = op->out[0]->id;
    size_t offset;

    if (l->root[whole] != whole)
        return false;
    for (int i = 0; i < op->ins; i++)
        if (!is_contiguous(l, op, i, &offset) || !may_be_part(l, op, i))
            return false;
    for (int i = 0; i < op->ins; i++) {
        uint32_t part = l->root[op->in[i]->id];

        is_contiguous(l, op, i, &offset);
        shift(l, part, offset);
        set_root(l, whole, part);
    }
    return true;
}

static void place_parts(struct ct_lowering *l)
{
    for (size_t n = 0; n < l->op_count; n++)
        if (is_part(l->op_at[n]) && l->op_at[n]->ins > 1)
            l->ops[n].in_place = concat_in_place(l, l->op_at[n]);
}

/* Put a value where another one is, in its class. */
static void put_at(struct ct_lowering *l, const struct ct_value *v, const struct ct_value *at,
                   struct last_use *last)
{
    uint32_t class = find(l, at->id);

    shift(l, v->id, l->offset[at->id]);
    merge(l, class, v->id);
    merge_uses(&last[class], &last[v->id]);
}

/* Let outputs of the op at position n take over the memory of inputs that die there. */
static void overwrite_inputs(struct ct_lowering *l, size_t n, struct last_use *last)
{
    const struct ct_op *op = l->op_at[n];

    for (const int8_t(*p)[2] = op->type->inplace; p && (*p)[0] >= 0; p++) {
        int out = (*p)[0], in = (*p)[1];

        if (out < op->outs && in < op->ins && l->root[op->out[out]->id] == op->out[out]->id &&
            may_overwrite(l, op, out, in) && !used_after(&last[find(l, op->in[in]->id)], op, n))
            put_at(l, op->out[out], op->in[in], last);
    }
}

static void alias(struct ct_lowering *l)
{
    struct ct_arena scratch = {0};
    struct last_use *last = find_last_uses(l, &scratch);

    for (uint32_t id = 0; id < l->graph->value_count; id++)
        if (l->sum[id] != id)
            merge(l, l->sum[id], id);
    for (size_t n = 0; n < l->op_count; n++) {
        struct ct_op *op = l->op_at[n];

        if (l->ops[n].in_place)
            continue; /* an add: its terms are made in the sum */
        if (is_view(op))
            put_at(l, op->out[0], op->in[0], last);
        l->ops[n].in_place =
            is_view(op) || (is_part(op) && op->ins == 1 && narrow_in_place(l, op, last));
        if (!l->ops[n].in_place)
            overwrite_inputs(l, n, last);
    }
    for (uint32_t id = 0; id < l->graph->value_count; id++)
        l->root[id] = find(l, id);
    ct_arena_finish(&scratch);
}

/* ---- joining ---- */

#define MOST 64

struct matrix {
    int64_t columns[MOST]; /* of each member */
    uint32_t root[MOST];
    int count;
    int64_t rows, width;
};

/* May the class of root be moved next to another? Only if both are per microbatch, or neither. */
static bool free_to_move(const struct ct_lowering *l, uint32_t root, uint32_t other)
{
    const struct ct_value *v = l->graph->values[root], *w = l->graph->values[other];

    return v->producer && w->producer && !l->summed[root] && !v->opaque_bytes &&
           ct_part_is_microbatch(v->producer->section->part) ==
               ct_part_is_microbatch(w->producer->section->part);
}

/* The kernel that would run op; NULL: there is none. */
static const struct ct_kernel *kernel_of(struct ct_lowering *l, struct ct_op *op)
{
    struct ct_prepare request = {0};

    return ct_lower_find_kernel(l, op, &request);
}

/* Describe the members as a matrix. False if rows or dtypes differ, or one is not free to move. */
static bool as_matrix(const struct ct_lowering *l, struct ct_value **values, int count,
                      const bool *joined, struct matrix *m)
{
    *m = (struct matrix){.count = count};
    if (count < 2 || count > (int)CT_COUNT(m->root))
        return false;
    for (int i = 0; i < count; i++) {
        const struct ct_tensor *t = &l->program->tensors[values[i]->id];
        uint32_t root = l->root[values[i]->id];
        bool packed = ct_dtype_bits(t->dtype) < 8; /* its rows are as long as they are */
        int64_t columns = t->ndim && !packed ? t->shape[t->ndim - 1] : 0;
        int64_t elements = columns ? (int64_t)(l->bytes[root] / ct_dtype_size(t->dtype)) : 0;
        int64_t rows = columns && elements % columns == 0 ? elements / columns : 0;

        if (!rows || (i && rows != m->rows) || values[i]->dtype != values[0]->dtype ||
            !free_to_move(l, root, l->root[values[0]->id]) || joined[root])
            return false;
        for (int k = 0; k < i; k++)
            if (m->root[k] == root)
                return false;
        m->rows = rows;
        m->columns[i] = columns;
        m->root[i] = root;
        m->width += columns;
    }
    return true;
}

/* Set strides of t inside a matrix: rows of `columns` elements become rows of `width`. */
static bool stride_in(struct ct_tensor *t, int64_t columns, int64_t width)
{
    int64_t dense = 1;

    for (int d = t->ndim; d-- > 0; dense *= t->shape[d]) {
        if (dense % columns == 0)
            t->stride[d] = dense / columns * width;
        else if (dense * t->shape[d] <= columns)
            t->stride[d] = dense;
        else
            return false;
    }
    return t->ndim == 0 || t->stride[t->ndim - 1] == 1;
}

/* Calls of the ops that access a class, with the strides that its members have now. */
struct accesses {
    bool dense; /* a kernel takes no strides */
    int slow;   /* calls of slow references */
};

static void add_access(struct ct_lowering *l, struct ct_op *op, struct accesses *a)
{
    const struct ct_kernel *kernel = is_view(op) || is_part(op) ? NULL : kernel_of(l, op);

    if (is_view(op) || is_part(op))
        return;
    a->dense |= !kernel || !(kernel->flags & CT_KERNEL_STRIDED);
    a->slow += kernel && ct_lower_is_slow(op->type, kernel);
}

static struct accesses accesses_of(struct ct_lowering *l, uint32_t root)
{
    struct accesses a = {0};
    uint32_t id = root;

    do {
        const struct ct_value *v = l->graph->values[id];

        if (v->producer)
            add_access(l, v->producer, &a);
        ct_for_each_use (use, v)
            add_access(l, use->op, &a);
    } while ((id = l->next[id]) != root);
    return a;
}

static struct accesses accesses_of_all(struct ct_lowering *l, const struct matrix *m)
{
    struct accesses all = {0};

    for (int i = 0; i < m->count; i++) {
        struct accesses a = accesses_of(l, m->root[i]);

        all.dense |= a.dense;
        all.slow += a.slow;
    }
    return all;
}

/* Lay the members of a class out as columns, from `column` on, in rows of `width` elements. The
   host reads dense values only. */
static bool move_columns(struct ct_lowering *l, uint32_t root, int64_t columns, int64_t column,
                         int64_t width)
{
    struct ct_tensor *tensors = l->program->tensors;
    uint32_t id = root;

    do {
        size_t item = ct_dtype_size(tensors[id].dtype),
               row = l->offset[id] / item / (size_t)columns;

        if (l->graph->values[id]->fetch_count || l->offset[id] % (item * (size_t)columns) ||
            !stride_in(&tensors[id], columns, width))
            return false;
        l->program->offsets[id] = (row * (size_t)width + (size_t)column) * item;
    } while ((id = l->next[id]) != root);
    return true;
}

static void move_back(struct ct_lowering *l, uint32_t root)
{
    uint32_t id = root;

    do {
        struct ct_tensor *t = &l->program->tensors[id];

        *t = ct_tensor_dense(NULL, t->dtype, t->ndim, t->shape);
        l->program->offsets[id] = l->offset[id];
    } while ((id = l->next[id]) != root);
}

/* Move every member of the classes into the matrix, or leave all as they were. A kernel may support
   strides, but not these: no reference takes over from it. */
static void join(struct ct_lowering *l, const struct matrix *m, bool *joined)
{
    size_t item = ct_dtype_size(l->program->tensors[m->root[0]].dtype);
    struct accesses before = accesses_of_all(l, m), after;
    int64_t column = 0;
    bool ok = true;

    for (int i = 0; ok && i < m->count; column += m->columns[i++])
        ok = move_columns(l, m->root[i], m->columns[i], column, m->width);
    after = ok ? accesses_of_all(l, m) : before;
    ok = ok && !after.dense && after.slow <= before.slow;
    for (int i = 0; !ok && i < m->count; i++)
        move_back(l, m->root[i]);
    if (!ok)
        return;
    for (int i = 1; i < m->count; i++)
        set_root(l, m->root[0], m->root[i]);
    joined[m->root[0]] = true;
    l->bytes[m->root[0]] = (size_t)(m->rows * m->width) * item;
}

static void try_join(struct ct_lowering *l, struct ct_value **values, int count, bool *joined)
{
    struct matrix m;

    if (as_matrix(l, values, count, joined, &m))
        join(l, &m, joined);
}

/* Replace values by the wholes that they are parts of; false: one is part of none. */
static bool find_wholes(struct ct_value **values, int count)
{
    for (int i = 0; i < count; i++) {
        const struct ct_op *user = ct_value_only_user(values[i]);

        if (!user || !is_part(user) || user->ins < 2)
            return false;
        values[i] = user->out[0];
    }
    return count > 0;
}

/* Join values that an op prefers contiguous, and the wholes concatenated from them. */
static void join_all(struct ct_lowering *l, bool *joined)
{
    for (size_t n = 0; n < l->op_count; n++) {
        struct ct_op *op = l->op_at[n];
        struct ct_value **values = NULL, *wholes[MOST];
        int count = ct_op_join(op, &values);

        if (count < 2 || count > MOST)
            continue;
        try_join(l, values, count, joined);
        memcpy(wholes, values, sizeof(*wholes) * (size_t)count);
        while (find_wholes(wholes, count))
            try_join(l, wholes, count, joined);
    }
}

/* ---- stacking ---- */

static bool same_users(const struct ct_value *a, const struct ct_value *b)
{
    ct_for_each_use (use, a) {
        bool shared = false;

        ct_for_each_use (other, b)
            shared |= other->op == use->op;
        if (!shared)
            return false;
    }
    return a->use_count == b->use_count;
}

/* May v follow w in one buffer, at this offset? Each is all of its class. */
static bool may_follow(const struct ct_lowering *l, const struct ct_value *v,
                       const struct ct_value *w, size_t offset, const bool *joined)
{
    uint32_t root = l->root[v->id];

    return v->producer && w->producer && !joined[root] && root != l->root[w->id] &&
           v->producer->section == w->producer->section && v->space == w->space &&
           l->summed[root] == l->summed[l->root[w->id]] &&
           (v->producer == w->producer || same_users(v, w)) && !v->opaque_bytes && l->bytes[root] &&
           l->bytes[root] == l->bytes[v->id] && l->offset[v->id] == 0 && offset % ALIGNMENT == 0 &&
           root == v->id;
}

static void stack(struct ct_lowering *l, struct ct_value **values, int count, bool *joined)
{
    uint32_t first = count ? values[0]->id : 0;
    size_t offset = 0;

    if (count < 2 || joined[first] || l->root[first] != first)
        return;
    for (int i = 0; i < count; offset += l->bytes[values[i++]->id])
        for (int k = 0; k < (i ? i : 1); k++)
            if (!may_follow(l, values[i], values[i ? k : 1], offset, joined))
                return;
    offset = 0;
    for (int i = 0; i < count; offset += l->bytes[values[i++]->id]) {
        joined[values[i]->id] = true;
        shift(l, values[i]->id, offset);
        if (i)
            set_root(l, first, values[i]->id);
    }
    l->bytes[first] = offset;
}

/* Stack the values for which an op's kernel asks. */
static void stack_all(struct ct_lowering *l, bool *joined)
{
    for (size_t n = 0; n < l->op_count; n++) {
        const struct ct_kernel *kernel = kernel_of(l, l->op_at[n]);
        struct ct_value **values = NULL;
        int count = kernel && kernel->stack ? kernel->stack(l->op_at[n], &values) : 0;

        if (count > 1)
            stack(l, values, count, joined);
    }
}

int ct_lower_place(struct ct_lowering *l)
{
    bool *joined = ct_arena_array(&l->scratch, bool, l->graph->value_count + 1);

    ct_lower_find_sums(l);
    local_tensors(l);
    ct_lower_find_terms(l);
    alias(l);
    place_parts(l);
    join_all(l, joined);
    stack_all(l, joined);
    for (size_t n = 0; n < l->op_count; n++) {
        struct ct_op *op = l->op_at[n];
        int rc = 0;

        for (int i = 0; i < op->outs; i++) {
            if (l->sum[op->out[i]->id] == op->out[i]->id &&
                !(l->summed[op->out[i]->id] && l->request->microbatches > 1))
                continue;
            if (i >= 32)
                return ct_fail(CT_EINVAL,
                               "%s: output %d of an op cannot be summed, only the first 32",
                               op->type->name, i);
            l->ops[n].accumulate |= 1u << i;
        }
        if (!l->ops[n].in_place)
            rc = ct_lower_choose_kernel(l, op, &l->ops[n]);
        if (rc < 0)
            return rc;
    }
    return 0;
}
