/*
 * A run's weights as a Hugging Face folder: config.json, model.safetensors, and the small files
 * beside them, such as those of the tokenizer.
 */
#ifndef CT_HF_H
#define CT_HF_H

#include <ctitan/arena.h>
#include <ctitan/lib/safetensors.h>
#include <ctitan/lib/stored.h>
#include <ctitan/run.h>

CT_BEGIN_DECLS

/* For struct ct_model_ops: ct_hf_load, ct_hf_save, ct_hf_identify, ct_hf_load_set,
   ct_hf_small_files, ct_hf_note_files, ct_hf_check_save. The `description` of models is a struct
   ct_hf_config (hf_config.h), and that of a format, too, which takes ct_hf_load, ct_hf_save or
   ct_hf_small_files from here. */
CT_API extern const struct ct_weights_ops ct_hf_weights;

/* Fill all parameters from folder. A warning names tensors that the
   model does not have. CT_ENOENT: a tensor of the model is missing; CT_ECONFIG: it has another
   shape, a file is damaged, or has a head that differs from the embedding of a model that uses one
   for both. */
CT_API int ct_hf_load(struct ct_run *run, const char *folder);
/* The same for a second set of weights, from its folder. */
CT_API int ct_hf_load_set(struct ct_run *run, const struct ct_weight_set *set);
/* Write lines that differ if the folder of another host does, by hashes
   of config.json, the tokenizer's files, the header of each file of weights, and 4 KiB at the
   beginning and in the middle of each tensor. */
CT_API int ct_hf_identify(const char *folder, FILE *out);
/* Write all parameters to folder, with config.json and the files below. All ranks call; rank 0
   writes, and needs memory for some rows of one tensor. Files are complete or absent. A failure of
   rank 0 is returned on all ranks. */
CT_API int ct_hf_save(struct ct_run *run, const char *folder);
/* The same with other states in the place of the parameters that have them: those whose names are
   prefix and a parameter's name, such as averages of the parameters that are trained. */
CT_API int ct_hf_save_states(struct ct_run *run, const char *prefix, const char *folder);
/* Before the first step: whether it could be written now, and the disk has room for it, beside the
   folders that were checked before it. The folder is created. All ranks call. CT_ECONFIG: the model
   describes no config.json, a file of the tokenizer cannot be read, or the disk lacks room. prefix
   NULL: parameters. */
CT_API int ct_hf_check_states(struct ct_run *run, const char *prefix, const char *folder);
CT_API int ct_hf_check_save(struct ct_run *run, const char *folder);
/* For rank 0, before the first step: foresee what is written to folder at the end of the run, which
   is created, and compare with the room on the disk. CT_ECONFIG: "the WHAT need .." */
CT_API int ct_hf_check_room(struct ct_run *run, const char *what, const char *folder, double bytes);

/*
 * The same for whoever has the parameters, such as a checkpoint: their tensors, by the rules of a
 * model, and their values, some rows at a time.
 */
struct ct_hf_writer {
    const struct ct_stored_rule *rules;
    const struct ct_state *params; /* names, shapes, and the dtypes to write */
    size_t param_count;
    struct ct_weight *weights; /* the tensors of the folder */
    size_t count, files;       /* number of them; number of files, once they are written */
    size_t room;               /* bytes of the largest box that is read */
    struct ct_hf_output *outputs;
    char *rows, *window;
    struct ct_arena arena;
};
struct ct_hf_source {
    /* Read a box of one of the parameters, dense; to NULL: nothing is written (any more), but other
       ranks may wait for what this one sends. */
    int (*read)(void *context, const struct ct_state *param, const struct ct_stored_box *box,
                void *to);
    /* Called before files get their names: a failure leaves none. NULL: nothing is checked. */
    int (*check)(void *context);
    void *context;
};
/* List the tensors; writes: also allocate what ct_hf_write needs to write. params live until
   finish. CT_EINVAL: a part of a tensor has no parameter. */
CT_API int ct_hf_writer_init(struct ct_hf_writer *w, const struct ct_stored_rule *rules,
                             const struct ct_state *params, size_t count, bool writes);
/* Write files of weights, of at most `most` bytes if they have several tensors, and their index.
   folder NULL: only call read. ct_hf_complete writes what a folder has besides. */
CT_API int ct_hf_write(struct ct_hf_writer *w, const char *folder, size_t most,
                       const struct ct_hf_source *source);
CT_API void ct_hf_writer_finish(struct ct_hf_writer *w);
/* Whether the run's model is the part for text of that of [model] init_from, which has others. */
CT_API bool ct_hf_is_part(const struct ct_run *run);
/* The rules of the model of a config.json (NULL: none), in arena where the model makes them.
   *rules NULL: parameters are stored as they are. CT_ECONFIG: no model is known for it, or it is of
   several kinds of input. */
CT_API int ct_hf_rules(const char *config, struct ct_arena *arena,
                       const struct ct_stored_rule **rules);
/* Check that a folder's files have each tensor of the model of its config.json, in its shape.
   Applies a recipe of this model to the process. ignore: as [model] ignore. CT_ENOENT: a tensor is
   missing; CT_ECONFIG: it has another shape, or no model is known. */
CT_API int ct_hf_check_whole(const char *folder, const char *ignore,
                             const struct ct_weights *weights);
/* The config.json of a folder (in arena; NULL: it has none) for its weights as numbers: without
   quantization_config where some are in MXFP4. */
CT_API int ct_hf_config_as_numbers(struct ct_arena *arena, const char *folder,
                                   const struct ct_weights *weights, const char **text);

/*
 * Files beside config.json and weights: of tokenizer, chat template, generation, licence, code.
 * These are all regular files of the folder itself, without weights, their indexes, states of
 * optimizers, and hidden files.
 */
#define CT_HF_FILES_MOST ((size_t)256 << 20) /* bytes of all */
/* Read them, into the arena. A warning names files that are left out as they are too large. */
CT_API int ct_hf_read_files(struct ct_arena *arena, const char *folder,
                            struct ct_small_files *files);
/* Take the files of a folder for those of this process's model, unless it has some already. Who
   loads weights calls this; ct_hf_load does, on rank 0. */
CT_API int ct_hf_note_files(const char *folder);
/* The files that a folder with the run's model gets: those noted, and in the place of their
   tokenizer that of the path that the recipe gives. On rank 0. */
CT_API int ct_hf_files_of(struct ct_arena *arena, const struct ct_run *run,
                          struct ct_small_files *files);
/* For struct ct_weights_ops: the run's config.json, and these files. */
CT_API int ct_hf_small_files(struct ct_arena *arena, const struct ct_run *run, const char **config,
                             struct ct_small_files *files);
/* The run's config.json, in the arena. CT_EINVAL: the model writes none. */
CT_API int ct_hf_config_of(struct ct_arena *arena, const struct ct_run *run, const char **text);
/* Complete a folder that has these weights: write the files, and config.json with their dtype.
   config NULL: none is written. */
CT_API int ct_hf_complete(const char *folder, const struct ct_weight *weights, size_t count,
                          const char *config, const struct ct_small_files *files);

/*
 * Who may write to a folder. A model that is there already, or adapters, is not replaced unless the
 * user asks for it. A run records in its dump folder what it wrote. When it goes on from a
 * checkpoint, it replaces that. A new run in the same dump folder renames it to FOLDER-before, and
 * so it does with any model in its dump folder.
 */
/* For a run: create the folder, and check that the run may write there. option, "[model] save_to",
   is for the message. CT_ECONFIG: it may not, as it is [model] init_from, has the model of another,
   or cannot be written. */
CT_API int ct_hf_try_target(const char *option, const char *folder);
/* Before the run writes. For rank 0. */
CT_API int ct_hf_take_target(const struct ct_run *run, const char *folder);
/* Once it has written. For rank 0. A record that cannot be written is a warning. */
CT_API void ct_hf_note_target(const struct ct_run *run, const char *folder);
/* For a verb: check that the folder has no model, or that force says to replace it. CT_ECONFIG. */
CT_API int ct_hf_check_free(const char *folder, bool force);

/* The tokens at which the model of a folder ends its text: eos_token_id of generation_config.json,
   else that of config.json. In the arena; count 0: the folder names none. CT_ECONFIG. */
CT_API int ct_hf_read_ends(struct ct_arena *arena, const char *folder, int32_t **ids,
                           size_t *count);

CT_END_DECLS

#endif
