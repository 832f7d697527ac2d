/*
 * Model files: whatever parses must give graphs, units and plans, or an error that is the file's
 * fault. What a plan over this model promises is checked by plan_validate, inside plan_build.
 */
#include <stdbool.h>

#include "base/mem.h"
#include "fsdp/plan.h"
#include "fuzz.h"
#include "model/graph.h"
#include "model/model.h"

/* What parses and is larger is only parsed: the fuzzer's time is better spent on many small ones.
 */
enum { OPS_MAX = 400, MODULES_MAX = 2000 };

struct planned {
    const struct model *model;
    struct graph *graph;
    bool *view, *in_place;
};

static void lower(struct planned *planned)
{
    const struct graph *graph = planned->graph;
    planned->view = mem_alloc_array((size_t)graph->op_count + 1, sizeof *planned->view);
    planned->in_place = mem_alloc_array((size_t)graph->op_count + 1, sizeof *planned->in_place);
    for (int o = 0; o < graph->op_count; o++) {
        const struct graph_op *op = &graph->ops[o];
        /* From one layout to another it is a copy. */
        planned->view[o] = op->kind == OP_RESHAPE && graph->values[op->inputs[0]].type.layout ==
                                                         graph->values[op->outputs[0]].type.layout;
        planned->in_place[o] = op_info_get(op->kind)->element_wise;
    }
}

static void plan_graph(struct planned *planned, const struct wrap_policy *policy)
{
    struct unit_set *units;
    status_t status = units_build(planned->model, policy, 2, &units);
    if (status != NULL) {
        fuzz_expect_user_error(status);
        return;
    }
    free(units_print_tree(units, planned->model));
    lower(planned);
    const struct lowering lowering = {.view = planned->view, .in_place = planned->in_place};
    const struct plan_options options = {.world = 2,
                                         .backward_prefetch = PREFETCH_PRE,
                                         .optimizer = OPTIMIZER_ADADELTA,
                                         .optimizer_slots = 2};
    struct plan *plan;
    status =
        plan_build(planned->model, units, planned->graph, &lowering, NULL, NULL, &options, &plan);
    if (status == NULL) {
        free(plan_dump(plan));
        plan_free(plan);
    } else {
        fuzz_expect_user_error(status);
    }
    free(planned->view);
    free(planned->in_place);
    units_free(units);
}

/* `low`: in bf16, and with everything computed again that can be. */
static void build(const struct model *model, bool train, bool channels_last, bool low)
{
    static const char *const all[] = {"*"};
    const struct graph_options options = {.batch_size = 2,
                                          .train = train,
                                          .dropout = true,
                                          .count_correct = !train,
                                          .checkpoint = all,
                                          .checkpoint_count = low ? 1 : 0,
                                          .compute_dtype = low ? DTYPE_BF16 : DTYPE_F32};
    struct planned planned = {.model = model};
    status_t status = graph_build(model, &options, &planned.graph);
    if (status != NULL) {
        fuzz_expect_user_error(status);
        return;
    }
    if (channels_last) graph_use_channels_last(planned.graph);
    if (train && planned.graph->op_count <= OPS_MAX) {
        plan_graph(&planned, &(struct wrap_policy){.kind = WRAP_NONE});
        plan_graph(&planned, &(struct wrap_policy){.kind = WRAP_SIZE, .min_num_params = 50});
    }
    graph_free(planned.graph);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct model *model;
    status_t status = model_parse((const char *)data, size, "net.yaml", &model);
    if (status != NULL) {
        FUZZ_CHECK(status_code(status) == STATUS_INVALID_ARGUMENT, "%s: %s",
                   status_code_name(status_code(status)), status_message(status));
        status_free(status);
        return 0;
    }
    if (model->module_count <= MODULES_MAX) {
        build(model, true, false, false);
        build(model, true, true, false);
        build(model, true, false, true);
        build(model, false, false, false);
    }
    model_free(model);
    return 0;
}
