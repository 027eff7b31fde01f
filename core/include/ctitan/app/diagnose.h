/*
 * Checks and messages that a library adds to the core. They read whole graphs, search the folders
 * of plugins, and write long texts; what runs does not depend on them. ct_ops_register (lib/ops.h)
 * installs those of lib. Without them graphs are not checked, and messages are short.
 */
#ifndef CT_DIAGNOSE_H
#define CT_DIAGNOSE_H

#include <ctitan/base.h>

CT_BEGIN_DECLS

struct ct_device;
struct ct_graph;
struct ct_plugin;
struct ct_prepare;
struct ct_program;

/* All functions are set. */
struct ct_diagnostics {
    size_t size; /* of this struct */
    /* Check a plugin that was opened, before any of its code runs: offers and options. */
    int (*plugin)(const struct ct_plugin *plugin);
    /* Check a graph: as the model built it, and after every transform. CT_EINVAL: it is broken. */
    int (*graph)(const struct ct_graph *graph);
    /* Fail with CT_ENOENT: `subject` ("this run needs") finds no `what` ("optimizer:*") loaded. */
    int (*lacking)(const char *subject, const char *what);
    /* Fail with CT_ENOENT: no kernel of the device takes a call, and it cannot run a reference. */
    int (*no_kernel)(const struct ct_prepare *call);
    /* Look at a program that was just lowered: warn of calls that run slow references. */
    void (*lowered)(const struct ct_program *program, const struct ct_device *device);
};

CT_API void ct_diagnostics_install(const struct ct_diagnostics *diagnostics);

/* Those that are installed; never NULL. */
CT_API const struct ct_diagnostics *ct_diagnostics(void);

CT_END_DECLS

#endif
