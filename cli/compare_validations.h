#ifndef COMPARE_VALIDATIONS_H
#define COMPARE_VALIDATIONS_H

#include <jansson.h>

#include "runs.h"

/* A line for each set that one of the runs validated. */
void compare_print_validations(const struct run_log *a, const struct run_log *b);
/* [{"set": "", "loss_a": .., "loss_b": .., "step_a": .., "step_b": ..,
    "metrics_a": "  acc 0.5", "metrics_b": ""}, ..] */
json_t *compare_json_validations(const struct run_log *a, const struct run_log *b);

#endif
