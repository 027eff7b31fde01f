/*
 * Graphs, programs and missing kernels as text, and dumps of a graph while it is transformed.
 */
#ifndef CT_TEXT_H
#define CT_TEXT_H

#include <stdio.h>

#include <ctitan/pass.h>
#include <ctitan/program.h>

CT_BEGIN_DECLS

/*
 * A graph, one line per op. What is printed parses back to an equal graph. On a fault
 * ct_graph_parse returns NULL and records "line N: ...". Op types must be registered.
 */
CT_API void ct_graph_print(const struct ct_graph *graph, FILE *out);
CT_API char *ct_graph_text(const struct ct_graph *graph, struct ct_arena *arena);
CT_API struct ct_graph *ct_graph_parse(struct ct_arena *arena, const char *text);

/* "optimizer": the name of the category in plans. */
CT_API const char *ct_category_name(enum ct_category category);
/* Print the program, one line per instruction. */
CT_API void ct_program_print(const struct ct_program *program, FILE *out);

/* For struct ct_diagnostics. Fail with CT_ENOENT: the message has what each kernel of the device
   refuses in a call. */
CT_API int ct_kernel_lacking(const struct ct_prepare *call);
/* For the same. Warn of op types of which calls run slow references: once in a process for each. */
CT_API void ct_kernel_report(const struct ct_program *program, const struct ct_device *device);

/*
 * Prints the graph after transforms, and writes a reproducer when one fails: the graph before it
 * and the list of transforms. Pass &dump.watch as ct_pass_options.watch.
 */
struct ct_dump {
    struct ct_pass_watch watch;
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
