/*
 * The tensors of Hugging Face's files that hold a model's parameters, by the model's rules
 * (struct ct_stored_rule, model.h).
 */
#ifndef CT_STORED_H
#define CT_STORED_H

#include <ctitan/lib/safetensors.h>
#include <ctitan/run.h>

CT_BEGIN_DECLS

/* The rule of a list (NULL: none) for a parameter's or tensor's name; NULL: none. */
CT_API const struct ct_stored_rule *ct_stored_rule(const struct ct_stored_rule *rules,
                                                   const char *name);
/* Whether files lack the parameter: it keeps its initial value when they are read. */
CT_API bool ct_stored_absent(const struct ct_stored_rule *rule);
/* Whether each index of the parameter's first dimension is a tensor of its own. */
CT_API bool ct_stored_stacked(const struct ct_stored_rule *rule);
/* The dimension of a parameter of `ndim` along which its tensor has parts; -1: it has none. */
CT_API int ct_stored_part_dim(const struct ct_stored_rule *rule, int ndim);
/* text with a number in the place of its '#'; without one, as it is. In arena. */
CT_API const char *ct_stored_numbered(struct ct_arena *arena, const char *text, int64_t number);
/* For transforms that add parameters: let rules (ended by {0}, which live as long as the run) come
   in front of those of the run's model. The same rules are added once. */
CT_API void ct_stored_add(struct ct_run *run, const struct ct_stored_rule *rules);
/* The dtype of a parameter's tensors, given that of the files' floating-point numbers (-1: each has
   its parameter's), and the parameter's own. */
CT_API enum ct_dtype ct_stored_dtype(const struct ct_stored_rule *rule, enum ct_dtype own,
                                     int files);
/* Whether the elements of a box of the parameter are in the same order in the box of the tensor in
   which it is, without others between. */
CT_API bool ct_stored_dense(const struct ct_stored_rule *rule);
/* Number of tensors that hold the parameter, its copies among them. */
CT_API int64_t ct_stored_count(const struct ct_stored_rule *rule, const struct ct_state *param);
/* Name, dtype and shape of tensor `index` of those. The name is in arena. Copies are last. */
CT_API struct ct_weight ct_stored_tensor(struct ct_arena *arena, const struct ct_stored_rule *rule,
                                         const struct ct_state *param, int64_t index);

/* The rule for a tensor as it is: one in MXFP4 is not transposed, as its blocks lie along the
   inputs. */
CT_API struct ct_stored_rule ct_stored_rule_for(const struct ct_stored_rule *rule,
                                                const struct ct_weight *weight);

/* A box of a tensor or of a parameter. */
struct ct_stored_box {
    int ndim;
    int64_t shape[CT_MAX_DIMS], offset[CT_MAX_DIMS];
};

/* The box of the tensor in which a box of the parameter is, perhaps between elements of others; one
   index where there are several tensors. And the reverse, clipped to this parameter's part: false
   if nothing of it is there. */
CT_API struct ct_stored_box ct_stored_to_tensor(const struct ct_stored_rule *rule,
                                                const struct ct_state *param,
                                                const struct ct_stored_box *box);
CT_API bool ct_stored_to_param(const struct ct_stored_rule *rule, const struct ct_state *param,
                               int64_t index, const struct ct_stored_box *tensor,
                               struct ct_stored_box *box);

/* Where the elements of a box of the parameter are in a dense box of the tensor: element
   [i, j, ..] is number first + i stride[0] + j stride[1] + .. */
struct ct_stored_places {
    int ndim;
    int64_t shape[CT_MAX_DIMS], stride[CT_MAX_DIMS], first;
    /* Boxes with rows in blocks (struct ct_stored_rows), along dimension 0: the first row of the
       box, and rows between blocks of this size; block 0: none are. */
    int64_t row, block, gap;
};

/* box must be in the tensor's. */
CT_API struct ct_stored_places ct_stored_places(const struct ct_stored_rule *rule,
                                                const struct ct_state *param,
                                                const struct ct_stored_box *box,
                                                const struct ct_stored_box *tensor);
/* Copy the elements [at, at + count) of the parameter's box, in its order, from their places or to
   them. item: bytes of an element. */
CT_API void ct_stored_gather(const struct ct_stored_places *places, int64_t at, int64_t count,
                             size_t item, const void *tensor, void *dense);
CT_API void ct_stored_scatter(const struct ct_stored_places *places, int64_t at, int64_t count,
                              size_t item, const void *dense, void *tensor);
/* The elements [at, at + count) of the box, read from the whole tensor that `places` is for, in its
   dtype. */
CT_API void ct_stored_read(const struct ct_stored_places *places, int64_t at, int64_t count,
                           const struct ct_weight *weight, void *dense);

/* The part of a parameter that a whole tensor holds: a box of it, of size 1 along the first
   dimension where that numbers tensors. dense: its elements begin at places.first, in order. */
struct ct_stored_held {
    const char *name; /* of the parameter */
    struct ct_stored_box box;
    struct ct_stored_places places;
    bool dense;
};
typedef int ct_stored_held_work(void *context, const struct ct_weight *weight,
                                const struct ct_stored_held *held);
/* Call work for each parameter that the rules say a tensor of files holds; without one, for that of
   its name, unless the rules ignore it. Names are in arena. The first failure ends it. CT_ECONFIG:
   the tensor's shape does not fit the rule. */
CT_API int ct_stored_each_held(struct ct_arena *arena, const struct ct_stored_rule *rules,
                               const struct ct_weight *weight, ct_stored_held_work *work,
                               void *context);

CT_END_DECLS

#endif
