/*
 * Tar files as text: their members.
 */
#include "read.h"

static const struct ct_reader_ops tar = {
    .size = sizeof(struct ct_reader_ops),
    .suffixes = CT_NAMES(".tar", ".tgz", ".tzst"),
    .version = 1,
    .read = tar_read,
};

CT_PLUGIN(.name = "tar", .version = "1.0",
          .summary = "Reads text in tar files, packed or not, through libarchive",
          .offers = CT_OFFERS({CT_READER, "tar", &tar}));
