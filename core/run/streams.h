#ifndef RUN_STREAMS_H
#define RUN_STREAMS_H

#include <ctitan/input.h>

/* Turn a list of streams, which {0} ends, into this build's layout. */
int ct_streams_widen(struct ct_arena *arena, const struct ct_data_stream **streams);
/* CT_EINVAL: one is no stream, has the name of another, or of an input that the run makes. */
int ct_streams_check(const struct ct_data_stream *streams, int64_t seq_len);

#endif
