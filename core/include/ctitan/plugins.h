/*
 * Where plugins are found, and which of them has what a run lacks. The core opens and registers
 * plugins (plugin.h).
 */
#ifndef CT_PLUGINS_H
#define CT_PLUGINS_H

#include <ctitan/plugin.h>

CT_BEGIN_DECLS

/*
 * Folder number `index` of those that are searched for plugins; NULL after the last. First come
 * those in $CTITAN_PLUGIN_PATH (separated by ':'), then those beside libctitan, installed or in its
 * build tree. A folder holds NAME.so or NAME/NAME.so. The environment is read at the first call.
 */
CT_API const char *ct_plugin_folder(size_t index);

/* Path of the plugin called name ("adamw", or a file: "adamw.so", "a/adamw.so"), in buffer;
   CT_ENOENT names the folders searched and the nearest name, or says why it was not built. */
CT_API int ct_plugin_path(const char *name, char *buffer, size_t room);
/*
 * Files beside plugins, such as descriptions: in the folder `sub` of a folder of plugins, of one of
 * the folders in it, or of the one in which it is. The first of a name counts.
 */
/* The path of the file called name, in buffer; false: there is none. */
CT_API bool ct_plugin_file(const char *sub, const char *name, char *buffer, size_t room);
struct ct_plugin_file {
    const char *name, *path; /* name: without the ending */
};
/* Plugin files with an ending, sorted by name; the array is in arena. Returns their number. */
CT_API size_t ct_plugin_files(struct ct_arena *arena, const char *sub, const char *ending,
                              const struct ct_plugin_file **files);

/* Open the plugin called name, found in the same way. */
CT_API int ct_plugin_find(const char *name, const struct ct_plugin **plugin);

/*
 * Read the descriptor of the plugin called name, found in the same way, from its file. The plugin
 * is not loaded: none of its code and of its libraries' runs, and libraries that it needs may be
 * absent. Texts, options, and the data of offers can be read; functions are not NULL where they
 * are set, and must not be called; config is not to be written. A pointer to what another library
 * defines leads to zeros. *plugin lives as long as the process. CT_ENOENT: no such plugin; CT_EABI:
 * not a plugin, one for another interface or machine, or a damaged file; CT_EINVAL: its descriptor
 * has a fault. The message names the file.
 */
CT_API int ct_plugin_describe(const char *name, const struct ct_plugin **plugin);

/* The names of all plugins in the folders, sorted, without duplicates; the array is in arena. */
CT_API size_t ct_plugin_names(struct ct_arena *arena, const char ***names);

/*
 * A plugin that was not built, as something that it needs was missing: in its place there is a text
 * NAME.absent, which says what, and what to install. The build of the plugin writes it.
 */
struct ct_absent {
    const char *name, *why; /* one line */
};
/* Absent plugins that files in the folders describe, sorted; the array is in arena. */
CT_API size_t ct_plugin_absent(struct ct_arena *arena, const struct ct_absent **list);

/* The names of the plugins in the folders that are, or offer, `what`; the array is in arena.
   Describes them all. Returns their number. */
CT_API size_t ct_plugin_providers(struct ct_arena *arena, const char *what, const char ***names);
/* "bytes, bpe", in arena. */
CT_API const char *ct_plugin_list(struct ct_arena *arena, const char *const *names, size_t count);

/* Whether a plugin of this name is registered. */
CT_API bool ct_plugin_is_registered(const char *name);

/* Check that everything is loaded that registered plugins need. CT_ECONFIG: something is not; the
   message names the plugins that have it. */
CT_API int ct_plugin_check_all(void);

/* CT_ECONFIG: bits may differ between runs with a plugin that is registered, as its options are
   (`varies` of struct ct_plugin); the message has the plugin's reason. */
CT_API int ct_plugin_check_repeatable(void);

/* Check a plugin that was opened, before any of its code runs. CT_EINVAL: an offer lacks a
   function, or an option's table has a fault. */
CT_API int ct_plugin_check(const struct ct_plugin *plugin);

/* Fail with CT_ENOENT: `subject` ("this run needs") finds no `what` ("optimizer:*") loaded.
   Describes the plugins in the folders, to name those that have `what`. */
CT_API int ct_plugin_lacking(const char *subject, const char *what);

CT_END_DECLS

#endif
