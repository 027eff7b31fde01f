/*
 * Files that hold something of each sample of a run's data: what another model says of it.
 *
 * They are safetensors, so that other programs can make and read them:
 *
 *   hash   int64 [samples]       ct_labels_hash (model.h) of the sample's tokens and labels
 *   ..     [samples, ..]         what is held, in tensors of any names
 *
 * The metadata, called notes here, says how they were made. A sample is found by its hash. So the
 * order of a file is free, one that has each sample once serves every epoch that has the same
 * samples, and whatever changes the samples is noticed.
 */
#ifndef CT_SAMPLES_H
#define CT_SAMPLES_H

#include <ctitan/lib/safetensors.h>
#include <ctitan/model.h>

CT_BEGIN_DECLS

struct ct_sample_file; /* an open file */

/* CT_ENOENT: there is none. CT_ECONFIG: it is cut, or no such file. */
CT_API int ct_sample_file_open(const char *path, struct ct_sample_file **samples);
/* samples may be NULL. */
CT_API void ct_sample_file_close(struct ct_sample_file *samples);
/* The tensor called name, whose dimension 0 is samples. CT_ECONFIG: there is none of this number of
   dimensions. It is valid until the file is closed. */
CT_API int ct_sample_file_tensor(const struct ct_sample_file *samples, const char *name, int ndim,
                                 const struct ct_weight **tensor);
/* The value of a note; NULL: there is none. */
CT_API const char *ct_sample_file_note(const struct ct_sample_file *samples, const char *key);
/* The number in the file of a sample of `count` tokens. CT_ECONFIG: it is not there; `remedy` says
   what makes such a file, "ctitan data --teacher". */
CT_API int64_t ct_sample_file_find(const struct ct_sample_file *samples, const int32_t *tokens,
                                   const int32_t *labels, int64_t count, const char *remedy);

/* ---- writing ---- */

struct ct_new_sample_file; /* a file that is written, sample by sample */

/*
 * tensors: what is held, with name, dtype and shape, whose dimension 0 is samples; no `hash`.
 * notes: key, value, .., NULL. The file has its name once it is complete.
 */
CT_API int ct_sample_file_begin(const char *path, const struct ct_weight *tensors, size_t count,
                                const char *const *notes, struct ct_new_sample_file **samples);
/* Write sample number `index`: data by tensor, dense. */
CT_API int ct_sample_file_put(struct ct_new_sample_file *samples, int64_t index, uint64_t hash,
                              const void *const *data);
/* rc: the result of writing. If it is negative, the file is removed and rc is returned. samples is
   freed, and may be NULL. */
CT_API int ct_sample_file_end(struct ct_new_sample_file *samples, int rc);

CT_END_DECLS

#endif
