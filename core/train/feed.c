#include <assert.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/calling.h>
#include <ctitan/error.h>

#include "train/feed.h"

#define COUNTED 8 /* streams of a count, at most */

int64_t feed_samples(const struct feed *f)
{
    return ct_graph_batch(f->graph) * f->microbatches;
}

/* ---- inputs, counts and their memory ---- */

static bool is_called(const char *name, const char *other)
{
    return !strcmp(name, other);
}

static void *new_row(const struct feed *f, const struct ct_data_stream *s)
{
    int64_t elements = ct_shape_count(s->ndim, s->shape);

    return ct_arena_alloc(&f->run->arena, (size_t)elements * ct_dtype_size(s->dtype));
}

static size_t count_streams(const struct feed *f)
{
    size_t count = 0;

    while (f->source.streams[count].name)
        count++;
    return count;
}

/* The inputs that are ahead of a stream; their rows follow. */
static void find_aheads(struct feed *f)
{
    f->ahead = ct_arena_array(&f->run->arena, struct feed_ahead, f->graph->value_count);
    for (size_t i = 0; i < f->graph->value_count; i++) {
        const struct ct_value *v = f->graph->values[i];
        struct feed_ahead *a = &f->ahead[f->aheads];

        if (v->role != CT_ROLE_INPUT || !ct_graph_stream_ahead(f->graph, v->name, &a->by))
            continue;
        a->name = v->name;
        f->aheads++;
    }
}

/* Whether an input is ahead of the stream; which is then the place that its row comes from. */
static bool is_behind(struct feed *f, const struct ct_data_stream *s, const int32_t *row)
{
    bool found = false;
    int64_t by;

    for (size_t i = 0; i < f->aheads; i++) {
        struct feed_ahead *a = &f->ahead[i];

        if (!is_called(ct_graph_stream_ahead(f->graph, a->name, &by)->name, s->name))
            continue;
        found = true;
        a->from = row;
        a->absent = is_called(s->name, "labels") ? CT_MASKED : 0;
        if (row)
            a->row = ct_arena_array(&f->run->arena, int32_t, ct_config.training.seq_len);
    }
    return found;
}

/* Whether the graph takes a stream that is beside the data source. */
static bool takes_beside(const struct feed *f)
{
    for (size_t i = 0; i < f->source.beside_count; i++)
        for (size_t k = 0; k < f->source.beside[i].count; k++)
            if (ct_graph_find_input(f->graph,
                                    f->source.streams[f->source.beside[i].first + k].name))
                return true;
    return false;
}

/* Streams beside the data source are found by tokens and labels. */
static void find_keys(struct feed *f, const struct ct_data_stream *s, const int32_t *row)
{
    if (is_called(s->name, "tokens"))
        f->tokens = row;
    else if (is_called(s->name, "labels"))
        f->labels = row;
}

/* Sources of text always read tokens and labels. Documents are where what is ahead ends. */
static void init_rows(struct feed *f)
{
    size_t count = count_streams(f);
    bool beside = takes_beside(f);

    find_aheads(f);
    f->row = ct_arena_array(&f->run->arena, void *, count + 1);
    for (size_t i = 0; i < count; i++) {
        const struct ct_data_stream *s = &f->source.streams[i];
        bool taken = ct_graph_find_input(f->graph, s->name);
        bool documents = is_called(s->name, "documents");
        bool key = is_called(s->name, "tokens") || is_called(s->name, "labels");

        if (taken || is_behind(f, s, NULL) || (documents && f->aheads) || (key && beside) ||
            (!f->source.ops->read_streams && key))
            f->row[i] = new_row(f, s);
        is_behind(f, s, f->row[i]);
        if (beside)
            find_keys(f, s, f->row[i]);
        if (taken && documents)
            f->documents = f->row[i];
        if (f->aheads && documents && s->dtype == CT_I32)
            f->bounds = f->row[i];
    }
    f->positions = ct_arena_array(&f->run->arena, int32_t, ct_config.training.seq_len);
    f->ordinals = ct_arena_array(&f->run->arena, int32_t, ct_config.training.seq_len);
    for (int64_t t = 0; t < ct_config.training.seq_len; t++)
        f->positions[t] = (int32_t)t;
}

static const void *zeros_of(const struct feed *f, const struct ct_value *v)
{
    return ct_arena_alloc(&f->run->arena, (size_t)ct_shape_count(v->ndim - 1, v->shape + 1) *
                                              ct_dtype_size(v->dtype));
}

static const void *row_of(const struct feed *f, const struct ct_value *v)
{
    for (size_t i = 0; f->source.streams[i].name; i++)
        if (is_called(f->source.streams[i].name, v->name))
            return f->row[i];
    for (size_t i = 0; i < f->aheads; i++)
        if (is_called(f->ahead[i].name, v->name))
            return f->ahead[i].row;
    if (is_called(v->name, "ordinals"))
        return f->ordinals;
    return ct_input_is_made(v->name) ? f->positions : zeros_of(f, v);
}

static void init_input(struct feed *f, struct feed_input *in, const struct ct_value *v)
{
    size_t bytes = ct_dtype_size(v->dtype);

    in->value = v;
    in->row = row_of(f, v);
    ct_sharding_local(&v->sharding, &f->graph->mesh, f->run->rank, v->ndim, v->shape, in->local,
                      in->offset);
    in->whole[v->ndim] = in->bytes = bytes;
    for (int d = v->ndim - 1; d > 0; d--) {
        bool ordered = !f->graph->chunks || d != ct_input_sequence(v);

        in->whole[d] =
            ordered && in->local[d] == v->shape[d] ? in->whole[d + 1] * (size_t)v->shape[d] : 0;
        in->bytes *= (size_t)in->local[d];
    }
    in->shard =
        ct_arena_alloc(&f->run->arena, in->bytes * (size_t)in->local[0] * (size_t)f->microbatches);
}

static void init_inputs(struct feed *f)
{
    f->input = ct_arena_array(&f->run->arena, struct feed_input, f->graph->value_count);
    for (size_t i = 0; i < f->graph->value_count; i++)
        if (f->graph->values[i]->role == CT_ROLE_INPUT)
            init_input(f, &f->input[f->inputs++], f->graph->values[i]);
}

/* The graph was built for the streams of the data that is trained on. */
static int check_streams(const struct feed *f)
{
    for (size_t i = 0; i < f->inputs; i++) {
        const char *name = f->input[i].value->name;
        const struct ct_data_stream *s = f->source.streams, *behind;
        int64_t by;

        behind = ct_graph_stream_ahead(f->graph, name, &by);
        name = behind ? behind->name : name;
        while (s->name && !is_called(s->name, name))
            s++;
        if (!s->name && !ct_input_is_made(name) && (behind || !f->source.partial))
            return ct_fail(CT_EINVAL, "the data has no stream %s, which the graph takes", name);
    }
    return 0;
}

static const struct feed_input *find_input(const struct feed *f, const char *name)
{
    for (size_t i = 0; i < f->inputs; i++)
        if (is_called(f->input[i].value->name, name))
            return &f->input[i];
    return NULL;
}

static int init_count(struct feed *f, struct feed_count *c)
{
    const char *const *names = c->count->streams;
    int streams = 0;

    while (names && names[streams])
        streams++;
    if (streams > COUNTED)
        return ct_fail(CT_EINVAL, "%s is counted in %d streams: at most %d are supported",
                       c->count->name, streams, COUNTED);
    c->in = ct_arena_array(&f->run->arena, const struct feed_input *, streams + 1);
    for (int i = 0; i < streams; i++) {
        c->in[i] = find_input(f, names[i]);
        if (!c->in[i] || c->in[i]->value->ndim != c->in[0]->value->ndim ||
            memcmp(c->in[i]->local, c->in[0]->local,
                   sizeof(*c->in[0]->local) * (size_t)c->in[0]->value->ndim) != 0)
            return ct_fail(CT_EINVAL, "%s is counted in %s: %s", c->count->name, names[i],
                           c->in[i] ? "its streams differ in shape" : "the graph does not take it");
    }
    return 0;
}

static int init_counts(struct feed *f)
{
    const struct ct_count *counts = ct_graph_counts(f->graph);
    size_t room = 0;
    int rc = 0;

    for (const struct ct_count *c = counts; c->name; c++)
        room++;
    f->count = ct_arena_array(&f->run->arena, struct feed_count, room + 1);
    for (const struct ct_count *c = counts; rc == 0 && c->name; c++) {
        struct feed_count *count = &f->count[f->counts];

        *count = (struct feed_count){.count = c, .value = ct_graph_find_input(f->graph, c->name)};
        if (count->value) {
            rc = init_count(f, count);
            f->counts++;
        }
    }
    return rc;
}

int feed_init(struct feed *f, struct ct_run *run, struct ct_executor *executor,
              const struct ct_graph *graph, int microbatches, const struct feed_source *source)
{
    int rc;

    *f = (struct feed){.run = run,
                       .executor = executor,
                       .graph = graph,
                       .source = *source,
                       .microbatches = microbatches,
                       .lock = PTHREAD_MUTEX_INITIALIZER,
                       .changed = PTHREAD_COND_INITIALIZER};
    f->work = ct_arena_array(&run->arena, double, feed_samples(f));
    f->slot = ct_arena_array(&run->arena, int64_t, feed_samples(f));
    metrics_init(&f->metrics, run, executor, graph);
    init_rows(f);
    init_inputs(f);
    rc = check_streams(f);
    return rc < 0 ? rc : init_counts(f);
}

/* ---- reading, in the thread ---- */

static void look_ahead(const struct feed_ahead *a, const int32_t *documents, int64_t count)
{
    for (int64_t t = count - 1, end = count; t >= 0; t--) {
        if (documents && t + 1 < count && documents[t + 1] != documents[t])
            end = t + 1;
        a->row[t] = t + a->by < end ? a->from[t + a->by] : a->absent;
    }
}

static int read_beside(struct feed *f, int64_t index)
{
    const struct ct_data_sample sample = {index, ct_config.training.seq_len, f->tokens, f->labels};
    int rc = 0;

    for (size_t i = 0; rc == 0 && f->tokens && i < f->source.beside_count; i++) {
        const struct ct_run_beside *beside = &f->source.beside[i];
        struct ct_calling before = ct_calling_begin("streams", NULL);

        rc = beside->ops->read(beside->open, &sample, f->row + beside->first);
        ct_calling_end(&before);
    }
    return ct_context(rc, "sample %lld", (long long)index);
}

/* Positions begin again with each document. */
static int read_sample(struct feed *f, int64_t index)
{
    const int32_t *documents = f->documents;
    struct ct_calling before = ct_calling_begin("data source", NULL);
    int rc = ct_data_read(f->source.ops, f->source.data, index, f->row);

    ct_calling_end(&before);
    if (rc == 0)
        rc = read_beside(f, index);
    for (int64_t t = 1; rc == 0 && documents && t < ct_config.training.seq_len; t++)
        f->positions[t] = documents[t] == documents[t - 1] ? f->positions[t - 1] + 1 : 0;
    for (int64_t t = 0; rc == 0 && t < ct_config.training.seq_len; t++)
        f->ordinals[t] = (int32_t)(uint32_t)(index * ct_config.training.seq_len + t);
    for (size_t i = 0; rc == 0 && i < f->aheads; i++)
        look_ahead(&f->ahead[i], f->bounds, ct_config.training.seq_len);
    return rc;
}

/* Copy this rank's part of dimensions d and behind, in the order in which the graph is fed. index:
   of the dimensions before. Returns the end of the copy. */
static char *split(const struct feed *f, const struct feed_input *in, int d, int64_t index,
                   char *to)
{
    const char *row = in->row;
    int64_t all, from;

    if (in->whole[d]) {
        memcpy(to, row + (size_t)index * in->whole[d], in->whole[d]);
        return to + in->whole[d];
    }
    assert(d < CT_MAX_DIMS);
    all = in->value->shape[d];
    for (int64_t i = 0; i < in->local[d]; i++) {
        from = in->offset[d] + i;
        if (d == ct_input_sequence(in->value))
            from = ct_graph_position(f->graph, all, from);
        to = split(f, in, d + 1, index * all + from, to);
    }
    return to;
}

/* sample: of those of this rank in the step. */
static void split_sample(struct feed *f, int64_t sample)
{
    for (size_t i = 0; i < f->inputs; i++)
        split(f, &f->input[i], 1, 0, f->input[i].shard + (size_t)sample * f->input[i].bytes);
    for (size_t i = 0; i < f->counts; i++) {
        struct feed_count *c = &f->count[i];
        const void *data[COUNTED] = {NULL};
        int64_t elements =
            c->in[0] ? (int64_t)(c->in[0]->bytes / ct_dtype_size(c->in[0]->value->dtype)) : 0;

        for (int k = 0; c->in[k]; k++)
            data[k] = c->in[k]->shard + (size_t)sample * c->in[k]->bytes;
        c->found += c->in[0] ? c->count->count(data, elements) : c->count->per_sample;
    }
}

/* A sample of a step whose last one is there. */
static int read_within(struct feed *f, int64_t index)
{
    int rc = read_sample(f, index);

    return rc == 1 ? ct_fail(CT_EINVAL,
                             "the data source has no sample %lld, but the later sample %lld: "
                             "`ctitan check` tests what sources must hold to",
                             (long long)index, (long long)(f->first + feed_samples(f) - 1))
                   : rc;
}

/* Every rank finds the same slots. */
static int find_slots(struct feed *f)
{
    int64_t each = f->input[0].local[0], count = feed_samples(f);
    int rc = ct_balance_costs(f->source.ops, f->source.data, f->first, count, f->work);

    if (rc == 0)
        ct_balance_samples(f->work, ct_graph_batch(f->graph) / each, f->microbatches, each,
                           f->slot);
    for (int64_t i = 0; rc == 1 && i < count; i++)
        f->slot[i] = i;
    return rc < 0 ? rc : 0;
}

/* Every rank reads the last sample to decide whether the data suffices; otherwise some would find
   all of theirs, and wait for the others. */
static int read_step(struct feed *f)
{
    const struct feed_input *in = &f->input[0];
    int64_t batch = ct_graph_batch(f->graph);
    int rc = read_sample(f, f->first + feed_samples(f) - 1);

    if (rc == 0)
        rc = find_slots(f);
    for (size_t i = 0; i < f->counts; i++)
        f->count[i].found = 0;
    for (int64_t i = 0; rc == 0 && i < feed_samples(f); i++) {
        int64_t m = f->slot[i] / batch, b = f->slot[i] % batch - in->offset[0];

        if (b < 0 || b >= in->local[0])
            continue;
        rc = read_within(f, f->first + i);
        if (rc == 0)
            split_sample(f, m * in->local[0] + b);
    }
    return rc;
}

static void *work(void *argument)
{
    struct feed *f = argument;

    pthread_mutex_lock(&f->lock);
    while (f->state != FEED_QUIT) {
        if (f->state != FEED_READ) {
            pthread_cond_wait(&f->changed, &f->lock);
            continue;
        }
        pthread_mutex_unlock(&f->lock);
        f->rc = read_step(f);
        if (f->rc < 0)
            snprintf(f->message, sizeof(f->message), "%s", ct_error_message());
        pthread_mutex_lock(&f->lock);
        if (f->state == FEED_READ)
            f->state = FEED_DONE;
        pthread_cond_broadcast(&f->changed);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

/* ---- feeding ---- */

/* After this the thread owns the rows. */
static int request(struct feed *f, int64_t first)
{
    if (!f->started && pthread_create(&f->thread, NULL, work, f))
        return ct_fail(CT_ENOMEM, "a thread that reads data");
    f->started = true;
    pthread_mutex_lock(&f->lock);
    f->first = first;
    f->state = FEED_READ;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    return 0;
}

/* After this the thread is idle. Returns whether it has read the samples from first on. */
static bool collect(struct feed *f, int64_t first)
{
    bool done;

    pthread_mutex_lock(&f->lock);
    while (f->state == FEED_READ)
        pthread_cond_wait(&f->changed, &f->lock);
    done = f->state == FEED_DONE && f->first == first;
    f->state = FEED_IDLE;
    pthread_mutex_unlock(&f->lock);
    return done;
}

static int write_counts(struct feed *f)
{
    const char *over = ct_graph_fetched_over(f->graph, "loss");
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < f->counts; i++) {
        const struct feed_count *c = &f->count[i];

        if (over && is_called(c->count->name, over))
            f->counted = c->found;
        rc = ct_executor_write(f->executor, c->value, -1, &(float){(float)c->found}, sizeof(float));
    }
    return rc;
}

static int write_inputs(struct feed *f)
{
    int rc = 0;

    for (int m = 0; m < f->microbatches; m++)
        for (size_t i = 0; rc == 0 && i < f->inputs; i++) {
            const struct feed_input *in = &f->input[i];
            size_t bytes = in->bytes * (size_t)in->local[0];

            rc = ct_executor_write(f->executor, in->value, m, in->shard + (size_t)m * bytes, bytes);
        }
    return rc < 0 ? rc : write_counts(f);
}

int feed_step(struct feed *f, int64_t first, int64_t next)
{
    int rc = 0;

    if (!collect(f, first)) {
        rc = request(f, first);
        if (rc < 0)
            return rc;
        collect(f, first);
    }
    if (f->rc < 0)
        return ct_fail(f->rc, "%s", f->message);
    if (f->rc)
        return f->rc;
    rc = write_inputs(f);
    return rc < 0 || next < 0 ? rc : request(f, next);
}

/* ---- running ---- */

/* Calls abandoned by peers may have ended with arbitrary output, so check the communicator. */
int feed_execute(struct feed *f)
{
    const struct ct_communicator *c = &f->run->communicator;
    int rc = ct_executor_step(f->executor);

    return rc == 0 && c->comm && c->ops->check ? c->ops->check(c->comm) : rc;
}

int feed_read_loss(struct feed *f, double *sum, double *count)
{
    const char *over = ct_graph_fetched_over(f->graph, "loss");
    int rc = metrics_read(f->executor, f->graph, "loss", sum);

    return rc < 0 ? rc : metrics_read(f->executor, f->graph, over, count);
}

const char *feed_nothing(const struct ct_graph *graph)
{
    const char *over = ct_graph_fetched_over(graph, "loss");

    return is_called(over, ct_default_counts[0].name)
               ? "every label of its batch is masked"
               : ct_arena_printf(graph->arena, "%s of its batch is 0", over);
}

void feed_finish(struct feed *f)
{
    if (!f->started)
        return;
    pthread_mutex_lock(&f->lock);
    f->state = FEED_QUIT;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    pthread_join(f->thread, NULL);
    f->started = false;
}
