#include "random.h"

int64_t random_below(struct random *r, int64_t n)
{
    struct ct_philox p = ct_philox(r->seed, 77, r->next++);

    return (int64_t)((((uint64_t)p.v[0] << 32) | p.v[1]) % (uint64_t)n);
}

bool random_chance(struct random *r, int percent)
{
    return random_below(r, 100) < percent;
}

double random_normal(struct random *r)
{
    return (double)ct_normal(r->seed, 78, r->next++);
}

void random_mesh(struct random *r, struct ct_mesh *mesh)
{
    static const char *const names[] = {"dp", "cp", "tp"};
    static const int64_t sizes[] = {2, 2, 3, 4};
    int64_t ranks = 1;
    int count = 1 + (int)random_below(r, 3);

    mesh->count = 0;
    for (int i = 0; i < count; i++) {
        int64_t size = sizes[random_below(r, 4)];

        if (ranks * size > 12)
            break;
        ranks *= size;
        mesh->axis[mesh->count++] = (struct ct_axis){names[i], size};
    }
}

struct ct_sharding random_sharding(struct random *r, const struct ct_mesh *mesh, int rank,
                                   bool pending)
{
    int first = (int)random_below(r, mesh->count);
    struct ct_sharding s = {0};

    for (int i = 0; i < mesh->count; i++) {
        int axis = (first + i) % mesh->count;

        if (rank > 0 && random_chance(r, 50))
            ct_sharding_split(&s, (int)random_below(r, rank), axis);
        else if (pending && random_chance(r, 50))
            s.unreduced |= (ct_axes)1 << axis;
    }
    return s;
}
