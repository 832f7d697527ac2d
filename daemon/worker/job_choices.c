/* The words of the job file's choices; see job_choices.h. */
#include "worker/job_choices.h"

#include <stdlib.h>
#include <string.h>

#include "train/job.h"

const struct job_choice job_choices[] = {
    {"data.encoding", "auto", TOKENS_AUTO},
    {"data.encoding", "llm.c", TOKENS_LLMC},
    {"data.encoding", "uint16", TOKENS_UINT16},
    {"data.encoding", "uint32", TOKENS_UINT32},
    {"data.windows", "continuous", WINDOWS_CONTINUOUS},
    {"data.windows", "document", WINDOWS_DOCUMENT},
    {"data.windows", "packed", WINDOWS_PACKED},
    {"train.clip_grad_norm.norm_type", "2", NORM_2},
    {"train.clip_grad_norm.norm_type", "inf", NORM_INF},
    {"schedule.type", "constant", SCHEDULE_CONSTANT},
    {"schedule.type", "step", SCHEDULE_STEP},
    {"schedule.type", "linear", SCHEDULE_LINEAR},
    {"schedule.type", "cosine", SCHEDULE_COSINE},
    {"fsdp.strategy", "full_shard", STRATEGY_FULL_SHARD},
    {"fsdp.strategy", "shard_grad_op", STRATEGY_SHARD_GRAD_OP},
    {"fsdp.strategy", "hybrid_shard", STRATEGY_HYBRID_SHARD},
    {"fsdp.strategy", "no_shard", STRATEGY_NO_SHARD},
    {"fsdp.wrap.policy", "auto", WRAP_AUTO},
    {"fsdp.wrap.policy", "none", WRAP_NONE},
    {"fsdp.wrap.policy", "size", WRAP_SIZE},
    {"fsdp.wrap.policy", "type", WRAP_TYPE},
    {"fsdp.wrap.policy", "match", WRAP_MATCH},
    {"fsdp.wrap.policy", "units", WRAP_UNITS},
    {"fsdp.backward_prefetch", "pre", PREFETCH_PRE},
    {"fsdp.backward_prefetch", "post", PREFETCH_POST},
    {"fsdp.backward_prefetch", "none", PREFETCH_NONE},
    {"precision.param_dtype", "f32", DTYPE_F32},
    {"precision.param_dtype", "bf16", DTYPE_BF16},
    {"precision.reduce_dtype", "f32", DTYPE_F32},
    {"precision.reduce_dtype", "bf16", DTYPE_BF16},
    {0},
};

int job_choice(const char *key, const char *word)
{
    for (const struct job_choice *choice = job_choices; choice->key != NULL; choice++)
        if (strcmp(choice->key, key) == 0 && strcmp(choice->word, word) == 0) return choice->value;
    abort(); /* tests/unit/test_worker.c compares the table with that of common/spec */
}
