/* See panel_pack.h. */
#include "panel_pack.h"
#include "cpu.h"
#include "products/unit.h"

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Pack a block whose first element is row `row` of all weights and element `column`: multiples of
   whole panels and steps. */
static void pack_block(const struct cpu_packed_to *to, const struct cpu_packed_from *block,
                       int64_t row, int64_t column)
{
    const struct cpu_lines *l = &to->lines;
    bool forward = to->use == CPU_FORWARD;
    int64_t of_k = forward ? column : row, of_n = forward ? row : column;
    char *at = to->at + of_k / cpu_lines_depth(l) * l->step + of_n / l->columns * l->panel;

    if (forward)
        cpu_panels()->pack_columns(l, block, at);
    else
        cpu_panels()->pack_rows(l, block, at);
}

struct packing {
    const struct cpu_packed_to *to;
    const struct cpu_packed_from *weight;
    int places, weights;
};

/* A thread's blocks of a weight that begins at row `first`. */
static void pack_weight(const struct packing *p, const struct cpu_packed_from *w, int64_t first,
                        int thread, int threads)
{
    int64_t size = (int64_t)ct_dtype_size(w->dtype),
            across = (w->columns + CPU_PACK_COLUMNS - 1) / CPU_PACK_COLUMNS,
            down = (w->rows + CPU_PACK_ROWS - 1) / CPU_PACK_ROWS;
    struct cpu_range mine = cpu_share(across * down, 1, thread, threads);

    for (int64_t i = mine.begin; i < mine.end; i++) {
        int64_t row = i / across * CPU_PACK_ROWS, column = i % across * CPU_PACK_COLUMNS;
        struct cpu_packed_from block = {
            w->dtype, (const char *)w->at + (row * w->stride + column) * size, w->stride,
            least(CPU_PACK_ROWS, w->rows - row), least(CPU_PACK_COLUMNS, w->columns - column)};

        for (int k = 0; k < p->places; k++)
            pack_block(&p->to[k], &block, first + row, column);
    }
}

static void pack_share(void *context, int thread, int threads)
{
    const struct packing *p = context;
    int64_t first = 0;

    for (int i = 0; i < p->weights; first += p->weight[i++].rows)
        pack_weight(p, &p->weight[i], first, thread, threads);
}

void cpu_pack_stack(const struct cpu_packed_to *to, int places,
                    const struct cpu_packed_from *weight, int weights)
{
    cpu_parallel(pack_share, &(struct packing){to, weight, places, weights});
}
