/*
 * Preloaded into a program, makes every plugin look as if it had been built against the first minor
 * version of this interface: each struct that it hands over ends where that version's ended
 * (layouts.inc). No memory follows it, so what reads a later field dies.
 *
 * AGED=smallest cuts op types to CT_OP_TYPE_SMALLEST, as if they came from before the optional
 * fields. AGED_LOG names a file that gets a line for each plugin and offer.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "headers.h"

static const struct {
    const char *name;
    size_t bytes;
} layouts[] = {
#define STRUCT(name, bytes, growth, fields) {"struct " #name, bytes},
#define NUMBER(name, number)
#include "layouts.inc"
};

static const char *const type_of_kind[CT_KIND_COUNT] = {
#define X(id, name, type) [CT_##id] = #type,
    CT_KINDS(X)
#undef X
};

/* Bytes of a struct in the first minor version. */
static size_t recorded(const char *type)
{
    for (size_t i = 0; i < sizeof(layouts) / sizeof(*layouts); i++)
        if (!strcmp(layouts[i].name, type))
            return layouts[i].bytes;
    abort();
}

static void *real_dlsym(void *handle, const char *name)
{
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
    static union {
        void *address;
        void *(*call)(void *, const char *);
    } found;

    for (size_t i = 0; !found.address && i < sizeof(versions) / sizeof(*versions); i++)
        found.address = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    return found.address ? found.call(handle, name) : NULL;
}

/* A copy of bytes from data, whose end is the end of readable memory. */
static void *at_a_pages_end(const void *data, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (bytes + page - 1) / page * page;
    char *p = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED || mprotect(p + room, page, PROT_NONE) < 0)
        abort();
    return memcpy(p + room - bytes, data, bytes);
}

static size_t size_of(const void *given)
{
    return *(const size_t *)given;
}

static void *aged_struct(const void *given, size_t bytes)
{
    size_t size = size_of(given) < bytes ? size_of(given) : bytes;
    void *copy = at_a_pages_end(given, size);

    return memcpy(copy, &size, sizeof(size));
}

/* Op types are recognised by their addresses: they stay, and what follows them becomes rubbish. */
static const void *aged_in_place(const void *given, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), size = size_of(given), before;
    char *at = (char *)given;

    if (size <= bytes)
        return given;
    before = (uintptr_t)at % page;
    if (mprotect(at - before, before + size, PROT_READ | PROT_WRITE) < 0)
        abort();
    memcpy(at, &bytes, sizeof(bytes));
    memset(at + bytes, 0xa5, size - bytes);
    return given;
}

/* An array whose elements begin with their size, and whose end begins with 0. */
static void *aged_array(const void *given, size_t bytes)
{
    size_t stride = size_of(given), count = 0;
    char *packed, *copy;

    if (stride < bytes)
        bytes = stride;
    while (stride && size_of((const char *)given + count * stride))
        count++;
    packed = calloc(count + 1, bytes ? bytes : sizeof(size_t));
    for (size_t i = 0; i < count; i++) {
        memcpy(packed + i * bytes, (const char *)given + i * stride, bytes);
        memcpy(packed + i * bytes, &bytes, sizeof(bytes));
    }
    copy = at_a_pages_end(packed, bytes ? (count + 1) * bytes : sizeof(size_t));
    free(packed);
    return copy;
}

/* Its format of weights, too. */
static const void *aged_model(const struct ct_model_ops *given, size_t bytes)
{
    struct ct_model_ops model = *given;

    if (model.weights)
        model.weights = aged_struct(model.weights, recorded("struct ct_weights_ops"));
    return aged_struct(&model, bytes);
}

static const void *aged_offer(const struct ct_offer *o)
{
    const char *age = getenv("AGED"), *type = type_of_kind[o->kind];
    size_t bytes;

    if (!strcmp(type, "void")) /* known to the device alone */
        return o->ops;
    bytes = recorded(type);
    if (o->kind == CT_OP && age && !strcmp(age, "smallest") &&
        !((const struct ct_op_type *)o->ops)
             ->place) /* which had to be there when the op was made */
        bytes = CT_OP_TYPE_SMALLEST;
    if (o->kind == CT_OP)
        return aged_in_place(o->ops, bytes);
    if (o->kind == CT_MODEL)
        return aged_model(o->ops, bytes);
    return o->kind == CT_KERNELS ? aged_array(o->ops, bytes) : aged_struct(o->ops, bytes);
}

static void tell(const struct ct_plugin *p, const struct ct_offer *o)
{
    FILE *log = getenv("AGED_LOG") ? fopen(getenv("AGED_LOG"), "a") : NULL;

    if (!log)
        return;
    fprintf(log, "%s %s %s\n", p->name, o ? ct_kind_name(o->kind) : "-", o ? o->name : "-");
    fclose(log);
}

static const struct ct_plugin *aged_plugin(const struct ct_plugin *given)
{
    struct ct_plugin p = *given;
    struct ct_offer *offers;
    size_t count = 0;

    tell(given, NULL);
    while (given->offers[count].kind != CT_NOTHING)
        count++;
    offers = calloc(count + 1, sizeof(*offers));
    for (size_t i = 0; i < count; i++) {
        offers[i] = given->offers[i];
        offers[i].ops = aged_offer(&given->offers[i]);
        tell(given, &given->offers[i]);
    }
    p.offers = offers;
    if (p.options)
        p.options = aged_array(p.options, recorded("struct ct_option"));
    p.abi.minor = 0;
    p.abi.plugin_size = recorded("struct ct_plugin");
    return at_a_pages_end(&p, p.abi.plugin_size);
}

/* One aged copy of each descriptor: the loader recognises plugins by its address. */
void *dlsym(void *restrict handle, const char *restrict name)
{
    static struct {
        const void *given, *aged;
    } known[256];
    void *found = real_dlsym(handle, name);
    size_t i = 0;

    if (!found || strcmp(name, "ct_plugin_v1"))
        return found;
    while (i < 255 && known[i].given && known[i].given != found)
        i++;
    if (known[i].given != found) {
        known[i].given = found;
        known[i].aged = aged_plugin(found);
    }
    return (void *)known[i].aged;
}
