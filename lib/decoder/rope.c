/*
 * Ropes that depend on the length of sequences: dynamic scaling, whose base grows with it, and
 * LongRoPE, which has other divisors beyond the original context. As in transformers, all tokens of
 * a graph have the rope of its length.
 */
#include <math.h>

#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/lib/decoder.h>

static double dynamic_theta(const struct ct_rope *r, int64_t most, int64_t tokens, int64_t rotated)
{
    double grown = r->factor * (double)tokens / (double)most - (r->factor - 1);

    return r->theta * pow(grown, (double)rotated / (double)(rotated - 2));
}

/* Tokens of a sequence, of which a graph that generates gets parts only. */
static int64_t context_of(const struct ct_model_request *request)
{
    int64_t context = ct_config.training.seq_len;

    return request->logits && context > request->seq_len ? context : request->seq_len;
}

static int check_divisors(const char *key, const char *divisors, int64_t rotated)
{
    int64_t count = divisors && *divisors;

    for (const char *at = divisors; at && *at; at++)
        count += *at == ':';
    return count == rotated / 2
               ? 0
               : ct_fail(CT_ECONFIG, "%s of rope has %lld numbers; %lld rotated features need %lld",
                         key, (long long)count, (long long)rotated, (long long)rotated / 2);
}

int ct_decoder_check_rope(const struct ct_rope *rope, int64_t rotated)
{
    int rc = 0;

    if (rope->scaling == CT_ROPE_LONG)
        rc = check_divisors("short_factor", rope->longrope.near, rotated);
    if (rc == 0 && rope->scaling == CT_ROPE_LONG)
        rc = check_divisors("long_factor", rope->longrope.far, rotated);
    return rc;
}

int ct_decoder_fit_rope(const struct ct_decoder_sizes *s, const struct ct_model_request *request,
                        int64_t rotated, struct ct_rope *r)
{
    bool divided = r->scaling == CT_ROPE_LONG;
    int64_t first = divided ? r->original_max_position : s->max_position;
    int64_t tokens = context_of(request);
    bool beyond = tokens > first;

    if (!divided && !r->dynamic)
        return 0;
    /* transformers asks for the largest position of a batch, which documents would decide. */
    if (beyond && request->documents)
        return ct_fail(CT_ECONFIG,
                       "rope of type %s depends on the length of each document beyond %lld tokens: "
                       "train without documents, or set [training] seq_len = %lld",
                       divided ? "longrope" : "dynamic", (long long)first, (long long)first);
    if (divided)
        r->divisors = beyond ? r->longrope.far : r->longrope.near;
    else if (beyond && rotated > 2)
        r->theta = dynamic_theta(r, first, tokens, rotated);
    if (r->dynamic)
        r->factor = 1;
    r->dynamic = false;
    return 0;
}
