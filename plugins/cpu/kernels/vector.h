/* The vectors of this build's instruction set. */
#ifndef CPU_KERNELS_VECTOR_H
#define CPU_KERNELS_VECTOR_H

#include <ctitan/lib/cpu.h>

#include <ctitan/lib/vector.h>

#endif
