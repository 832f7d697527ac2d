/*
 * Internals of the CPU library: one preparation per family of ops. Each sets the kernel's run
 * function and sizes. The reference library runs operands for which a family has no fast code
 * (different layouts).
 */
#ifndef FSDPD_KERNELS_CPU_CPU_H
#define FSDPD_KERNELS_CPU_CPU_H

#include "kernels/cpu/loops.h"
#include "kernels/kernel.h"

typedef status_t cpu_prepare_function(struct kernel *kernel);

cpu_prepare_function cpu_prepare_conv;
cpu_prepare_function cpu_prepare_linear, cpu_prepare_linear_rows, cpu_prepare_matmul;
cpu_prepare_function cpu_prepare_recurrent;
cpu_prepare_function cpu_prepare_element;
cpu_prepare_function cpu_prepare_pool;
cpu_prepare_function cpu_prepare_dropout;
cpu_prepare_function cpu_prepare_reshape;
cpu_prepare_function cpu_prepare_loss;
cpu_prepare_function cpu_prepare_contrast;
cpu_prepare_function cpu_prepare_preference;
cpu_prepare_function cpu_prepare_tally;
cpu_prepare_function cpu_prepare_element_loss;
cpu_prepare_function cpu_prepare_avg_pool;
cpu_prepare_function cpu_prepare_group_norm;
cpu_prepare_function cpu_prepare_batch_norm;
cpu_prepare_function cpu_prepare_shape;
cpu_prepare_function cpu_prepare_cast;
cpu_prepare_function cpu_prepare_rope;
cpu_prepare_function cpu_prepare_attention;
cpu_prepare_function cpu_prepare_attention_cached;
cpu_prepare_function cpu_prepare_head;
cpu_prepare_function cpu_prepare_sum_leading;
cpu_prepare_function cpu_prepare_embedding;
cpu_prepare_function cpu_prepare_norm;
cpu_prepare_function cpu_prepare_softmax;
cpu_prepare_function cpu_prepare_slice;

/* For cases without fast code. On bf16 returns UNIMPLEMENTED, so that f32 copies are used. */
cpu_prepare_function cpu_leave_to_reference;

/* Whether elements are in plain order: also true for channels last with one channel or one
 * pixel. */
bool cpu_is_plain(const struct tensor_type *type);

/* Whether two tensors of the same shape have their elements in the same order. */
bool cpu_same_order(const struct tensor_type *a, const struct tensor_type *b);

/* Runs an element-wise op on tensors of the same order, for ops that end with one. */
void cpu_run_element(const struct op_desc *desc, int threads, const struct kernel_call *call);

/* With fewer elements, waking a thread does not pay. */
enum { CPU_GRAIN = 16 * 1024 };

#endif
