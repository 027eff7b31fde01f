/* Shared by printing, parsing and dumping of graphs. */
#ifndef CT_TEXT_INTERNAL_H
#define CT_TEXT_INTERNAL_H

#include <ctitan/device/device.h>
#include <ctitan/text.h>

/* Whether name is that of a main section: a part, or a group's number and a part. */
bool ct_text_main_section(const char *name, enum ct_part *part, int *group);

/* Calls of the pass manager to a dump: the graph as the model built it; the transforms in the order
   in which they will run (CT_ECONFIG: none is the one to dump after); and each of them. rc: of the
   transform and of the check of the graph that follows. Returns the rc to go on with, and adds the
   transform's name to the message of a failure. */
void ct_dump_built(struct ct_dump *d, const struct ct_graph *graph);
int ct_dump_ordered(struct ct_dump *d, const struct ct_transform *const *t, size_t count);
void ct_dump_before(struct ct_dump *d, const struct ct_graph *graph, const struct ct_transform *t);
int ct_dump_after(struct ct_dump *d, const struct ct_graph *graph, const struct ct_transform *t,
                  int rc);

#endif
