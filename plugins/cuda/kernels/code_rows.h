/* Sizes of steps in which warps make codes of rows (experts_float8.cu); the same for C and CUDA. */
#ifndef GPU_KERNELS_CODE_ROWS_H
#define GPU_KERNELS_CODE_ROWS_H

#define GPU_ROW_VECTOR 8                      /* numbers of a thread */
#define GPU_ROW_STEP (32 * GPU_ROW_VECTOR)    /* numbers that a warp takes at once */
#define GPU_ROW_HELD 8                        /* such steps of a whole line stay in registers */
#define GPU_ROW (GPU_ROW_HELD * GPU_ROW_STEP) /* numbers of a longer line are read twice */

#endif
