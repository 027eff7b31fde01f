/*
 * One rank of a communicator test. The parent (comm.c) starts such ranks and judges them.
 */
#ifndef RANK_H
#define RANK_H

#include <ctitan/comm.h>

struct fixture {
    struct ct_comm *comm;
    const struct ct_comm_ops *ops;
    char *arena; /* symmetric; NULL: the communicator has none */
    size_t arena_bytes;
};

/* Everything that must work: 0, or the number of what did not, printed. */
int check_collectives(struct fixture *f);
int check_messages(struct fixture *f);
int check_groups(struct fixture *f);

/* Misbehaviour number `act` of this rank: only ranks that are meant to see a failure return. */
int misbehave(struct fixture *f, const char *act);

/* The generator of all random choices and contents. */
static inline uint64_t mix(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t x = a * 0x9E3779B97F4A7C15u ^ b * 0xC2B2AE3D27D4EB4Fu ^ c * 0x165667B19E3779F9u;

    x = (x ^ x >> 32) * 0xD6E8FEB86659FD93u;
    x = (x ^ x >> 29) * 0xD6E8FEB86659FD93u;
    return x ^ x >> 32;
}

#endif
