/*
 * Filling a run's parameters from a Hugging Face folder: each rank reads its own shards.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/log.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/safetensors.h>

static int load_parameter(struct ct_run *run, const struct ct_weights *weights,
                          const struct ct_state *param)
{
    const struct ct_weight *w = ct_weights_find(weights, param->name);
    int64_t shape[CT_MAX_DIMS], offset[CT_MAX_DIMS];
    size_t bytes = ct_run_shard_bytes(run, param);
    void *host;
    int rc;

    if (!w)
        return ct_fail(CT_ENOENT, "no tensor %s in it", param->name);
    if (w->ndim != param->ndim ||
        memcmp(w->shape, param->shape, sizeof(*w->shape) * (size_t)w->ndim))
        return ct_fail(CT_EINVAL, "tensor %s has another shape than the model's", param->name);
    host = malloc(bytes ? bytes : 1);
    if (!host)
        return ct_fail(CT_ENOMEM, "%zu bytes to read %s", bytes, param->name);
    ct_run_shard(run, param, run->rank, shape, offset);
    rc = ct_weights_read(w, offset, shape, param->dtype, host);
    if (rc == 0)
        rc = ct_run_write(run, param, NULL, NULL, host);
    free(host);
    return rc;
}

static bool is_parameter(const struct ct_run *run, const char *name)
{
    const struct ct_state *state = ct_run_state(run, name);

    return state && state->role == CT_ROLE_PARAM;
}

int ct_hf_load(struct ct_run *run, const char *folder)
{
    struct ct_weights *weights;
    int rc = ct_weights_open(folder, &weights);

    if (rc < 0)
        return rc;
    for (size_t i = 0; rc == 0 && i < run->state_count; i++)
        if (run->states[i].role == CT_ROLE_PARAM && run->states[i].value)
            rc = load_parameter(run, weights, &run->states[i]);
    for (size_t i = 0; rc == 0 && i < ct_weights_count(weights); i++)
        if (!is_parameter(run, ct_weights_at(weights, i)->name))
            ct_warn("%s: tensor %s is not used by the model", folder,
                    ct_weights_at(weights, i)->name);
    ct_weights_close(weights);
    return rc;
}
