/* For the sources of plugins with one fault each: FAULT is the fault's number in the list of a
   source, and NAME the plugin's name. */
#ifndef FAULT_H
#define FAULT_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/core_ops.h>
#include <ctitan/error.h>
#include <ctitan/lib/ops.h>
#include <ctitan/op_author.h>
#include <ctitan/plugin.h>
#include <ctitan/run.h>

#include "reference.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

/* One row of the table of offers, for the plugin's name, or for the device "cpu". */
#define OFFER(kind, ops)                                                                           \
    {                                                                                              \
        kind, TEXT(NAME), ops                                                                      \
    }
#define OFFER_FOR_CPU(kind, ops)                                                                   \
    {                                                                                              \
        kind, "cpu", ops                                                                           \
    }

#define HAS_ONE_FAULT .name = TEXT(NAME), .version = "1.0", .summary = "Has one fault"

#endif
