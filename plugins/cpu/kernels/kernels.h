/*
 * The vector kernels: one list, from which declarations and the table of struct ct_kernel follow.
 *
 * Each op has up to three functions per instruction set, in the source of its noun: accepts, run
 * and, where it keeps state or needs workspace, prepare. An op in the list is offered once per
 * instruction set, best first; those that the process may not use accept nothing.
 */
#ifndef CPU_KERNELS_H
#define CPU_KERNELS_H

#include <ctitan/lib/cpu.h>

#define CPU_STRIDED CT_KERNEL_STRIDED
#define CPU_GRADIENT (CT_KERNEL_STRIDED | CT_KERNEL_ACCUMULATES)

/* As CPU_KERNELS of the kit takes it. */
#define CPU_VECTOR_KERNELS(P, R, isa)                                                              \
    P(attention, CPU_STRIDED, isa)                                                                 \
    P(attention_grad, CPU_STRIDED, isa)                                                            \
    R(attention_merge, CPU_STRIDED, isa)                                                           \
    R(attention_sink, CPU_STRIDED, isa)                                                            \
    P(attention_sink_grad, CPU_GRADIENT, isa)                                                      \
    P(rms_norm, CPU_STRIDED, isa)                                                                  \
    P(add_rms_norm, CPU_STRIDED, isa)                                                              \
    P(rms_norm_grad, CPU_GRADIENT, isa)                                                            \
    P(rope, CPU_STRIDED, isa)                                                                      \
    R(temper, CPU_STRIDED, isa)                                                                    \
    R(split, CPU_STRIDED, isa)                                                                     \
    R(split_grad, CPU_STRIDED, isa)                                                                \
    R(expand_latent, CPU_STRIDED, isa)                                                             \
    R(expand_latent_grad, CPU_STRIDED, isa)                                                        \
    R(copy_heads, 0, isa)                                                                          \
    R(copy_heads_grad, 0, isa)                                                                     \
    P(causal_conv, CPU_STRIDED, isa)                                                               \
    P(causal_conv_grad, CPU_GRADIENT, isa)                                                         \
    R(causal_conv_carry, CPU_STRIDED, isa)                                                         \
    P(causal_conv_dstate, CPU_STRIDED, isa)                                                        \
    P(state_scan, CPU_STRIDED, isa)                                                                \
    P(state_scan_grad, CPU_STRIDED, isa)                                                           \
    P(state_scan_carry, CPU_STRIDED, isa)                                                          \
    P(state_scan_dstate, CPU_STRIDED, isa)                                                         \
    P(gated_delta, CPU_STRIDED, isa)                                                               \
    P(gated_delta_grad, CPU_GRADIENT, isa)                                                         \
    P(gated_delta_carry, CPU_STRIDED, isa)                                                         \
    P(gated_delta_dstate, CPU_STRIDED, isa)                                                        \
    P(fold_states, CPU_STRIDED, isa)                                                               \
    R(document_ends, CPU_STRIDED, isa)                                                             \
    R(embedding, CPU_STRIDED, isa)                                                                 \
    P(embedding_grad, CPU_GRADIENT, isa)                                                           \
    R(expert_bias, 0, isa)                                                                         \
    R(expert_bias_dweights, 0, isa)                                                                \
    P(expert_bias_dbias, CT_KERNEL_ACCUMULATES, isa)                                               \
    P(layer_norm, CPU_STRIDED, isa)                                                                \
    P(layer_norm_grad, CPU_GRADIENT, isa)                                                          \
    R(float8_amax, CPU_STRIDED, isa)                                                               \
    R(float8_scale, CPU_STRIDED, isa)                                                              \
    R(float8_quantise, CPU_STRIDED, isa)                                                           \
    P(top_k, CPU_STRIDED, isa)                                                                     \
    P(top_k_grad, CPU_STRIDED, isa)                                                                \
    P(balanced_top_k_grad, CPU_STRIDED, isa)                                                       \
    R(add, 0, isa)                                                                                 \
    R(cast, CPU_STRIDED, isa)                                                                      \
    R(reciprocal, 0, isa)

/* The same in bfloat16, on a unit: cpu_NAME_bf16_prepare and so on, for op NAME. */
#define CPU_UNIT_KERNELS(P, isa)                                                                   \
    P(attention, CPU_STRIDED, isa)                                                                 \
    P(attention_grad, CPU_STRIDED, isa)

CPU_LIST_FOR_EACH_ISA(CPU_VECTOR_KERNELS, CPU_DECLARE_PREPARE, CPU_DECLARE_RUN)

#define CPU_DECLARE_UNIT(op, flags, isa) CPU_DECLARE_PREPARE(op##_bf16, flags, isa)

#define CPU_DECLARE_UNITS(isa) CPU_UNIT_KERNELS(CPU_DECLARE_UNIT, isa)
CPU_FOR_EACH_ISA(CPU_DECLARE_UNITS)

/* Ended by {0}. */
extern const struct ct_kernel cpu_pointwise_kernels[];

#endif
