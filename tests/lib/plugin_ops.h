/*
 * The op types of plugins, without the rest of what they offer.
 */
#ifndef PLUGIN_OPS_H
#define PLUGIN_OPS_H

#include <stdio.h>

#include <ctitan/error.h>
#include <ctitan/lib/ops.h>
#include <ctitan/plugins.h>

static inline int register_ops_of(const char *name)
{
    const struct ct_plugin *plugin = NULL;
    char path[4096];
    int rc = ct_plugin_path(name, path, sizeof(path));

    if (rc == 0)
        rc = ct_plugin_open(path, &plugin);
    for (const struct ct_offer *o = rc < 0 ? NULL : plugin->offers;
         rc == 0 && o->kind != CT_NOTHING; o++)
        rc = o->kind == CT_OP ? ct_op_need(o->ops) : 0;
    return rc;
}

/* Registers the ops of lib/ops and of the named plugins, up to NULL. A failure is on stderr. */
static inline int register_ops(const char *const *plugins)
{
    int rc = ct_ops_register();

    for (; rc == 0 && *plugins; plugins++)
        rc = register_ops_of(*plugins);
    if (rc < 0)
        fprintf(stderr, "%s\n", ct_error_message());
    return rc;
}
#define REGISTER_OPS(...) register_ops((const char *const[]){__VA_ARGS__, NULL})

#endif
