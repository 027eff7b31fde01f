/*
 * Sets of ranks along pp: c->words words of bits.
 */
#include <string.h>

#include "pp.h"

uint64_t *pp_where(const struct pp_local *c, const struct ct_value *v)
{
    return c->where + (size_t)v->id * (size_t)c->words;
}

uint64_t *pp_needed(const struct pp_local *c, const struct ct_value *v)
{
    return c->needed + (size_t)v->id * (size_t)c->words;
}

void pp_ranks_clear(const struct pp_local *c, uint64_t *set)
{
    memset(set, 0, sizeof(*set) * (size_t)c->words);
}

void pp_ranks_fill(const struct pp_local *c, uint64_t *set)
{
    memset(set, 0xff, sizeof(*set) * (size_t)c->words);
}

void pp_ranks_copy(const struct pp_local *c, uint64_t *to, const uint64_t *from)
{
    memcpy(to, from, sizeof(*to) * (size_t)c->words);
}

void pp_ranks_add(uint64_t *set, int rank)
{
    set[rank / 64] |= (uint64_t)1 << rank % 64;
}

bool pp_ranks_have(const uint64_t *set, int rank)
{
    return set[rank / 64] >> rank % 64 & 1;
}

void pp_ranks_join(const struct pp_local *c, uint64_t *set, const uint64_t *other)
{
    for (int i = 0; i < c->words; i++)
        set[i] |= other[i];
}

void pp_ranks_limit(const struct pp_local *c, uint64_t *set, const uint64_t *to)
{
    for (int i = 0; i < c->words; i++)
        set[i] &= to[i];
}

bool pp_ranks_full(const struct pp_local *c, const uint64_t *set)
{
    for (int i = 0; i < c->words; i++)
        if (set[i] != UINT64_MAX)
            return false;
    return true;
}

int pp_ranks_next(const struct pp_local *c, const uint64_t *set, int from)
{
    for (int i = from / 64; i < c->words; i++) {
        uint64_t rest = i == from / 64 ? set[i] & UINT64_MAX << from % 64 : set[i];

        if (rest)
            return 64 * i + __builtin_ctzll(rest);
    }
    return -1;
}
