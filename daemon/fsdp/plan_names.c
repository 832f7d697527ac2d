/* The names of a plan's parts, for its text, errors and messages. Any thread. */
#include <string.h>

#include "base/mem.h"
#include "fsdp/plan.h"

const char *plan_instruction_name(enum instruction_kind kind)
{
    switch (kind) {
    case INSTRUCTION_COPY_BATCH: return "copy_batch";
    case INSTRUCTION_ALL_GATHER: return "all_gather";
    case INSTRUCTION_COMPUTE: return "compute";
    case INSTRUCTION_FREE: return "free";
    case INSTRUCTION_REDUCE_SCATTER: return "reduce_scatter";
    case INSTRUCTION_ALL_REDUCE: return "all_reduce";
    case INSTRUCTION_REDUCE_STATS: return "reduce_stats";
    case INSTRUCTION_ACCUMULATE: return "accumulate";
    case INSTRUCTION_NORM: return "norm";
    case INSTRUCTION_REDUCE_NORM: return "reduce_norm";
    case INSTRUCTION_GATE: return "gate";
    case INSTRUCTION_ZERO: return "zero";
    case INSTRUCTION_OPTIMIZER: return "optimizer";
    case INSTRUCTION_RESHARD: return "reshard";
    case INSTRUCTION_UPLOAD: return "upload";
    case INSTRUCTION_DOWNLOAD: return "download";
    case INSTRUCTION_DOWNLOAD_STATS: return "download_stats";
    case INSTRUCTION_GATHER_VALUE: return "gather_value";
    case INSTRUCTION_MOMENTUM: return "momentum";
    case INSTRUCTION_COLLECT: return "collect";
    case INSTRUCTION_ORTHOGONALIZE: return "orthogonalize";
    case INSTRUCTION_DISTRIBUTE: return "distribute";
    case INSTRUCTION_SQUARES: return "squares";
    case INSTRUCTION_FACTOR: return "factor";
    case INSTRUCTION_UPDATE: return "update";
    case INSTRUCTION_GATHER_SUMS: return "gather_sums";
    case INSTRUCTION_SCALE: return "scale";
    case INSTRUCTION_KIND_COUNT: break;
    }
    return "unknown";
}

const char *plan_strategy_name(enum strategy strategy)
{
    static const char *const names[STRATEGY_COUNT] = {
        [STRATEGY_FULL_SHARD] = "full_shard",
        [STRATEGY_NO_SHARD] = "no_shard",
        [STRATEGY_SHARD_GRAD_OP] = "shard_grad_op",
        [STRATEGY_HYBRID_SHARD] = "hybrid_shard",
    };
    return (unsigned)strategy < STRATEGY_COUNT ? names[strategy] : "unknown";
}

const char *plan_buffer_class_name(enum buffer_class class)
{
    switch (class) {
    case BUFFER_SHARD: return "parameters (shard)";
    case BUFFER_GRADIENT_SHARD: return "gradients (shard)";
    case BUFFER_OPTIMIZER: return "optimizer state";
    case BUFFER_BATCH: return "batch";
    case BUFFER_STATS: return "statistics";
    case BUFFER_GATHERED: return "parameters (gathered)";
    case BUFFER_GRADIENT: return "gradients";
    case BUFFER_ACTIVATION: return "activations";
    case BUFFER_TEMPORARY: return "temporaries";
    case BUFFER_WORKSPACE: return "workspace";
    case BUFFER_ACCUMULATED: return "gradients (accumulated)";
    case BUFFER_NORM: return "gradient norm";
    case BUFFER_RESHARDED: return "parameters (resharded)";
    case BUFFER_STAGED: return "parameters (uploaded)";
    case BUFFER_HOST_GRADIENT: return "gradients (host)";
    case BUFFER_HOST_STATS: return "statistics (host)";
    case BUFFER_ROUNDED: return "parameters (bf16)";
    case BUFFER_MATRICES: return "matrices";
    case BUFFER_FACTORS: return "factors";
    case BUFFER_CACHE: return "keys and values";
    case BUFFER_LOGITS: return "logits";
    case BUFFER_CLASS_COUNT: break;
    }
    return "unknown";
}

const char *plan_lane_name(enum lane lane)
{
    static const char *const names[LANE_COUNT] = {"compute", "comm", "copy", "download", "host"};
    return (unsigned)lane < LANE_COUNT ? names[lane] : "unknown";
}

#define NAME(KIND, name, ...) [OPTIMIZER_##KIND] = #name,
static const char *const optimizer_names[OPTIMIZER_COUNT] = {OPTIMIZERS(NAME)};

const char *plan_optimizer_name(enum optimizer_kind kind)
{
    return (unsigned)kind < OPTIMIZER_COUNT ? optimizer_names[kind] : "unknown";
}

char *plan_optimizers_text(const struct plan *plan)
{
    const char *name = plan_optimizer_name(plan->options.optimizer);
    if (plan->options.matrix_of_parameter == NULL) return mem_strdup(name);
    return mem_printf("%s and %s", name, plan_optimizer_name(plan->options.others));
}

bool plan_optimizer_find(const char *name, enum optimizer_kind *kind)
{
    for (int i = 0; i < OPTIMIZER_COUNT; i++) {
        if (strcmp(optimizer_names[i], name) != 0) continue;
        *kind = (enum optimizer_kind)i;
        return true;
    }
    return false;
}
