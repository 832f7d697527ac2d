/*
 * The plan as human-readable text, which golden tests compare (docs/plan.md). Pure functions; any
 * thread.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/text.h"
#include "fsdp/plan_internal.h"

static void add_count(struct buf *out, int width, uint64_t count)
{
    char text[32];
    buf_printf(out, "%*s", width, text_format_count(count, text));
}

static void dump_header(struct buf *out, const struct plan *plan)
{
    static const char *const prefetches[] = {"none", "pre", "post"};
    const struct plan_options *options = &plan->options;
    buf_printf(out, "plan of %s: %s over %d rank%s", plan->model->modules[0].type,
               plan_strategy_name(options->strategy), options->world,
               options->world == 1 ? "" : "s");
    if (options->strategy == STRATEGY_HYBRID_SHARD)
        buf_printf(out, ", in groups of %d", plan->units->shard_world);
    bool fetches = plan_is_sharded(plan) || plan_has_offloaded(plan);
    if (fetches) buf_printf(out, ", backward prefetch %s", prefetches[options->backward_prefetch]);
    if (fetches && options->forward_prefetch) buf_add_text(out, ", forward prefetch");
    if (fetches && options->gathered_limit < INT_MAX)
        buf_printf(out, ", at most %d units gathered", options->gathered_limit);
    if (options->register_buffers) buf_add_text(out, ", registered buffers");
    if (options->rounded) buf_add_text(out, ", keeps bf16");
    if (options->gathered_dtype == DTYPE_BF16 && plan_is_sharded(plan))
        buf_add_text(out, ", gathers bf16");
    if (options->reduce_dtype == DTYPE_BF16 && plan_reduces(plan))
        buf_add_text(out, ", reduces bf16");
    if (options->accumulation != ACCUMULATION_NONE)
        buf_printf(out, ", gradients accumulate %s",
                   options->accumulation == ACCUMULATION_LOCAL ? "before they are reduced"
                                                               : "after they are reduced");
    if (options->norm != NORM_NONE)
        buf_printf(out, ", norm %s of the gradient", options->norm == NORM_2 ? "2" : "inf");
    buf_printf(out, "\noptimizer %s with %d value%s per parameter%s%s\nhash %016llx\n",
               plan_optimizer_name(options->optimizer), options->optimizer_slots,
               options->optimizer_slots == 1 ? "" : "s",
               options->averages ? ", one of them its average over steps" : "",
               options->state == STATE_INT8   ? ", in 8 bits"
               : options->state == STATE_BF16 ? ", in bf16"
                                              : "",
               (unsigned long long)plan->hash);
}

static void dump_units(struct buf *out, const struct plan *plan)
{
    int width = 4;
    for (int u = 0; u < plan->units->unit_count; u++)
        if ((int)strlen(plan->units->units[u].name) > width)
            width = (int)strlen(plan->units->units[u].name);
    buf_printf(out, "\n%4s  %-*s  %15s  %15s  %15s\n", "", width, "unit", "parameters", "padded",
               "kept per rank");
    for (int u = 0; u < plan->units->unit_count; u++) {
        const struct unit *unit = &plan->units->units[u];
        buf_printf(out, "%4d  %-*s", u, width, unit->name);
        add_count(out, 17, (uint64_t)unit->flat.parameter_elements);
        add_count(out, 17, (uint64_t)unit->flat.padded);
        add_count(out, 17, (uint64_t)plan_kept_elements(plan, u));
        if (unit->shard_world != plan->units->shard_world)
            buf_printf(out, ", over %d rank%s", unit->shard_world,
                       unit->shard_world == 1 ? "" : "s");
        if (plan_offloads(plan, u)) buf_add_text(out, ", offloaded");
        if (plan_fetches(plan, u) && plan_keeps(plan, u))
            buf_add_text(out, ", kept until backward");
        if (plan_reshards(plan, u) && unit->modules[0] != 0)
            buf_printf(out, ", resharded to %d ranks", plan_reshard_world(plan, u));
        if (plan_gathers(plan, u) && plan_param_dtype(plan, u) != plan->options.gathered_dtype)
            buf_printf(out, ", gathers %s", dtype_name(plan_param_dtype(plan, u)));
        if (plan_reduces(plan) && plan_reduce_dtype(plan, u) != plan->options.reduce_dtype)
            buf_printf(out, ", reduces %s", dtype_name(plan_reduce_dtype(plan, u)));
        buf_add_char(out, '\n');
    }
}

static const char *subject(const struct plan *plan, const struct plan_program *program, int i)
{
    const struct plan_instruction *instruction = &program->instructions[i];
    if (instruction->op >= 0) return program->graph->ops[instruction->op].name;
    return instruction->unit >= 0 ? plan->units->units[instruction->unit].name : "";
}

static void dump_memory(struct buf *out, const struct plan *plan)
{
    const struct plan_program *all[] = {&plan->train, &plan->accumulate, &plan->evaluate};
    const struct plan_program *programs[3];
    static const char *const all_titles[] = {"train", "accumulate", "evaluate"};
    const char *titles[3];
    int count = 0;
    for (int k = 0; k < 3; k++) {
        if (all[k]->graph == NULL) continue;
        programs[count] = all[k];
        titles[count++] = all_titles[k];
    }
    buf_printf(out, "\n%-28s", "bytes per rank");
    for (int k = 0; k < count; k++) buf_printf(out, "%16s", titles[k]);
    buf_add_char(out, '\n');
    for (int class = 0; class < BUFFER_CLASS_COUNT; class ++) {
        uint64_t most = 0;
        for (int k = 0; k < count; k++) most |= programs[k]->class_bytes_at_peak[class];
        if (class > BUFFER_WORKSPACE && most == 0)
            continue; /* of kinds of steps that this plan
                       * lacks */
        buf_printf(out, "  %-26s", plan_buffer_class_name(class));
        for (int k = 0; k < count; k++) add_count(out, 16, programs[k]->class_bytes_at_peak[class]);
        buf_add_char(out, '\n');
    }
    buf_printf(out, "%-28s", "alive at the peak");
    for (int k = 0; k < count; k++) add_count(out, 16, programs[k]->live_peak);
    buf_printf(out, "\n%-28s", "state arena");
    for (int k = 0; k < count; k++) add_count(out, 16, plan->state_bytes);
    buf_printf(out, "\n%-28s", "work arena");
    for (int k = 0; k < count; k++) add_count(out, 16, programs[k]->work_bytes);
    buf_printf(out, "\n%-28s", "lost to fragments");
    for (int k = 0; k < count; k++)
        add_count(out, 16, plan->state_bytes + programs[k]->work_bytes - programs[k]->live_peak);
    buf_add_char(out, '\n');
    for (int k = 0; k < count; k++) {
        int i = programs[k]->peak_instruction;
        buf_printf(out, "%s: the peak is at instruction %d, %s %s\n", titles[k], i,
                   plan_instruction_name(programs[k]->instructions[i].kind),
                   subject(plan, programs[k], i));
    }
    buf_add_text(out, "allocated: ");
    add_count(out, 0, plan->peak_bytes);
    buf_add_text(out, " bytes per rank\n");
    if (!plan_has_offloaded(plan)) return;
    buf_add_text(out, "offloaded: ");
    add_count(out, 0, plan->host_bytes);
    buf_add_text(out, " bytes of host memory per rank\n");
}

static void add_place(struct buf *out, const struct plan_program *program, int buffer,
                      uint64_t offset)
{
    const struct plan_buffer *it = &program->buffers[buffer];
    buf_printf(out, " %c%llu", "wsh"[it->arena], (unsigned long long)(it->offset + offset));
}

static void add_values(struct buf *out, const struct plan_program *program, const int *values,
                       int count)
{
    for (int k = 0; k < count; k++) {
        if (values[k] < 0) continue;
        add_place(out, program, program->buffer_of_value[values[k]],
                  program->offset_of_value[values[k]]);
    }
}

static void dump_instruction(struct buf *out, const struct plan *plan,
                             const struct plan_program *program, int i, int width)
{
    const struct plan_instruction *it = &program->instructions[i];
    buf_printf(out, "%4d  %-7s  %-14s  %-*s ", i, plan_lane_name(it->lane),
               plan_instruction_name(it->kind), width, subject(plan, program, i));
    if (it->kind == INSTRUCTION_COMPUTE) {
        const struct graph_op *op = &program->graph->ops[it->op];
        add_values(out, program, op->inputs, OP_MAX_INPUTS);
        buf_add_text(out, " ->");
        add_values(out, program, op->outputs, OP_MAX_OUTPUTS);
    } else if (it->kind == INSTRUCTION_COPY_BATCH) {
        const struct graph *graph = program->graph;
        buf_add_text(out, " ->");
        for (int k = 0; k < GRAPH_BATCH_VALUES; k++)
            add_values(out, program, (int[]){graph_batch_value(graph, k)}, 1);
    } else {
        if (it->source >= 0) add_place(out, program, it->source, 0);
        if (it->target >= 0) buf_add_text(out, " ->");
        if (it->target >= 0) add_place(out, program, it->target, 0);
        if (it->kind == INSTRUCTION_ALL_REDUCE &&
            (uint64_t)it->count * sizeof(float) < program->buffers[it->target].bytes)
            buf_printf(out, " (elements %lld to %lld)", (long long)it->from,
                       (long long)(it->from + it->count - 1));
        if (it->group != GROUP_WORLD)
            buf_printf(out, ", %d ranks", plan_group_ranks(plan, it->group, it->unit));
    }
    if (it->workspace >= 0) {
        buf_add_text(out, ", scratch");
        add_place(out, program, it->workspace, 0);
    }
    if (it->communicated > 0) {
        buf_add_text(out, ", sends ");
        add_count(out, 0, it->communicated);
    }
    if (it->wait_count > 0) buf_add_text(out, ", after");
    for (int k = 0; k < it->wait_count; k++) buf_printf(out, " %d", it->waits[k]);
    buf_add_char(out, '\n');
}

static void dump_program(struct buf *out, const struct plan *plan,
                         const struct plan_program *program, const char *title)
{
    uint64_t sent = 0;
    int width = 0;
    for (int i = 0; i < program->instruction_count; i++) {
        sent += program->instructions[i].communicated;
        int length = (int)strlen(subject(plan, program, i));
        if (length > width) width = length;
    }
    buf_printf(out, "\n%s: %d instructions, each rank sends ", title, program->instruction_count);
    add_count(out, 0, sent);
    buf_add_text(out, " bytes\n");
    for (int i = 0; i < program->instruction_count; i++)
        dump_instruction(out, plan, program, i, width);
}

char *plan_dump(const struct plan *plan)
{
    struct buf out = {0};
    dump_header(&out, plan);
    dump_units(&out, plan);
    dump_memory(&out, plan);
    dump_program(&out, plan, &plan->train, "train");
    if (plan->accumulate.graph != NULL) dump_program(&out, plan, &plan->accumulate, "accumulate");
    if (plan->evaluate.graph != NULL) dump_program(&out, plan, &plan->evaluate, "evaluate");
    if (plan->hold.graph != NULL) dump_program(&out, plan, &plan->hold, "hold");
    return buf_take(&out);
}
