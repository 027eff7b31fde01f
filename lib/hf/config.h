/* Functions that the sources of config.json share. */
#ifndef CT_HF_CONFIG_SOURCES_H
#define CT_HF_CONFIG_SOURCES_H

#include <jansson.h>

#include <ctitan/lib/hf_config.h>
#include <ctitan/lib/ops.h>

/* Whether there is no value, or null. */
bool hf_absent(const json_t *value);
/* Read the field of one row. */
int hf_read_key(const json_t *root, const struct ct_hf_config *config, const struct ct_hf_key *k,
                void *field);
bool hf_is_layer(const struct ct_hf_layers *layers, int64_t layer);
/* By what YaRN multiplies cosines and sines, for one mscale (Peng et al. 2023, section 3.4). */
double hf_yarn_amplitude(double factor, double mscale);
/* The part for text of a model for several kinds of input; of another model, all of it. */
json_t *hf_part_for_text(json_t *root, const struct ct_hf_config *config);
/* A folder's config.json as it was read last, or as it is: its values, and a new copy with numbers
   as they are written. CT_ECONFIG: it cannot be read. */
int hf_first_config(const char *folder, json_t **root, json_t **literal);

#endif
