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

static bool holds(const struct ct_run *run, const struct ct_weight_place *w, int64_t rank)
{
    int axis = ct_mesh_find(&run->mesh, "pp");

    return axis < 0 || w->holders >> ct_mesh_coordinate(&run->mesh, rank, axis) & 1;
}

static size_t piece_bytes(const struct ct_run *run, const struct ct_weight_place *w, int64_t rank)
{
    int64_t local[CT_MAX_RANK];

    ct_sharding_local(&w->sharding, &run->mesh, rank, w->rank, w->shape, local, NULL);
    return (size_t)ct_shape_count(w->rank, local) * ct_dtype_size(w->dtype);
}

/* The whole of a parameter, put together from the pieces of all ranks that hold it: every rank
   calls, every rank gets. */
static int gather_parameter(struct ct_run *run, struct ct_group *all,
                            const struct ct_weight_place *w, char *whole)
{
    struct ct_arena scratch = {0};
    size_t largest = piece_bytes(run, w, 0);
    char *mine = ct_arena_alloc(&scratch, largest);
    char *pieces = ct_arena_alloc(&scratch, largest * (size_t)run->world);
    int64_t local[CT_MAX_RANK], offset[CT_MAX_RANK];
    int rc = 0;

    if (holds(run, w, run->rank))
        rc = ct_executor_read(run->executor, ct_graph_find(run->graph, w->name), mine,
                              piece_bytes(run, w, run->rank));
    if (rc == 0)
        rc = run->communicator.ops->all_gather(all, mine, pieces, largest, CT_U8);
    for (int64_t r = 0; rc == 0 && r < run->world; r++) {
        if (!holds(run, w, r))
            continue;
        ct_sharding_local(&w->sharding, &run->mesh, r, w->rank, w->shape, local, offset);
        place_box(whole, w->rank, w->shape, pieces + (size_t)r * largest, local, offset,
                  ct_dtype_size(w->dtype));
    }
    ct_arena_finish(&scratch);
    return rc;
}

static int read_parameter(struct ct_run *run, struct ct_group *all, const struct ct_weight_place *w,
                          void *whole, size_t bytes)
{
    return all ? gather_parameter(run, all, w, whole)
               : ct_executor_read(run->executor, ct_graph_find(run->graph, w->name), whole, bytes);
}

static int open_world(struct ct_run *run, struct ct_group **all)
{
    return run->communicator.comm
               ? ct_communicator_group(&run->communicator, &run->mesh, run->rank,
                                       ((ct_axes)1 << run->mesh.count) - 1, CT_STREAM_LOAD, all)
               : 0;
}

int ct_run_save(struct ct_run *run, const char *folder)
{
    struct ct_arena scratch = {0};
    struct ct_weight *list = ct_arena_array(&scratch, struct ct_weight, run->weight_count);
    struct ct_group *all = NULL;
    char path[4200];
    int rc = open_world(run, &all);

    if (rc == 0 && run->rank == 0)
        rc = ct_file_make_folder(folder);
    for (size_t i = 0; rc == 0 && i < run->weight_count; i++) {
        const struct ct_weight_place *from = &run->weights[i];
        size_t bytes = (size_t)ct_shape_count(from->rank, from->shape) * ct_dtype_size(from->dtype);

        list[i] = (struct ct_weight){.name = from->name, .dtype = from->dtype, .rank = from->rank};
        memcpy(list[i].shape, from->shape, sizeof(from->shape));
        list[i].data = ct_arena_alloc(&scratch, bytes);
        rc = read_parameter(run, all, from, (void *)list[i].data, bytes);
    }
    snprintf(path, sizeof(path), "%s/model.safetensors", folder);
    if (rc == 0 && run->rank == 0)
        rc = ct_safetensors_write(path, list, run->weight_count);
    if (rc == 0 && run->rank == 0)
        rc = save_config(run, folder);
    ct_arena_finish(&scratch);
    return rc < 0 ? ct_context(rc, "saving the model") : 0;
}
