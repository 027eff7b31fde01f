#include "common.h"

CT_PLUGIN(.name = "training", .version = "1", .summary = "Has a name of the core's",
          .offers = OFFER_VERB("l"));
