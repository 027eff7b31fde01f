/* Models of several kinds of input that are written as wholes: declarations shared by sources of
   lib/hf. */
#ifndef HF_PARTS_H
#define HF_PARTS_H

#include <ctitan/lib/hf.h>
#include <ctitan/lib/hf_config.h>

/* Add tensors that are written as they are. They live until the writer is finished. */
void hf_writer_add(struct ct_hf_writer *w, const struct ct_weight *weights, size_t count);

/* Give the writer's tensors the names that they have in the folder of [model] init_from, and add
   those of the other parts. The folder may be gone later, once this was called. CT_ECONFIG: a
   tensor is not there. */
int hf_add_parts(struct ct_hf_writer *w);
/* The config.json of the whole model, with the part for text as the run has it; in arena. */
int hf_whole_config(struct ct_arena *arena, const struct ct_run *run, const char **text);
/* JSON as files have it, in arena; NULL: out of memory. */
char *hf_print(struct ct_arena *arena, const struct json_t *root);
/* config.json of the run's model by a description. */
int hf_make_config(struct ct_arena *arena, const struct ct_run *run,
                   const struct ct_hf_config *config, const char **text);

#endif
