/*
 * Random models, graphs, policies and options: every plan must be valid, and must survive a
 * simulated run. The simulation moves no numbers: every four bytes of the arenas hold a mark that
 * records the last write there. The lanes take turns at random, within the limits of their order
 * and the waits; whatever an instruction reads must have the right mark from its start to its end.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "fsdp/plan.h"
#include "fsdp_fixture.h"
#include "tests/testing.h"

enum mark { /* + value, unit or slot */
            MARK_NOTHING = 0,
            MARK_VALUE = 1,
            MARK_SHARD = 1 << 20,
            MARK_GATHERED = 2 << 20,
            MARK_GRADIENT_SHARD = 3 << 20,
            MARK_OPTIMIZER = 4 << 20,
            MARK_STATS = 5 << 20,
            MARK_NORM = 11 << 20,
            MARK_RESHARDED = 12 << 20,
            MARK_FREED = 6 << 20,
            MARK_REDUCED = 8 << 20,
            MARK_GROUPS_SHARD = 9 << 20, /* the sum of one group of several */
            MARK_STAGED = 10 << 20,
            MARK_HOST_GRADIENT = 13 << 20,
            MARK_HOST_STATS = 14 << 20,
            MARK_BUSY = 7 << 20, /* + instruction: being written */
};

/* Words that an instruction reads or writes. */
struct access {
    int *words;
    uint64_t count;
    int expected; /* reads: the mark; MARK_NOTHING: any */
    int mark;     /* writes: the new mark; MARK_NOTHING: a read */
};

struct simulation {
    const struct plan *plan;
    const struct plan_program *program;
    const bool *view;
    int *arenas[ARENA_HOST + 1];
    int *mark_of_value;
    bool *written; /* by value */
    struct access accesses[4096];
    int access_count;
    uint64_t seed;
};

static void add_access(struct simulation *sim, int buffer, uint64_t offset, uint64_t bytes,
                       int expected, int mark)
{
    const struct plan_buffer *it = &sim->program->buffers[buffer];
    int *arena = sim->arenas[it->arena];
    ck_assert_int_lt(sim->access_count, 4096);
    ck_assert_uint_le(offset + bytes, it->bytes);
    sim->accesses[sim->access_count++] = (struct access){.words = arena + (it->offset + offset) / 4,
                                                         .count = (bytes + 3) / 4,
                                                         .expected = expected,
                                                         .mark = mark};
}

static void add_value(struct simulation *sim, int value, int expected, int mark)
{
    add_access(sim, sim->program->buffer_of_value[value], sim->program->offset_of_value[value],
               tensor_bytes(&sim->program->graph->values[value].type), expected, mark);
}

/* The unit's gradients from element `from` to `to` - 1, each in its place; the gaps between them
 * have no meaning. */
static void add_gradients(struct simulation *sim, int unit, int64_t from, int64_t to, int mark)
{
    const struct graph *graph = sim->program->graph;
    for (int v = 0; v < graph->value_count; v++)
        if (graph->values[v].kind == VALUE_PARAMETER_GRADIENT &&
            sim->plan->units->unit_of_parameter[graph->values[v].parameter] == unit &&
            sim->program->offset_of_value[v] >= 4 * (uint64_t)from &&
            sim->program->offset_of_value[v] < 4 * (uint64_t)to)
            add_value(sim, v, MARK_VALUE + v, mark);
}

/* All of the unit's gradients, reduced if that is due. */
static void add_reduced(struct simulation *sim, int unit)
{
    const struct graph *graph = sim->program->graph;
    for (int v = 0; v < graph->value_count; v++)
        if (graph->values[v].kind == VALUE_PARAMETER_GRADIENT &&
            sim->plan->units->unit_of_parameter[graph->values[v].parameter] == unit)
            add_value(sim, v, sim->plan->options.world > 1 ? MARK_REDUCED + unit : MARK_VALUE + v,
                      MARK_NOTHING);
}

static void add_whole(struct simulation *sim, int buffer, int expected, int mark)
{
    add_access(sim, buffer, 0, sim->program->buffers[buffer].bytes, expected, mark);
}

static void list_op(struct simulation *sim, int o)
{
    const struct plan_program *program = sim->program;
    const struct graph_op *op = &program->graph->ops[o];
    for (int k = 0; k < OP_MAX_INPUTS; k++) {
        int v = op->inputs[k];
        if (v < 0) continue;
        int mark = sim->mark_of_value[v];
        if (program->graph->values[v].kind == VALUE_PARAMETER) {
            int u = sim->plan->units->unit_of_parameter[program->graph->values[v].parameter];
            bool fetches =
                sim->plan->units->units[u].shard_world > 1 || plan_offloads(sim->plan, u);
            mark = (fetches ? MARK_GATHERED : MARK_SHARD) + u;
        }
        add_value(sim, v, mark, MARK_NOTHING);
    }
    for (int k = 0; k < OP_MAX_OUTPUTS; k++) {
        int v = op->outputs[k];
        if (v < 0) continue;
        if (k == 0 && sim->view[o]) {
            sim->mark_of_value[v] = sim->mark_of_value[op->inputs[0]];
            add_value(sim, v, sim->mark_of_value[v], MARK_NOTHING);
            continue;
        }
        add_value(sim, v, op->accumulate[k] ? MARK_VALUE + v : MARK_NOTHING, MARK_VALUE + v);
    }
}

static void list_accesses(struct simulation *sim, int i)
{
    const struct plan_program *program = sim->program;
    const struct plan_instruction *it = &program->instructions[i];
    const struct graph *graph = program->graph;
    int u = it->unit;
    bool shards = u >= 0 && sim->plan->units->units[u].shard_world > 1;
    bool parted = shards && sim->plan->units->units[u].shard_world < sim->plan->options.world;
    bool offloaded = u >= 0 && plan_offloads(sim->plan, u);
    int64_t whole = u >= 0 ? sim->plan->units->units[u].flat.padded : 0;
    sim->access_count = 0;
    if (it->workspace >= 0) add_whole(sim, it->workspace, MARK_NOTHING, MARK_FREED);
    switch (it->kind) {
    case INSTRUCTION_COPY_BATCH:
        add_value(sim, graph->input, MARK_NOTHING, MARK_VALUE + graph->input);
        add_value(sim, graph->target, MARK_NOTHING, MARK_VALUE + graph->target);
        break;
    case INSTRUCTION_ALL_GATHER:
        add_whole(sim, it->source,
                  (it->group == GROUP_RESHARD ? MARK_RESHARDED
                   : offloaded                ? MARK_STAGED
                                              : MARK_SHARD) +
                      u,
                  MARK_NOTHING);
        add_whole(sim, it->target, MARK_NOTHING, MARK_GATHERED + u);
        break;
    case INSTRUCTION_UPLOAD:
        add_whole(sim, it->source, MARK_SHARD + u, MARK_NOTHING);
        add_whole(sim, it->target, MARK_NOTHING, (shards ? MARK_STAGED : MARK_GATHERED) + u);
        break;
    case INSTRUCTION_DOWNLOAD:
        if (shards) add_whole(sim, it->source, MARK_GRADIENT_SHARD + u, MARK_NOTHING);
        else add_reduced(sim, u);
        add_whole(sim, it->target, MARK_NOTHING, MARK_HOST_GRADIENT + u);
        break;
    case INSTRUCTION_DOWNLOAD_STATS:
        add_whole(sim, it->target, MARK_NOTHING, MARK_HOST_STATS);
        break;
    case INSTRUCTION_RESHARD:
        add_whole(sim, it->source, MARK_GATHERED + u, MARK_NOTHING);
        add_whole(sim, it->target, MARK_NOTHING, MARK_RESHARDED + u);
        break;
    case INSTRUCTION_COMPUTE: list_op(sim, it->op); break;
    case INSTRUCTION_FREE: add_whole(sim, it->source, MARK_GATHERED + u, MARK_FREED); break;
    case INSTRUCTION_REDUCE_SCATTER:
        add_gradients(sim, u, 0, whole, MARK_NOTHING);
        add_whole(sim, it->target, MARK_NOTHING,
                  (parted ? MARK_GROUPS_SHARD : MARK_GRADIENT_SHARD) + u);
        break;
    case INSTRUCTION_ALL_REDUCE:
        if (parted) add_whole(sim, it->target, MARK_GROUPS_SHARD + u, MARK_GRADIENT_SHARD + u);
        else add_gradients(sim, u, it->from, it->from + it->count, MARK_REDUCED + u);
        break;
    case INSTRUCTION_REDUCE_STATS:
        add_value(sim, graph->loss, MARK_VALUE + graph->loss, MARK_STATS);
        if (graph->correct >= 0)
            add_value(sim, graph->correct, MARK_VALUE + graph->correct, MARK_STATS);
        break;
    case INSTRUCTION_NORM:
        if (shards) add_whole(sim, it->source, MARK_GRADIENT_SHARD + u, MARK_NOTHING);
        else add_reduced(sim, u);
        add_whole(sim, it->target, MARK_NOTHING, MARK_NORM);
        break;
    case INSTRUCTION_REDUCE_NORM: add_whole(sim, it->target, MARK_NORM, MARK_NORM + 1); break;
    case INSTRUCTION_GATE:
        add_whole(sim, it->source, MARK_NORM + (sim->plan->options.world > 1), MARK_NOTHING);
        break;
    case INSTRUCTION_MOMENTUM:
    case INSTRUCTION_COLLECT:
    case INSTRUCTION_ORTHOGONALIZE:
    case INSTRUCTION_DISTRIBUTE:
    case INSTRUCTION_SQUARES:
    case INSTRUCTION_FACTOR:
    case INSTRUCTION_UPDATE:
    case INSTRUCTION_GATHER_SUMS:
    case INSTRUCTION_SCALE:
    case INSTRUCTION_KIND_COUNT: ck_abort_msg("there are no whole matrices here");
    case INSTRUCTION_GATHER_VALUE:
    case INSTRUCTION_ACCUMULATE:
    case INSTRUCTION_ZERO: ck_abort_msg("nothing accumulates here");
    case INSTRUCTION_OPTIMIZER:
        if (offloaded) add_whole(sim, it->source, MARK_HOST_GRADIENT + u, MARK_NOTHING);
        else if (shards) add_whole(sim, it->source, MARK_GRADIENT_SHARD + u, MARK_NOTHING);
        else add_reduced(sim, u);
        add_whole(sim, it->target, MARK_SHARD + u, MARK_SHARD + u);
        for (int b = 0; b < program->buffer_count; b++)
            if (program->buffers[b].class == BUFFER_OPTIMIZER && program->buffers[b].unit == u)
                add_whole(sim, b, MARK_OPTIMIZER + u, MARK_OPTIMIZER + u);
            else if (program->buffers[b].class == BUFFER_HOST_STATS && offloaded)
                add_whole(sim, b, MARK_HOST_STATS, MARK_NOTHING);
        break;
    }
}

/* Whether the access is also written by this instruction: in place. */
static bool overwritten(const struct simulation *sim, const struct access *read)
{
    for (int a = 0; a < sim->access_count; a++)
        if (sim->accesses[a].mark != MARK_NOTHING && sim->accesses[a].words == read->words)
            return true;
    return false;
}

static void check_marks(const struct simulation *sim, int i, bool start)
{
    for (int a = 0; a < sim->access_count; a++) {
        const struct access *access = &sim->accesses[a];
        int expected = access->expected;
        if (!start && access->mark != MARK_NOTHING) expected = MARK_BUSY + i;
        else if (!start && overwritten(sim, access)) continue;
        if (expected == MARK_NOTHING) continue;
        for (uint64_t w = 0; w < access->count; w++)
            if (access->words[w] != expected) {
                char *text = plan_dump(sim->plan);
                fputs(text, stdout);
                ck_abort_msg("seed %llu: instruction %d %s: operand %d bears mark %x, not %x",
                             (unsigned long long)sim->seed, i, start ? "starts" : "ends", a,
                             access->words[w], expected);
            }
    }
}

static void set_marks(struct simulation *sim, int mark)
{
    for (int a = 0; a < sim->access_count; a++) {
        struct access *access = &sim->accesses[a];
        if (access->mark == MARK_NOTHING) continue;
        for (uint64_t w = 0; w < access->count; w++)
            access->words[w] = mark != MARK_NOTHING ? mark : access->mark;
    }
}

static void run(struct simulation *sim, struct fixture_random *random)
{
    const struct plan_program *program = sim->program;
    int count = program->instruction_count, next[LANE_COUNT], running[LANE_COUNT], left = count;
    bool *done = mem_alloc_array(count, sizeof *done);
    uint64_t weight[LANE_COUNT], weights = 0;
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        next[lane] = 0;
        running[lane] = -1;
        weight[lane] = 1 + fixture_draw(random, 9);
        weights += weight[lane];
    }
    while (left > 0) {
        int lane = LANE_COMPUTE;
        uint64_t drawn = fixture_draw(random, weights);
        for (; drawn >= weight[lane]; lane++) drawn -= weight[lane];
        int i = running[lane];
        if (i >= 0) {
            list_accesses(sim, i);
            check_marks(sim, i, false);
            set_marks(sim, MARK_NOTHING);
            done[i] = true;
            left--;
            running[lane] = -1;
            continue;
        }
        i = next[lane];
        while (i < count && program->instructions[i].lane != (enum lane)lane) i++;
        next[lane] = i;
        if (i == count) continue;
        bool ready = true;
        for (int k = 0; k < program->instructions[i].wait_count; k++)
            ready = ready && done[program->instructions[i].waits[k]];
        if (!ready) continue;
        list_accesses(sim, i);
        check_marks(sim, i, true);
        set_marks(sim, MARK_BUSY + i);
        running[lane] = i;
        next[lane] = i + 1;
    }
    free(done);
}

static void simulate(const struct plan *plan, const struct plan_program *program, const bool *view,
                     struct fixture_random *random, uint64_t seed)
{
    struct simulation *sim = mem_alloc(sizeof *sim);
    *sim = (struct simulation){.plan = plan, .program = program, .view = view, .seed = seed};
    sim->mark_of_value = mem_alloc_array(program->graph->value_count, sizeof(int));
    for (int round = 0; round < 4; round++) {
        const uint64_t sizes[] = {plan->work_bytes, plan->state_bytes, plan->host_bytes};
        for (int arena = 0; arena <= ARENA_HOST; arena++)
            sim->arenas[arena] = mem_alloc(sizes[arena] + 4);
        for (int v = 0; v < program->graph->value_count; v++)
            sim->mark_of_value[v] = MARK_VALUE + v;
        for (int b = 0; b < program->buffer_count; b++) {
            const struct plan_buffer *it = &program->buffers[b];
            int mark = it->class == BUFFER_SHARD       ? MARK_SHARD
                       : it->class == BUFFER_OPTIMIZER ? MARK_OPTIMIZER
                                                       : 0;
            for (uint64_t w = 0; mark != 0 && w < it->bytes / 4; w++)
                sim->arenas[it->arena][it->offset / 4 + w] = mark + it->unit;
        }
        run(sim, random);
        for (int arena = 0; arena <= ARENA_HOST; arena++) free(sim->arenas[arena]);
    }
    free(sim->mark_of_value);
    free(sim);
}

static struct wrap_policy random_policy(struct fixture_random *random, const struct model *model,
                                        struct wrap_unit_spec *specs, const char **paths)
{
    int64_t most = 0;
    for (int p = 0; p < model->parameter_count; p++)
        if (model->parameters[p].tied_to < 0)
            most += tensor_element_count(&model->parameters[p].type);
    if (most > 60) most = 60;
    switch (fixture_draw(random, 4)) {
    case 0: return (struct wrap_policy){.kind = WRAP_NONE};
    case 1: { /* leaves in units of one to three modules, anywhere */
        int count = 0, used = 0;
        for (int m = 1; m < model->module_count && count < 30; m++) {
            if (model->modules[m].child_count > 0 || fixture_draw(random, 3) == 0) continue;
            paths[used++] = model->modules[m].path;
            if (count == 0 || fixture_draw(random, 2) == 0)
                specs[count++] = (struct wrap_unit_spec){.modules = &paths[used - 1]};
            specs[count - 1].module_count++;
        }
        if (count > 0)
            return (struct wrap_policy){.kind = WRAP_UNITS, .units = specs, .unit_count = count};
        return (struct wrap_policy){.kind = WRAP_NONE};
    }
    default:
        return (struct wrap_policy){.kind = WRAP_SIZE,
                                    .min_num_params = 1 + fixture_draw(random, (uint64_t)most)};
    }
}

static struct plan_options random_options(struct fixture_random *random)
{
    static const int worlds[] = {1, 2, 3, 4, 8};
    static const enum strategy strategies[] = {STRATEGY_FULL_SHARD, STRATEGY_FULL_SHARD,
                                               STRATEGY_SHARD_GRAD_OP, STRATEGY_HYBRID_SHARD,
                                               STRATEGY_NO_SHARD};
    struct plan_options options = {.world = worlds[fixture_draw(random, 5)],
                                   .strategy = strategies[fixture_draw(random, 5)],
                                   .reshard = (enum reshard)fixture_draw(random, 4),
                                   .bucket_bytes = fixture_draw(random, 3) * 100,
                                   .backward_prefetch = (enum prefetch)fixture_draw(random, 3),
                                   .forward_prefetch = fixture_draw(random, 3) == 0,
                                   .gathered_limit = (int)fixture_draw(random, 5),
                                   .optimizer_slots = (int)fixture_draw(random, 3),
                                   .norm = (enum norm_kind)fixture_draw(random, 3),
                                   .collective_workspace_bytes = fixture_draw(random, 2) * 200};
    options.host_apart = fixture_draw(random, 2) == 0;
    options.cpu_offload = fixture_draw(random, 2) == 0;
    options.rank = (int)fixture_draw(random, (uint64_t)options.world);
    return options;
}

/* Any size of equal groups into which the world's ranks can be divided. */
static int random_divisor(struct fixture_random *random, int world)
{
    int divisor = 1 + (int)fixture_draw(random, (uint64_t)world);
    while (world % divisor != 0) divisor--;
    return divisor;
}

TESTS_BELOW(.timeout = 60);

LOOP_TEST(plans_are_valid_and_run, 0, 30)
{
    uint64_t seed = 7000 + (uint64_t)_i;
    struct fixture_random random = {.state = seed * 0x9e3779b97f4a7c15u};
    for (int round = 0; round < 15; round++) {
        struct model *model = fixture_random_model(&random);
        struct wrap_unit_spec specs[32] = {0};
        const char **paths = mem_alloc_array(model->module_count, sizeof *paths);
        struct wrap_policy policy = random_policy(&random, model, specs, paths);
        struct plan_options options = random_options(&random);
        struct unit_set *units = NULL;
        int shard_world = options.strategy == STRATEGY_NO_SHARD ? 1
                          : options.strategy == STRATEGY_HYBRID_SHARD
                              ? random_divisor(&random, options.world)
                              : options.world;
        options.reshard_ranks = random_divisor(&random, shard_world);
        for (int u = 0; policy.kind == WRAP_UNITS && u < policy.unit_count; u++) {
            specs[u].cpu_offload = fixture_draw(&random, 2) == 0;
            if (fixture_draw(&random, 3) > 0) continue;
            specs[u].shard_world = random_divisor(&random, options.world);
            specs[u].reshard = (enum reshard)fixture_draw(&random, 4);
            specs[u].reshard_ranks = random_divisor(&random, specs[u].shard_world);
            /* the job's groups may not suit it */
            if (specs[u].reshard == RESHARD_DEFAULT &&
                specs[u].shard_world % options.reshard_ranks != 0)
                specs[u].reshard = RESHARD_YES;
        }
        status_t status = units_build(model, &policy, shard_world, &units);
        ck_assert_msg(status == NULL, "seed %llu: %s", (unsigned long long)seed,
                      status_message(status));
        int64_t batch = 1 + (int64_t)fixture_draw(&random, 3);
        struct graph *train = fixture_random_graph(&random, model, batch, true);
        struct graph *evaluate =
            fixture_random_graph(&random, model, batch * (1 + (int64_t)fixture_draw(&random, 5)),
                                 false);
        struct fixture_lowering lowered[2];
        fixture_lower(&lowered[0], train, &random);
        fixture_lower(&lowered[1], evaluate, &random);
        struct plan *plan = NULL;
        status = plan_build(model, units, train, &lowered[0].lowering, evaluate,
                            &lowered[1].lowering, &options, &plan);
        ck_assert_msg(status == NULL, "seed %llu, round %d: %s", (unsigned long long)seed,
                      round, status_message(status));
        ck_assert_uint_le(plan->train.live_peak, plan->state_bytes + plan->train.work_bytes);
        simulate(plan, &plan->train, lowered[0].view, &random, seed);
        simulate(plan, &plan->evaluate, lowered[1].view, &random, seed);
        free(plan_dump(plan));
        plan_free(plan);
        for (int k = 0; k < 2; k++) fixture_lowering_deinit(&lowered[k]);
        graph_free(train);
        graph_free(evaluate);
        units_free(units);
        free(paths);
        model_free(model);
    }
}
