/*
 * Facts that were measured on this machine, kept in a file of this user's cache. Each is measured
 * once, by the first process that needs it, and every other process and run uses the same.
 *
 * The file is ctitan/FOLDER/FILE in $XDG_CACHE_HOME or ~/.cache, lines "NAME VALUE", neither with
 * blanks; the first line of a name counts. Deleting it, or a line, measures again. The folder is
 * one that no other user can change. A line of another form, or with a value that its owner does
 * not take, counts as absent: a warning says so, and the file is written anew without it. A process
 * that can read the file but not write it uses what is there.
 */
#ifndef CT_FACTS_H
#define CT_FACTS_H

#include <ctitan/base.h>

CT_BEGIN_DECLS

#define CT_FACT_ROOM 192 /* bytes of a name, or of a value, with the final zero */

struct ct_facts;

/* The facts of a file, which may not exist yet; for one thread. They live as long as the process.
   valid: whether a value may be one of these facts. NULL: out of memory. */
CT_API struct ct_facts *ct_facts_create(const char *folder, const char *file,
                                        bool (*valid)(const char *value));

/* Append to a file's name of so many bytes, as lower-case words joined by '-': "AMD EPYC 9R45" ->
   "amd-epyc-9r45". Returns its bytes now; room: with the final zero. */
CT_API size_t ct_facts_name(char *name, size_t used, size_t room, const char *words);

/* The value of a fact that was measured; NULL: it was not. */
CT_API const char *ct_fact_find(struct ct_facts *facts, const char *name);

/*
 * The same, and measures it otherwise, under the file's lock: other processes wait. measure prints
 * the value; negative: it cannot. NULL: it cannot, or no file can be written; then nothing is
 * measured, in this process not again, and a warning says so once: without a file, runs would
 * choose differently, and so would ranks.
 */
typedef int ct_fact_measure(void *context, char value[CT_FACT_ROOM]);
CT_API const char *ct_fact(struct ct_facts *facts, const char *name, ct_fact_measure *measure,
                           void *context);

CT_END_DECLS

#endif
