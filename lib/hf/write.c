/*
 * Parameters as a folder of weights. A tensor is put together some rows at a time: each box of
 * those rows that a parameter has comes in its layout, and goes to its place in that of the tensor.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/safetensors.h>
#include <ctitan/lib/stored.h>

#include "parts.h"
#include "safetensors_format.h"

/* Rows are assembled in windows of this many bytes; a longer row gets its own. */
#define WINDOW ((size_t)16 << 20)

/* A tensor to write: the parameter in it, or the first one, and which of the parameter's tensors
   it is. */
struct ct_hf_output {
    const struct ct_state *param;
    int64_t index;
};

struct writing {
    const struct ct_hf_writer *w;
    const struct ct_hf_source *source;
};

static size_t bytes_of(const struct ct_stored_box *p, enum ct_dtype dtype)
{
    return (size_t)ct_shape_count(p->ndim, p->shape) * ct_dtype_size(dtype);
}

/* The parameter that is part i of the tensor of another one. */
static const struct ct_state *part_of(const struct ct_hf_writer *w, const struct ct_state *first,
                                      int i)
{
    const struct ct_stored_rule *own = ct_stored_rule(w->rules, first->name);
    int base = (int)(strlen(first->name) - strlen(own ? own->suffix : ""));
    char name[512] = "";

    if (i == 0)
        return first;
    for (const struct ct_stored_rule *r = w->rules; r->suffix; r++)
        if (r->stored && !strcmp(r->stored, own->stored) && r->part == i) {
            snprintf(name, sizeof(name), "%.*s%s", base, first->name, r->suffix);
            break;
        }
    for (size_t k = 0; k < w->param_count; k++)
        if (!strcmp(w->params[k].name, name))
            return &w->params[k];
    return NULL;
}

/* ---- values ---- */

/* Read one parameter's share of some rows of a tensor, and put it to its place among them. */
static int write_part(const struct writing *g, const struct ct_hf_output *o,
                      const struct ct_state *param, const struct ct_stored_box *rows, bool writes)
{
    const struct ct_hf_writer *w = g->w;
    const struct ct_stored_rule *rule = ct_stored_rule(w->rules, param->name);
    struct ct_stored_places places;
    struct ct_stored_box window;
    int rc;

    if (!ct_stored_to_param(rule, param, o->index, rows, &window))
        return 0;
    rc = g->source->read(g->source->context, param, &window, writes ? w->window : NULL);
    if (rc < 0 || !writes)
        return rc;
    places = ct_stored_places(rule, param, &window, rows);
    ct_stored_scatter(&places, 0, ct_shape_count(window.ndim, window.shape),
                      ct_dtype_size(param->dtype), w->window, w->rows);
    return 0;
}

/* The first rows of a tensor that fit into `bytes`, at least one. */
static struct ct_stored_box first_rows(const struct ct_weight *weight, size_t bytes)
{
    struct ct_stored_box w = {.ndim = weight->ndim};
    int64_t rows;

    memcpy(w.shape, weight->shape, sizeof(w.shape));
    if (!w.ndim || !w.shape[0])
        return w;
    w.shape[0] = 1;
    rows = (int64_t)(bytes / (bytes_of(&w, weight->dtype) + !bytes_of(&w, weight->dtype)));
    w.shape[0] = rows < 1 ? 1 : rows < weight->shape[0] ? rows : weight->shape[0];
    return w;
}

/* A tensor of other files, as it is there. */
static int copy_tensor(const struct ct_weight *weight, struct ct_safetensors_sink *sink)
{
    if (sink)
        ct_safetensors_put(sink, weight->data, ct_safetensors_bytes(weight));
    return 0;
}

/* A failure to write is stored in the sink, so that the other ranks can finish sending. */
static int produce(size_t index, struct ct_safetensors_sink *sink, void *context)
{
    const struct writing *g = context;
    const struct ct_hf_output *o = &g->w->outputs[index];
    const struct ct_weight *weight = &g->w->weights[index];
    const struct ct_stored_rule *rule;
    struct ct_stored_box window = first_rows(weight, WINDOW);
    int64_t step = window.ndim ? window.shape[0] : 1, rows = window.ndim ? weight->shape[0] : 1;
    int rc = 0;

    if (!o->param)
        return copy_tensor(weight, sink);
    rule = ct_stored_rule(g->w->rules, o->param->name);
    for (int64_t at = 0; rc == 0 && at < rows; at += step) {
        if (window.ndim) {
            window.offset[0] = at;
            window.shape[0] = rows - at < step ? rows - at : step;
        }
        rc = write_part(g, o, o->param, &window, sink);
        for (int i = 1; rc == 0 && rule && i < rule->parts; i++)
            rc = write_part(g, o, part_of(g->w, o->param, i), &window, sink);
        if (rc == 0 && sink)
            ct_safetensors_put(sink, g->w->rows, bytes_of(&window, weight->dtype));
    }
    return rc;
}

/* ---- the list of tensors ---- */

/* All tensors of a parameter; none if it is in that of another one. */
static int add_outputs(struct ct_hf_writer *w, const struct ct_state *param)
{
    const struct ct_stored_rule *rule = ct_stored_rule(w->rules, param->name);

    for (int i = 1; rule && i < rule->parts; i++)
        if (rule->part == 0 && !part_of(w, param, i))
            return ct_fail(CT_EINVAL, "no parameter gives part %d of the tensor for %s", i,
                           param->name);
    if (rule && rule->part)
        return 0;
    for (int64_t i = 0; i < ct_stored_count(rule, param); i++) {
        struct ct_weight *weight = &w->weights[w->count];
        struct ct_stored_box rows;

        *weight = ct_stored_tensor(&w->arena, rule, param, i);
        rows = first_rows(weight, WINDOW);
        if (w->room < bytes_of(&rows, weight->dtype))
            w->room = bytes_of(&rows, weight->dtype);
        w->outputs[w->count++] = (struct ct_hf_output){param, i};
    }
    return 0;
}

int ct_hf_writer_init(struct ct_hf_writer *w, const struct ct_stored_rule *rules,
                      const struct ct_state *params, size_t count, bool writes)
{
    size_t tensors = 1;
    int rc = 0;

    *w = (struct ct_hf_writer){.rules = rules, .params = params, .param_count = count};
    for (size_t i = 0; i < count; i++)
        tensors += (size_t)ct_stored_count(ct_stored_rule(rules, params[i].name), &params[i]);
    w->outputs = ct_arena_array(&w->arena, struct ct_hf_output, tensors);
    w->weights = ct_arena_array(&w->arena, struct ct_weight, tensors);
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = add_outputs(w, &params[i]);
    if (rc < 0 || !writes)
        return rc;
    w->window = malloc(w->room + 1);
    w->rows = malloc(w->room + 1);
    return w->window && w->rows ? 0
                                : ct_fail(CT_ENOMEM, "%zu bytes to put a tensor together", w->room);
}

void hf_writer_add(struct ct_hf_writer *w, const struct ct_weight *weights, size_t count)
{
    size_t rooms[] = {w->count, w->count}, all = w->count + count;

    w->weights = ct_arena_grow(&w->arena, w->weights, &rooms[0], all, sizeof(*w->weights));
    w->outputs = ct_arena_grow(&w->arena, w->outputs, &rooms[1], all, sizeof(*w->outputs));
    memcpy(w->weights + w->count, weights, sizeof(*weights) * count);
    memset(w->outputs + w->count, 0, sizeof(*w->outputs) * count);
    w->count = all;
}

static int check(void *context)
{
    const struct ct_hf_source *source = ((const struct writing *)context)->source;

    return source->check(source->context);
}

int ct_hf_write(struct ct_hf_writer *w, const char *folder, size_t most,
                const struct ct_hf_source *source)
{
    struct writing g = {w, source};
    int rc = ct_safetensors_write_folder(folder, w->weights, w->count, most, produce,
                                         source->check ? check : NULL, &g);

    w->files = rc > 0 ? (size_t)rc : 0;
    return rc < 0 ? rc : 0;
}

void ct_hf_writer_finish(struct ct_hf_writer *w)
{
    free(w->window);
    free(w->rows);
    ct_arena_finish(&w->arena);
    *w = (struct ct_hf_writer){0};
}
