#include "common.h"

CT_PLUGIN(.name = "strange_offer", .version = "1", .summary = "s",
          .offers = CT_OFFERS({(enum ct_kind)99, "x", "not a known thing"}));
