/*
 * A plugin for tests: counts what collectives move, from the tensors that they are called with, and
 * the pages of its memory that a rank has touched. One line in the second step:
 *
 *     census rank=N all_gather=BYTES reduce_scatter=BYTES .. numbers=BYTES calls=COUNT arena=BYTES
 *
 * Bytes are those that a rank must send by the algorithms that send least. Collectives of a single
 * number (loss, norm, token count) go under `numbers`.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <ctitan/hook.h>
#include <ctitan/plugin.h>
#include <ctitan/run.h>

enum { ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL, PERMUTE, SEND, NUMBERS, CALLS, COUNTS };

static const char *const names[COUNTS] = {"all_gather", "reduce_scatter", "all_reduce",
                                          "all_to_all", "permute",        "send",
                                          "numbers",    "calls"};

static atomic_llong counts[COUNTS]; /* streams are threads */

static int64_t bytes_of(const struct ct_tensor *t)
{
    return ct_tensor_count(t) * (int64_t)ct_dtype_size(t->dtype);
}

static int64_t group_size(const struct ct_launch *l)
{
    return ct_mesh_degree(l->mesh, ct_op_axes(l->op, "axes"));
}

/* Bytes that a rank sends of its i-th tensor. */
static int64_t sent(const struct ct_launch *l, int type, int i)
{
    int64_t n = group_size(l), in = bytes_of(&l->in[i]);

    switch (type) {
    case ALL_GATHER:
        return in * (n - 1);
    case REDUCE_SCATTER:
    case ALL_TO_ALL:
        return in / n * (n - 1);
    case ALL_REDUCE:
        return 2 * (in * (n - 1) / n);
    default:
        return in;
    }
}

static void count(const struct ct_launch *l)
{
    int type = 0;

    while (type < NUMBERS && strcmp(names[type], l->op->type->name) != 0)
        type++;
    for (int i = 0; i < l->ins; i++)
        counts[ct_tensor_count(&l->in[i]) == 1 ? NUMBERS : type] += sent(l, type, i);
    counts[CALLS]++;
}

/* Bytes of the arena in memory: counted in pages, the last of which may go further. */
static int64_t touched(const struct ct_run *run)
{
    static unsigned char resident[1 << 16];
    const struct ct_program *p = run->program;
    const struct ct_value *first = p->buffers[0].value;
    struct ct_tensor t = ct_executor_tensor(run->executor, first, p->buffers[0].microbatch);
    char *base = (char *)t.data - p->buffers[0].offset;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = (run->arena_bytes + page - 1) / page;
    int64_t bytes = 0;

    if (pages > sizeof(resident) || mincore(base, pages * page, resident) < 0)
        return -1;
    for (size_t i = 0; i < pages; i++)
        bytes += resident[i] & 1 ? (int64_t)page : 0;
    return bytes;
}

static int threads(void)
{
    FILE *in = fopen("/proc/self/status", "re");
    char line[256];
    int count = -1;

    while (in && fgets(line, sizeof(line), in))
        sscanf(line, "Threads: %d", &count);
    if (in)
        fclose(in);
    return count;
}

static int on_event(const struct ct_event_data *data, void *context)
{
    (void)context;
    if (data->event == CT_EVENT_COLLECTIVE_FINISHED)
        count(&data->instruction->lowered->launch);
    for (int i = 0; data->event == CT_EVENT_STEP_BEGIN && i < COUNTS; i++)
        counts[i] = 0;
    if (data->event == CT_EVENT_STEP_END && data->step == 2) {
        char line[512];

        snprintf(line, sizeof(line), "census rank=%lld", (long long)data->run->rank);
        for (int i = 0; i < COUNTS; i++)
            snprintf(line + strlen(line), sizeof(line) - strlen(line), " %s=%lld", names[i],
                     (long long)counts[i]);
        printf("%s arena=%lld threads=%d\n", line, (long long)touched(data->run), threads());
        fflush(stdout);
    }
    return 0;
}

static const struct ct_hook hook = {.size = sizeof(struct ct_hook),
                                    .events = 1u << CT_EVENT_COLLECTIVE_FINISHED |
                                              1u << CT_EVENT_STEP_BEGIN | 1u << CT_EVENT_STEP_END,
                                    .call = on_event};

CT_PLUGIN(.name = "census", .version = "1.0", .summary = "Counts what collectives move",
          .offers = CT_OFFERS({CT_HOOK, "census", &hook}));
