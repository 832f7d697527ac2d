/*
 * The CPU library's insides: one preparation per family of ops. Each sets the kernel's run function
 * and sizes; what a family does not make fast (operands in different layouts) it leaves to the
 * reference library.
 */
#ifndef FSDPD_KERNELS_CPU_CPU_H
#define FSDPD_KERNELS_CPU_CPU_H

#include "kernels/cpu/loops.h"
#include "kernels/kernel.h"

typedef status_t cpu_prepare_function(struct kernel *kernel);

cpu_prepare_function cpu_prepare_conv;
cpu_prepare_function cpu_prepare_linear;
cpu_prepare_function cpu_prepare_element;
cpu_prepare_function cpu_prepare_pool;
cpu_prepare_function cpu_prepare_dropout;
cpu_prepare_function cpu_prepare_reshape;
cpu_prepare_function cpu_prepare_loss;
cpu_prepare_function cpu_prepare_cast;
cpu_prepare_function cpu_prepare_rope;
cpu_prepare_function cpu_prepare_attention;
cpu_prepare_function cpu_prepare_head;
cpu_prepare_function cpu_prepare_sum_leading;
cpu_prepare_function cpu_prepare_embedding;
cpu_prepare_function cpu_prepare_norm;
cpu_prepare_function cpu_prepare_softmax;

/* For what a family does not make fast; on bf16 it has to go by way of f32: UNIMPLEMENTED. */
cpu_prepare_function cpu_leave_to_reference;

/* Whether elements lie in plain order: also true of channels last with one channel or one pixel. */
bool cpu_is_plain(const struct tensor_type *type);

/* Whether two tensors of the same shape have their elements in the same order. */
bool cpu_same_order(const struct tensor_type *a, const struct tensor_type *b);

/* Runs an element-wise op, on tensors of the same order: for those that end in one. */
void cpu_run_element(const struct op_desc *desc, int threads, const struct kernel_call *call);

/* A thread is not worth waking for fewer elements. */
enum { CPU_GRAIN = 16 * 1024 };

#endif
