/*
 * Filling a run's parameters from a Hugging Face folder: each rank reads its own shards.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/safetensors.h>
#include <ctitan/lib/stored.h>
#include <ctitan/log.h>
#include <ctitan/state.h>

#include "load.h"

#define MOST_WARNINGS 4 /* of tensors that no parameter is read from */

/* The tensor called name. Files of a base model lack the first part of the names. */
static const struct ct_weight *find(const struct ct_weights *weights, const char *name)
{
    const struct ct_weight *w = ct_weights_find(weights, name);
    const char *rest = strchr(name, '.');

    return w || !rest ? w : ct_weights_find(weights, rest + 1);
}

static int fail_shape(const struct ct_weight *is, const struct ct_weight *want)
{
    struct ct_shape a = ct_shape_of(is->ndim, is->shape), b = ct_shape_of(want->ndim, want->shape);
    char text[2][128];

    ct_shape_print(&a, text[0], sizeof(text[0]));
    ct_shape_print(&b, text[1], sizeof(text[1]));
    return ct_fail(CT_ECONFIG, "tensor %s is [%s], but the model's, by config.json, is [%s]",
                   want->name, text[0], text[1]);
}

int hf_find_tensor(struct ct_arena *arena, const struct ct_weights *weights,
                   const struct ct_stored_rule *rule, const struct ct_state *param, int64_t index,
                   struct hf_tensor *tensor)
{
    struct ct_weight want = ct_stored_tensor(arena, rule, param, index);
    const struct ct_weight *w = find(weights, want.name);

    *tensor = (struct hf_tensor){.weight = w};
    if (!w)
        return ct_fail(CT_ENOENT, "it has no tensor %s", want.name);
    if (rule) {
        tensor->own = ct_stored_rule_for(rule, w);
        tensor->rule = &tensor->own;
        want = ct_stored_tensor(arena, tensor->rule, param, index);
    }
    if (w->ndim != want.ndim ||
        memcmp(w->shape, want.shape, sizeof(*w->shape) * (size_t)w->ndim) != 0)
        return fail_shape(w, &want);
    return 0;
}

/* Room for a box of a tensor in another layout than the parameter's. */
struct scratch {
    void *memory;
    size_t bytes;
};

static int read_between(const struct ct_weight *w, const struct ct_stored_rule *rule,
                        const struct ct_state *param, const struct ct_stored_box *box,
                        const struct ct_stored_box *t, struct scratch *scratch, void *host)
{
    struct ct_stored_places places = ct_stored_places(rule, param, box, t);
    size_t item = ct_dtype_size(param->dtype);
    size_t bytes = (size_t)ct_shape_count(t->ndim, t->shape) * item;
    int rc;

    if (!bytes)
        return 0;
    if (scratch->bytes < bytes) {
        free(scratch->memory);
        *scratch = (struct scratch){malloc(bytes), bytes};
    }
    if (!scratch->memory) {
        scratch->bytes = 0;
        return ct_fail(CT_ENOMEM, "%zu bytes to read %s in", bytes, w->name);
    }
    rc = ct_weights_read(w, t->offset, t->shape, param->dtype, scratch->memory);
    if (rc == 0)
        ct_stored_gather(&places, 0, ct_shape_count(box->ndim, box->shape), item, scratch->memory,
                         host);
    return rc;
}

/* Read a box of a parameter, which one tensor holds, to host. */
static int read_box(const struct ct_run *run, const struct ct_weights *weights,
                    const struct ct_state *param, const struct ct_stored_box *box,
                    struct scratch *scratch, void *host)
{
    const struct ct_stored_rule *rule = ct_stored_rule(run->model_ops->stored, param->name);
    struct ct_arena arena = {0};
    int64_t index = ct_stored_stacked(rule) ? box->offset[0] : 0;
    struct hf_tensor found;
    struct ct_stored_box t;
    int rc = hf_find_tensor(&arena, weights, rule, param, index, &found);

    if (rc == 0) {
        t = ct_stored_to_tensor(found.rule, param, box);
        if (ct_stored_dense(found.rule))
            rc = ct_weights_read(found.weight, t.offset, t.shape, param->dtype, host);
        else
            rc = read_between(found.weight, found.rule, param, box, &t, scratch, host);
    }
    ct_arena_finish(&arena);
    return rc;
}

/* The parameter, by the model's name of it, which files have. */
static struct ct_state named(const struct ct_state *param)
{
    struct ct_state state = *param;

    if (param->set)
        state.name += strlen(param->set->name) + 1;
    return state;
}

/* Whether a parameter of these weights is read: of a set, or with NULL of the model itself, and of
   the sets that begin like it. */
static bool is_read(const struct ct_run *run, const struct ct_state *state,
                    const struct ct_weight_set *set)
{
    bool one = set                            ? state->set == set
               : state->role == CT_ROLE_PARAM ? true
                                              : state->set && !ct_state_reloads(state);

    return one && !ct_stored_absent(ct_stored_rule(run->model_ops->stored, named(state).name));
}

/* Read any box of a parameter. bytes: of that box. */
static int read_part(const struct ct_run *run, const struct ct_weights *weights,
                     const struct ct_state *param, struct ct_stored_box box,
                     struct scratch *scratch, char *host, size_t bytes)
{
    const struct ct_stored_rule *rule = ct_stored_rule(run->model_ops->stored, param->name);
    int64_t count = 1;
    int rc = 0;

    /* One index of the first dimension at a time: it may be a tensor, or need scratch. */
    if (ct_stored_stacked(rule) || (!ct_stored_dense(rule) && box.ndim > 2)) {
        count = box.shape[0];
        box.shape[0] = 1;
    }
    for (int64_t i = 0; rc == 0 && i < count; i++, box.offset[0]++)
        rc = read_box(run, weights, param, &box, scratch, host + bytes / (size_t)count * (size_t)i);
    return rc;
}

/* A parameter that is read for who makes codes of it. */
struct numbers {
    const struct ct_run *run;
    const struct ct_weights *weights;
    struct ct_state param; /* as float32 */
    struct scratch scratch;
};

static int read_numbers(void *context, const int64_t *offset, const int64_t *shape, float *to)
{
    struct numbers *n = context;
    struct ct_stored_box box = {.ndim = n->param.ndim};

    memcpy(box.offset, offset, sizeof(*offset) * (size_t)box.ndim);
    memcpy(box.shape, shape, sizeof(*shape) * (size_t)box.ndim);
    return read_part(n->run, n->weights, &n->param, box, &n->scratch, (char *)to,
                     (size_t)ct_shape_count(box.ndim, shape) * sizeof(*to));
}

static int load_codes(struct ct_run *run, const struct ct_weights *weights,
                      const struct ct_state *param)
{
    struct numbers n = {.run = run, .weights = weights, .param = *param};
    int rc;

    n.param.dtype = CT_F32;
    n.param.coding = NULL;
    rc = param->coding->encode(run, param, read_numbers, &n);
    free(n.scratch.memory);
    return rc;
}

static int load_parameter(struct ct_run *run, const struct ct_weights *weights,
                          const struct ct_state *param)
{
    size_t bytes = ct_run_shard_bytes(run, param);
    struct ct_stored_box box = {.ndim = param->ndim};
    struct ct_state stored = named(param);
    struct scratch scratch = {0};
    char *host = malloc(bytes + 1);
    int rc = host ? 0 : ct_fail(CT_ENOMEM, "%zu bytes to read %s", bytes, param->name);

    ct_run_shard(run, param, run->rank, box.shape, box.offset);
    if (rc == 0)
        rc = read_part(run, weights, &stored, box, &scratch, host, bytes);
    if (rc == 0)
        rc = ct_run_write(run, param, NULL, NULL, host);
    free(host);
    free(scratch.memory);
    return rc;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The names of all tensors that hold parameters, as the files have them, sorted. */
static const char **list_used(struct ct_arena *arena, const struct ct_run *run,
                              const struct ct_weights *weights, size_t *count)
{
    const char **names;
    size_t room = 0;

    for (size_t i = 0; i < run->state_count; i++)
        room += (size_t)ct_stored_count(ct_stored_rule(run->model_ops->stored, run->states[i].name),
                                        &run->states[i]);
    names = ct_arena_array(arena, const char *, room + 1);
    *count = 0;
    for (size_t i = 0; i < run->state_count; i++) {
        const struct ct_state *p = &run->states[i];
        const struct ct_stored_rule *rule = ct_stored_rule(run->model_ops->stored, p->name);
        bool own = !p->set && is_read(run, p, NULL);

        for (int64_t k = 0; own && k < ct_stored_count(rule, p); k++) {
            const struct ct_weight *w = find(weights, ct_stored_tensor(arena, rule, p, k).name);

            if (w)
                names[(*count)++] = w->name;
        }
    }
    qsort(names, *count, sizeof(*names), by_name);
    return names;
}

/* The embedding that is the head, too, in a model without a parameter lm_head.weight. */
static const struct ct_weight *find_embedding(const struct ct_weights *weights)
{
    const struct ct_weight *w = find(weights, "model.embed_tokens.weight");

    return w ? w : find(weights, "transformer.wte.weight");
}

/* The head of files that have it besides the embedding must be the same: transformers would use
   both. */
static int check_head(const struct ct_weight *head, const struct ct_weight *embedding)
{
    int64_t columns = head->ndim == 2 ? head->shape[1] : 0, offset[CT_MAX_DIMS] = {0};
    size_t bytes = (size_t)columns * ct_dtype_size(head->dtype);
    bool same = head->ndim == embedding->ndim &&
                !memcmp(head->shape, embedding->shape, sizeof(*head->shape) * (size_t)head->ndim);
    char *row = malloc(bytes + 1);
    int rc = row ? 0 : ct_fail(CT_ENOMEM, "%zu bytes to compare %s", bytes, head->name);

    for (; rc == 0 && same && columns && offset[0] < head->shape[0]; offset[0]++) {
        rc = ct_weights_read(embedding, offset, (int64_t[]){1, columns}, head->dtype, row);
        same = !memcmp(row, (const char *)head->data + (size_t)offset[0] * bytes, bytes);
    }
    free(row);
    if (rc == 0 && !same)
        rc = ct_fail(CT_ECONFIG,
                     "%s differs from %s, but the model's head is its embedding: set "
                     "tie_word_embeddings to false, or remove the tensor from the file",
                     head->name, embedding->name);
    return rc;
}

/* Tensors of other parts, in files that do not call those of text by a name of their own. */
static bool is_other(const struct ct_weight *w)
{
    return strncmp(w->name, "model.", strlen("model.")) && strncmp(w->name, "lm_head.", 8);
}

static int check_unused(const struct ct_run *run, const struct ct_weights *weights,
                        const char *folder)
{
    const struct ct_weight *embedding = find_embedding(weights);
    struct ct_arena arena = {0};
    size_t count, unused = 0, others = 0;
    bool part = ct_hf_is_part(run);
    const char **names = list_used(&arena, run, weights, &count);
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < ct_weights_count(weights); i++) {
        const struct ct_weight *w = ct_weights_at(weights, i);
        const struct ct_stored_rule *rule = ct_stored_rule(run->model_ops->stored, w->name);

        if ((rule && !rule->stored) || bsearch(&w->name, names, count, sizeof(*names), by_name))
            continue;
        if (embedding && !strcmp(w->name, "lm_head.weight"))
            rc = check_head(w, embedding);
        else if (part && is_other(w))
            others++;
        else if (unused++ < MOST_WARNINGS)
            ct_warn("%s: the model has no parameter for tensor %s, which is ignored", folder,
                    w->name);
    }
    if (others)
        ct_info("%s: %zu tensors of other parts than that for text stay as they are", folder,
                others);
    if (unused > MOST_WARNINGS)
        ct_warn("%s: %zu more tensors are ignored, as the model has no parameters for them", folder,
                unused - MOST_WARNINGS);
    ct_arena_finish(&arena);
    return rc;
}

static int load(struct ct_run *run, const char *folder, const struct ct_weight_set *set)
{
    struct ct_weights *weights;
    int rc = ct_weights_open(folder, &weights);

    if (rc < 0)
        return rc == CT_EIO ? CT_ECONFIG : rc; /* damaged, or no file of weights */
    for (size_t i = 0; rc == 0 && i < run->state_count; i++) {
        if (!run->states[i].value || !is_read(run, &run->states[i], set))
            continue;
        rc = run->states[i].coding ? load_codes(run, weights, &run->states[i])
                                   : load_parameter(run, weights, &run->states[i]);
        ct_weights_release(weights);
    }
    if (rc == 0)
        rc = check_unused(run, weights, folder);
    ct_weights_close(weights);
    return rc;
}

int ct_hf_load_set(struct ct_run *run, const struct ct_weight_set *set)
{
    return load(run, set->folder, set);
}

int ct_hf_load(struct ct_run *run, const char *folder)
{
    int rc = load(run, folder, NULL);

    if (rc == 0 && run->rank == 0)
        rc = ct_hf_note_files(folder);
    if (rc == 0)
        ct_weights_note(folder);
    return rc;
}
