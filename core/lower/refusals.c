/*
 * Why no kernel of a device takes a call, and which calls run slow references, or nothing.
 */
#include <inttypes.h>
#include <string.h>

#include <ctitan/device/device.h>
#include <ctitan/error.h>
#include <ctitan/log.h>
#include <ctitan/plugins.h>
#include <ctitan/program.h>
#include <ctitan/rule.h>
#include <ctitan/text.h>

#include "base/error.h"
#include "ir/kernel.h"
#include "lower/lower.h"

static const struct ct_tensor *operand_of(const struct ct_prepare *request, int i)
{
    if (i >= request->ins)
        return &request->out[i - request->ins];
    return !request->present || request->present[i] ? &request->in[i] : NULL;
}

static void add_numbers(struct ct_line *l, const int64_t *number, int count)
{
    for (int i = 0; i < count; i++)
        ct_line_add(l, "%s%" PRId64, i ? "," : "", number[i]);
}

/* Number of the first operand that is not dense; -1: all are. */
static int find_strided(const struct ct_prepare *request)
{
    for (int i = 0; i < request->ins + request->outs; i++)
        if (operand_of(request, i) && !ct_tensor_is_dense(operand_of(request, i)))
            return i;
    return -1;
}

/* "x has strides 98304,768,1" */
static void add_strides(struct ct_line *l, const struct ct_prepare *request, int operand)
{
    const struct ct_tensor *t = operand_of(request, operand);
    char name[64];

    ct_operand_name(request->op, operand, name, sizeof(name));
    ct_line_add(l, "%s has strides ", name);
    add_numbers(l, t->stride, t->ndim);
}

#define SHOWN 6 /* operands shown of a call */

/* "x float64[2,3], w float64[4,3] -> y float64[2,4] {widths="4"}" */
static void add_call(struct ct_line *l, const struct ct_prepare *request)
{
    int count = request->ins + request->outs, shown = 0;
    const struct ct_option *o = request->op->type->attrs;
    bool attributes = false;

    for (int i = 0; i < count && shown < SHOWN; i++) {
        const struct ct_tensor *t = operand_of(request, i);
        char name[64];

        if (!t)
            continue;
        ct_operand_name(request->op, i, name, sizeof(name));
        ct_line_add(l, "%s%s %s[",
                    !shown++            ? ""
                    : i == request->ins ? " -> "
                                        : ", ",
                    name, ct_dtype_name(t->dtype));
        add_numbers(l, t->shape, t->ndim);
        ct_line_add(l, "]");
    }
    ct_line_add(l, shown < SHOWN ? "" : ", ..");
    for (; o && o->name && request->mesh; o++, attributes = true) {
        char value[128];

        if (ct_attribute_format(request->mesh, request->op, o, value, sizeof(value)) >= 0)
            ct_line_add(l, "%s%s=%s", attributes ? ", " : " {", o->name, value);
    }
    ct_line_add(l, attributes ? "}" : "");
}

/* Adds the kernel's own reason, if it gives one. */
static void add_reason(struct ct_line *l, const struct ct_kernel *kernel,
                       const struct ct_prepare *request)
{
    ct_fail(CT_ENOENT, "%s", "");
    if (kernel->accepts && !kernel->accepts(request) && *ct_error_message())
        ct_line_add(l, ", as %s", ct_error_message());
}

static void add_refusal(struct ct_line *l, const struct ct_kernel *kernel,
                        const struct ct_prepare *request)
{
    int strided = find_strided(request);

    ct_line_add(l, "%skernel %s ", l->used ? "; " : "", kernel->name ? kernel->name : "");
    if (request->accumulate && !(kernel->flags & CT_KERNEL_ACCUMULATES)) {
        ct_line_add(l, "adds to no output");
    } else if (request->repeatable && kernel->flags & CT_KERNEL_VARIES) {
        ct_line_add(l, "adds in no fixed order, and [training] deterministic is set");
    } else if (strided >= 0 && !(kernel->flags & CT_KERNEL_STRIDED)) {
        ct_line_add(l, "takes dense tensors only, ");
        add_strides(l, request, strided);
    } else {
        ct_line_add(l, "does not take ");
        add_call(l, request);
        if (strided >= 0) {
            ct_line_add(l, ", where ");
            add_strides(l, request, strided);
        }
        add_reason(l, kernel, request);
    }
}

/* Print each kernel that the device has for the op, and what it refuses in the call. */
static void print_refusals(const struct ct_prepare *request, char *text, size_t room)
{
    const struct ct_kernel *kernel;
    struct ct_line l = {text, room, 0};

    for (size_t i = 0; (kernel = ct_kernel_at(request->device->name, i)); i++)
        if (ct_kernel_is_for(kernel, request->op->type))
            add_refusal(&l, kernel, request);
    if (!l.used)
        ct_line_add(&l, "no plugin that is loaded has a kernel for it");
}

bool ct_lower_is_impossible(const struct ct_prepare *request)
{
    const struct ct_kernel *kernel;

    for (size_t i = 0; (kernel = ct_kernel_at(request->device->name, i)); i++) {
        ct_error_forget();
        if (ct_kernel_is_for(kernel, request->op->type) && kernel->accepts &&
            !kernel->accepts(request) && ct_error_code() == CT_ECONFIG)
            return true;
    }
    return false;
}

int ct_kernel_lacking(const struct ct_prepare *request)
{
    const struct ct_op *op = request->op;
    char why[1024];

    print_refusals(request, why, sizeof(why));
    return ct_fail(CT_ENOENT, "device %s has no kernel for %s (%%%s): %s", request->device->name,
                   op->type->name, op->outs ? op->out[0]->name : op->in[0]->name, why);
}

/* ---- slow references ---- */

/* Calls of one op type that run its reference, and the first of them. */
struct fallback {
    const struct ct_op_type *type;
    const struct ct_instruction *first;
    int calls, all;
};

struct fallbacks {
    struct ct_arena scratch;
    struct fallback *item;
    size_t count, room;
};

static struct fallback *find(struct fallbacks *f, const struct ct_op_type *type)
{
    for (size_t i = 0; i < f->count; i++)
        if (f->item[i].type == type)
            return &f->item[i];
    return NULL;
}

static bool is_slow(const struct ct_instruction *i)
{
    return ct_lower_is_slow(i->op->type, i->lowered->kernel);
}

/* An op is seen in its first microbatch only. */
static void collect(struct fallbacks *f, const struct ct_instruction *list, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (list[i].microbatch > 0 || !is_slow(&list[i]) || find(f, list[i].op->type))
            continue;
        f->item = ct_arena_grow(&f->scratch, f->item, &f->room, f->count + 1, sizeof(*f->item));
        f->item[f->count++] = (struct fallback){.type = list[i].op->type, .first = &list[i]};
    }
}

static void count_calls(struct fallbacks *f, const struct ct_instruction *list, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct fallback *of = list[i].microbatch > 0 ? NULL : find(f, list[i].op->type);

        if (!of)
            continue;
        of->all++;
        of->calls += is_slow(&list[i]);
    }
}

/* Each type is reported once in a process for each device, whatever is lowered: training,
   evaluation, measurements. */
static bool is_news(const struct ct_device *device, const struct ct_op_type *type)
{
    static struct {
        const struct ct_device_ops *device;
        const struct ct_op_type *type;
    } said[64];
    size_t i = 0;

    while (i < CT_COUNT(said) && said[i].type &&
           (said[i].type != type || said[i].device != device->ops))
        i++;
    if (i == CT_COUNT(said) || said[i].type)
        return false;
    said[i].device = device->ops;
    said[i].type = type;
    return true;
}

/* One rank speaks for all that have the same ops: in a partitioned graph, those of its part. */
static bool is_first(const struct ct_launch *l)
{
    for (int a = 0; l->mesh && a < l->mesh->count; a++)
        if ((!l->graph || a != l->graph->partition_axis) &&
            ct_mesh_coordinate(l->mesh, l->rank, a) > 0)
            return false;
    return true;
}

/* The request that the kernels of a device refused. */
static struct ct_prepare request_of(const struct ct_instruction *i, const struct ct_device *device,
                                    bool repeatable, struct ct_arena *scratch)
{
    const struct ct_launch *l = &i->lowered->launch;
    bool *present = ct_arena_array(scratch, bool, l->ins + 1);

    for (int k = 0; k < l->ins; k++)
        present[k] = l->in[k].ndim >= 0;
    return (struct ct_prepare){.op = i->op,
                               .in = l->in,
                               .out = l->out,
                               .present = present,
                               .ins = l->ins,
                               .outs = l->outs,
                               .accumulate = l->accumulate,
                               .device = (struct ct_device *)device,
                               .mesh = l->mesh,
                               .repeatable = repeatable};
}

static bool compiles_formulas(const struct ct_plugin *plugin)
{
    return ct_plugin_has(plugin, "result:compiled_formulas");
}

/* Would a plugin help that is not loaded? */
static const char *hint(const struct ct_op_type *type, struct ct_arena *scratch)
{
    const char **names;

    for (size_t i = 0; ct_plugin_at(i); i++)
        if (compiles_formulas(ct_plugin_at(i)))
            return "";
    if (!ct_op_type_whole(type)->pointwise ||
        !ct_plugin_providers(scratch, "result:compiled_formulas", &names))
        return "";
    return ct_arena_printf(scratch, "; it has a formula, which --with %s compiles", names[0]);
}

static void report(struct fallbacks *f, const struct ct_device *device, bool repeatable)
{
    char why[1024];

    for (size_t i = 0; i < f->count; i++) {
        const struct fallback *one = &f->item[i];
        struct ct_prepare request = request_of(one->first, device, repeatable, &f->scratch);

        if (!(device->described || is_first(&one->first->lowered->launch)) ||
            !is_news(device, one->type))
            continue;
        print_refusals(&request, why, sizeof(why));
        if (ct_kernel_is_none(one->first->lowered->kernel))
            ct_warn("no kernel of %s for %s: its time is taken from bytes and FLOPs: %s%s",
                    device->name, one->type->name, why, hint(one->type, &f->scratch));
        else
            ct_warn("%s: %d of %d calls of %s run its slow reference: %s%s", device->name,
                    one->calls, one->all, one->type->name, why, hint(one->type, &f->scratch));
    }
}

void ct_kernel_report(const struct ct_program *p, const struct ct_device *device)
{
    struct fallbacks f = {.count = 0};

    if (!ct_kernel_at(device->name, 0) && !device->described)
        return; /* a device of references alone */
    collect(&f, p->init, p->init_count);
    collect(&f, p->step, p->step_count);
    if (f.count) {
        count_calls(&f, p->init, p->init_count);
        count_calls(&f, p->step, p->step_count);
        report(&f, device, p->repeatable);
    }
    ct_arena_finish(&f.scratch);
}
