#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/mixture.h>
#include <ctitan/log.h>
#include <ctitan/run.h>

#include "load.h"

#define PREFIX "expert_load."

void load_fetch(struct ct_graph *graph, int64_t layer, struct ct_value *load)
{
    if (load)
        ct_graph_fetch(graph, ct_arena_printf(graph->arena, PREFIX "%lld", (long long)layer), load);
}

/* One layer: its largest load, as a multiple of the mean, and its experts without a token. */
struct load {
    const char *layer;
    double largest;
    int64_t experts, unused;
};

static int read_load(struct ct_run *run, const struct ct_fetch *fetch, struct load *load)
{
    int64_t experts = fetch->value->shape[0];
    float *counts = malloc(sizeof(*counts) * (size_t)experts);
    double largest = 0, sum = 0;
    int rc = counts ? 0 : ct_fail(CT_ENOMEM, "%lld experts", (long long)experts);

    *load = (struct load){.layer = fetch->name + strlen(PREFIX), .experts = experts};
    if (rc == 0)
        rc = ct_executor_read(run->executor, fetch->value, counts,
                              sizeof(*counts) * (size_t)experts);
    for (int64_t e = 0; rc == 0 && e < experts; e++) {
        sum += (double)counts[e];
        largest = (double)counts[e] > largest ? (double)counts[e] : largest;
        load->unused += counts[e] == 0;
    }
    load->largest = sum > 0 ? largest * (double)experts / sum : 0;
    free(counts);
    return rc;
}

static int write_line(const struct ct_run *run, int64_t step, const char *layers)
{
    char path[CT_PATH_ROOM];
    int rc = ct_run_path(run, path, "experts.jsonl");
    FILE *out;

    if (rc < 0)
        return rc;
    out = fopen(path, step == 1 ? "we" : "ae");
    if (!out)
        return ct_fail(CT_EIO, "cannot write %s: %s", path, strerror(errno));
    fprintf(out, "{\"step\": %lld, \"layers\": {%s}}\n", (long long)step, layers);
    return fclose(out) ? ct_fail(CT_EIO, "cannot write %s: %s", path, strerror(errno)) : 0;
}

static int report(struct ct_run *run, int64_t step)
{
    struct ct_arena scratch = {0};
    struct load worst = {.layer = ""};
    double sum = 0;
    int64_t count = 0, unused = 0;
    const char *layers = "";
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < run->graph->fetch_count; i++) {
        const struct ct_fetch *fetch = &run->graph->fetches[i];
        struct load load;

        if (strncmp(fetch->name, PREFIX, strlen(PREFIX)) != 0)
            continue;
        rc = read_load(run, fetch, &load);
        layers =
            ct_arena_printf(&scratch, "%s%s\"%s\": {\"largest\": %.6g, \"unused\": %lld}", layers,
                            count ? ", " : "", load.layer, load.largest, (long long)load.unused);
        worst = load.largest > worst.largest ? load : worst;
        sum += load.largest;
        unused += load.unused;
        count++;
    }
    if (rc == 0 && count) {
        ct_info("experts: step %lld: the most loaded has %.2f of the mean (layer %s; %.2f over the "
                "layers), %lld of %lld without a token",
                (long long)step, worst.largest, worst.layer, sum / (double)count, (long long)unused,
                (long long)(count * worst.experts));
        rc = write_line(run, step, layers);
    }
    ct_arena_finish(&scratch);
    return rc;
}

int ct_mixture_report(const struct ct_event_data *data, void *options)
{
    int64_t each = ((const struct ct_mixture_options *)options)->log_load;
    int64_t step = data->result->step;

    if (!each || data->run->rank != 0 ||
        (step != 1 && step % each && step != ct_config.training.steps))
        return 0;
    return report(data->run, step);
}
