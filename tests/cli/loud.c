/* A plugin that says when it is loaded. */
#include <stdio.h>

#include <ctitan/model.h>
#include <ctitan/plugin.h>

__attribute__((constructor)) static void be_loud(void)
{
    fputs("loud is loaded\n", stderr);
}

static int shout(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    return puts("here") < 0;
}

static const struct ct_verb_ops verb = {sizeof(struct ct_verb_ops), "Shouts", "", shout};

CT_PLUGIN(.name = "loud", .version = "1", .summary = "Says when it is loaded",
          .offers = CT_OFFERS({CT_VERB, "shout", &verb}));
