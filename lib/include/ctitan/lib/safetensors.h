/*
 * safetensors: the file format of Hugging Face weights (8-byte length, JSON header, raw data), and
 * folders of them (model.safetensors, or shards with model.safetensors.index.json).
 *
 * MXFP4: a tensor NAME_blocks, uint8 [.., g, 16], and NAME_scales, uint8 [.., g], are read as one
 * weight NAME, [.., 32 g]. Each byte is two numbers of 4 bits (1 sign, 2 exponent, 1 mantissa), the
 * lower half first; 32 numbers have a scale, the power of two of its byte - 127 (Open Compute
 * Project, Microscaling formats 1.0).
 *
 * A model for several kinds of input: where weights are called language_model.NAME, these alone are
 * read, as NAME.
 *
 * Reading maps the files and checks every header: offsets inside the file, no overlap, sizes that
 * match shapes. A truncated or crafted file is CT_ECONFIG with the file and the tensor's name.
 */
#ifndef CT_SAFETENSORS_H
#define CT_SAFETENSORS_H

#include <stdio.h>

#include <ctitan/arena.h>
#include <ctitan/tensor.h>

CT_BEGIN_DECLS

/* The files of a folder of peft. */
#define CT_PEFT_WEIGHTS "adapter_model.safetensors"
#define CT_PEFT_CONFIG "adapter_config.json"

struct ct_weights; /* an open folder */

struct ct_weight {
    const char *name;
    enum ct_dtype dtype;
    int ndim;
    int64_t shape[CT_MAX_DIMS];
    const void *data;            /* mapped, valid until close; little endian; may be unaligned */
    const unsigned char *scales; /* of MXFP4, whose blocks are data; dtype is bfloat16. NULL: data
                                    are numbers of the dtype */
};

/* Map the files of a folder, and check them; of peft's folders, the adapters. CT_ENOENT: it has
   none. */
CT_API int ct_weights_open(const char *folder, struct ct_weights **weights);
/* The same with all parts of a model of several kinds of input, by their names in the files. */
CT_API int ct_weights_open_whole(const char *folder, struct ct_weights **weights);
/* The same for one file, whose tensors are handed out as they are. CT_ENOENT: there is none. */
CT_API int ct_weights_open_file(const char *path, struct ct_weights **weights);
/* The name in the part for text of a tensor of such a model; NULL: it is of another part. */
CT_API const char *ct_weights_text_name(const char *name);
/* The value of a key in the files' metadata, the first file first; NULL: nothing. */
CT_API const char *ct_weights_metadata(const struct ct_weights *weights, const char *key);
/* Take what was read of the files out of this process's memory, which would hold it until they are
   unmapped. The page cache keeps it, and data stays valid. */
CT_API void ct_weights_release(const struct ct_weights *weights);
/* Unmap the files. weights may be NULL. */
CT_API void ct_weights_close(struct ct_weights *weights);
/* Number of weights in all files. */
CT_API size_t ct_weights_count(const struct ct_weights *weights);
/* Weight number index, in the order of the files. */
CT_API const struct ct_weight *ct_weights_at(const struct ct_weights *weights, size_t index);
/* The weight called name, or NULL. */
CT_API const struct ct_weight *ct_weights_find(const struct ct_weights *weights, const char *name);
/* Whether a weight is in MXFP4. */
CT_API bool ct_weights_quantised(const struct ct_weights *weights);
/* Write a line "reads FOLDER/FILE, ..: hash .." for the header of each file, and one for each
   tensor by parts of its data. */
CT_API void ct_weights_identify(const struct ct_weights *weights, FILE *out);
/* Read the shard [offset, offset + shape) of a weight as dense dtype elements. */
CT_API int ct_weights_read(const struct ct_weight *weight, const int64_t *offset,
                           const int64_t *shape, enum ct_dtype dtype, void *to);
/* The same for the elements [at, at + count) of all, in order. */
CT_API void ct_weights_read_run(const struct ct_weight *weight, int64_t at, int64_t count,
                                enum ct_dtype dtype, void *to);

/* Count the finite ones among the elements [at, at + count) of a weight of at most float32 that
   dtype, a floating-point one, holds as infinity; *largest becomes their largest magnitude, if it
   is below. */
CT_API int64_t ct_weights_beyond(const struct ct_weight *weight, int64_t at, int64_t count,
                                 enum ct_dtype dtype, double *largest);

/*
 * The first bytes of a file of these weights: length and JSON, padded so that the data begins at a
 * multiple of align, which is a multiple of 8. The data follows without gaps: all weights with
 * 8-byte elements in the order given, then those with 4, 2 and 1. metadata: key, value, .., NULL;
 * NULL: none but the format. *header: to be freed; NULL after a failure. CT_EINVAL names a weight
 * whose dtype or name the format does not have; CT_ENOMEM.
 */
CT_API int ct_safetensors_header(const struct ct_weight *weights, size_t count,
                                 const char *const *metadata, size_t align, char **header,
                                 size_t *bytes);
/* Write one file, complete or absent. Data is read at call time. */
CT_API int ct_safetensors_write(const char *path, const struct ct_weight *weights, size_t count);

/* The same for data that is produced while writing. For each weight, in the order of the file,
   `produce` puts all of its bytes, in any number of calls. A failure to write is returned at the
   end. path NULL: nothing is written, but `produce` is still called, for ranks that send their
   part. */
struct ct_safetensors_sink;
typedef int ct_safetensors_source(size_t index, struct ct_safetensors_sink *sink, void *context);
/* Write the next bytes of the weight that `produce` was called for. */
CT_API void ct_safetensors_put(struct ct_safetensors_sink *sink, const void *data, size_t bytes);
CT_API int ct_safetensors_write_from(const char *path, const struct ct_weight *weights,
                                     size_t count, ct_safetensors_source *produce, void *context);
/* The same, up to where ct_file_end gives the file its name, or, if this failed, removes it. path
   NULL: *file is not touched. */
struct ct_new_file;
CT_API int ct_safetensors_begin_from(struct ct_new_file *file, const char *path,
                                     const struct ct_weight *weights, size_t count,
                                     ct_safetensors_source *produce, void *context);

/*
 * Write a folder of weights: one file, or, where they have more than `most` bytes, several files of
 * at most that many, in order, and an index. A weight that is larger has a file of its own. Data is
 * produced while writing. What another number of files has left is removed.
 *
 * The files get their names together, once all are written and `check` (may be NULL) has returned
 * 0. folder NULL: nothing is written, and check is not called. The result is the number of files.
 */
CT_API int ct_safetensors_write_folder(const char *folder, const struct ct_weight *weights,
                                       size_t count, size_t most, ct_safetensors_source *produce,
                                       int (*check)(void *context), void *context);

CT_END_DECLS

#endif
