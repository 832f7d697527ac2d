/*
 * The inside of a prepared kernel: a description and a function that runs it. A library fills one
 * in; kernels.c owns it. Private to kernels/.
 */
#ifndef FSDPD_KERNELS_KERNEL_H
#define FSDPD_KERNELS_KERNEL_H

#include "kernels/kernels.h"

struct kernel {
    struct op_desc desc;
    status_t (*run)(const struct kernel *kernel, const struct kernel_call *call);
    void (*release)(void *state); /* frees `state`; NULL if there is none */
    void *state;                  /* belongs to the library */
    uint64_t workspace_bytes, held_bytes;
    int threads;
};

/* Both set `run`, and all else it needs. The kernel's desc is checked and its threads are set. */
status_t reference_prepare(struct kernel *kernel) FSDPD_MUST_USE;
status_t cpu_prepare(struct kernel *kernel) FSDPD_MUST_USE;

/* Whether any operand is bf16. */
bool kernel_has_bf16(const struct op_desc *desc);

/* Prepares an op on bf16 from the library's f32 kernel and conversions. */
status_t mixed_prepare(enum kernel_library library, struct kernel *kernel) FSDPD_MUST_USE;

/* Whether cpu_prepare runs this op on bf16 directly, without f32 copies. */
bool cpu_runs_bf16(const struct op_desc *desc);

/* The last argument of kernels_set_threads. */
int kernels_threads(void);

/* Before the calling thread runs any kernel: as many threads, which a signal does not harm. */
void kernels_use_threads(int count);

/* The name of the kernel's op, for errors. */
static inline const char *kernel_name(const struct kernel *kernel)
{
    return op_info_get(kernel->desc.kind)->name;
}

/* The length of a row: a tensor's last dimension. */
static inline int64_t kernel_columns(const struct tensor_type *type)
{
    return type->dims[type->dim_count - 1];
}

static inline int64_t kernel_rows(const struct tensor_type *type)
{
    return tensor_element_count(type) / kernel_columns(type);
}

#endif
