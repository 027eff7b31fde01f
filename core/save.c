/*
 * Saving a run's weights as a Hugging Face folder. Parameters in pieces are put together one at a
 * time, on every rank; rank 0 writes.
 */
#include <errno.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/run.h>
#include <ctitan/safetensors.h>

#include "collective.h"

/* Copy a dense box into its place in a dense whole. */
static void place_box(char *whole, int rank, const int64_t *shape, const char *box,
                      const int64_t *size, const int64_t *offset, size_t item)
{
    int64_t inner = rank ? size[rank - 1] : 1, runs = ct_shape_count(rank, size);

    runs = inner ? runs / inner : 0;
    for (int64_t r = 0; r < runs; r++) {
        int64_t rest = r, at = rank ? offset[rank - 1] : 0, stride = rank ? shape[rank - 1] : 1;

        for (int d = rank - 2; d >= 0; d--) {
            at += (offset[d] + rest % size[d]) * stride;
            rest /= size[d];
            stride *= shape[d];
        }
        memcpy(whole + (size_t)at * item, box + (size_t)(r * inner) * item, (size_t)inner * item);
    }
}

static int save_config(const struct ct_run *run, const char *folder)
{
    char path[4200], temporary[4200];
    FILE *out;
    int rc;

    snprintf(path, sizeof(path), "%s/config.json", folder);
    snprintf(temporary, sizeof(temporary), "%s/.config.json.new", folder);
    out = fopen(temporary, "w");
    if (!out)
        return ct_fail(CT_EIO, "%s: %s", temporary, strerror(errno));
    rc = run->model->write_config(out);
    if ((fclose(out) || (rc == 0 && rename(temporary, path))) && rc == 0)
        rc = ct_fail(CT_EIO, "%s: %s", path, strerror(errno));
    return rc;
}

/* The whole of a parameter, put together from all ranks' pieces: every rank calls, every rank gets.
 */
static int gather_parameter(struct ct_run *run, struct ct_group *all, const struct ct_value *v,
                            char *whole)
{
    struct ct_arena scratch = {0};
    size_t item = ct_dtype_size(v->dtype), largest, bytes;
    int64_t local[CT_MAX_RANK], offset[CT_MAX_RANK];
    char *mine, *pieces;
    int rc;

    ct_sharding_local(&v->sharding, &run->mesh, 0, v->rank, v->shape, local, NULL);
    largest = (size_t)ct_shape_count(v->rank, local) * item;
    ct_sharding_local(&v->sharding, &run->mesh, run->rank, v->rank, v->shape, local, NULL);
    bytes = (size_t)ct_shape_count(v->rank, local) * item;
    mine = ct_arena_alloc(&scratch, largest);
    pieces = ct_arena_alloc(&scratch, largest * (size_t)run->world);
    rc = ct_executor_read(run->executor, v, mine, bytes);
    if (rc == 0)
        rc = run->communicator.ops->all_gather(all, mine, pieces, largest, CT_U8);
    for (int64_t r = 0; rc == 0 && r < run->world; r++) {
        ct_sharding_local(&v->sharding, &run->mesh, r, v->rank, v->shape, local, offset);
        place_box(whole, v->rank, v->shape, pieces + (size_t)r * largest, local, offset, item);
    }
    ct_arena_finish(&scratch);
    return rc;
}

static int read_parameter(struct ct_run *run, struct ct_group *all, const struct ct_value *v,
                          void *whole, size_t bytes)
{
    return all ? gather_parameter(run, all, v, whole)
               : ct_executor_read(run->executor, v, whole, bytes);
}

static int open_world(struct ct_run *run, struct ct_group **all)
{
    return run->communicator.comm
               ? ct_communicator_group(&run->communicator, &run->mesh, run->rank,
                                       ((ct_axes)1 << run->mesh.count) - 1, CT_STREAM_COPY, all)
               : 0;
}

int ct_run_save(struct ct_run *run, const char *folder)
{
    struct ct_arena scratch = {0};
    struct ct_weight *list = ct_arena_array(&scratch, struct ct_weight, run->graph->value_count);
    struct ct_group *all = NULL;
    size_t count = 0;
    char path[4200];
    int rc = open_world(run, &all);

    if (rc == 0 && run->rank == 0)
        rc = ct_file_make_folder(folder);
    for (size_t i = 0; rc == 0 && i < run->graph->value_count; i++) {
        const struct ct_value *v = run->graph->values[i];
        struct ct_weight *w = &list[count];
        size_t bytes = (size_t)ct_shape_count(v->rank, v->shape) * ct_dtype_size(v->dtype);

        if (v->role != CT_ROLE_PARAM)
            continue;
        *w = (struct ct_weight){.name = v->name, .dtype = v->dtype, .rank = v->rank};
        memcpy(w->shape, v->shape, sizeof(w->shape));
        w->data = ct_arena_alloc(&scratch, bytes);
        rc = read_parameter(run, all, v, (void *)w->data, bytes);
        count++;
    }
    snprintf(path, sizeof(path), "%s/model.safetensors", folder);
    if (rc == 0 && run->rank == 0)
        rc = ct_safetensors_write(path, list, count);
    if (rc == 0 && run->rank == 0)
        rc = save_config(run, folder);
    ct_arena_finish(&scratch);
    return rc < 0 ? ct_context(rc, "saving the model") : 0;
}
