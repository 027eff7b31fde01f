/*
 * Blocks as fibers. A fiber runs until it must wait: at a barrier, for the others of its block or
 * warp. The scheduler goes round; a round in which nobody got on is a hang.
 *
 * Switching is by hand on x86-64 (a shuffle of 256 threads is as many switches), by ucontext
 * elsewhere.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <ctitan/number.h>

#include <ctitan/lib/cuda/simulator.h>

#include "races.h"

#define MOST 1024 /* threads of a block */
/* Bytes. No power of two: the tops of all stacks would be in the same sets of the caches. */
#define STACK (((size_t)64 << 10) + 576)
#define SHARED ((size_t)228 << 10)
#define COPIES 64   /* of a thread, under way at a time */
#define PRODUCTS 16 /* likewise */

/* A fiber that arrives waits for all others; then the next generation begins. */
struct barrier {
    int arrived, expected;
    unsigned generation;
    int any, result; /* of values brought along, and of the last generation's */
};

/* from NULL: zeros */
struct copy {
    void *to;
    const void *from;
    size_t bytes;
    int group;
};

struct product {
    struct simulated_product of;
    int group;
};

struct fiber {
    struct simulated_index thread;
    int number;
    bool begun, done;
    unsigned shuffles;
    int copy_count, group; /* copies that are under way, in order; the group of the next one */
    int product_count, product_group; /* the same of products */
    uint32_t warp_barriers, segment;  /* so far; its number (races.h) */
#ifdef __x86_64__
    void *stack_pointer;
#else
    ucontext_t context;
#endif
};

struct simulated_index simulated_thread, simulated_block, simulated_blocks, simulated_threads;
unsigned char *simulated_shared;
bool simulated_exact;

static struct fiber fibers[MOST], *current;
static struct copy copies[MOST][COPIES];        /* of each fiber */
static struct product products[MOST][PRODUCTS]; /* likewise */
static struct barrier of_block, of_warp[MOST / 32];
static uint64_t exchange[2][MOST];
static uint32_t exchange_words[2][MOST][SIMULATED_WORDS];
static unsigned char *stacks;
static int stacks_used;
static const struct simulated_launch *running;
static bool progress, backwards;

/* ---- switching ---- */

#ifdef __x86_64__
static void *scheduler;

/* Saves what the calling convention keeps, and goes on where `to` was saved. */
__attribute__((naked, noinline)) static void swap_stacks(void **from __attribute__((unused)),
                                                         void *to __attribute__((unused)))
{
    __asm__("pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
            "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
            "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret\n");
}

static void leave(void)
{
    swap_stacks(&current->stack_pointer, scheduler);
}

static void enter(struct fiber *f)
{
    swap_stacks(&scheduler, f->stack_pointer);
}
#else
static ucontext_t scheduler;

static void leave(void)
{
    swapcontext(&current->context, &scheduler);
}

static void enter(struct fiber *f)
{
    swapcontext(&scheduler, &f->context);
}
#endif

static void barrier_leave(struct barrier *b);
static void fail(const char *what);

static void live(void)
{
    running->kernel(running->arguments);
    if (current->product_count)
        fail("a thread ends before its products are done");
    current->done = true;
    barrier_leave(&of_block);
    barrier_leave(&of_warp[current->number / 32]);
    for (;;)
        leave();
}

static void prepare_fiber(struct fiber *f, unsigned char *stack)
{
#ifdef __x86_64__
    void **top = (void **)(stack + STACK - 56); /* as a call would leave it */

    top[0] = NULL; /* the return address of live, which never returns */
    *--top = (void *)(uintptr_t)live;
    top -= 6;
    memset(top, 0, 6 * sizeof(*top));
    f->stack_pointer = top;
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = stack;
    f->context.uc_stack.ss_size = STACK;
    makecontext(&f->context, live, 0);
#endif
}

/* ---- barriers ---- */

static void complete(struct barrier *b)
{
    if (b->arrived < b->expected || b->expected == 0)
        return;
    b->arrived = 0;
    b->generation++;
    b->result = b->any;
    b->any = 0;
}

static void pass(struct barrier *b)
{
    unsigned generation = b->generation;

    progress = true;
    b->arrived++;
    complete(b);
    while (b->generation == generation)
        leave();
    progress = true; /* one more got on */
}

/* A thread that has ended is not waited for. */
static void barrier_leave(struct barrier *b)
{
    progress = true;
    b->expected--;
    complete(b);
}

static void meet_block(void)
{
    pass(&of_block);
    current->segment = 0;
}

void simulated_barrier(void)
{
    meet_block();
}

int simulated_barrier_or(int value)
{
    of_block.any |= value != 0;
    meet_block();
    return of_block.result;
}

static void meet_warp(void)
{
    pass(&of_warp[current->number / 32]);
}

void simulated_warp_barrier(void)
{
    meet_warp();
    current->warp_barriers++;
    current->segment = 0;
}

/* Two sets of slots, used in turn: nobody is two shuffles ahead of another. */
uint64_t simulated_shuffle_xor(uint64_t value, int mask)
{
    uint64_t *slots = exchange[current->shuffles++ & 1];
    int number = current->number;

    slots[number] = value;
    meet_warp();
    return slots[number ^ mask];
}

uint32_t simulated_ballot(bool value)
{
    uint64_t *slots = exchange[current->shuffles++ & 1];
    int number = current->number;
    uint32_t bits = 0;

    slots[number] = value;
    meet_warp();
    for (int i = 0; i < 32; i++)
        bits |= (uint32_t)(slots[number / 32 * 32 + i] & 1) << i;
    return bits;
}

const uint32_t (*simulated_exchange(const void *mine, size_t bytes))[SIMULATED_WORDS]
{
    uint32_t(*slots)[SIMULATED_WORDS] = exchange_words[current->shuffles++ & 1];
    int number = current->number;

    memcpy(slots[number], mine, bytes);
    meet_warp();
    return (const uint32_t(*)[SIMULATED_WORDS])(slots + number / 32 * 32);
}

/* ---- races ---- */

#ifdef SIMULATED_RACES
struct races_segment races_segment_now(void)
{
    return (struct races_segment){(uint32_t)current->number, of_block.generation,
                                  current->warp_barriers};
}

uint32_t *races_segment_number(void)
{
    return &current->segment;
}
#endif

/* ---- copies ---- */

static void make_copy(const struct copy *c)
{
    races_access(c->to, c->bytes, true, __builtin_return_address(0));
    if (c->from)
        memcpy(c->to, c->from, c->bytes);
    else
        memset(c->to, 0, c->bytes);
}

void simulated_copy_async(void *to, const void *from, size_t bytes)
{
    const struct copy c = {to, from, bytes, current->group};

    races_access(to, bytes, true, __builtin_return_address(0));
    races_access(from, from ? bytes : 0, false, __builtin_return_address(0));
    if (current->copy_count == COPIES)
        fail("too many copies under way");
    if (backwards)
        make_copy(&c);
    else
        copies[current->number][current->copy_count++] = c;
}

void simulated_commit_copies(void)
{
    current->group++;
}

void simulated_await_copies(int pending)
{
    struct copy *c = copies[current->number];
    int done = 0;

    for (; done < current->copy_count && c[done].group < current->group - pending; done++)
        make_copy(&c[done]);
    current->copy_count -= done;
    memmove(c, c + done, (size_t)current->copy_count * sizeof(*c));
}

/* ---- products ---- */

void simulated_begin_product(const struct simulated_product *product)
{
    if (current->product_count == PRODUCTS)
        fail("too many products under way");
    products[current->number][current->product_count++] =
        (struct product){*product, current->product_group};
}

void simulated_commit_products(void)
{
    current->product_group++;
}

void simulated_await_products(int pending)
{
    struct product *p = products[current->number];
    int done = 0;

    for (; done < current->product_count && p[done].group < current->product_group - pending;
         done++)
        p[done].of.multiply(&p[done].of);
    current->product_count -= done;
    memmove(p, p + done, (size_t)current->product_count * sizeof(*p));
}

uint16_t simulated_bfloat16(float x)
{
    return x == x ? ct_f32_to_bf16(x) : 0x7fff;
}

/* ---- launches ---- */

static void fail(const char *what)
{
    fprintf(stderr, "simulator: %s (block %u, %u, %u)\n", what, simulated_block.x,
            simulated_block.y, simulated_block.z);
    abort();
}

static void begin_block(int threads)
{
    of_block = (struct barrier){.expected = threads};
    for (int i = 0; i < threads; i++) {
        struct simulated_index n = simulated_threads;
        unsigned u = (unsigned)i;

        fibers[i] = (struct fiber){.thread = {u % n.x, u / n.x % n.y, u / n.x / n.y}, .number = i};
        if (i % 32 == 0)
            of_warp[i / 32] = (struct barrier){.expected = 0};
        of_warp[i / 32].expected++;
    }
    memset(simulated_shared, 0xff, running->shared);
    races_begin_block();
    stacks_used = 0;
}

/* A turn of the current fiber. The stack of one that ends in its first turn is the next one's. */
static void take_turn(void)
{
    bool first = !current->begun;

    if (first)
        prepare_fiber(current, stacks + (size_t)stacks_used++ * STACK);
    current->begun = true;
    simulated_thread = current->thread;
    enter(current);
    stacks_used -= first && current->done;
}

static void run_block(int threads)
{
    int left = threads;

    begin_block(threads);
    while (left) {
        progress = false;
        for (int n = 0; n < threads; n++) {
            current = &fibers[backwards ? threads - 1 - n : n];
            if (current->done)
                continue;
            take_turn();
            left -= current->done;
        }
        if (!progress)
            fail("a thread waits at a barrier that others do not reach");
    }
}

static void start(void)
{
    if (stacks)
        return;
    stacks = mmap(NULL, MOST * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    simulated_shared = aligned_alloc(4096, SHARED);
    if (stacks == MAP_FAILED || !simulated_shared)
        fail("no memory");
    races_start(stacks, MOST * STACK, simulated_shared, SHARED);
}

void simulated_run(const struct simulated_launch *l)
{
    const char *order = getenv("SIMULATOR_ORDER"), *sums = getenv("SIMULATOR_SUMS");
    unsigned threads = l->block.x * l->block.y * l->block.z;
    uint64_t blocks = (uint64_t)l->grid.x * l->grid.y * l->grid.z;

    backwards = order && !strcmp(order, "backwards");
    simulated_exact = sums && !strcmp(sums, "exact");
    start();
    if (!threads || threads > MOST || l->shared > SHARED || l->grid.y > 65535 || l->grid.z > 65535)
        fail("a launch that no device takes");
    running = l;
    simulated_threads = l->block;
    simulated_blocks = l->grid;
    races_begin_launch(l->kernel);
    for (uint64_t n = 0; n < blocks; n++) {
        uint64_t at = backwards ? blocks - 1 - n : n, rows = at / l->grid.x;

        simulated_block = (struct simulated_index){
            (unsigned)(at % l->grid.x), (unsigned)(rows % l->grid.y), (unsigned)(rows / l->grid.y)};
        run_block((int)threads);
    }
    races_end_launch();
}
