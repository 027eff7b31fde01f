/*
 * Checkpoints as Hugging Face folders, and back. lib/hf knows these folders, and the plugin that
 * keeps checkpoints reads and writes its own (lib/checkpoint.h).
 */
#include <ctitan/plugin.h>

#include "hf.h"

CT_PLUGIN(.name = "hf", .version = "1.0", .summary = "Checkpoints from and to Hugging Face folders",
          .offers = CT_OFFERS({CT_VERB, "export", &hf_export}, {CT_VERB, "import", &hf_import}));
