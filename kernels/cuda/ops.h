/* The run functions of struct cuda_op, by source file. Internal to kernels/cuda. */
#ifndef FSDPD_KERNELS_CUDA_OPS_H
#define FSDPD_KERNELS_CUDA_OPS_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
namespace fsdpd {
extern "C" {
#endif

typedef int cuda_run(const struct cuda_op *op, const struct kernel_call *call,
                     const struct cuda_launch *launch);

/* Defines the run function of an op whose input of that number is f32 or bf16. */
#define RUN_BY_TYPE(name, run, input)                                                              \
    int name(const struct cuda_op *op, const struct kernel_call *call,                             \
             const struct cuda_launch *launch)                                                     \
    {                                                                                              \
        return op->desc.inputs[input].dtype == DTYPE_BF16 ? run<bf16>(&op->desc, call, launch)     \
                                                          : run<float>(&op->desc, call, launch);   \
    }

/* Defines the run function of a loss: run(op, call, launch, weights), with those that are `member`
 * of the attributes, or with none. */
#define RUN_WEIGHTED(name, run, member)                                                            \
    int name(const struct cuda_op *op, const struct kernel_call *call,                             \
             const struct cuda_launch *launch)                                                     \
    {                                                                                              \
        const struct op_weights *weights = &op->desc.attrs.member;                                 \
        return weights->values == nullptr ? run(op, call, launch, no_weights())                    \
                                          : run(op, call, launch, weights_of(weights));            \
    }

cuda_run cuda_run_element; /* element.cu */
cuda_run cuda_run_dropout, cuda_run_cast, cuda_run_tokens;
cuda_run cuda_run_norm, cuda_run_norm_backward; /* norm.cu */
cuda_run cuda_run_sum_leading;                  /* reduce.cu */
cuda_run cuda_run_softmax, cuda_run_softmax_backward, cuda_run_nll_loss, cuda_run_nll_loss_backward,
    cuda_run_cross_entropy, cuda_run_cross_entropy_backward,
    cuda_run_count_correct;                                     /* softmax.cu */
cuda_run cuda_run_element_loss, cuda_run_element_loss_backward; /* element_loss.cu */
cuda_run cuda_run_counted, cuda_run_contrast, cuda_run_contrast_backward; /* contrast.cu */
cuda_run cuda_run_sequence_log_probs, cuda_run_sequence_log_probs_backward,
    cuda_run_preference_loss;                                   /* preference.cu */
cuda_run cuda_run_tally;                                        /* tally.cu */
cuda_run cuda_run_batch_norm;                                   /* batch_norm.cu */
cuda_run cuda_run_avg_pool, cuda_run_group_norm;                /* average.cu */
cuda_run cuda_run_shape;                                        /* shape.cu */
cuda_run cuda_run_embedding, cuda_run_embedding_backward;       /* embedding.cu */
cuda_run cuda_run_recurrent, cuda_run_recurrent_backward;       /* recurrent.cu */
cuda_run cuda_run_rope;                                         /* rope.cu */
cuda_run cuda_run_pool;                                         /* pool.cu */
cuda_run cuda_run_conv;                                         /* conv.cu */
cuda_run cuda_run_attention, cuda_run_attention_backward; /* attention.cu, attention_backward.cu */

uint64_t cuda_norm_backward_bytes(const struct op_desc *desc);
uint64_t cuda_batch_norm_bytes(const struct op_desc *desc);
uint64_t cuda_sum_leading_bytes(const struct op_desc *desc);
uint64_t cuda_row_bytes(const struct op_desc *desc); /* 4 for each row of the first input */
uint64_t cuda_recurrent_bytes(const struct op_desc *desc);
uint64_t cuda_element_loss_bytes(const struct op_desc *desc);
uint64_t cuda_embedding_backward_bytes(const struct op_desc *desc);
uint64_t cuda_attention_bytes(const struct op_desc *desc);

#ifdef __cplusplus
}
}
#endif

#endif
