/*
 * The plugin contract.
 *
 * A plugin is a shared object that exports one constant, ct_plugin_v1. The loader reads it before
 * any code of the plugin runs, so `ctitan plugins` can list plugins that this build cannot use.
 * Nothing registers itself: what a plugin offers, needs and conflicts with is data.
 *
 *     static struct config { double beta1; } config;
 *     static const struct ct_option options[] = {
 *         CT_OPT_FLOAT(struct config, beta1, "beta1", "0.9", 0, 1, "Decay of the first moment"),
 *         {0}};
 *
 *     CT_PLUGIN(.name = "adamw", .version = "1.0", .summary = "Adam with decoupled weight decay",
 *               .options = options, .config = &config, .config_size = sizeof(config),
 *               .offers = CT_OFFERS({CT_OPTIMIZER, "adamw", &ops}, {CT_OP, "adamw", &op_type}));
 *
 * The manifest section with the plugin's name sets its options. config is filled before any other
 * code of the plugin runs. All plugins of a run are loaded before any offer is used. Plugins are
 * never unloaded.
 */
#ifndef CT_PLUGIN_H
#define CT_PLUGIN_H

#include <ctitan/arena.h>
#include <ctitan/option.h>

CT_BEGIN_DECLS

/*
 * The version of this interface. MAJOR: old plugins no longer work. MINOR: something was added at
 * the end of a struct.
 *
 * Every struct that a plugin passes to the core begins with its size as built; so do the elements
 * of arrays. If a struct was built against an older minor version, the loader adds the missing
 * fields as zeros, in a copy: what the core hands out is not the struct that the plugin offered, so
 * compare functions in them, not addresses. Op types alone are never copied. The loader refuses
 * plugins of a newer version.
 *
 * Structs that the core makes, and that plugins only reach by their addresses, may grow at their
 * end. All others stay as they are while MAJOR does: attributes of ops, elements of arrays, and
 * struct ct_device, ct_comm and ct_group, which plugins extend. tests/abi compares the headers with
 * the layouts of MAJOR.0, and runs plugins that end where those of MAJOR.0 did.
 */
#define CT_ABI_MAJOR 9 /* 9: tests/abi has its layouts */
#define CT_ABI_MINOR 0
#define CT_MAGIC 0x47505443u /* "CTPG" in memory: a ctitan plugin */

struct ct_abi {
    uint32_t magic;
    uint16_t major, minor;
    size_t plugin_size; /* sizeof(struct ct_plugin) as built */
};

/* kind, name in messages, type that the offer points to */
#define CT_KINDS(X)                                                                                \
    X(OP, "op", struct ct_op_type)                                                                 \
    X(KERNELS, "kernels", struct ct_kernel) /* array ended by {0}; offer's name: the device */     \
    X(TRANSPORT, "transport", struct ct_transport) /* name: the device */                          \
    X(TRANSFORM, "transform", struct ct_transform)                                                 \
    X(MODEL, "model", struct ct_model_ops)                                                         \
    X(SCHEDULE, "schedule", struct ct_schedule_ops)                                                \
    X(DEVICE, "device", struct ct_device_ops)                                                      \
    X(COMMUNICATOR, "communicator", struct ct_comm_ops)                                            \
    X(DATA, "data source", struct ct_data_ops)                                                     \
    X(TOKENIZER, "tokenizer", struct ct_tokenizer_ops)                                             \
    X(OPTIMIZER, "optimizer", struct ct_optimizer_ops)                                             \
    X(LR_SCHEDULE, "learning-rate schedule", struct ct_lr_schedule_ops)                            \
    X(AXIS, "mesh axis", struct ct_axis_ops)                                                       \
    X(HOOK, "hook", struct ct_hook)                                                                \
    X(VERB, "verb", struct ct_verb_ops)                                                            \
    X(ORDER, "order", struct ct_order_ops)                                                         \
    X(COMPILER, "compiler", struct ct_compiler_ops) /* name: the device */                         \
    X(OBJECTIVE, "objective", struct ct_objective_ops)                                             \
    X(CODE, "code of kernels", void) /* as the device reads it; name: the device */                \
    X(READER, "reader", struct ct_reader_ops)                                                      \
    X(BESIDE, "streams beside the data", struct ct_beside_ops)                                     \
    X(CHECKPOINTS, "checkpoint format", struct ct_checkpoint_ops) /* lib/checkpoint.h */

enum ct_kind {
    CT_NOTHING,
#define X(id, name, type) CT_##id,
    CT_KINDS(X)
#undef X
        CT_KIND_COUNT
};

struct ct_offer {
    enum ct_kind kind;
    const char *name;
    const void *ops;
};
#define CT_OFFERS(...) ((const struct ct_offer[]){__VA_ARGS__, {CT_NOTHING, NULL, NULL}})
#define CT_NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})

/* Fields are only ever appended; a field that the plugin was built without is 0. */
struct ct_plugin {
    struct ct_abi abi; /* always first; never changes */
    const char *name;  /* also the file: <name>.so */
    const char *version;
    const char *summary;      /* one line, for `ctitan plugins` */
    const char *const *needs; /* "fsdp", or an offer: "device:cpu", "device:*"; NULL ends */
    const char *const *conflicts;
    const struct ct_option *options;
    void *config; /* the plugin's own static struct */
    size_t config_size;
    const struct ct_offer *offers; /* ended by CT_NOTHING */
    /* Option whose value names one more plugin to load, "schedule" (NULL: none), and the kind that
       this plugin must offer. */
    const char *brings;
    enum ct_kind brings_kind;
    /* Whether bits may differ between two runs of one recipe on one machine with the options that
       are set: the reason as a sentence, which names the option or the variable of the environment,
       or NULL. It ends a run with [training] deterministic = true before the plan is made. Single
       kernels say so by CT_KERNEL_VARIES instead (op.h). NULL: bits never differ. */
    const char *(*varies)(void);
};

#define CT_PLUGIN(...)                                                                             \
    extern CT_API const struct ct_plugin ct_plugin_v1;                                             \
    const struct ct_plugin ct_plugin_v1 = {                                                        \
        .abi = {CT_MAGIC, CT_ABI_MAJOR, CT_ABI_MINOR, sizeof(struct ct_plugin)}, __VA_ARGS__}

/*
 * Load the plugin in the file at path. On success *plugin is valid until the process ends. Loading
 * a file twice gives the same plugin. CT_ENOENT: no such file, or it does not link (with the
 * linker's message and a remedy); CT_EABI: not a plugin, or one for another interface; CT_EINVAL:
 * its descriptor is incomplete.
 */
CT_API int ct_plugin_open(const char *path, const struct ct_plugin **plugin);

/*
 * Check a descriptor as the file at path exports it, and set *plugin to a copy in the layout of
 * this build, which lives as long as the process. No code of the plugin runs. Fails as
 * ct_plugin_open, without the path in the message.
 */
CT_API int ct_plugin_convert(const struct ct_plugin *exported, const char *path,
                             const struct ct_plugin **plugin);

/*
 * Register a plugin: its ops, kernels and hooks, and its other offers for ct_offer_find.
 * CT_ECONFIG: two offers of one kind and name, or a conflict. ct_plugin_check_all (plugins.h)
 * checks what plugins need once everything is loaded.
 */
CT_API int ct_plugin_register(const struct ct_plugin *plugin);
/* Whether plugin is, or offers, what an entry of `needs` or `conflicts` names. "result:NAME": one
   of its transforms gives NAME. */
CT_API bool ct_plugin_has(const struct ct_plugin *plugin, const char *what);
/* The i-th registered plugin; NULL after the last. */
CT_API const struct ct_plugin *ct_plugin_at(size_t index);

/* The offer of a kind by name; name NULL: the only one of that kind. CT_ENOENT: none; the message
   names plugins that have one. CT_ECONFIG: name is NULL and there are several. */
CT_API int ct_offer_find(enum ct_kind kind, const char *name, const struct ct_offer **offer);
/* The i-th offer of a kind over all registered plugins; NULL after the last. */
CT_API const struct ct_offer *ct_offer_at(enum ct_kind kind, size_t index);
/* The kind as it stands in messages: "data source". */
CT_API const char *ct_kind_name(enum ct_kind kind);

/*
 * Widen a struct, which begins with its size, to at least `size` bytes. *widened is given itself,
 * or a copy, which lives as long as the process and has 0 in the added fields. The loader does this
 * for offers of kinds that the core uses. Those who use other kinds, such as schedules, call it
 * themselves. CT_EABI: the struct is larger than `size` or smaller than `least`.
 */
CT_API int ct_struct_widen(const void *given, size_t least, size_t size, const void **widened);

CT_END_DECLS

#endif
