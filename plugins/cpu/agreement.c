/*
 * Choices on which ranks depend that exchange data: what one packs, another one multiplies. Each
 * rank notes its own, by name. When all ranks can talk, they compare those that have the same name,
 * before anything is exchanged: else numbers would be taken for others.
 *
 * Ranks of one machine measure once for all (tuning.h), so that they choose alike. On several
 * machines they would not, and nothing there is chosen by time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/comm.h>
#include <ctitan/error.h>
#include <ctitan/hook.h>
#include <ctitan/run.h>

#include "agreement.h"

struct choice {
    char name[64];
    int64_t chosen;
};

static struct {
    const struct ct_run *run; /* whose choices they are */
    struct choice *choice;
    size_t count, room;
} noted;

static int local_ranks; /* of the device that is open; 0: of a plan without one */

void cpu_agreement_open(int ranks)
{
    local_ranks = ranks;
}

bool cpu_on_one_machine(const struct ct_run *run)
{
    return local_ranks == 0 || local_ranks == run->world;
}

static struct choice *find(struct choice *choice, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (!strncmp(choice[i].name, name, sizeof(choice[i].name)))
            return &choice[i];
    return NULL;
}

int cpu_note_choice(const struct ct_run *run, const char *name, bool chosen)
{
    struct choice *c;

    if (noted.run != run)
        noted.count = 0;
    noted.run = run;
    c = find(noted.choice, noted.count, name);
    if (!c && noted.count == noted.room) {
        size_t room = noted.room ? 2 * noted.room : 16;
        struct choice *more = realloc(noted.choice, room * sizeof(*more));

        if (!more)
            return ct_fail(CT_ENOMEM, "a list of choices");
        noted.choice = more;
        noted.room = room;
    }
    if (!c) {
        c = &noted.choice[noted.count++];
        memset(c, 0, sizeof(*c));
        snprintf(c->name, sizeof(c->name), "%s", name);
    }
    c->chosen = chosen;
    return 0;
}

/* Compare with those of another rank. */
static int compare(struct choice *other, size_t count, int64_t rank)
{
    for (size_t i = 0; i < count; i++) {
        const struct choice *mine = find(noted.choice, noted.count, other[i].name);

        if (mine && mine->chosen != other[i].chosen)
            return ct_fail(CT_ECONFIG,
                           "this rank has chosen own kernels for %s: %s, rank %lld: %s; processors "
                           "or measured speeds differ: set [cpu] products or bf16_matmul",
                           mine->name, mine->chosen ? "yes" : "no", (long long)rank,
                           other[i].chosen ? "yes" : "no");
    }
    return 0;
}

static int exchange(struct ct_run *run)
{
    struct ct_group *world = run->world_group;
    uint64_t mine = noted.run == run ? noted.count : 0, most = 0;
    uint64_t *counts = ct_arena_array(&run->arena, uint64_t, run->world);
    struct choice *all, *padded;
    int rc = ct_group_all_gather(world, &mine, counts, sizeof(mine), CT_U8);

    for (int64_t r = 0; rc >= 0 && r < run->world; r++)
        most = counts[r] > most ? counts[r] : most;
    if (rc < 0 || most == 0)
        return rc;
    padded = ct_arena_array(&run->arena, struct choice, most);
    all = ct_arena_array(&run->arena, struct choice, most * (uint64_t)run->world);
    if (mine)
        memcpy(padded, noted.choice, mine * sizeof(*padded));
    rc = ct_group_all_gather(world, padded, all, most * sizeof(*padded), CT_U8);
    for (int64_t r = 0; rc >= 0 && mine && r < run->world; r++)
        rc = compare(all + most * (uint64_t)r, counts[r], r);
    return rc;
}

static int call(const struct ct_event_data *data, void *context)
{
    struct ct_run *run = data->run;

    (void)context;
    if (run->world < 2 || !run->world_group || run->device_ops->open != cpu_device_ops.open)
        return 0;
    return exchange(run);
}

const struct ct_hook cpu_agreement = {
    .size = sizeof(struct ct_hook), .events = 1u << CT_EVENT_PLAN_READY, .call = call};
