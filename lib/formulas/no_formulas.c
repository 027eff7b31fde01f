/* A plugin's kernels from formulas, before they are written. */
#include <ctitan/lib/rows.h>

const struct ct_kernel formula_kernels[] = {{0}};
