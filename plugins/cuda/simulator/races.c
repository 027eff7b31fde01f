#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/lib/cuda/simulator.h>

#include "races.h"

#define PAGE 4096
#define BUCKETS 65536
#define TOLD 256

/* Numbers of segments that accessed a byte last. `by_warps`, `by_lanes`: two that read it, of
   different warps, or lanes of a warp, with no barrier in between. 0: none. */
struct cell {
    uint32_t written, read, by_warps[2], by_lanes[2];
};

struct page {
    struct page *next;
    uintptr_t number;
    bool memory; /* else shared */
    struct cell cell[PAGE];
};

enum kind { WRITES, READ, WRITTEN, UNWRITTEN, BLOCKS };

static struct page *pages[BUCKETS], *last;
/* Segments are numbered through; those before block_begin are of other blocks, and those before
   launch_begin of other launches. */
static struct races_segment *segments;
static uint32_t room, launch_begin = 1, block_begin = 1, next = 1;
static uintptr_t stacks, stacks_size, shared, shared_size;
static const char *kernel;
static struct {
    const char *kernel;
    void *caller;
    enum kind kind;
} told[TOLD];
static int told_count;

/* ---- launches ---- */

void races_start(const void *stack, size_t stack_bytes, const void *dynamic, size_t dynamic_bytes)
{
    stacks = (uintptr_t)stack;
    stacks_size = stack_bytes;
    shared = (uintptr_t)dynamic;
    shared_size = dynamic_bytes;
}

void races_begin_launch(void (*function)(const void *arguments))
{
    Dl_info info;

    kernel = dladdr((void *)(uintptr_t)function, &info) && info.dli_sname ? info.dli_sname : "?";
    launch_begin = block_begin = next;
    if (next > UINT32_MAX / 2) {
        fprintf(stderr, "races: too many launches\n");
        abort();
    }
}

void races_begin_block(void)
{
    block_begin = next;
}

void races_end_launch(void)
{
    kernel = NULL;
}

static uint32_t number_of_segment(void)
{
    uint32_t *number = races_segment_number();

    if (*number)
        return *number;
    if (next - block_begin == room) {
        room = room ? 2 * room : 65536;
        segments = realloc(segments, room * sizeof(*segments));
    }
    segments[next - block_begin] = races_segment_now();
    return *number = next++;
}

static struct page *page_at(uintptr_t number)
{
    struct page **p = &pages[number % BUCKETS];

    if (last && last->number == number)
        return last;
    while (*p && (*p)->number != number)
        p = &(*p)->next;
    if (!*p) {
        *p = calloc(1, sizeof(**p));
        (*p)->number = number;
        (*p)->memory = simulated_is_memory(number * PAGE);
    }
    return last = *p;
}

/* ---- races ---- */

static void tell(enum kind kind, const void *at, uint32_t me, uint32_t other, void *caller)
{
    static const char *const words[] = {[WRITES] = "writes what thread %d writes",
                                        [READ] = "writes what thread %d reads",
                                        [WRITTEN] = "reads what thread %d writes",
                                        [UNWRITTEN] = "reads what no thread wrote",
                                        [BLOCKS] = "accesses what another block does"};
    Dl_info info;

    for (int i = 0; i < told_count; i++)
        if (told[i].kernel == kernel && told[i].caller == caller && told[i].kind == kind)
            return;
    if (told_count == TOLD || !dladdr(caller, &info))
        return;
    told[told_count].kernel = kernel;
    told[told_count].caller = caller;
    told[told_count++].kind = kind;
    fprintf(stderr, "races: %s: thread %u ", kernel, segments[me - block_begin].thread);
    fprintf(stderr, words[kind],
            other < block_begin ? -1 : (int)segments[other - block_begin].thread);
    fprintf(stderr, ", at %p (%s+0x%zx)\n", at, info.dli_fname,
            (size_t)((char *)caller - (char *)info.dli_fbase) - 1);
}

/* Is nothing between what both did? */
static bool meets(uint32_t other, uint32_t me)
{
    const struct races_segment *a, *b = &segments[me - block_begin];

    if (other < block_begin)
        return false;
    a = &segments[other - block_begin];
    return a->thread != b->thread && a->of_block == b->of_block &&
           (a->thread / 32 != b->thread / 32 || a->of_warp == b->of_warp);
}

static bool is_of_other_block(const struct page *p, uint32_t other)
{
    return p->memory && other >= launch_begin && other < block_begin;
}

static void note_pair(uint32_t pair[2], uint32_t first, uint32_t second)
{
    pair[0] = first;
    pair[1] = second;
}

static void read_cell(const struct page *p, struct cell *c, uint32_t me, const void *at,
                      void *caller)
{
    bool dynamic = (uintptr_t)at - shared < shared_size;

    if (c->read == me)
        return;
    if (is_of_other_block(p, c->written))
        tell(BLOCKS, at, me, c->written, caller);
    else if (meets(c->written, me))
        tell(WRITTEN, at, me, c->written, caller);
    else if (!p->memory && c->written < block_begin && (dynamic || c->written))
        tell(UNWRITTEN, at, me, 0, caller);
    if (is_of_other_block(p, c->read))
        note_pair(c->by_warps, c->read, c->read);
    else if (meets(c->read, me) &&
             segments[c->read - block_begin].thread / 32 == segments[me - block_begin].thread / 32)
        note_pair(c->by_lanes, c->read, me);
    else if (meets(c->read, me))
        note_pair(c->by_warps, c->read, me);
    c->read = me;
}

/* A reader that nothing separates from `me`; 0: none. */
static uint32_t met_reader(const struct cell *c, uint32_t me)
{
    const uint32_t readers[] = {c->read, c->by_warps[0], c->by_warps[1], c->by_lanes[0],
                                c->by_lanes[1]};

    for (size_t i = 0; i < sizeof(readers) / sizeof(*readers); i++)
        if (meets(readers[i], me))
            return readers[i];
    return 0;
}

static void write_cell(const struct page *p, struct cell *c, uint32_t me, const void *at,
                       void *caller)
{
    uint32_t reader;

    if (is_of_other_block(p, c->written) || is_of_other_block(p, c->read) ||
        is_of_other_block(p, c->by_warps[1]))
        tell(BLOCKS, at, me, c->written, caller);
    else if (meets(c->written, me))
        tell(WRITES, at, me, c->written, caller);
    else if ((reader = met_reader(c, me)))
        tell(READ, at, me, reader, caller);
    c->written = me;
}

void races_access(const void *p, size_t bytes, bool writes, void *caller)
{
    const char *at = p;
    uint32_t me;

    if (!kernel || (uintptr_t)p - stacks < stacks_size)
        return;
    me = number_of_segment();
    for (size_t i = 0; i < bytes; i++) {
        uintptr_t address = (uintptr_t)(at + i);
        struct page *page = page_at(address / PAGE);
        struct cell *c = &page->cell[address % PAGE];

        if (writes)
            write_cell(page, c, me, at + i, caller);
        else
            read_cell(page, c, me, at + i, caller);
    }
}

__attribute__((destructor)) static void end_with_races(void)
{
    if (told_count)
        _exit(1);
}

/* ---- the compiler's calls ---- */

#define OF_COMPILER(declaration, ...)                                                              \
    __attribute__((visibility("default"))) void declaration;                                       \
    void declaration                                                                               \
    {                                                                                              \
        __VA_ARGS__;                                                                               \
    }
#define TELL(name, bytes, writes)                                                                  \
    OF_COMPILER(__tsan_##name(const void *p),                                                      \
                races_access(p, bytes, writes, __builtin_return_address(0)))
#define TELL_BOTH(bytes)                                                                           \
    TELL(read##bytes, bytes, false)                                                                \
    TELL(write##bytes, bytes, true)                                                                \
    TELL(unaligned_read##bytes, bytes, false)                                                      \
    TELL(unaligned_write##bytes, bytes, true)
TELL_BOTH(1)
TELL_BOTH(2)
TELL_BOTH(4)
TELL_BOTH(8)
TELL_BOTH(16)
OF_COMPILER(__tsan_read_range(const void *p, size_t n),
            races_access(p, n, false, __builtin_return_address(0)))
OF_COMPILER(__tsan_write_range(const void *p, size_t n),
            races_access(p, n, true, __builtin_return_address(0)))
OF_COMPILER(__tsan_init(void), )
OF_COMPILER(__tsan_func_entry(void *caller), (void)caller)
OF_COMPILER(__tsan_func_exit(void), )
