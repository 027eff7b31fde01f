#ifndef MEMBERS_H
#define MEMBERS_H

#include <ctitan/reader.h>

#include "corpus.h"

/* Hand over the documents in a file that a reader reads: in its members whose names end as those of
   text and JSON lines do, and in its rows. CT_ECONFIG: it is damaged, or has none. */
int members_add(struct corpus *corpus, const struct ct_offer *reader, const char *path,
                const char *data, size_t size);

#endif
