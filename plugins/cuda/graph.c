/*
 * Capturing steps, one graph for each program. Programs are identified by their first launch.
 */
#include <stdlib.h>

#include <ctitan/log.h>

#include "graph.h"

#define WARM_UP 2

enum mode { PLAIN, UNDECIDED, CAPTURING, REPLAYING };

struct program {
    struct program *next;
    const struct ct_launch *first;
    int steps; /* so far; -1: it cannot be captured */
    CUgraphExec exec;
};

struct gpu_graph {
    enum mode mode;
    struct program *programs, *current;
    bool timed;       /* this step */
    bool warned;      /* that there is no memory for a program */
    CUgraphExec once; /* of the last step that was timed */
    CUevent fork, join;
};

struct gpu_graph *gpu_graph_create(void)
{
    return calloc(1, sizeof(struct gpu_graph));
}

static void drop_timed(struct gpu_graph *g)
{
    if (g->once)
        gpu_driver.cuGraphExecDestroy(g->once);
    g->once = NULL;
}

static void drop_programs(struct gpu_graph *g)
{
    drop_timed(g);
    for (struct program *p = g->programs, *next; p; p = next) {
        next = p->next;
        if (p->exec)
            gpu_driver.cuGraphExecDestroy(p->exec);
        free(p);
    }
    g->programs = g->current = NULL;
    g->mode = PLAIN;
}

void gpu_graph_forget(struct gpu *gpu)
{
    if (gpu->graph)
        drop_programs(gpu->graph);
}

void gpu_graph_destroy(struct gpu_graph *g)
{
    if (!g)
        return;
    drop_programs(g);
    if (g->fork)
        gpu_driver.cuEventDestroy(g->fork);
    if (g->join)
        gpu_driver.cuEventDestroy(g->join);
    free(g);
}

bool gpu_graph_replays(const struct gpu *gpu)
{
    return gpu->graph && gpu->graph->mode == REPLAYING;
}

bool gpu_graph_is_plain(const struct gpu *gpu)
{
    return !gpu->graph || gpu->graph->mode == PLAIN || gpu->graph->mode == UNDECIDED;
}

void gpu_graph_begin(struct gpu *gpu)
{
    if (!gpu->graph)
        return;
    drop_timed(gpu->graph);
    gpu->graph->mode = UNDECIDED;
    gpu->graph->timed = false;
}

void gpu_graph_time(struct gpu *gpu)
{
    if (gpu->graph)
        gpu->graph->timed = true;
}

bool gpu_graph_is_undecided(const struct gpu *gpu)
{
    return gpu->graph && gpu->graph->mode == UNDECIDED;
}

/* NULL: no memory. */
static struct program *program_of(struct gpu_graph *g, const struct ct_launch *first)
{
    struct program *p = g->programs;

    while (p && p->first != first)
        p = p->next;
    if (p || !(p = calloc(1, sizeof(*p))))
        return p;
    *p = (struct program){.next = g->programs, .first = first};
    g->programs = p;
    return p;
}

/* All other streams wait for stream 0, which makes them part of the capture. */
static int begin_capture(struct gpu *gpu)
{
    struct gpu_graph *g = gpu->graph;
    int rc = 0;

    if (!g->fork)
        rc = gpu_check(gpu_driver.cuEventCreate(&g->fork, CU_EVENT_DISABLE_TIMING), "an event");
    if (rc == 0 && !g->join)
        rc = gpu_check(gpu_driver.cuEventCreate(&g->join, CU_EVENT_DISABLE_TIMING), "an event");
    if (rc == 0)
        rc = gpu_check(
            gpu_driver.cuStreamBeginCapture(gpu->stream[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
            "capturing the step");
    if (rc == 0)
        rc = gpu_check(gpu_driver.cuEventRecord(g->fork, gpu->stream[0]), "capturing the step");
    for (int i = 1; rc == 0 && i < CT_STREAMS; i++)
        rc = gpu_check(gpu_driver.cuStreamWaitEvent(gpu->stream[i], g->fork, 0),
                       "capturing the step");
    g->mode = CAPTURING;
    return rc;
}

static int decide(struct gpu *gpu, const struct ct_launch *launch)
{
    struct gpu_graph *g = gpu->graph;

    g->mode = PLAIN;
    g->current = program_of(g, launch);
    if (!g->current && !g->warned)
        ct_warn("[cuda] graph: the step is not captured: no memory");
    g->warned |= !g->current;
    if (!g->current || g->current->steps < 0)
        return 0;
    if (g->current->exec && !g->timed)
        g->mode = REPLAYING;
    else if (g->current->exec || g->current->steps++ >= WARM_UP)
        return begin_capture(gpu);
    return 0;
}

int gpu_graph_enqueue(struct gpu *gpu, const struct ct_launch *launch)
{
    int rc = 0;

    if (gpu_graph_is_undecided(gpu)) {
        rc = decide(gpu, launch);
        if (rc == 0 && gpu->graph->timed)
            rc = gpu_stamp_waiting(gpu);
    }
    return rc < 0 ? rc : gpu_graph_replays(gpu);
}

/* The graph that this step is launched as. */
static CUgraphExec *exec_of(struct gpu_graph *g)
{
    return g->timed ? &g->once : &g->current->exec;
}

static int end_capture(struct gpu *gpu)
{
    struct gpu_graph *g = gpu->graph;
    CUgraph graph = NULL;
    int rc = 0;

    for (int i = 1; rc == 0 && i < CT_STREAMS; i++) {
        rc = gpu_check(gpu_driver.cuEventRecord(g->join, gpu->stream[i]), "capturing the step");
        if (rc == 0)
            rc = gpu_check(gpu_driver.cuStreamWaitEvent(gpu->stream[0], g->join, 0),
                           "capturing the step");
    }
    if (rc == 0)
        rc = gpu_check(gpu_driver.cuStreamEndCapture(gpu->stream[0], &graph), "capturing the step");
    if (rc == 0)
        rc =
            gpu_check(gpu_driver.cuGraphInstantiate(exec_of(g), graph, 0), "the graph of the step");
    if (graph)
        gpu_driver.cuGraphDestroy(graph);
    return rc;
}

int gpu_graph_end(struct gpu *gpu)
{
    struct gpu_graph *g = gpu->graph;
    enum mode mode = g ? g->mode : PLAIN;
    int rc = 0;

    if (g)
        g->mode = PLAIN;
    if (mode == CAPTURING)
        rc = end_capture(gpu);
    if (rc == 0 && (mode == CAPTURING || mode == REPLAYING))
        rc = gpu_check(gpu_driver.cuGraphLaunch(*exec_of(g), gpu->stream[0]),
                       "the graph of the step");
    if (rc < 0)
        return ct_context(rc, "[cuda] graph = true failed, although the step ran without it");
    return rc;
}

void gpu_graph_refuse(struct gpu *gpu, const char *why)
{
    struct gpu_graph *g = gpu->graph;

    if (!g || !g->current || g->current->steps < 0)
        return;
    g->current->steps = -1;
    ct_warn("[cuda] graph: the step is not captured: %s", why);
}
