/*
 * Graphs, programs, attributes and missing kernels as text, and dumps of a graph while it is
 * transformed.
 */
#ifndef CT_TEXT_H
#define CT_TEXT_H

#include <stdio.h>

#include <ctitan/op.h>
#include <ctitan/pass.h>

CT_BEGIN_DECLS

struct ct_device;
struct ct_program;

/*
 * A graph, one line per op. What is printed parses back to an equal graph. On a fault
 * ct_graph_parse returns NULL and records "line N: ...". Op types must be registered.
 */
CT_API void ct_graph_print(const struct ct_graph *graph, FILE *out);
CT_API char *ct_graph_text(const struct ct_graph *graph, struct ct_arena *arena);
CT_API struct ct_graph *ct_graph_parse(struct ct_arena *arena, const char *text);

/* Print the program, one line per instruction. */
CT_API void ct_program_print(const struct ct_program *program, FILE *out);

/* "bool", "int", "float", "string", "choice", "dtype", .. */
CT_API const char *ct_option_type_name(enum ct_option_type type);
/*
 * The field's value as text that ct_options_set reads back to the same value; a string that is NULL
 * is "". Returns the length that it needs, as snprintf does.
 */
CT_API int ct_option_format(const struct ct_option *option, const void *config, char *text,
                            size_t room);
/* The same text, in arena. */
CT_API const char *ct_option_text(const struct ct_option *option, const void *config,
                                  struct ct_arena *arena);
/* The same for an attribute of op. */
CT_API int ct_attribute_format(const struct ct_mesh *mesh, const struct ct_op *op,
                               const struct ct_option *option, char *text, size_t room);
/* ct_options_set for attributes. mesh names the axes; NULL: there are none. */
CT_API int ct_attribute_set(const struct ct_mesh *mesh, const struct ct_option *table, void *attrs,
                            const char *name, const char *text, const char *where);

/* "dp_shard.cp": the axes of a set, in the mesh's order. Printed as snprintf does; CT_EINVAL names
   an axis that the mesh does not have. */
CT_API int ct_axes_print(const struct ct_mesh *mesh, ct_axes axes, char *text, size_t room);
CT_API int ct_axes_parse(const struct ct_mesh *mesh, const char *text, ct_axes *axes);
/* Parse what ct_sharding_print wrote; *end points after it. CT_EINVAL. */
CT_API int ct_sharding_parse(const char *text, const struct ct_mesh *mesh, struct ct_sharding *s,
                             const char **end);

/* Fail with CT_ENOENT: the message has what each kernel of the device
   refuses in a call. */
CT_API int ct_kernel_lacking(const struct ct_prepare *call);
/* Warn of op types of which calls run slow references, or lack a kernel on a device that is only
   described: once in a process for each. */
CT_API void ct_kernel_report(const struct ct_program *program, const struct ct_device *device);

/*
 * Prints the graph after transforms, and writes a reproducer when one fails: the graph before it
 * and the list of transforms. ct_pass_options.dump takes it.
 */
struct ct_dump {
    const char *after;      /* a transform's name, "build", "all" or "changed"; NULL: no dumps */
    FILE *out;              /* where dumps go */
    const char *reproducer; /* path written on failure; NULL: none */
    /* during one transform */
    const struct ct_transform *const *transforms;
    size_t count;
    struct ct_arena scratch;
    const char *text; /* of the graph before it; NULL: not needed */
    struct ct_graph *before;
};
/* after and reproducer as in struct ct_dump; the strings must outlive it. */
CT_API void ct_dump_init(struct ct_dump *dump, const char *after, FILE *out,
                         const char *reproducer);

CT_END_DECLS

#endif
