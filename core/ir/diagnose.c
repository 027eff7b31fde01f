/*
 * What diagnoses the core: by default, nothing checks graphs and messages are short.
 */
#include <ctitan/app/diagnose.h>
#include <ctitan/device/device.h>
#include <ctitan/error.h>

static int check_no_plugin(const struct ct_plugin *plugin)
{
    (void)plugin;
    return 0;
}

static int check_nothing(const struct ct_graph *graph)
{
    (void)graph;
    return 0;
}

static int say_lacking(const char *subject, const char *what)
{
    return ct_fail(CT_ENOENT, "%s %s", subject, what);
}

static int say_no_kernel(const struct ct_prepare *call)
{
    return ct_fail(CT_ENOENT, "device %s has no kernel for %s", call->device->name,
                   call->op->type->name);
}

static void say_nothing(const struct ct_program *program, const struct ct_device *device)
{
    (void)program, (void)device;
}

static const struct ct_diagnostics plain = {.size = sizeof(struct ct_diagnostics),
                                            .plugin = check_no_plugin,
                                            .graph = check_nothing,
                                            .lacking = say_lacking,
                                            .no_kernel = say_no_kernel,
                                            .lowered = say_nothing};
static const struct ct_diagnostics *installed = &plain;

void ct_diagnostics_install(const struct ct_diagnostics *diagnostics)
{
    installed = diagnostics;
}

const struct ct_diagnostics *ct_diagnostics(void)
{
    return installed;
}
