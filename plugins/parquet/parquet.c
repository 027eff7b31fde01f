/*
 * Parquet files as JSON lines.
 */
#include "rows.h"

static const struct ct_reader_ops parquet = {
    .size = sizeof(struct ct_reader_ops),
    .suffixes = CT_NAMES(".parquet"),
    .version = 1,
    .read = rows_read,
};

CT_PLUGIN(.name = "parquet", .version = "1.0",
          .summary = "Reads rows of Parquet files, through Apache Arrow's library",
          .offers = CT_OFFERS({CT_READER, "parquet", &parquet}));
