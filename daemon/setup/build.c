/*
 * Builds what a session runs: the graphs of a training and of an evaluation step, units, and the
 * plan. See session_state.h.
 */
#include <limits.h>
#include <stdlib.h>

#include "model/layers_internal.h"
#include "setup/session_state.h"

/* With one rank there is nothing to reduce. */
static enum accumulation accumulation_of(const struct train_job *job)
{
    if (job->accumulation_steps <= 1) return ACCUMULATION_NONE;
    return job->no_sync || job->world == 1 ? ACCUMULATION_LOCAL : ACCUMULATION_REDUCED;
}

/* Makes all terms of the loss sums. Those of parts of numbers were divided by their own elements,
 * and not by all targets that an evaluation divides by. */
static void sum_loss(struct graph *graph)
{
    for (int i = 0; i < graph->op_count; i++) {
        struct graph_op *op = &graph->ops[i];
        const struct tensor_type *x, *target = &graph->values[graph->target].type;
        if (!layer_is_loss(op->kind)) continue;
        x = &graph->values[op->inputs[0]].type;
        if (op->kind == OP_ELEMENT_LOSS && op->inputs[2] < 0 &&
            op->attrs.element_loss.reduction == REDUCTION_MEAN)
            op->attrs.element_loss.weight *=
                (double)tensor_element_count(target) / (double)tensor_element_count(x);
        op->attrs.loss.reduction = REDUCTION_SUM;
    }
}

/* Whether the op only repeats one whose output was not kept. */
static bool is_repetition(const struct graph *graph, const struct graph_op *op)
{
    for (int i = 0; i < OP_MAX_OUTPUTS; i++)
        if (op->outputs[i] >= 0 && graph->values[op->outputs[i]].repeats >= 0) return true;
    return false;
}

/* The operations that the model needs, forward and backward. */
static double count_flops(const struct graph *graph)
{
    double flops = 0;
    for (int i = 0; i < graph->op_count; i++) {
        struct op_desc desc;
        if (is_repetition(graph, &graph->ops[i])) continue;
        graph_describe_op(graph, i, &desc);
        flops += op_desc_flops(&desc);
    }
    return flops;
}

/* What the evaluation counts besides the loss. */
static bool has_tally(const struct model *model)
{
    return model->precomputed || (model->target != TARGET_TOKEN && model->target != TARGET_PAIR &&
                                  !model_has_preferences(model));
}

static status_t build_graphs_as(struct train_session *session)
{
    const struct train_job *job = session->job;
    int64_t time = session->model->tokens ? job->context : 0;
    const struct graph_options train = {.batch_size = job->batch_size,
                                        .world = job->world,
                                        .time = time,
                                        .train = true,
                                        .dropout = job->dropout,
                                        .documents = job->windows == WINDOWS_PACKED,
                                        .accumulate = accumulation_of(job) == ACCUMULATION_LOCAL,
                                        .checkpoint = job->checkpoint,
                                        .checkpoint_count = job->checkpoint_count,
                                        .recompute = job->recompute,
                                        .compute_dtype = job->plan.gathered_dtype,
                                        .parameter_dtypes = session->parameter_dtypes,
                                        .module_dtypes = session->module_dtypes};
    TRY(graph_build(session->model, &train, &session->train_graph));
    const struct graph *made = session->train_graph;
    session->reduction = made->ops[graph_loss_op(made)].attrs.loss.reduction;
    double flops = count_flops(session->train_graph);
    session->step_flops = flops * job->world * session->micro_steps;
    if (job->global_batch > 0)
        session->step_flops = flops / job->batch_size * (double)job->global_batch;
    TRY(device_lower(session->device, session->train_graph, &session->train_lowered));
    if (!job->evaluate && !session->model->precomputed) return NULL;

    const struct graph_options evaluate = {.batch_size = session->evaluate_batch,
                                           .world = job->world,
                                           .time = time,
                                           .count_correct =
                                               session->model->target != TARGET_TOKEN &&
                                               !model_has_preferences(session->model),
                                           .tally = has_tally(session->model),
                                           .ranks = job->world,
                                           .documents = job->windows == WINDOWS_PACKED,
                                           .compute_dtype = job->plan.gathered_dtype,
                                           .parameter_dtypes = session->parameter_dtypes,
                                           .module_dtypes = session->module_dtypes};
    TRY(graph_build(session->model, &evaluate, &session->evaluate_graph));
    /* In the last step ranks may have different numbers of rows, so a mean over ranks of means
     * would not be the mean over the samples: an evaluation always sums. */
    sum_loss(session->evaluate_graph);
    return device_lower(session->device, session->evaluate_graph, &session->evaluate_lowered);
}

static int shard_world_of(const struct train_job *job)
{
    if (job->plan.strategy == STRATEGY_NO_SHARD) return 1;
    return job->plan.strategy == STRATEGY_HYBRID_SHARD ? job->shard_size : job->world;
}

/* Builds the graphs for the types of the first units, which later units must keep. */
status_t session_build_graphs(struct train_session *session)
{
    struct unit_set *units;
    struct wrap_policy policy = session->job->wrap;
    policy.state = session->job->optimizer.state;
    policy.rounded = session->job->plan.rounded;
    policy.param_dtype = session->job->plan.gathered_dtype;
    policy.keep_frozen = session->job->keep_frozen;
    TRY(units_build(session->model, &policy, shard_world_of(session->job), &units));
    units_find_dtypes(units, session->model, session->job->plan.gathered_dtype,
                      &session->parameter_dtypes, &session->module_dtypes);
    units_free(units);
    return build_graphs_as(session);
}

/* Ops are prepared once, for one type per operand. */
static status_t check_dtypes(const struct train_session *session, const struct unit_set *units)
{
    const struct model *model = session->model;
    enum dtype job = session->job->plan.gathered_dtype, *parameters, *modules;
    units_find_dtypes(units, model, job, &parameters, &modules);
    status_t status = NULL;
    for (int p = 0; p < model->parameter_count && status == NULL; p++)
        if (parameters[p] != session->parameter_dtypes[p])
            status = status_new(STATUS_INVALID_ARGUMENT,
                                "ops are prepared for %s as %s, but unit %s would have it as %s: "
                                "a change of policy cannot change that",
                                model->parameters[p].name, dtype_name(session->parameter_dtypes[p]),
                                units->units[units->unit_of_parameter[p]].name,
                                dtype_name(parameters[p]));
    for (int m = 0; m < model->module_count && status == NULL; m++) {
        enum dtype was = session->module_dtypes != NULL ? session->module_dtypes[m] : job;
        enum dtype is = modules != NULL ? modules[m] : job;
        if (was != is)
            status =
                status_new(STATUS_INVALID_ARGUMENT,
                           "%s computes in %s, but unit %s would have it compute in %s: a "
                           "change of policy cannot change that",
                           m > 0 ? model->modules[m].path : model->modules[m].type, dtype_name(was),
                           units->units[units->unit_of_module[m]].name, dtype_name(is));
    }
    free(parameters);
    free(modules);
    return status;
}

bool session_has_base(const struct train_session *session)
{
    for (int u = 0; u < session->units->unit_count; u++)
        if (session->units->units[u].unsaved) return true;
    return false;
}

/* Other types are those of frozen parameters. */
static status_t check_base(const struct train_session *session, const struct train_job *job)
{
    const struct model *model = session->model;
    bool frozen = false;
    if (job->base == BASE_F32 && !job->keep_frozen) return NULL;
    for (int p = 0; p < model->parameter_count; p++)
        frozen |=
            model->parameters[p].buffer == MODEL_BUFFER_NONE && !model->parameters[p].trainable;
    if (frozen) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s%s is for parameters that are not trained, but all of this model "
                      "are: expected model.lora, model.adapter or model.freeze",
                      job->base != BASE_F32 ? "model.base_dtype: " : "fsdp.keep_frozen",
                      job->base != BASE_F32 ? base_dtype_name(job->base) : "");
}

/* With the settings of `job` for units and plan. On an error *units may be set. */
static status_t build_plan(struct train_session *session, const struct train_job *job,
                           const struct wrap_policy *wrap, bool sketch, struct unit_set **units,
                           struct plan **plan)
{
    struct wrap_policy policy = *wrap;
    policy.state = job->optimizer.state;
    policy.rounded = job->plan.rounded;
    policy.param_dtype = job->plan.gathered_dtype;
    policy.base = job->base;
    policy.keep_frozen = job->keep_frozen;
    policy.halved = session->halved;
    policy.shape = optimizer_step_shape(&job->optimizer);
    policy.matrices = session->matrices;
    TRY(check_base(session, job));
    TRY(units_build(session->model, &policy, shard_world_of(job), units));
    TRY(check_dtypes(session, *units));
    struct plan_options options = job->plan;
    options.rank = session->rank;
    options.world = job->world;
    if (options.gathered_limit == 0) options.gathered_limit = INT_MAX;
    options.accumulation = accumulation_of(job);
    options.micro_steps = job->accumulation_steps > 1 ? job->accumulation_steps : 0;
    options.optimizer = job->optimizer.kind;
    options.optimizer_slots = optimizer_step_slots(&job->optimizer);
    options.state = job->optimizer.state;
    options.matrix_of_parameter = session->matrices;
    options.matrix_workspace_bytes = device_matrix_workspace_bytes(session->device);
    if (job->optimizer.others != NULL) options.others = job->optimizer.others->kind;
    options.ns_steps = job->optimizer.ns_steps;
    options.averages = job->optimizer.ema_decay > 0;
    options.group_of_parameter = session->groups;
    options.collective_workspace_bytes = executor_collective_bytes(*units, job->world);
    options.host_apart = !device_is_host(session->device);
    options.register_buffers &= job->world > 1 && options.host_apart;
    options.sketch = sketch;
    const struct lowering *evaluate =
        session->evaluate_lowered ? device_graph_lowering(session->evaluate_lowered) : NULL;
    return plan_build(session->model, *units, session->train_graph,
                      device_graph_lowering(session->train_lowered), session->evaluate_graph,
                      evaluate, &options, plan);
}

status_t session_build_plan(struct train_session *session, const struct wrap_policy *wrap,
                            struct unit_set **units, struct plan **plan)
{
    return build_plan(session, session->job, wrap, false, units, plan);
}

status_t train_session_sketch(struct train_session *session, const struct train_job *job,
                              struct unit_set **units, struct plan **plan)
{
    *units = NULL;
    status_t status = build_plan(session, job, &job->wrap, true, units, plan);
    if (status == NULL) return NULL;
    units_free(*units);
    *units = NULL;
    return status;
}
