#include "common.h"

CT_PLUGIN(.name = "other_name", .version = "1", .summary = "s", .offers = OFFER_VERB("f"));
