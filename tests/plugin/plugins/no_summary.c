#include "common.h"

CT_PLUGIN(.name = "no_summary", .version = "1", .offers = OFFER_VERB("g"));
