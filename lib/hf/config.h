/* Functions that the sources of config.json share. */
#ifndef CT_HF_CONFIG_SOURCES_H
#define CT_HF_CONFIG_SOURCES_H

#include <jansson.h>

#include <ctitan/lib/hf_config.h>
#include <ctitan/lib/ops.h>

/* Whether there is no value, or null. */
bool hf_absent(const json_t *value);
/* The next of the names or values "a|b", with its size; *names is then behind it. False: there is
   none. */
bool hf_next(const char **names, const char **name, size_t *size);
/* Read one value; fallback: of one that is absent or null, 0 (of a number) or -1 (of a size):
   none. */
int hf_read_size(const json_t *value, const char *key, int64_t fallback, int64_t *size);
int hf_read_number(const json_t *value, const char *key, double fallback, double *number);
int hf_read_bool(const json_t *value, const char *key, double fallback, bool *flag);
/* CT_ECONFIG: the value is not the one that is supported. */
int hf_check_value(const json_t *value, const struct ct_hf_fixed *fixed);
/* CT_ECONFIG: root has a key that the model's table lacks, and that is not known as harmless. */
int hf_check_known(const json_t *root, const struct ct_hf_config *config);
/* Read the field of one row. */
int hf_read_key(const json_t *root, const struct ct_hf_config *config, const struct ct_hf_key *k,
                void *field);
/* How many words "a|b=c" has. */
int hf_words(const char *words);
/* Without a number of layers, where the row's fallback is 0: that of the list of their types. */
void hf_count_layers(json_t *root, const struct ct_hf_config *config);
/* Where a file says nothing of rope, put in what the model then has. */
int hf_assume_rope(json_t *root, const struct ct_hf_config *config);
/* Read, write and compare what a file says of rope (rope.c). */
int hf_read_rope(const json_t *root, const struct ct_hf_key *k, const struct ct_hf_config *config,
                 struct ct_rope *rope);
int hf_set_rope(json_t *root, const struct ct_hf_config *config, const struct ct_rope *rope);
bool hf_same_rope(const struct ct_rope *a, const struct ct_rope *b);
/* Whether key is one of the names "a|b", or in the list "a, b". */
bool hf_is_name_of(const char *names, const char *key);
bool hf_is_listed(const char *names, const char *key);
/* Whether type is that of a model of several kinds of input, with such a part for text. */
bool hf_is_outer(const struct ct_hf_config *config, const char *type);
/* The part for text of a model for several kinds of input; of another model, all of it. */
json_t *hf_part_for_text(json_t *root, const struct ct_hf_config *config);
/* A folder's config.json as it was read last, or as it is: copies of its values, and with numbers
   as they are written. CT_ECONFIG: it cannot be read. */
int hf_first_config(const char *folder, json_t **root, json_t **literal);

#endif
