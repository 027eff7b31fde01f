/*
 * The streams that a run reads: those of its data source, and those that plugins have beside it.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/plugin.h>

#include "run/open_data.h"
#include "run/streams.h"

static size_t count_streams(const struct ct_data_stream *streams)
{
    size_t count = 0;

    while (streams[count].size)
        count++;
    return count;
}

static int append(struct ct_run *run, const struct ct_data_stream *added)
{
    size_t before = count_streams(run->streams), count = count_streams(added);
    struct ct_data_stream *all =
        ct_arena_array(&run->arena, struct ct_data_stream, before + count + 1);

    memcpy(all, run->streams, sizeof(*all) * before);
    memcpy(all + before, added, sizeof(*all) * count);
    run->streams = all;
    return ct_streams_check(all, ct_config.training.seq_len);
}

/* Checks for tokens and labels, by which data beside samples is found. */
static int check_source(const struct ct_data_stream *streams)
{
    int found = 0;

    for (; streams->size; streams++)
        found += streams->dtype == CT_I32 && streams->ndim == 1 &&
                 (!strcmp(streams->name, "tokens") || !strcmp(streams->name, "labels"));
    return found == 2 ? 0
                      : ct_fail(CT_ECONFIG, "the data source has no streams tokens and labels, by "
                                            "which samples are known");
}

static int add(struct ct_run *run, const struct ct_data_request *request,
               const struct ct_beside_ops *ops)
{
    struct ct_run_beside *beside = &run->beside[run->beside_count];
    const struct ct_data_stream *list;
    int rc = ops->streams(request, &run->arena, &list);

    if (rc == 0)
        rc = ct_streams_widen(&run->arena, &list);
    if (rc < 0 || !list->size)
        return rc;
    *beside = (struct ct_run_beside){
        .ops = ops, .first = count_streams(run->streams), .count = count_streams(list)};
    run->beside_count++;
    rc = check_source(run->streams);
    return rc < 0 ? rc : append(run, list);
}

int ct_run_find_streams(struct ct_run *run)
{
    struct ct_data_request request = ct_run_data_request(run);
    const struct ct_offer *offer;
    size_t offers = 0;
    int rc = ct_data_streams(run->data_ops, &request, &run->arena, &run->streams);

    if (rc < 0)
        return ct_context(rc, "the data source");
    while (ct_offer_at(CT_BESIDE, offers))
        offers++;
    run->beside = ct_arena_array(&run->arena, struct ct_run_beside, offers);
    run->beside_count = 0;
    for (size_t i = 0; rc == 0 && (offer = ct_offer_at(CT_BESIDE, i)); i++)
        rc = ct_context(add(run, &request, offer->ops), "the streams of %s", offer->name);
    return rc;
}

int ct_run_open_streams(struct ct_run *run)
{
    struct ct_data_request request = ct_run_data_request(run);
    int rc = 0;

    request.vocabulary = run->model_ops->vocabulary(run->model);
    for (size_t i = 0; rc == 0 && i < run->beside_count; i++)
        rc = run->beside[i].ops->open(&request, &run->beside[i].open);
    return rc;
}

void ct_run_close_streams(struct ct_run *run)
{
    for (size_t i = 0; i < run->beside_count; i++)
        if (run->beside[i].open)
            run->beside[i].ops->close(run->beside[i].open);
}
