/*
 * Continuing sequences of tokens with a model.
 *
 * A generator computes the logits after the last token of each of its sequences. It keeps what ops
 * need of past tokens, such as keys and values (Shazeer 2019) or the state of a recurrence, in
 * states that a transform adds to the model's graph (struct ct_cache, op.h). Models need no code
 * for that. There are two programs with one memory: one takes a chunk
 * of tokens of each sequence, the other a single one.
 *
 * A sequence may be longer than the context ([training] seq_len). With a cache, it then goes on
 * with its last half context, and is computed again; without one, with its last seq_len tokens.
 */
#ifndef CT_GENERATE_H
#define CT_GENERATE_H

#include <ctitan/recipe.h>
#include <ctitan/run.h>

CT_BEGIN_DECLS

struct ct_generate_request {
    int64_t sequences;   /* at least 1 */
    bool cache;          /* false: every step computes the whole context */
    const char *weights; /* folder to read them from; NULL: [model] init_from */
    /* As struct ct_run_options has them. All ranks get the same sequences, and the logits. */
    int64_t rank, world;
    int local_rank, local_ranks;
    const char *job;
};

struct ct_generator;

/* Open the recipe's model, with the weights of a folder. CT_ECONFIG: it has an op that
   cannot work on a part of a sequence, so it cannot have a cache; or an axis of the mesh splits its
   layers or its sequences. */
CT_API int ct_generator_open(struct ct_recipe *recipe, const struct ct_generate_request *request,
                             struct ct_generator **generator);
/* generator may be NULL. */
CT_API void ct_generator_close(struct ct_generator *generator);
/* The run whose model it uses; owned by the generator. */
CT_API struct ct_run *ct_generator_run(struct ct_generator *generator);
/* Bytes of caches on this rank. */
CT_API size_t ct_generator_cache_bytes(const struct ct_generator *generator);
/* Logits of a sequence have this many entries. */
CT_API int64_t ct_generator_vocabulary(const struct ct_generator *generator);

/* Append tokens to a sequence. CT_ECONFIG: one is outside the vocabulary. */
CT_API int ct_generator_append(struct ct_generator *generator, int64_t sequence,
                               const int32_t *tokens, int64_t count);
/* Compute what was appended since the last call; every sequence needs a token. */
CT_API int ct_generator_step(struct ct_generator *generator);
/* After a step: the logits after the last token. Valid until the next step. */
CT_API const float *ct_generator_logits(const struct ct_generator *generator, int64_t sequence);

struct ct_sampling {
    double temperature; /* 0: the most likely token */
    int64_t top_k;      /* only this many of the most likely tokens; 0: all */
    double top_p;       /* of those, the fewest that have this probability together (Holtzman et al.
                           2020); 1: all */
};

/* Draw one of count tokens; uniform is in [0, 1). Of equal logits, the lower token comes first.
   room: count entries of scratch. */
struct ct_candidate {
    int32_t token;
    float logit;
    double weight;
};
CT_API int32_t ct_sample(const float *logits, int64_t count, const struct ct_sampling *how,
                         double uniform, struct ct_candidate *room);

CT_END_DECLS

#endif
