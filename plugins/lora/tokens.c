/*
 * Rows of the embedding that are trained ([lora] trainable_tokens), as those of new tokens.
 *
 * All who read the table, a tied head too, get table + S D in its place. D [tokens, width] is
 * trained and begins with zeros. S [vocabulary, tokens] is frozen, and has a single 1 in each
 * column: in the row of the token. That is an adapter of a stack of one weight (stack.c). S is
 * split by rows as the table is, so each rank adds to rows of its own. Checkpoints have S, and it
 * says which tokens D is of.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/comm.h>
#include <ctitan/core_ops.h>
#include <ctitan/error.h>
#include <ctitan/lib/names.h>
#include <ctitan/lib/ops.h>

#include "lora.h"

#define MOST 65536 /* tokens */

/* ---- the list ---- */

static int fail_word(const char *word)
{
    return ct_fail(
        CT_ECONFIG,
        "[lora] trainable_tokens: expected ids of tokens, like 5, 17, 128000..128010, and "
        "not \"%s\"",
        word);
}

/* One id, or FIRST..LAST. */
static int read_word(const char *word, int64_t *first, int64_t *last)
{
    char *end;

    *first = *last = strtoll(word, &end, 10);
    if (end != word && !strncmp(end, "..", 2) && end[2]) {
        word = end + 2;
        *last = strtoll(word, &end, 10);
    }
    return end == word || *end || *first < 0 || *last < *first ? CT_ECONFIG : 0;
}

static int add_ids(struct lora_ids *ids, size_t *room, struct ct_arena *arena, int64_t first,
                   int64_t last)
{
    for (int64_t id = first; id <= last; id++) {
        if (ids->count == MOST)
            return ct_fail(CT_ECONFIG, "[lora] trainable_tokens: more than %d tokens", MOST);
        for (size_t i = 0; i < ids->count; i++)
            if (ids->id[i] == id)
                return ct_fail(CT_ECONFIG, "[lora] trainable_tokens: %lld is there twice",
                               (long long)id);
        ids->id = ct_arena_grow(arena, ids->id, room, ids->count + 1, sizeof(*ids->id));
        ids->id[ids->count++] = id;
    }
    return 0;
}

int lora_ids_read(struct ct_arena *arena, struct lora_ids *ids)
{
    char *at = ct_arena_strdup(arena, lora_config.trainable_tokens), *word;
    size_t room = 0;
    int64_t first, last;
    int rc = 0;

    *ids = (struct lora_ids){0};
    while (rc == 0 && (word = strsep(&at, ", \t"))) {
        if (!*word)
            continue;
        if (read_word(word, &first, &last) < 0)
            return fail_word(word);
        rc = add_ids(ids, &room, arena, first, last);
    }
    return rc;
}

/* ---- the graph ---- */

/* The first table that tokens are looked up in; NULL: none. */
static struct ct_value *find_table(struct ct_graph *graph)
{
    ct_for_each_op (op, graph)
        if (op->type == &ct_op_embedding && op->in[1]->role == CT_ROLE_PARAM &&
            op->section->part == CT_PART_F)
            return op->in[1];
    return NULL;
}

static int check_table(const struct ct_graph *graph, const struct ct_value *w, const char *module,
                       const struct lora_ids *ids)
{
    struct ct_arena scratch = {0};
    int rc = 0;

    if (ct_graph_find(graph, ct_arena_printf(&scratch, "%s" LORA_EMBEDDING_A, module)))
        rc = ct_fail(CT_ECONFIG,
                     "[lora] trainable_tokens: %s has an adapter already: leave it out ([lora] "
                     "modules)",
                     module);
    for (size_t i = 0; rc == 0 && i < ids->count; i++)
        if (ids->id[i] >= w->shape[0])
            rc = ct_fail(CT_ECONFIG, "[lora] trainable_tokens: %lld, but %s has %lld rows",
                         (long long)ids->id[i], module, (long long)w->shape[0]);
    ct_arena_finish(&scratch);
    return rc;
}

/* A matrix as a stack of one, or the other way. */
static struct ct_value *view(struct ct_builder *b, struct ct_value *x, const char *suffix, int ndim)
{
    int from = x->ndim - 2;
    int64_t shape[] = {1, x->shape[from], x->shape[from + 1]};

    return ct_view(b, ct_arena_printf(b->graph->arena, "%s.%s", x->name, suffix), x, ndim,
                   shape + (3 - ndim));
}

/* w + S D in front of an op. */
static struct ct_value *add_rows(struct ct_builder *b, struct ct_value *w, struct ct_value *rows,
                                 struct ct_value *selection)
{
    const struct lora_scaled one = {1, true};
    struct ct_value *in[] = {view(b, w, "stack", 3), view(b, rows, "stack", 3),
                             view(b, selection, "stack", 3)},
                    *sum = NULL;

    if (in[0] && in[1] && in[2])
        sum =
            ct_emit_type1(b, &lora_op_merge,
                          ct_arena_printf(b->graph->arena, "%s.with_tokens", w->name), in, 3, &one);
    sum = sum ? view(b, sum, "table", 2) : NULL;
    if (sum)
        sum->sharding = w->sharding;
    return sum;
}

/* D and S. */
static int add_parameters(struct ct_builder *b, struct ct_value *w, const char *module,
                          int64_t count, struct ct_value *added[2])
{
    added[0] = lora_parameter(b, w, module, LORA_TOKENS, (struct ct_shape){2, {count, w->shape[1]}},
                              (int[]){-1, 1}, (struct ct_init){0});
    added[1] =
        lora_parameter(b, w, module, LORA_SELECTION, (struct ct_shape){2, {w->shape[0], count}},
                       (int[]){0, -1}, (struct ct_init){0});
    if (!added[0] || !added[1])
        return b->status;
    added[1]->marks &= ~ct_mark(LORA_ADAPTER);
    added[1]->beside = true;
    return 0;
}

/* An input of an op that is the table. */
struct reader {
    struct ct_op *op;
    int index;
};

static struct reader *find_readers(struct ct_arena *arena, const struct ct_value *w, size_t *count)
{
    struct reader *list = NULL;
    size_t room = 0;

    *count = 0;
    ct_for_each_use (use, w)
        if (lora_is_forward(use)) {
            list = ct_arena_grow(arena, list, &room, *count + 1, sizeof(*list));
            list[(*count)++] = (struct reader){use->op, use->index};
        }
    return list;
}

static int adapt_table(struct ct_graph *graph, struct ct_arena *arena, struct ct_value *w,
                       const char *module, int64_t tokens)
{
    struct ct_value *added[2] = {0};
    size_t count;
    struct reader *reader = find_readers(arena, w, &count);
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < count; i++) {
        struct ct_builder b = ct_builder_before(graph, reader[i].op);
        struct ct_value *sum;

        b.why = "lora: rows of tokens that are trained";
        b.marks = ct_mark(CT_MARK_FULL_PRECISION);
        if (!added[0])
            rc = add_parameters(&b, w, module, tokens, added);
        sum = rc == 0 ? add_rows(&b, w, added[0], added[1]) : NULL;
        if (sum)
            ct_op_set_input(reader[i].op, reader[i].index, sum);
        rc = rc == 0 ? b.status : rc;
    }
    return rc;
}

int lora_adapt_tokens(struct ct_graph *graph, struct ct_arena *arena, int64_t *count)
{
    struct ct_value *w = find_table(graph);
    struct lora_ids ids;
    const char *module;
    int rc = lora_ids_read(arena, &ids);

    *count = (int64_t)ids.count;
    if (rc < 0 || !ids.count)
        return rc;
    if (!w)
        return ct_fail(CT_ECONFIG, "[lora] trainable_tokens: the model has no embedding");
    module = lora_module_of(arena, w);
    rc = check_table(graph, w, module, &ids);
    return rc < 0 ? rc : adapt_table(graph, arena, w, module, *count);
}

/* ---- the selection ---- */

/* This rank's shard of S; NULL: no memory. */
static void *make_selection(const struct ct_state *s, const int64_t *shape, const int64_t *offset,
                            const struct lora_ids *ids)
{
    struct ct_tensor t = ct_tensor_dense(NULL, s->dtype, 2, shape);

    t.data = calloc(ct_tensor_bytes(&t) + 1, 1);
    for (int64_t k = 0; t.data && k < shape[1]; k++) {
        int64_t row = ids->id[offset[1] + k] - offset[0];

        if (row >= 0 && row < shape[0])
            ct_tensor_store(&t, row * shape[1] + k, 1);
    }
    return t.data;
}

static bool has_bytes(const char *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (data[i])
            return true;
    return false;
}

/* Compare this rank's shard with what it should be, and then fill it. found[0]: it has some number;
   found[1]: it is another one. */
static int check_shard(struct ct_run *run, const struct ct_state *s, const struct lora_ids *ids,
                       bool fills, int32_t found[2])
{
    int64_t shape[CT_MAX_DIMS], offset[CT_MAX_DIMS];
    size_t bytes = s->value ? ct_run_shard_bytes(run, s) : 0;
    char *is, *wanted;
    int rc;

    if (!bytes || !ct_run_shard(run, s, run->rank, shape, offset))
        return 0;
    is = malloc(bytes);
    wanted = make_selection(s, shape, offset, ids);
    rc = is && wanted ? 0 : ct_fail(CT_ENOMEM, "%s", s->name);
    if (rc == 0)
        rc = fills ? ct_run_write(run, s, NULL, NULL, wanted) : ct_run_read(run, s, NULL, NULL, is);
    if (rc == 0 && !fills) {
        found[0] = has_bytes(is, bytes);
        found[1] = memcmp(is, wanted, bytes) != 0;
    }
    free(is);
    free(wanted);
    return rc;
}

int lora_select(struct ct_run *run, const struct lora_layer *l, bool fills)
{
    struct ct_arena scratch = {0};
    struct lora_ids ids;
    int32_t mine[2] = {0}, all[2] = {0};
    int rc = lora_ids_read(&scratch, &ids);

    if (rc == 0)
        rc = check_shard(run, l->b, &ids, false, mine);
    rc = ct_group_agree(ct_run_world(run), rc);
    if (rc == 0)
        rc = ct_group_all_reduce(ct_run_world(run), mine, all, 2, CT_I32, CT_REDUCE_MAX);
    if (rc == 0 && all[0] && all[1])
        rc =
            ct_fail(CT_ECONFIG, "[lora] trainable_tokens: the checkpoint has trained other tokens");
    else if (rc == 0 && all[1] && fills)
        rc = ct_group_agree(ct_run_world(run), check_shard(run, l->b, &ids, true, mine));
    ct_arena_finish(&scratch);
    return rc;
}

int lora_check_tokens(struct ct_run *run)
{
    struct ct_arena scratch = {0};
    struct lora_layer *layers;
    size_t count;
    int rc = lora_layers(&scratch, run, &layers, &count);

    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = layers[i].tokens ? lora_select(run, &layers[i], false) : 0;
    ct_arena_finish(&scratch);
    return rc;
}

/* ---- rows of the table ---- */

/* Add what this rank's shard has of the rows. */
static int add_own_rows(struct ct_run *run, const struct ct_state *w, const struct lora_ids *ids,
                        float *rows)
{
    int64_t shape[CT_MAX_DIMS], offset[CT_MAX_DIMS], at[CT_MAX_DIMS] = {0};
    void *row;
    int rc = 0;

    if (!w->value || !ct_run_shard(run, w, run->rank, shape, offset) ||
        !ct_run_shard_first(run, w, run->rank) || !ct_shape_count(2, shape))
        return 0;
    row = malloc((size_t)shape[1] * ct_dtype_size(w->dtype));
    if (!row)
        return ct_fail(CT_ENOMEM, "a row of %s", w->name);
    for (size_t i = 0; rc == 0 && i < ids->count; i++) {
        int64_t size[CT_MAX_DIMS] = {1, shape[1]};
        struct ct_tensor t = ct_tensor_dense(row, w->dtype, 2, size);

        at[0] = ids->id[i] - offset[0];
        if (at[0] < 0 || at[0] >= shape[0])
            continue;
        rc = ct_run_read(run, w, at, size, row);
        for (int64_t j = 0; rc == 0 && j < shape[1]; j++)
            rows[(int64_t)i * w->shape[1] + offset[1] + j] = (float)ct_tensor_load(&t, j);
    }
    free(row);
    return rc;
}

float *lora_table_rows(struct ct_run *run, const struct lora_layer *l)
{
    struct ct_arena scratch = {0};
    struct lora_ids ids;
    int rc = lora_ids_read(&scratch, &ids);
    size_t count = ids.count * (size_t)l->w->shape[1];
    float *rows = calloc(count + 1, sizeof(*rows));

    if (rc == 0)
        rc = rows ? add_own_rows(run, l->w, &ids, rows) : ct_fail(CT_ENOMEM, "%zu numbers", count);
    rc = ct_group_agree(ct_run_world(run), rc);
    if (rc == 0)
        rc = ct_group_all_reduce(ct_run_world(run), rows, rows, count, CT_F32, CT_REDUCE_SUM);
    ct_arena_finish(&scratch);
    if (rc == 0)
        return rows;
    free(rows);
    return NULL;
}
