/* A plugin whose constructor crashes. */
#include <signal.h>

#include <ctitan/plugin.h>

__attribute__((constructor)) static void fall(void)
{
    raise(SIGSEGV);
}

CT_PLUGIN(.name = "falls_early", .version = "1", .summary = "Crashes when it is opened",
          .offers = CT_OFFERS({CT_NOTHING, NULL, NULL}));
