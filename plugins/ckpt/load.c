/*
 * Filling a run from a checkpoint of any mesh: each rank reads the chunks in which its shards have
 * bytes. Everything that does not fit is named before anything is read.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/safetensors.h>
#include <ctitan/lib/stored.h>
#include <ctitan/log.h>
#include <ctitan/stage.h>
#include <ctitan/recipe.h>
#include <ctitan/state.h>

#include "ckpt.h"

/* ---- recipes ---- */

/* Effects of changed options on a run that goes on; those not listed change nothing in it. */
static const struct {
    const char *section, *key, *what;
} effects[] = {
    {"lr_scheduler", NULL, "the learning rate follows another curve from now on"},
    {"training", "seq_len", "samples have another length, so sample numbers refer to other text"},
    {"training", "local_batch_size",
     "batches are divided differently, so sums may round differently"},
    {"training", "dtype", "weights have another precision"},
    {"training", "mixed_precision_param", "matrix products have another precision from now on"},
    {"training", "max_norm", "gradients are clipped differently from now on"},
    {"training", "seed",
     "a source that shuffles, as text does, has another order, so sample numbers refer to other "
     "text; else no effect, unless a state is new"},
    {"adamw", NULL, "updates differ from now on"},
    {"tokens", NULL, "the text may differ"},
    {"text", NULL, "the text may differ"},
    {"fsdp", NULL, "another mesh, so sums may round differently"},
    {"tp", NULL, "another mesh, so sums may round differently"},
    {"cp", NULL, "another mesh, so sums may round differently"},
    {"pp", NULL, "another mesh, so sums may round differently"},
};

/* The curve of the learning rate has the length of the run, or its own. */
static const char *effect_of_steps(void)
{
    return ct_config.lr_total_steps
               ? "the run ends after another step; the learning rate follows [lr_scheduler] "
                 "total_steps"
               : "the learning rate follows the curve of the new number of steps; to follow the "
                 "former one, set [lr_scheduler] total_steps";
}

static const char *effect_of(const char *section, const char *key)
{
    if (!strcmp(section, "training") && !strcmp(key, "steps"))
        return effect_of_steps();
    for (size_t i = 0; i < CT_COUNT(effects); i++)
        if (!strcmp(effects[i].section, section) &&
            (!effects[i].key || !strcmp(effects[i].key, key)))
            return effects[i].what;
    return NULL;
}

/* A checkpoint, and the run that goes on from it. */
struct resumed {
    const struct ckpt *c;
    const struct ct_run *run;
};

static void tell_change(const char *section, const char *key, const char *before, const char *now,
                        void *context)
{
    const struct resumed *r = context;
    const char *effect = effect_of(section, key);

    if (!strcmp(section, "job") || !strcmp(section, "metrics") || !strcmp(section, "ckpt"))
        return;
    if (r->c->batch &&
        (!strcmp(key, "global_batch_size") || ct_recipe_given(r->run->recipe, section, key)))
        return; /* ckpt_tell_batch tells the true ones */
    ct_info("changed since the checkpoint: [%s] %s = %s, now %s%s%s", section, key, before, now,
            effect ? ": " : "", effect ? effect : "");
}

static const char *amount(struct ct_arena *arena, const struct ckpt_data *d)
{
    const char *tokens = ct_arena_printf(arena, "%lld tokens", (long long)d->tokens);

    return d->documents < 0 ? tokens
                            : ct_arena_printf(arena, "%lld document%s, %s", (long long)d->documents,
                                              ct_plural(d->documents), tokens);
}

/* Options may be the same, and the files not. */
static void tell_data(const struct ckpt *c, const struct ct_run *run, int which)
{
    static const char *const effects_of[] = {
        [CKPT_TRAINING] = "the data is not that of the checkpoint, so sample numbers refer to "
                          "other text: some may be trained on again, and some never",
        [CKPT_VALIDATION] = "the data of validation is not that of the checkpoint, so its losses "
                            "do not compare with former ones"};
    const struct ckpt_data *before = c->data[which];
    const struct ckpt_data *now = ckpt_identify(c->arena, run, which);

    if (before && now && before->hash != now->hash)
        ct_warn("%s (then %s, now %s)", effects_of[which], amount(c->arena, before),
                amount(c->arena, now));
}

void ckpt_tell_changes(const struct ckpt *c, struct ct_run *run)
{
    struct resumed resumed = {c, run};
    const char *now;

    if (c->recipe && (ckpt_recipe_text(c->arena, run, &now) < 0 ||
                      ct_recipe_differences("the recipe of the checkpoint", c->recipe, now,
                                            tell_change, &resumed) < 0))
        ct_warn("%s", ct_error_message());
    ckpt_tell_batch(c, run);
    for (int i = 0; i < CKPT_DATA; i++)
        tell_data(c, run, i);
}

/* ---- differences ---- */

struct check {
    struct ct_run *run;
    const struct ckpt *c;
    const struct ckpt_load *load;
    const struct ct_state **state;    /* by tensor of the checkpoint; NULL: the run has none */
    const struct ct_state **follower; /* the same: a state that begins as that parameter; or NULL */
    int count;
    bool weights; /* they do not fit either */
    bool follows; /* some states do */
    bool drops;   /* some tensors that follow parameters are not loaded */
    char first[256];
};

static void differ(struct check *k, const char *fmt, ...) CT_PRINTF(2, 3);

static void differ(struct check *k, const char *fmt, ...)
{
    char text[256];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (k->count++ == 0)
        memcpy(k->first, text, sizeof(text));
    if (k->run->rank == 0)
        ct_warn("%s", text);
}

/* Whether codes are to be made of a checkpoint's numbers. */
static bool encodes(const struct ct_state *s, enum ct_dtype dtype)
{
    return s->coding && ct_dtype_is_float(dtype);
}

/* Weights alone are converted, as they are when they are saved alone. */
static bool converts(const struct ct_state *s, const struct ct_checkpoint_tensor *t)
{
    if (encodes(s, t->dtype))
        return true;
    return s->role == CT_ROLE_PARAM && ct_dtype_is_float(s->dtype) && ct_dtype_is_float(t->dtype);
}

static bool wanted(const struct ckpt_load *load, enum ct_role role)
{
    return role == CT_ROLE_PARAM || load->optimizer;
}

static const char *shape_text(int ndim, const int64_t *sizes, char text[128])
{
    struct ct_shape shape = ct_shape_of(ndim, sizes);

    ct_shape_print(&shape, text, 128);
    return text;
}

/* Whether a state begins as a parameter of the checkpoint. */
static bool follows(struct check *k, const struct ct_state *s)
{
    const char *param = ct_state_followed(s->name);
    const struct ct_checkpoint_tensor *t = param ? ckpt_find(k->c, param) : NULL;

    if (t && k->run->rank == 0 && !k->follows)
        ct_info("the states %.*s* are not loaded, and begin as the weights of %s",
                (int)(param - s->name), s->name, k->c->path);
    if (t)
        k->follower[t - k->c->tensors] = s;
    k->follows |= t != NULL;
    return t != NULL;
}

static void compare_state(struct check *k, const struct ct_state *s)
{
    const struct ct_checkpoint_tensor *t = ckpt_find(k->c, s->name);
    char a[128], b[128];
    bool weight = s->role == CT_ROLE_PARAM;

    if (!t && k->load->lacking &&
        ct_stored_absent(ct_stored_rule(k->run->model_ops->stored, s->name)))
        return;
    if (!t && follows(k, s))
        return;
    if (!t) {
        k->weights |= weight;
        differ(k, "%s is not in the checkpoint%s", s->name,
               k->c->model_only && !weight ? ", which has the model only" : "");
        return;
    }
    k->state[t - k->c->tensors] = s;
    if (t->ndim != s->ndim || memcmp(t->shape, s->shape, sizeof(*t->shape) * (size_t)t->ndim)) {
        k->weights |= weight;
        differ(k, "%s is [%s] in the checkpoint and [%s] here", s->name,
               shape_text(t->ndim, t->shape, a), shape_text(s->ndim, s->shape, b));
    }
    if (t->dtype != s->dtype && (k->load->optimizer || !converts(s, t))) {
        k->weights |= weight && !converts(s, t);
        differ(k, "%s is %s in the checkpoint and %s here", s->name, ct_dtype_name(t->dtype),
               ct_dtype_name(s->dtype));
    }
}

/* A tensor that the run has no state for. */
static void compare_rest(struct check *k, const struct ct_checkpoint_tensor *t)
{
    if (!t->follows) {
        k->weights |= t->role == CT_ROLE_PARAM;
        differ(k, "%s of the checkpoint is not in this model or optimizer", t->name);
        return;
    }
    if (k->run->rank == 0 && !k->drops)
        ct_info("%s of %s, and other states that follow parameters, are dropped: no plugin of this "
                "run keeps them",
                t->name, k->c->path);
    k->drops = true;
}

static int compare_all(struct check *k)
{
    for (size_t i = 0; i < k->run->state_count; i++) {
        const struct ct_state *s = &k->run->states[i];

        if (ct_state_reloads(s))
            continue;
        if (wanted(k->load, s->role))
            compare_state(k, s);
        else
            follows(k, s);
    }
    for (size_t i = 0; i < k->c->tensor_count; i++)
        if (wanted(k->load, k->c->tensors[i].role) && !k->state[i])
            compare_rest(k, &k->c->tensors[i]);
    if (!k->count)
        return 0;
    return ct_fail(CT_ECONFIG, "%s does not fit this run: %s%s%s", k->c->path, k->first,
                   k->count > 1 ? ", and more, listed above" : "",
                   k->weights ? ". It is of another model"
                              : ". ckpt.exclude_from_loading = optimizer, lr_scheduler loads its "
                                "weights only");
}

/* ---- filling ---- */

struct fill {
    struct ct_run *run;
    const struct ckpt *c;
    const struct ct_state **state; /* by tensor of the checkpoint; NULL: not wanted */
    const struct ct_state *
        *follower; /* filled with the same, or NULL; shards are the parameter's */
};

static const struct ct_state *state_of(const struct fill *f, const struct ckpt_box *box)
{
    return f->state[box->tensor - f->c->tensors];
}

/* The rows in which this rank's shard and the box overlap. */
static bool want(void *context, const struct ckpt_box *box, size_t *from, size_t *to)
{
    const struct fill *f = context;
    const struct ct_state *s = state_of(f, box);
    int64_t shape[CT_MAX_DIMS], offset[CT_MAX_DIMS], begin[CT_MAX_DIMS], end[CT_MAX_DIMS];
    size_t row;

    if (!s || !s->value || encodes(s, box->dtype) ||
        !ct_run_shard(f->run, s, f->run->rank, shape, offset))
        return false;
    for (int d = 0; d < box->ndim; d++) {
        int64_t mine = offset[d] + shape[d], theirs = box->offset[d] + box->shape[d];

        begin[d] = offset[d] > box->offset[d] ? offset[d] : box->offset[d];
        end[d] = mine < theirs ? mine : theirs;
        if (begin[d] >= end[d])
            return false;
    }
    row = box->ndim ? box->bytes / (size_t)box->shape[0] : 0;
    *from = box->ndim ? (size_t)(begin[0] - box->offset[0]) * row : 0;
    *to = box->ndim ? (size_t)(end[0] - box->offset[0]) * row : box->bytes;
    return true;
}

static int put_state(const struct fill *f, const struct ct_state *s, const struct ckpt_box *box,
                     const int64_t *offset, const int64_t *shape, const void *data)
{
    struct ct_weight weight = {box->name, box->dtype, box->ndim, {0}, data};
    int64_t count = 1, zero[CT_MAX_DIMS] = {0};
    void *converted;
    int rc;

    if (box->dtype == s->dtype)
        return ct_run_fill(f->run, s, offset, shape, data);
    for (int d = 0; d < box->ndim; d++)
        count *= weight.shape[d] = shape[d];
    converted = malloc((size_t)count * ct_dtype_size(s->dtype));
    if (!converted)
        return ct_fail(CT_ENOMEM, "%lld elements to convert weights in", (long long)count);
    rc = ct_weights_read(&weight, zero, shape, s->dtype, converted);
    if (rc == 0)
        rc = ct_run_fill(f->run, s, offset, shape, converted);
    free(converted);
    return rc;
}

static int put(void *context, const struct ckpt_box *box, const int64_t *offset,
               const int64_t *shape, const void *data)
{
    const struct fill *f = context;
    const struct ct_state *follower = f->follower[box->tensor - f->c->tensors];
    int rc = put_state(f, state_of(f, box), box, offset, shape, data);

    return rc == 0 && follower ? put_state(f, follower, box, offset, shape, data) : rc;
}

/* ---- codes ---- */

/* A tensor that is read for who makes codes of it. */
struct numbers {
    struct ckpt_seek seek;
    const struct ct_checkpoint_tensor *t;
};

static int read_numbers(void *context, const int64_t *offset, const int64_t *shape, float *to)
{
    struct numbers *n = context;
    int64_t count = ct_shape_count(n->t->ndim, shape), zero = 0;
    struct ct_weight weight = {n->t->name, n->t->dtype, 1, {count}, NULL};
    void *raw;
    int rc;

    if (n->t->dtype == CT_F32)
        return ckpt_seek_read(&n->seek, n->t, offset, shape, to);
    raw = malloc((size_t)count * ct_dtype_size(n->t->dtype) + 1);
    weight.data = raw;
    rc = raw ? ckpt_seek_read(&n->seek, n->t, offset, shape, raw)
             : ct_fail(CT_ENOMEM, "%lld elements of %s", (long long)count, n->t->name);
    if (rc == 0)
        rc = ct_weights_read(&weight, &zero, &count, CT_F32, to);
    free(raw);
    return rc;
}

static int encode_all(const struct fill *f)
{
    struct numbers n = {.t = NULL};
    int rc = ckpt_seek_begin(&n.seek, f->c);

    for (size_t i = 0; rc == 0 && i < f->c->tensor_count; i++) {
        const struct ct_state *s = f->state[i];

        n.t = &f->c->tensors[i];
        if (s && s->value && encodes(s, n.t->dtype))
            rc = s->coding->encode(f->run, s, read_numbers, &n);
    }
    ckpt_seek_end(&n.seek);
    return rc;
}

static void restore_kept(struct ct_run *run, const struct ckpt *c)
{
    for (size_t i = 0; i < run->kept_count; i++)
        for (size_t k = 0; k < c->kept_count; k++) {
            if (strcmp(run->kept[i].name, c->kept[k].name) != 0)
                continue;
            if (run->kept[i].bytes == c->kept[k].bytes)
                memcpy(run->kept[i].data, c->kept[k].data, c->kept[k].bytes);
            else if (run->rank == 0)
                ct_warn("%s begins anew: the checkpoint has %zu bytes of it, this run %zu",
                        run->kept[i].name, c->kept[k].bytes, run->kept[i].bytes);
        }
}

/* The length of the samples that the checkpoint counts, by the recipe that it was saved with, or by
   that of the run. */
static int64_t seq_len_at(const struct ct_recipe *recipe, const struct ckpt *c)
{
    int64_t last = c->progress.step > 1 ? c->progress.step - 1 : 1;

    return ct_recipe_integer_at(recipe, last, "training", "seq_len");
}

/* The position in the data counts samples, so their length must be the same. */
static int check_data(const struct ct_run *run, const struct ckpt *c)
{
    struct ct_arena scratch = {0};
    struct ct_recipe *recipe;
    int64_t before = 0, now = run->recipe ? seq_len_at(run->recipe, c) : 0;

    if (c->recipe && ct_recipe_parse(&scratch, c->path, c->recipe, &recipe) == 0)
        before = seq_len_at(recipe, c);
    ct_arena_finish(&scratch);
    now = now ? now : ct_config.training.seq_len;
    if (!before || before == now)
        return 0;
    return ct_fail(CT_ECONFIG,
                   "%s counts samples of %lld tokens, but [training] seq_len is %lld: leave it at "
                   "%lld and set seq_len = %lld in a section [stage.2] with begin = %lld, which "
                   "goes on in the data; or ckpt.exclude_from_loading = dataloader starts at the "
                   "first sample again",
                   c->path, (long long)before, (long long)now, (long long)before, (long long)now,
                   (long long)c->progress.step);
}

/* Whether most of what this rank reads is read by others, too. */
static bool is_shared(const struct ct_run *run, const struct ckpt_load *load)
{
    size_t all = 0, shared = 0;
    int64_t number;

    for (size_t i = 0; i < run->state_count; i++) {
        const struct ct_state *s = &run->states[i];
        size_t bytes = s->value && wanted(load, s->role) ? ct_run_shard_bytes(run, s) : 0;

        all += bytes;
        shared += ct_run_shard_copies(run, s, run->rank, &number) > 1 ? bytes : 0;
    }
    return shared > all / 2;
}

int ckpt_load(struct ct_run *run, const struct ckpt *c, const struct ckpt_load *load)
{
    struct ct_arena scratch = {0};
    struct ckpt_sink sink = {want, put, NULL, is_shared(run, load)};
    const struct ct_state **state =
        ct_arena_array(&scratch, const struct ct_state *, c->tensor_count + 1);
    const struct ct_state **follower =
        ct_arena_array(&scratch, const struct ct_state *, c->tensor_count + 1);
    struct check check = {.run = run, .c = c, .load = load, .state = state, .follower = follower};
    struct fill fill = {run, c, state, follower};
    struct ct_progress *p = &run->progress;
    int rc = compare_all(&check);

    sink.context = &fill;
    if (rc == 0 && load->data)
        rc = check_data(run, c);
    if (rc == 0)
        rc = ckpt_is_local(run) ? ckpt_local_read(run, c, &sink) : ckpt_read(c, &sink);
    if (rc == 0)
        rc = encode_all(&fill);
    ct_arena_finish(&scratch);
    if (rc < 0)
        return rc;
    if (load->lr)
        *p = (struct ct_progress){c->progress.step, p->updates, c->progress.tokens, p->samples};
    if (load->optimizer)
        p->updates = c->progress.updates;
    if (load->data) {
        p->samples = c->progress.samples;
        run->samples_since = 0; /* unless the checkpoint says whose samples they are */
    }
    if (load->optimizer && load->lr && load->data)
        restore_kept(run, c);
    return 0;
}
