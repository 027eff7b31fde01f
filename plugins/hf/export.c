/*
 * A checkpoint of any plugin as a Hugging Face folder, which lib/hf writes. Memory holds some rows
 * of a tensor only.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/checkpoint.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/safetensors.h>
#include <ctitan/lib/stored.h>
#include <ctitan/verb.h>

#include "hf.h"

/* Values of a parameter that the written dtype cannot hold. */
struct beyond {
    int64_t count;
    double largest;
};

struct export
{
    const struct ct_checkpoint_ops *format;
    const struct ct_checkpoint *c;
    struct ct_arena arena;
    const struct ct_stored_rule *rules;
    const char *prefix;      /* of the states that stand for parameters; NULL: parameters */
    int dtype;               /* of floating-point tensors; -1: their own */
    struct ct_state *params; /* to write */
    size_t *tensor;          /* index of each in the checkpoint */
    struct beyond *beyond;
    size_t count;
    struct ct_hf_writer writer;
    char *raw; /* a box in the checkpoint's dtype */
};

static bool chosen(const struct export *x, const struct ct_checkpoint_tensor *t)
{
    return x->prefix ? !strncmp(t->name, x->prefix, strlen(x->prefix)) : t->role == CT_ROLE_PARAM;
}

/* Whether the state chosen is one that follows parameters, and this parameter has none, as it was
   not trained. */
static bool lacks_follower(const struct export *x, const struct ct_checkpoint_tensor *param)
{
    bool follow = false;

    for (size_t i = 0; x->prefix && i < x->c->count; i++) {
        const struct ct_checkpoint_tensor *t = &x->c->tensors[i];

        if (!chosen(x, t))
            continue;
        if (!strcmp(t->name + strlen(x->prefix), param->name))
            return false;
        follow |= t->follows;
    }
    return follow && param->role == CT_ROLE_PARAM;
}

/* Under the parameters' names, and in the dtypes that are written. */
static void list_params(struct export *x)
{
    x->params = ct_arena_array(&x->arena, struct ct_state, x->c->count + 1);
    x->tensor = ct_arena_array(&x->arena, size_t, x->c->count + 1);
    x->beyond = ct_arena_array(&x->arena, struct beyond, x->c->count + 1);
    for (size_t i = 0; i < x->c->count; i++) {
        const struct ct_checkpoint_tensor *t = &x->c->tensors[i];
        struct ct_state *param = &x->params[x->count];

        if (!chosen(x, t) && !lacks_follower(x, t))
            continue;
        *param = (struct ct_state){.name = t->name, .ndim = t->ndim};
        param->name += x->prefix && chosen(x, t) ? strlen(x->prefix) : 0;
        param->dtype = ct_stored_dtype(ct_stored_rule(x->rules, param->name), t->dtype, x->dtype);
        memcpy(param->shape, t->shape, sizeof(t->shape));
        x->tensor[x->count++] = i;
    }
}

static int read_box(void *context, const struct ct_state *param, const struct ct_stored_box *box,
                    void *to)
{
    struct export *x = context;
    size_t index = (size_t)(param - x->params);
    const struct ct_checkpoint_tensor *t = &x->c->tensors[x->tensor[index]];
    int64_t count = ct_shape_count(box->ndim, box->shape);
    struct ct_weight raw = {t->name, t->dtype, 1, {count}, x->raw, NULL};
    bool same = t->dtype == param->dtype;
    int rc;

    if (!to)
        return 0; /* nobody waits for this */
    rc = x->format->read(x->c, x->tensor[index], box->offset, box->shape, same ? to : x->raw);
    if (rc < 0 || same)
        return rc;
    x->beyond[index].count +=
        ct_weights_beyond(&raw, 0, count, param->dtype, &x->beyond[index].largest);
    ct_weights_read_run(&raw, 0, count, param->dtype, to);
    return 0;
}

static int check_range(void *context)
{
    struct export *x = context;
    size_t first = x->count, tensors = 0;
    const struct ct_checkpoint_tensor *t;

    for (size_t i = x->count; i-- > 0;)
        if (x->beyond[i].count) {
            first = i;
            tensors++;
        }
    if (!tensors)
        return 0;
    t = &x->c->tensors[x->tensor[first]];
    return ct_fail(CT_ECONFIG,
                   "%s: %s: %lld of %lld values are beyond %s, the largest %g%s: set --dtype "
                   "bfloat16 or float32",
                   x->c->path, t->name, (long long)x->beyond[first].count,
                   (long long)ct_shape_count(t->ndim, t->shape),
                   ct_dtype_name(x->params[first].dtype), x->beyond[first].largest,
                   tensors > 1 ? ct_arena_printf(&x->arena, ", and so in %zu more", tensors - 1)
                               : "");
}

struct request {
    const char *checkpoint, *folder, *prefix, *type;
    int dtype;         /* of type; -1: not given */
    double shard_size; /* GB of a file */
    size_t most;       /* bytes of a file */
    bool force;        /* replace a model in the folder */
};

/* A folder without what is absent would be of another model. */
static int check_absent(const struct export *x)
{
    for (size_t i = 0; i < x->c->count; i++)
        if (x->c->tensors[i].absent && chosen(x, &x->c->tensors[i]))
            return ct_fail(CT_ECONFIG,
                           "%s has %s, and files of Hugging Face have no place for it: use the "
                           "verb of the plugin that added it (`ctitan help` lists verbs)",
                           x->c->path, x->c->tensors[i].name);
    return 0;
}

/* ---- states ---- */

/* The parameter that a state "ema.NAME" is for: where its name begins; NULL: there is none. */
static const char *param_in(const struct ct_checkpoint *c, const char *state)
{
    const char *longest = NULL;
    size_t length = strlen(state);

    for (size_t i = 0; i < c->count; i++) {
        const char *name = c->tensors[i].name;
        size_t own = strlen(name);
        const char *end = own < length ? state + length - own : NULL;

        if (c->tensors[i].role == CT_ROLE_PARAM && end && end[-1] == '.' && !strcmp(end, name) &&
            (!longest || end < longest))
            longest = end;
    }
    return longest;
}

static bool is_listed(const char *const *list, size_t count, const char *text, size_t length)
{
    for (size_t i = 0; i < count; i++)
        if (!strncmp(list[i], text, length) && !list[i][length])
            return true;
    return false;
}

/* "ema, other": each state that stands for parameters. */
static const char *list_states(struct ct_arena *arena, const struct ct_checkpoint *c)
{
    const char **list = NULL, *text = "";
    size_t count = 0, room = 0;

    for (size_t i = 0; i < c->count; i++) {
        const char *name = c->tensors[i].name, *param = NULL;

        if (c->tensors[i].role == CT_ROLE_STATE)
            param = param_in(c, name);
        if (!param || is_listed(list, count, name, (size_t)(param - name) - 1))
            continue;
        list = ct_arena_grow(arena, list, &room, count + 1, sizeof(*list));
        list[count] = ct_arena_printf(arena, "%.*s", (int)(param - name) - 1, name);
        text = ct_arena_printf(arena, "%s%s%s", text, count ? ", " : "", list[count]);
        count++;
    }
    return count ? text : "none";
}

/* There is the state, and all of it stands for parameters. */
static int check_state(struct export *x)
{
    size_t found = 0;

    for (size_t i = 0; x->prefix && i < x->c->count; i++) {
        const char *name = x->c->tensors[i].name, *rest = name + strlen(x->prefix);

        if (!chosen(x, &x->c->tensors[i]))
            continue;
        found++;
        if (param_in(x->c, name) != rest)
            return ct_fail(CT_ECONFIG,
                           "--state %.*s: %s has %s, and %s is no parameter; states that stand for "
                           "parameters: %s",
                           (int)strlen(x->prefix) - 1, x->prefix, x->c->path, name, rest,
                           list_states(&x->arena, x->c));
    }
    return found || !x->prefix
               ? 0
               : ct_fail(CT_ECONFIG, "%s has no %s; states that stand for parameters: %s",
                         x->c->path, x->prefix, list_states(&x->arena, x->c));
}

/* ---- the folder ---- */

#define WIDER                                                                                      \
    4 /* a number has 8 bytes at most in the checkpoint, and 2 at least where it is written */

static int write_weights(struct export *x, const struct request *r)
{
    int rc = ct_hf_writer_init(&x->writer, x->rules, x->params, x->count, true);

    if (rc == 0 && !(x->raw = malloc(x->writer.room * WIDER + 1)))
        rc = ct_fail(CT_ENOMEM, "%zu bytes of a tensor", x->writer.room * WIDER);
    return rc < 0 ? rc
                  : ct_hf_write(&x->writer, r->folder, r->most,
                                &(struct ct_hf_source){read_box, check_range, x});
}

static int write_folder(struct export *x, const struct request *r)
{
    int rc = write_weights(x, r);

    if (rc == 0)
        rc = ct_hf_complete(r->folder, x->writer.weights, x->writer.count, x->c->config,
                            &x->c->files);
    if (rc == 0 && !x->c->config)
        fprintf(stderr,
                "ctitan: the model wrote no config.json into the checkpoint; %s lacks one\n",
                r->folder);
    return rc;
}

static int export_to(const struct ct_checkpoint_ops *format, const struct ct_checkpoint *c,
                     const struct request *r)
{
    struct export x = {.format = format, .c = c, .dtype = r->dtype, .prefix = r->prefix};
    int rc = ct_hf_rules(c->config, &x.arena, &x.rules);

    if (x.prefix && (!*x.prefix || x.prefix[strlen(x.prefix) - 1] != '.'))
        x.prefix = ct_arena_printf(&x.arena, "%s.", x.prefix);
    if (rc == 0)
        rc = check_state(&x);
    if (rc == 0)
        rc = check_absent(&x);
    if (rc == 0)
        rc = ct_hf_check_free(r->folder, r->force);
    if (rc == 0)
        rc = ct_file_make_folder(r->folder);
    if (rc == 0) {
        list_params(&x);
        if (!x.count)
            rc = ct_fail(CT_ECONFIG, "%s has no parameters", c->path);
    }
    if (rc == 0)
        rc = write_folder(&x, r);
    if (rc == 0)
        printf("%s: weights after step %lld, in %s: %zu tensors in %zu %s\n", c->path,
               (long long)c->step, r->folder, x.writer.count, x.writer.files,
               x.writer.files == 1 ? "file" : "files");
    ct_hf_writer_finish(&x.writer);
    free(x.raw);
    ct_arena_finish(&x.arena);
    return rc;
}

static const struct ct_argument arguments[] = {
    CT_ARG_WORD(struct request, checkpoint, "CHECKPOINT",
                "A run's dump folder, its folder of checkpoints, or one checkpoint"),
    CT_ARG_WORD(struct request, folder, "HF_FOLDER", "The Hugging Face folder to write"),
    CT_ARG_CHOICE(struct request, type, "dtype", 0, "float32|bfloat16|float16",
                  "Type of the weights; by default as they are"),
    CT_ARG_FLOAT(struct request, shard_size, "max-shard-size", 0, "GB", 1e-6, 1e9,
                 "Largest file, 5 GB by default"),
    CT_ARG_TEXT(struct request, prefix, "state", 0, "NAME",
                "Write this state instead of the weights, as ema"),
    CT_ARG_FLAG(struct request, force, "force", 0, "Replace a model in the folder"),
    {0}};

static int run_export(int argc, char **argv)
{
    struct request r = {.dtype = -1, .shard_size = 5};
    struct ct_arena scratch = {0};
    const struct ct_checkpoint_ops *format = NULL;
    enum ct_dtype dtype;
    struct ct_checkpoint c = {0};
    int rc = ct_arguments_parse(arguments, argc, argv, &scratch, &r);

    if (rc == 0 && r.type && ct_dtype_parse(r.type, &dtype) == 0)
        r.dtype = (int)dtype;
    r.most = (size_t)(r.shard_size * 1e9);
    if (rc == 0)
        rc = ct_checkpoints_find("export needs", &format);
    if (rc == 0)
        rc = format->open(&scratch, r.checkpoint, &c);
    if (rc == 0)
        rc = export_to(format, &c, &r);
    if (format)
        format->close(&c);
    ct_arena_finish(&scratch);
    return rc;
}

const struct ct_verb_ops hf_export = {
    .size = sizeof(hf_export),
    .summary = "write a checkpoint's weights as a Hugging Face folder",
    .run = run_export,
    .arguments = arguments,
    .examples = CT_NAMES("ctitan export outputs/quickstart model",
                         "ctitan export outputs/quickstart/checkpoint/step-100 model --force")};
