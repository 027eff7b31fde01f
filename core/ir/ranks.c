/*
 * Sets of ranks, as words of bits.
 */
#include <ctitan/graph.h>

static uint64_t word_of(const struct ct_ranks *set, int i)
{
    return i < set->words ? set->word[i] : 0;
}

bool ct_ranks_have(const struct ct_ranks *set, int64_t rank)
{
    return !set->words || word_of(set, (int)(rank / 64)) >> rank % 64 & 1;
}

int64_t ct_ranks_below(const struct ct_ranks *set, int64_t rank)
{
    int64_t count = 0;
    int i;

    for (i = 0; i < rank / 64; i++)
        count += __builtin_popcountll(word_of(set, i));
    return count + __builtin_popcountll(word_of(set, i) & ((UINT64_C(1) << rank % 64) - 1));
}

bool ct_ranks_equal(const struct ct_ranks *a, const struct ct_ranks *b)
{
    int words = a->words > b->words ? a->words : b->words;

    if (!a->words || !b->words)
        return a->words == b->words;
    for (int i = 0; i < words; i++)
        if (word_of(a, i) != word_of(b, i))
            return false;
    return true;
}
