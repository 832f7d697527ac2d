/*
 * A oneDNN primitive ready to run: its operands in the caller's memory, and where the primitive
 * wants another format than the caller has, or the output is to be added to, a copy of them in the
 * workspace. Everything is made beforehand; running only sets addresses.
 *
 * The library's descriptors are values; its primitives and memories belong to the program.
 */
#ifndef FSDPD_KERNELS_CPU_PROGRAM_H
#define FSDPD_KERNELS_CPU_PROGRAM_H

#include <oneapi/dnnl/dnnl.h>

#include "kernels/kernel.h"

struct program;

enum { PROGRAM_OUTPUT = 16 }; /* added to the number of an output */

/* The error of a call into oneDNN: INTERNAL, naming the op. */
status_t program_error(const struct kernel *kernel, const char *what, dnnl_status_t error);

#define TRY_DNNL(kernel, what, call)                                                               \
    do {                                                                                           \
        dnnl_status_t error_ = (call);                                                             \
        if (error_ != dnnl_success) return program_error(kernel, what, error_);                    \
    } while (0)

/* The engine that all primitives share. */
status_t program_engine(const struct kernel *kernel, dnnl_engine_t *engine) FSDPD_MUST_USE;

/* Attributes of every primitive: scratch memory from us; `sum`: the result is added to the output.
 */
status_t program_attributes(const struct kernel *kernel, bool sum,
                            dnnl_primitive_attr_t *attributes) FSDPD_MUST_USE;

/* A program that runs `primitive_desc`, which it takes even if it fails. It becomes the kernel's
 * state, and the kernel frees it. */
status_t program_new(struct kernel *kernel, dnnl_primitive_desc_t primitive_desc) FSDPD_MUST_USE;

/*
 * Binds the primitive's `argument` (DNNL_ARG_SRC, ...) to an operand of the op: an input's number,
 * or PROGRAM_OUTPUT + an output's. `format` is how the caller's memory looks. `add`: the output is
 * added to what is there.
 */
status_t program_bind(struct kernel *kernel, int argument, int operand,
                      const dnnl_memory_desc_t *format, bool add) FSDPD_MUST_USE;

/*
 * The output that was bound last passes a ReLU of ours before it is added or changes its format.
 * The library's own, fused into the primitive, turns what is not a number into 0: a network could
 * go on for hours with parameters that are none, and its loss would not show it.
 */
void program_follow_with_relu(struct kernel *kernel);

/* When all operands are bound: sets the kernel's sizes and its run function. */
status_t program_finish(struct kernel *kernel) FSDPD_MUST_USE;

/* The kernel's run function, for those that wrap it. */
status_t program_run(const struct kernel *kernel, const struct kernel_call *call) FSDPD_MUST_USE;

#endif
