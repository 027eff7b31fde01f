/*
 * The data of a run: what is trained on, and the sets that are validated.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/log.h>
#include <ctitan/plugin.h>

#include "run/open_data.h"
#include "run/size.h"
#include "run/stages.h"

struct ct_data_request ct_run_data_request(const struct ct_run *run)
{
    return (struct ct_data_request){.seq_len = ct_config.training.seq_len,
                                    .seed = (uint64_t)ct_config.training.seed,
                                    .tokenizer = run->tokenizer};
}

/* Vocabularies of models are often rounded up, but not doubled. */
static int check_vocabulary(const struct ct_run *run, int64_t have)
{
    int64_t need = run->data_ops->vocabulary(run->data);

    if (need > have)
        return ct_fail(CT_ECONFIG, "the data needs a vocabulary of %lld, the model has %lld",
                       (long long)need, (long long)have);
    if (run->rank == 0 && run->tokenizer && *ct_config.model.init_from &&
        run->tokenizer->vocabulary() < have / 2)
        ct_warn("the tokenizer has %lld tokens, and the model a vocabulary of %lld: is it the "
                "tokenizer that the model was trained with?",
                (long long)run->tokenizer->vocabulary(), (long long)have);
    return 0;
}

static bool has_own_validation(const struct ct_data_ops *ops)
{
    return !ops->has_validation || ops->has_validation();
}

static int check_best_set(bool own)
{
    const char *wanted = ct_config.best_set;
    size_t i = 0;

    while (i < ct_config.validation_set_count &&
           strcmp(ct_config.validation_sets[i].name, wanted) != 0)
        i++;
    if (!*wanted || i < ct_config.validation_set_count)
        return 0;
    return ct_fail(CT_ECONFIG, "[validation] best_set = %s: there is no section [validation.%s]%s",
                   wanted, wanted, own ? "; empty: the held-out data" : "");
}

static int open_sets(struct ct_run *run, const struct ct_data_request *request)
{
    size_t count = ct_config.validation_set_count;
    int rc = 0;

    if (count && !run->data_ops->open_set)
        return ct_fail(CT_ECONFIG,
                       "[validation.%s]: the data source %s takes no sets of validation",
                       ct_config.validation_sets[0].name, ct_offer_at(CT_DATA, 0)->name);
    run->sets = ct_arena_array(&run->arena, struct ct_named_data, count);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        const struct ct_validation_set *set = &ct_config.validation_sets[i];

        run->sets[i].name = set->name;
        rc = run->data_ops->open_set(request, set, &run->sets[i].data);
        run->set_count += rc == 0;
    }
    return rc;
}

static int open_validation(struct ct_run *run, struct ct_data_request request)
{
    bool own = !ct_config.validation_set_count || has_own_validation(run->data_ops);
    int rc = check_best_set(own);

    if (!ct_config.validation.freq && ct_config.validation_set_count)
        return ct_fail(CT_ECONFIG, "[validation.%s] has no effect, as [validation] freq is 0",
                       ct_config.validation_sets[0].name);
    if (!ct_config.validation.freq && (ct_config.patience || ct_config.min_delta > 0))
        return ct_fail(CT_ECONFIG, "[validation] %s has no effect, as [validation] freq is 0",
                       ct_config.patience ? "patience" : "min_delta");
    if (rc < 0 || !ct_config.validation.freq)
        return rc;
    request.validation = true;
    if (own)
        rc = run->data_ops->open(&request, &run->validation_data);
    return rc < 0 ? rc : open_sets(run, &request);
}

int ct_run_open_data(struct ct_run *run)
{
    struct ct_data_request request = ct_run_data_request(run);
    int rc;

    request.vocabulary = run->model_ops->vocabulary(run->model);
    ct_run_name_former_data(run, &request);
    rc = run->data_ops->open(&request, &run->data);
    request.before = NULL;
    if (rc == 0)
        rc = check_vocabulary(run, request.vocabulary);
    if (rc == 0)
        rc = ct_run_count_epochs(run);
    return rc < 0 ? rc : open_validation(run, request);
}

void ct_run_close_data(struct ct_run *run)
{
    for (size_t i = 0; i < run->set_count; i++)
        run->data_ops->close(run->sets[i].data);
    if (run->validation_data)
        run->data_ops->close(run->validation_data);
    if (run->data)
        run->data_ops->close(run->data);
}
