#include "common.h"

CT_PLUGIN(.name = "twin", .version = "1", .summary = "Offers what good offers",
          .offers = OFFER_VERB("wave"));
