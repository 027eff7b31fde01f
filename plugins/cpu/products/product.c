/* See product.h. */
#include "strip.h"

static bool reads(const struct cpu_unit *unit, enum ct_dtype dtype)
{
    return dtype == unit->dtype || (unit->dtype == CT_F32 && dtype == CT_BF16);
}

bool cpu_product_takes(const struct cpu_unit *unit, const struct cpu_gemm_spec *s)
{
    if (!s->m || !s->n || !s->k || !reads(unit, s->a_type))
        return false;
    if (s->b_row == 0)
        return s->a_col == 1 && s->b_type == unit->dtype;
    return s->a_row == 1 && s->b_col == 1 && s->c_type == CT_F32 && reads(unit, s->b_type);
}

bool cpu_product_packs(const struct cpu_unit *unit, const struct cpu_gemm_spec *s)
{
    bool gradient = s->a_row == 1; /* of a weight, which has one row if a_col is 1, too */

    return s->m && s->n && s->k && s->a_col == 1 && !gradient && s->a_type == s->b_type &&
           s->b_row && !cpu_product_takes(unit, s);
}

static struct cpu_product begin_plan(const struct cpu_unit *unit, const struct cpu_gemm_spec *spec,
                                     int threads)
{
    return (struct cpu_product){
        .unit = unit, .spec = *spec, .threads = threads, .gradient = spec->b_row != 0};
}

void cpu_product_plan(const struct cpu_unit *unit, const struct cpu_gemm_spec *spec, int threads,
                      struct cpu_product *p)
{
    *p = begin_plan(unit, spec, threads);
    if (p->gradient)
        cpu_plan_gradients(p, &(struct cpu_gradient){.spec = *spec}, 1);
    else
        cpu_plan_rows(p);
}

size_t cpu_product_workspace(const struct cpu_product *p)
{
    return CPU_LINE_BYTES +
           (p->gradient ? cpu_gradients_memory(p, &(struct cpu_gradient){.spec = p->spec}, 1)
                        : p->lane_bytes * (size_t)p->threads + cpu_tasks_bytes(p->threads));
}

void cpu_product_run(const struct cpu_product *p, const void *a, const void *b, void *c,
                     void *workspace)
{
    if (p->gradient)
        cpu_run_gradients(p, &(struct cpu_gradient){p->spec, a, c}, 1, b,
                          cpu_first_line(workspace));
    else
        cpu_run_rows(&(struct call){p, a, b, c}, cpu_first_line(workspace));
}

/* ---- gradients of one x ---- */

static struct cpu_product plan_gradients(const struct cpu_unit *unit, int threads,
                                         const struct cpu_gradient *each, int count)
{
    struct cpu_product p = begin_plan(unit, &each->spec, threads);

    cpu_plan_gradients(&p, each, count);
    return p;
}

size_t cpu_gradients_workspace(const struct cpu_unit *unit, int threads,
                               const struct cpu_gradient *each, int count)
{
    struct cpu_product p = plan_gradients(unit, threads, each, count);

    return CPU_LINE_BYTES + cpu_gradients_memory(&p, each, count);
}

void cpu_gradients_run(const struct cpu_unit *unit, int threads, const struct cpu_gradient *each,
                       int count, const void *b, void *workspace)
{
    struct cpu_product p = plan_gradients(unit, threads, each, count);

    cpu_run_gradients(&p, each, count, b, cpu_first_line(workspace));
}

/* ---- packed weights ---- */

size_t cpu_product_packed_bytes(enum cpu_use use, int64_t n, int64_t k, enum ct_dtype dtype)
{
    int64_t columns = use == CPU_FORWARD ? n : k, depth = use == CPU_FORWARD ? k : n;

    return (size_t)(panels_of(columns) * panel_bytes(dtype, depth));
}

struct cpu_lines cpu_product_lines(enum cpu_use use, int64_t n, int64_t k, enum ct_dtype dtype)
{
    return cpu_panel_lines(dtype, panel_bytes(dtype, use == CPU_FORWARD ? k : n));
}
