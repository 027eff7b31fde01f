#include "common.h"

CT_PLUGIN(.name = "needy_of_kind", .version = "1", .summary = "Needs a tokenizer",
          .needs = CT_NAMES("tokenizer:*"), .offers = OFFER_VERB("j"));
