/*
 * A oneDNN primitive ready to run. Its operands are in the caller's memory. Where the primitive
 * needs another format, or must add to the output, a copy is in the workspace. Everything is made
 * beforehand; a run only sets addresses.
 *
 * The library's descriptors are values; its primitives and memories belong to the program.
 */
#ifndef FSDPD_KERNELS_CPU_PROGRAM_H
#define FSDPD_KERNELS_CPU_PROGRAM_H

#include <oneapi/dnnl/dnnl.h>

#include "kernels/kernel.h"

struct cpu_program;

enum { PROGRAM_OUTPUT = 16 }; /* added to an output's number */

/* The error of a call into oneDNN: INTERNAL, naming the op. */
status_t program_error(const struct kernel *kernel, const char *what, dnnl_status_t error);

#define TRY_DNNL(kernel, what, call)                                                               \
    do {                                                                                           \
        dnnl_status_t error_ = (call);                                                             \
        if (error_ != dnnl_success) return program_error(kernel, what, error_);                    \
    } while (0)

/* The engine that all primitives share. */
status_t program_engine(const struct kernel *kernel, dnnl_engine_t *engine) FSDPD_MUST_USE;

/* Attributes of every primitive: we provide scratch memory; `sum` adds the result to the output. */
status_t program_attributes(const struct kernel *kernel, bool sum,
                            dnnl_primitive_attr_t *attributes) FSDPD_MUST_USE;

/*
 * Describes a product c = a b, or c += a b, of matrices or stacks of them with the formats of a, b
 * and c; `bias` may be NULL. The library's first choice reads a matrix b in f32 in place if its
 * rows are contiguous. Where those lie multiples of 4 KiB apart, as GPT-2's 3,072 floats, they
 * share a few lines of the nearest cache, and the product takes three times as long as by the
 * library's gemm, which packs panels, is as fast elsewhere, and is taken for all of these; but not
 * for a sum with a bias, for which it would need a copy of c. The gemm allocates its panels during
 * the run: about 5 MB a thread in f32, which no plan has.
 */
status_t program_matmul(const struct kernel *kernel, const dnnl_memory_desc_t formats[3],
                        const dnnl_memory_desc_t *bias, bool sum,
                        dnnl_primitive_desc_t *made) FSDPD_MUST_USE;

/* Makes a program that runs `primitive_desc`, and takes ownership of it even on failure. The
 * program becomes the kernel's state, and the kernel frees it. */
status_t program_new(struct kernel *kernel, dnnl_primitive_desc_t primitive_desc) FSDPD_MUST_USE;

/*
 * Binds the primitive's `argument` (DNNL_ARG_SRC, ...) to an operand of the op: an input's number,
 * or PROGRAM_OUTPUT + an output's. `format` describes the caller's memory. `add` adds to the
 * output.
 */
status_t program_bind(struct kernel *kernel, int argument, int operand,
                      const dnnl_memory_desc_t *format, bool add) FSDPD_MUST_USE;

/*
 * Applies our own ReLU to the output bound last, before it is added or reordered. The ReLU that the
 * library fuses into a primitive turns NaN into 0: a network could train for hours with parameters
 * that are NaN, and its loss would not show it.
 */
void program_follow_with_relu(struct kernel *kernel);

/* Call after binding all operands. Sets the kernel's sizes and its run function. */
status_t program_finish(struct kernel *kernel) FSDPD_MUST_USE;

/* The kernel's run function, for kernels that wrap it. */
status_t program_run(const struct kernel *kernel, const struct kernel_call *call) FSDPD_MUST_USE;

#endif
