/* The choices of jobs; see job_internal.h. */
#include "worker/job_internal.h"

#include <stdlib.h>

#include "setup/job.h"

#define VALUE(TYPE, type, NAME, value)                                                             \
    {                                                                                              \
        &fsdpd__v1__##type##__descriptor, FSDPD__V1__##TYPE##__##TYPE##_##NAME, value              \
    }

const struct job_choice job_choices[] = {
    VALUE(TOKEN_ENCODING, token_encoding, AUTO, TOKENS_AUTO),
    VALUE(TOKEN_ENCODING, token_encoding, LLM_C, TOKENS_LLMC),
    VALUE(TOKEN_ENCODING, token_encoding, UINT16, TOKENS_UINT16),
    VALUE(TOKEN_ENCODING, token_encoding, UINT32, TOKENS_UINT32),
    VALUE(WINDOW_KIND, window_kind, CONTINUOUS, WINDOWS_CONTINUOUS),
    VALUE(WINDOW_KIND, window_kind, DOCUMENT, WINDOWS_DOCUMENT),
    VALUE(WINDOW_KIND, window_kind, PACKED, WINDOWS_PACKED),
    VALUE(STATE_DTYPE, state_dtype, F32, STATE_F32),
    VALUE(STATE_DTYPE, state_dtype, INT8, STATE_INT8),
    VALUE(STATE_DTYPE, state_dtype, BF16, STATE_BF16),
    VALUE(NORM_TYPE, norm_type, 2, NORM_2),
    VALUE(NORM_TYPE, norm_type, INF, NORM_INF),
#define SCHEDULE_VALUE(KIND, ...) VALUE(SCHEDULE_TYPE, schedule_type, KIND, SCHEDULE_##KIND),
    SCHEDULES(SCHEDULE_VALUE)
#undef SCHEDULE_VALUE
        VALUE(DECAY_TYPE, decay_type, LINEAR, SHAPE_LINEAR),
    VALUE(DECAY_TYPE, decay_type, COSINE, SHAPE_COSINE),
    VALUE(DECAY_TYPE, decay_type, 1_SQRT, SHAPE_1_SQRT),
    VALUE(ANNEAL_STRATEGY, anneal_strategy, COS, SHAPE_COSINE),
    VALUE(ANNEAL_STRATEGY, anneal_strategy, LINEAR, SHAPE_LINEAR),
    VALUE(EARLY_STOP_METRIC, early_stop_metric, LOSS, EARLY_STOP_LOSS),
    VALUE(EARLY_STOP_METRIC, early_stop_metric, ACCURACY, EARLY_STOP_ACCURACY),
    VALUE(BEST_MODE, best_mode, AUTO, BEST_AUTO),
    VALUE(BEST_MODE, best_mode, MIN, BEST_MIN),
    VALUE(BEST_MODE, best_mode, MAX, BEST_MAX),
    VALUE(DPO_LOSS, dpo_loss, SIGMOID, PREFERENCE_SIGMOID),
    VALUE(DPO_LOSS, dpo_loss, IPO, PREFERENCE_IPO),
    VALUE(DPO_LOSS, dpo_loss, HINGE, PREFERENCE_HINGE),
    VALUE(DPO_REFERENCE, dpo_reference, ADAPTER, REFERENCE_ADAPTER),
    VALUE(DPO_REFERENCE, dpo_reference, COPY, REFERENCE_COPY),
    VALUE(DPO_REFERENCE, dpo_reference, PRECOMPUTED, REFERENCE_PRECOMPUTED),
    VALUE(BASE_DTYPE, base_dtype, F32, BASE_F32),
    VALUE(BASE_DTYPE, base_dtype, BF16, BASE_BF16),
    VALUE(BASE_DTYPE, base_dtype, INT8, BASE_INT8),
    VALUE(BASE_DTYPE, base_dtype, NF4, BASE_NF4),
    VALUE(BASE_DTYPE, base_dtype, FILE, BASE_FILE),
    VALUE(STRATEGY, strategy, FULL_SHARD, STRATEGY_FULL_SHARD),
    VALUE(STRATEGY, strategy, SHARD_GRAD_OP, STRATEGY_SHARD_GRAD_OP),
    VALUE(STRATEGY, strategy, HYBRID_SHARD, STRATEGY_HYBRID_SHARD),
    VALUE(STRATEGY, strategy, NO_SHARD, STRATEGY_NO_SHARD),
    VALUE(WRAP_POLICY, wrap_policy, AUTO, WRAP_AUTO),
    VALUE(WRAP_POLICY, wrap_policy, NONE, WRAP_NONE),
    VALUE(WRAP_POLICY, wrap_policy, SIZE, WRAP_SIZE),
    VALUE(WRAP_POLICY, wrap_policy, TYPE, WRAP_TYPE),
    VALUE(WRAP_POLICY, wrap_policy, MATCH, WRAP_MATCH),
    VALUE(WRAP_POLICY, wrap_policy, UNITS, WRAP_UNITS),
    VALUE(PREFETCH, prefetch, PRE, PREFETCH_PRE),
    VALUE(PREFETCH, prefetch, POST, PREFETCH_POST),
    VALUE(PREFETCH, prefetch, NONE, PREFETCH_NONE),
    VALUE(REDUNDANCY, redundancy, NONE, REDUNDANCY_NONE),
    VALUE(REDUNDANCY, redundancy, REPLICA, REDUNDANCY_REPLICA),
    VALUE(REDUNDANCY, redundancy, MIRROR, REDUNDANCY_MIRROR),
    VALUE(REDUNDANCY, redundancy, PARITY, REDUNDANCY_PARITY),
    VALUE(DTYPE, dtype, F32, DTYPE_F32),
    VALUE(DTYPE, dtype, BF16, DTYPE_BF16),
    {0},
};

int job_choice(const ProtobufCEnumDescriptor *type, int given)
{
    for (const struct job_choice *choice = job_choices; choice->type != NULL; choice++)
        if (choice->type == type && choice->given == given) return choice->value;
    abort(); /* tests/unit/test_worker.c compares the table with that of common/spec */
}
