/*
 * Rows of Parquet, by Arrow's library, for C.
 */
#ifndef ROWS_H
#define ROWS_H

#include <ctitan/reader.h>

CT_BEGIN_DECLS

/* As ct_reader_ops.read: the rows as JSON lines, with those of the columns that are among
   reading->fields. */
int rows_read(const struct ct_reading *reading);

CT_END_DECLS

#endif
