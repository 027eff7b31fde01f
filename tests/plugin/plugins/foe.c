#include "common.h"

CT_PLUGIN(.name = "foe", .version = "1", .summary = "Cannot stand good",
          .conflicts = CT_NAMES("verb:wave"), .offers = OFFER_VERB("k"));
