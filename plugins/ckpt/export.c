/*
 * A checkpoint as a Hugging Face folder. Its files are mapped, and what is read of a parameter goes
 * to its place in the tensor that holds it, by the model's rules (lib/stored.h). Memory holds some
 * chunks only.
 */
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/hf_config.h>
#include <ctitan/lib/json.h>
#include <ctitan/lib/safetensors.h>
#include <ctitan/lib/stored.h>
#include <ctitan/plugins.h>
#include <ctitan/verb.h>

#include "ckpt.h"

/* ---- the model's rules ---- */

static int rules_of(const char *model, const char *config, struct ct_arena *arena,
                    const struct ct_stored_rule **rules)
{
    const struct ct_plugin *plugin;
    const struct ct_model_ops *model_ops;
    const void *ops = NULL;
    char name[64], path[PATH_MAX];
    int rc = ct_hf_plugin(model, name, sizeof(name));

    if (rc == 0)
        rc = ct_plugin_path(name, path, sizeof(path));
    if (rc == 0)
        rc = ct_plugin_open(path, &plugin);
    for (const struct ct_offer *o = rc == 0 ? plugin->offers : NULL; o && o->kind; o++)
        if (o->kind == CT_MODEL)
            ops = o->ops;
    if (rc == 0 && !ops)
        rc = ct_fail(CT_ECONFIG, "plugin %s has no model", model);
    if (rc == 0)
        rc = ct_struct_widen(ops, sizeof(size_t), sizeof(struct ct_model_ops), &ops);
    model_ops = ops;
    if (rc == 0)
        *rules = model_ops->stored;
    if (rc == 0 && model_ops->stored_for)
        rc = model_ops->stored_for(config, arena, rules);
    return rc < 0 ? ct_context(rc, "how files of a %s store its parameters", model) : 0;
}

int ckpt_stored_rules(const char *config, struct ct_arena *arena,
                      const struct ct_stored_rule **rules)
{
    json_t *root = NULL;
    int rc = config ? ct_json_read(config, strlen(config), "config.json", 0, &root) : 0;
    const char *model = json_string_value(json_object_get(root, "model_type"));

    *rules = NULL;
    if (rc < 0)
        return rc;
    if (config && !model)
        rc = ct_fail(CT_ECONFIG, "config.json has no model_type");
    else if (json_is_object(json_object_get(root, "text_config")))
        rc = ct_fail(CT_ECONFIG, "config.json has a text_config: such a model is read by [model] "
                                 "init_from, and not imported");
    else if (model)
        rc = rules_of(model, config, arena, rules);
    json_decref(root);
    return rc;
}

/* ---- tensors and files ---- */

struct mapped {
    struct ct_new_file file;
    char *base;
    size_t bytes;
    bool apart; /* base is not of the file */
};

/* Values of a parameter that the written dtype cannot hold. */
struct beyond {
    int64_t count;
    double largest;
};

struct export
{
    const struct ckpt *c;
    struct ct_arena arena;
    const struct ct_stored_rule *rules;
    const char *prefix;    /* of the states that stand for parameters; NULL: parameters */
    int dtype;             /* of floating-point tensors; -1: their own */
    struct beyond *beyond; /* by parameter */
    size_t *first;         /* by parameter: its first tensor; SIZE_MAX: it is none */
    struct ct_weight *all; /* the tensors */
    char **data;           /* and their places in the mapped files */
    size_t count, expected, written;
    struct ct_safetensors_files files;
    struct mapped *mapped; /* by file */
    char *block;
};

static bool chosen(const struct export *x, const struct ckpt_tensor *t)
{
    return x->prefix ? !strncmp(t->name, x->prefix, strlen(x->prefix)) : t->role == CT_ROLE_PARAM;
}

/* Under the parameter's name, and in the dtype that is written. */
static struct ct_state state_of(const struct export *x, const struct ckpt_tensor *t)
{
    struct ct_state state = {.name = t->name + (x->prefix ? strlen(x->prefix) : 0),
                             .ndim = t->ndim};

    state.dtype = ct_stored_dtype(ct_stored_rule(x->rules, state.name), t->dtype, x->dtype);
    memcpy(state.shape, t->shape, sizeof(t->shape));
    return state;
}

/* A tensor that holds several parameters is listed with the first one. Those are near. */
static size_t find(const struct export *x, const char *name)
{
    for (size_t i = x->count; i-- > 0;)
        if (!strcmp(x->all[i].name, name))
            return i;
    return SIZE_MAX;
}

static void add_tensors(struct export *x, size_t index)
{
    struct ct_state state = state_of(x, &x->c->tensors[index]);
    const struct ct_stored_rule *rule = ct_stored_rule(x->rules, state.name);

    x->first[index] = x->count;
    for (int64_t i = 0; i < ct_stored_count(rule, &state); i++) {
        struct ct_weight w = ct_stored_tensor(&x->arena, rule, &state, i);
        size_t known = rule && rule->parts ? find(x, w.name) : SIZE_MAX;

        if (known != SIZE_MAX)
            x->first[index] = known;
        else
            x->all[x->count++] = w;
    }
}

static size_t bytes_of(const struct ct_weight *w)
{
    return (size_t)ct_shape_count(w->ndim, w->shape) * ct_dtype_size(w->dtype);
}

static void list_tensors(struct export *x)
{
    size_t room = 1;

    for (size_t i = 0; i < x->c->tensor_count; i++) {
        struct ct_state state = {0};

        if (!chosen(x, &x->c->tensors[i]))
            continue;
        state = state_of(x, &x->c->tensors[i]);
        room += (size_t)ct_stored_count(ct_stored_rule(x->rules, state.name), &state);
    }
    x->beyond = ct_arena_array(&x->arena, struct beyond, x->c->tensor_count + 1);
    x->first = ct_arena_array(&x->arena, size_t, x->c->tensor_count + 1);
    x->all = ct_arena_array(&x->arena, struct ct_weight, room);
    x->data = ct_arena_array(&x->arena, char *, room);
    for (size_t i = 0; i < x->c->tensor_count; i++)
        if (chosen(x, &x->c->tensors[i]))
            add_tensors(x, i);
        else
            x->first[i] = SIZE_MAX;
    for (size_t i = 0; i < x->count; i++)
        x->expected += bytes_of(&x->all[i]);
}

/* In a file the largest elements come first. */
static size_t place(struct export *x, size_t file, size_t at)
{
    for (size_t size = 8; size; size /= 2)
        for (size_t i = x->files.first[file]; i < x->files.first[file + 1]; i++)
            if (ct_dtype_size(x->all[i].dtype) == size) {
                x->data[i] = (char *)at;
                at += bytes_of(&x->all[i]);
            }
    return at;
}

/* Some network file systems cannot map a file that is written. */
static int map(struct mapped *m)
{
    int rc = posix_fallocate(fileno(m->file.out), 0, (off_t)m->bytes);

    if (rc)
        return ct_fail(CT_EIO, "%s: %zu bytes: %s", m->file.path, m->bytes, strerror(rc));
    m->base = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(m->file.out), 0);
    m->apart = m->base == MAP_FAILED && (errno == ENODEV || errno == EINVAL || errno == EACCES);
    if (m->apart)
        m->base = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m->base != MAP_FAILED)
        return 0;
    m->base = NULL;
    return ct_fail(CT_EIO, "%s: %zu bytes cannot be mapped: %s", m->file.path, m->bytes,
                   strerror(errno));
}

static int map_file(struct export *x, const char *folder, size_t index)
{
    struct mapped *m = &x->mapped[index];
    size_t first = x->files.first[index], count = x->files.first[index + 1] - first, bytes;
    char *header = ct_safetensors_header(x->all + first, count, NULL, 8, &bytes);
    char name[CT_SAFETENSORS_NAME];
    int rc;

    if (!header)
        return ct_fail(CT_ENOMEM, "%s", folder);
    ct_safetensors_name(name, index, x->files.count);
    rc = ct_file_begin(&m->file, ct_arena_printf(&x->arena, "%s/%s", folder, name));
    if (rc == 0) {
        m->bytes = place(x, index, bytes);
        rc = map(m);
        if (rc < 0)
            rc = ct_file_end(&m->file, rc);
    }
    if (rc == 0) {
        memcpy(m->base, header, bytes);
        for (size_t i = first; i < first + count; i++)
            x->data[i] = m->base + (size_t)x->data[i];
    }
    free(header);
    return rc;
}

static int unmap_files(struct export *x, int rc)
{
    for (size_t i = 0; i < x->files.count; i++) {
        struct mapped *m = &x->mapped[i];

        if (!m->base)
            continue;
        if (m->apart)
            fwrite(m->base, 1, m->bytes, m->file.out); /* ct_file_end sees a failure */
        munmap(m->base, m->bytes);
        rc = ct_file_end(&m->file, rc);
    }
    return rc;
}

/* ---- values ---- */

static bool want(void *context, const struct ckpt_box *box, size_t *from, size_t *to)
{
    const struct export *x = context;
    const struct ckpt_tensor *t = ckpt_find(x->c, box->name);

    *from = 0;
    *to = box->bytes;
    return t && x->first[t - x->c->tensors] != SIZE_MAX;
}

/* Where the elements of a parameter are in its tensor, or in each of its tensors. */
static struct ct_stored_places places_of(const struct ct_stored_rule *rule,
                                         const struct ct_state *param, const struct ct_weight *w)
{
    struct ct_stored_box own = {.ndim = param->ndim}, whole = {.ndim = w->ndim};

    memcpy(own.shape, param->shape, sizeof(own.shape));
    memcpy(whole.shape, w->shape, sizeof(whole.shape));
    if (ct_stored_stacked(rule))
        own.shape[0] = 1;
    return ct_stored_places(rule, param, &own, &whole);
}

static int write_part(void *context, size_t tensor, int64_t element, int64_t count,
                      const char *data)
{
    struct export *x = context;
    const struct ckpt_tensor *t = &x->c->tensors[tensor];
    struct ct_state state = state_of(x, t);
    const struct ct_stored_rule *rule = ct_stored_rule(x->rules, state.name);
    const struct ct_weight *w = &x->all[x->first[tensor]];
    int64_t each = ct_shape_count(t->ndim, t->shape) / ct_stored_count(rule, &state), zero = 0;
    struct ct_stored_places places = places_of(rule, &state, w);
    size_t item = ct_dtype_size(w->dtype);
    struct ct_weight part = {t->name, t->dtype, 1, {count}, data};
    const char *from = x->block;
    int rc = ct_weights_read(&part, &zero, &count, w->dtype, x->block);

    x->beyond[tensor].count +=
        ct_weights_beyond(&part, 0, count, w->dtype, &x->beyond[tensor].largest);
    x->written += (size_t)count * item;
    while (rc == 0 && count) {
        int64_t at = element % each, n = each - at < count ? each - at : count;

        ct_stored_scatter(&places, at, n, item, from,
                          x->data[x->first[tensor] + (size_t)(element / each)]);
        from += (size_t)n * item;
        element += n;
        count -= n;
    }
    return rc;
}

static int put(void *context, const struct ckpt_box *box, const int64_t *offset,
               const int64_t *shape, const void *data)
{
    struct export *x = context;

    return ckpt_for_each_part(x->c, (size_t)(ckpt_find(x->c, box->name) - x->c->tensors), offset,
                              shape, data, write_part, x);
}

/* ---- the whole ---- */

static int check_range(struct export *x)
{
    size_t first = x->c->tensor_count, tensors = 0;
    const struct ckpt_tensor *t;
    const char *name;

    for (size_t i = x->c->tensor_count; i-- > 0;)
        if (x->beyond[i].count) {
            first = i;
            tensors++;
        }
    if (!tensors)
        return 0;
    t = &x->c->tensors[first];
    name = ct_dtype_name(x->all[x->first[first]].dtype);
    return ct_fail(CT_ECONFIG,
                   "%s: %s: %lld of %lld values are beyond %s, the largest %g%s: set --dtype "
                   "bfloat16 or float32",
                   x->c->path, t->name, (long long)x->beyond[first].count,
                   (long long)ct_shape_count(t->ndim, t->shape), name, x->beyond[first].largest,
                   tensors > 1 ? ct_arena_printf(&x->arena, ", and so in %zu more", tensors - 1)
                               : "");
}

static int write_files(struct export *x, const char *folder)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < x->files.count; i++)
        rc = map_file(x, folder, i);
    if (rc == 0)
        rc = ckpt_read(x->c, &(struct ckpt_sink){want, put, x, false});
    if (rc == 0 && x->written != x->expected)
        rc = ct_fail(CT_EIO, "%s has %zu of the %zu bytes of the model's tensors", x->c->path,
                     x->written, x->expected);
    if (rc == 0)
        rc = check_range(x);
    rc = unmap_files(x, rc);
    return rc < 0 ? rc : ct_safetensors_complete(folder, x->all, &x->files);
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
    for (size_t i = 0; i < x->c->tensor_count; i++)
        if (x->c->tensors[i].absent && chosen(x, &x->c->tensors[i]))
            return ct_fail(CT_ECONFIG,
                           "%s has %s, and files of Hugging Face have no place for it: use the "
                           "verb of the plugin that added it (`ctitan help` lists verbs)",
                           x->c->path, x->c->tensors[i].name);
    return 0;
}

static int export_to(struct ckpt *c, const struct request *r)
{
    struct export x = {.c = c, .dtype = r->dtype, .prefix = r->prefix};
    int rc = ckpt_stored_rules(c->config, &x.arena, &x.rules);

    if (rc == 0)
        rc = check_absent(&x);
    if (rc == 0)
        rc = ct_hf_check_free(r->folder, r->force);
    if (rc == 0)
        rc = ct_file_make_folder(r->folder);
    if (rc == 0) {
        list_tensors(&x);
        if (!x.count)
            rc = ct_fail(CT_ECONFIG, "%s has no %s", c->path, x.prefix ? x.prefix : "parameters");
    }
    if (rc == 0) {
        x.files = ct_safetensors_divide(&x.arena, x.all, x.count, r->most);
        x.mapped = ct_arena_array(&x.arena, struct mapped, x.files.count);
        x.block = ct_arena_alloc(&x.arena, CKPT_PART * 8);
        rc = write_files(&x, r->folder);
    }
    if (rc == 0)
        rc = ckpt_beside_read(c);
    if (rc == 0)
        rc = ct_hf_complete(r->folder, x.all, x.count, c->config, &c->beside);
    if (rc == 0 && !c->config)
        fprintf(stderr,
                "ctitan: the model wrote no config.json into the checkpoint; %s lacks one\n",
                r->folder);
    if (rc == 0)
        printf("%s: weights after step %lld, in %s: %zu tensors in %zu %s\n", c->path,
               (long long)c->progress.step - 1, r->folder, x.count, x.files.count,
               x.files.count == 1 ? "file" : "files");
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
    CT_ARG_TEXT(struct request, prefix, "state", 0, "PREFIX",
                "Write this state instead of the weights, as ema"),
    CT_ARG_FLAG(struct request, force, "force", 0, "Replace a model in the folder"),
    {0}};

static int run(int argc, char **argv)
{
    struct request r = {.dtype = -1, .shard_size = 5};
    struct ct_arena scratch = {0};
    enum ct_dtype dtype;
    struct ckpt c;
    int rc = ct_arguments_parse(arguments, argc, argv, &scratch, &r);

    if (rc == 0 && r.type && ct_dtype_parse(r.type, &dtype) == 0)
        r.dtype = (int)dtype;
    r.most = (size_t)(r.shard_size * 1e9);
    if (rc == 0)
        rc = ckpt_locate(&scratch, r.checkpoint, &c);
    if (rc == 0)
        rc = export_to(&c, &r);
    ct_arena_finish(&scratch);
    return rc;
}

const struct ct_verb_ops ckpt_export = {
    .size = sizeof(ckpt_export),
    .summary = "write a checkpoint's weights as a Hugging Face folder",
    .run = run,
    .arguments = arguments,
    .examples = CT_NAMES("ctitan export outputs/quickstart model",
                         "ctitan export outputs/quickstart/checkpoint/step-100 model --force")};
