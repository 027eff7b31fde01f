/*
 * Streams: the lanes of a device. Work on one stream runs in order; only events order work across
 * streams. An op says its stream by number (struct ct_op). A stream has a name, by which graphs,
 * programs and traces show it, and for the whole process a number from when it is first declared.
 * Who puts ops on a stream declares it, with the properties that it needs there. Those who use a
 * stream of one name share it, and it has the properties that any of them declares. Numbers may
 * differ from process to process.
 */
#ifndef CT_STREAM_H
#define CT_STREAM_H

#include <ctitan/base.h>

CT_BEGIN_DECLS

#define CT_STREAMS 12       /* at most */
#define CT_STREAM_COMPUTE 0 /* "compute", of every op that says nothing else */

/* Properties of a stream. */
/* In microbatches, inputs and workspace of an op keep their memory until the next op of this stream
   within the same item of the step. Else compute beside it might reuse that memory, and wait for
   it. */
#define CT_STREAM_KEEPS 1u

/* Declare a stream, and get its number. CT_EINVAL: it has no name of letters, digits and '_', or
   there are CT_STREAMS already. */
CT_API int ct_stream(const char *name, unsigned properties);
/* The number of one that is declared; CT_ENOENT: none has the name. */
CT_API int ct_stream_find(const char *name);
/* How many are declared: numbers are below. */
CT_API int ct_stream_count(void);
/* NULL: there is none of this number. */
CT_API const char *ct_stream_name(int stream);
CT_API unsigned ct_stream_properties(int stream);

CT_END_DECLS

#endif
