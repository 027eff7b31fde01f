#include "common.h"

CT_PLUGIN(.name = "needy", .version = "1", .summary = "Needs good", .needs = CT_NAMES("good"),
          .offers = OFFER_VERB("i"));
