/*
 * Shared by the sources of the plugin describe: describe.c times a run, calls.c puts the calls of
 * its instructions together, write.c writes them.
 */
#ifndef DESCRIBE_H
#define DESCRIBE_H

#include <ctitan/lib/machine.h>
#include <ctitan/op.h>
#include <ctitan/run.h>

#define DESCRIBE_SAMPLES 32

/* An instruction of the step. */
struct describe_sample {
    double began, ended, seconds[DESCRIBE_SAMPLES];
    int count;
};

/* Calls alike, or a point of a curve in the description that is added to. */
struct describe_call {
    const char *op, *shapes;     /* shapes "": a point only */
    double ideal, sent, seconds; /* ideal 0: a call of that description, whose point stands alone */
    double peak;                 /* of its class, by which `ideal` is; 0: by dtype */
    bool lookup;                 /* of its class, too: `ideal` is by the bytes of the outputs */
};

/* The run that is measured; there is one in a process. */
extern struct describe {
    struct ct_arena arena;
    struct describe_sample *sample; /* by instruction */
    int32_t *signaller;             /* by event: its instruction; -1: none */
    double step[DESCRIBE_SAMPLES];
    int steps;
    struct ct_machine machine;    /* measured, or that of `old` */
    const struct ct_machine *old; /* NULL: nothing is added to */
} describe;

static inline bool describe_communicates(const struct ct_instruction *i)
{
    return i->op->type->flags & (CT_OP_COLLECTIVE | CT_OP_RENDEZVOUS);
}

/* The calls of the run, and those of the old description, sorted. Returns their number. */
size_t describe_collect(const struct ct_run *run, struct describe_call **list);
int describe_write(const struct ct_run *run, const char *path);

#endif
