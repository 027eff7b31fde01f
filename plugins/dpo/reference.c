#include <ctitan/error.h>

#include "dpo.h"

static int open_file(struct dpo_stored *r)
{
    int rc = ct_sample_file_open(dpo_config.reference_path, &r->file);

    if (rc < 0)
        return rc == CT_ENOENT ? CT_ECONFIG : rc;
    rc = ct_sample_file_tensor(r->file, "logp", 1, &r->logp);
    if (rc == 0 && !ct_dtype_is_float(r->logp->dtype))
        rc = ct_fail(CT_ECONFIG, "%s: its tensor logp has no floating-point numbers",
                     dpo_config.reference_path);
    if (rc < 0)
        dpo_stored_close(r);
    return rc;
}

int dpo_stored_read(struct dpo_stored *r, const int32_t *tokens, const int32_t *labels,
                    int64_t seq_len, float *logp)
{
    int64_t at = r->file ? 0 : open_file(r);

    if (at == 0)
        at = ct_sample_file_find(r->file, tokens, labels, seq_len, "ctitan data --reference");
    if (at < 0)
        return ct_context((int)at, "[dpo] reference_path");
    ct_weights_read_run(r->logp, at, 1, CT_F32, logp);
    return 0;
}

void dpo_stored_close(struct dpo_stored *r)
{
    ct_sample_file_close(r->file);
    r->file = NULL;
}
