/*
 * Estimates of plans against numbers computed by hand: collectives, ops, the optimizer, and lanes
 * that wait for each other.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/graph.h"
#include "model/model.h"
#include "planning/plan_estimate.h"
#include "tests/testing.h"

#define EXPECT(actual, expected) ck_assert_double_eq_tol(actual, expected, 1e-9)

/* ---- Collectives ---- */

TEST(rings)
{
    const struct plan_link link = {.bandwidth = 100, .latency = 3};
    /* 4 ranks: 3 steps of latency, or twice as many, and 600 bytes at 100 a second */
    EXPECT(plan_collective_seconds(INSTRUCTION_ALL_GATHER, 4, 600, &link), 9 + 6);
    EXPECT(plan_collective_seconds(INSTRUCTION_REDUCE_SCATTER, 4, 600, &link), 9 + 6);
    EXPECT(plan_collective_seconds(INSTRUCTION_ALL_REDUCE, 2, 600, &link), 6 + 6);
    /* one rank sends nothing */
    EXPECT(plan_collective_seconds(INSTRUCTION_ALL_GATHER, 1, 600, &link), 0);
}

TEST(small_reductions_use_a_tree)
{
    const struct plan_link link = {.bandwidth = 100, .latency = 3};
    /* 1,024 ranks: ten levels up and ten down; 1,023 of 1,024 bytes were sent in the ring */
    EXPECT(plan_collective_seconds(INSTRUCTION_ALL_REDUCE, 1024, 1023, &link), 60 + 10.24);
    EXPECT(plan_collective_seconds(INSTRUCTION_REDUCE_STATS, 1024, 1023, &link), 60 + 10.24);
    /* five ranks need three levels */
    EXPECT(plan_collective_seconds(INSTRUCTION_REDUCE_STATS, 5, 400, &link), 18 + 5);
    /* a large one is cheaper in a ring */
    EXPECT(plan_collective_seconds(INSTRUCTION_ALL_REDUCE, 4, 600000, &link), 18 + 6000);
}

/* ---- Lanes ---- */

/* A program of only lanes and waits. */
struct script {
    struct plan_instruction instructions[16];
    struct plan_timing timings[16];
    struct plan_program program;
};

static int step(struct script *script, enum lane lane, double seconds, int first, int second)
{
    int i = script->program.instruction_count++;
    struct plan_instruction *it = &script->instructions[i];
    *it = (struct plan_instruction){.lane = lane};
    it->kind = lane == LANE_COMPUTE ? INSTRUCTION_COMPUTE : INSTRUCTION_ALL_GATHER;
    if (first >= 0) it->waits[it->wait_count++] = first;
    if (second >= 0) it->waits[it->wait_count++] = second;
    script->timings[i] = (struct plan_timing){.seconds = seconds, .start = -1, .exposed = -1};
    script->program.instructions = script->instructions;
    return i;
}

TEST(lanes_that_wait)
{
    struct script script = {0};
    int copy = step(&script, LANE_COPY, 1, -1, -1);                /* 0 to 1 */
    int gather_a = step(&script, LANE_COMM, 4, -1, -1);            /* 0 to 4: nothing computes */
    int a = step(&script, LANE_COMPUTE, 3, copy, gather_a);        /* 4 to 7 */
    int gather_b = step(&script, LANE_COMM, 5, -1, -1);            /* 4 to 9: covered for 3 */
    int b = step(&script, LANE_COMPUTE, 6, gather_b, -1);          /* 9 to 15 */
    int reduce_a = step(&script, LANE_COMM, 2, a, -1);             /* 9 to 11: covered */
    int reduce_b = step(&script, LANE_COMM, 3, b, -1);             /* 15 to 18: not */
    int last = step(&script, LANE_COMPUTE, 1, reduce_a, reduce_b); /* 18 to 19 */
    struct plan_estimate estimate;
    plan_simulate(&script.program, script.timings, &estimate);
    const double starts[] = {0, 0, 4, 4, 9, 9, 15, 18}, exposed[] = {0, 4, 0, 2, 0, 0, 3, 0};
    for (int i = 0; i <= last; i++) {
        EXPECT(script.timings[i].start, starts[i]);
        EXPECT(script.timings[i].exposed, exposed[i]);
    }
    EXPECT(estimate.step_seconds, 19);
    EXPECT(estimate.compute_seconds, 10);
    EXPECT(estimate.communication_seconds, 14);
    EXPECT(estimate.copy_seconds, 1);
    EXPECT(estimate.exposed_seconds, 9);
}

TEST(one_computation_covers_many_collectives)
{
    struct script script = {0};
    step(&script, LANE_COMPUTE, 10, -1, -1);
    step(&script, LANE_COMM, 2, -1, -1);
    step(&script, LANE_COMM, 3, -1, -1);
    step(&script, LANE_COMM, 7, -1, -1);    /* 5 to 12 */
    step(&script, LANE_COMPUTE, 1, -1, -1); /* 10 to 11 */
    struct plan_estimate estimate;
    plan_simulate(&script.program, script.timings, &estimate);
    EXPECT(script.timings[1].exposed, 0);
    EXPECT(script.timings[2].exposed, 0);
    EXPECT(script.timings[3].exposed, 1);
    EXPECT(estimate.step_seconds, 12);
}

TEST(lanes_that_share_a_processor_slow_each_other_down)
{
    const double shares[] = {2, 1, 0.5}; /* of a rank: two processors, one, half of one */
    const double slow[] = {1, 1, 2};     /* a lane that runs alone */
    for (int i = 0; i < 3; i++) {
        struct script script = {0};
        int a = step(&script, LANE_COMPUTE, 2, -1, -1);
        int gather = step(&script, LANE_COMM, 1, -1, -1);
        int b = step(&script, LANE_COMPUTE, 1, gather, -1);
        struct plan_estimate estimate;
        plan_simulate_shared(&script.program, shares[i], script.timings, &estimate);
        double both = i == 0 ? 1 : 2 * slow[i]; /* two lanes that run */
        double a_takes = i == 0 ? 2 : both + slow[i];
        EXPECT(script.timings[gather].seconds, both);
        EXPECT(script.timings[a].seconds, a_takes);
        EXPECT(script.timings[b].start, a_takes);
        EXPECT(estimate.step_seconds, a_takes + slow[i]);
    }
}

/* ---- Ops ---- */

static const char net[] = "name: Net\n"
                          "input: [8]\n"
                          "classes: 4\n"
                          "modules:\n"
                          "  fc: Linear(8, 4)\n"
                          "forward:\n"
                          "  - x = fc(x)\n"
                          "  - output = log_softmax(x, dim=1)\n"
                          "loss: nll_loss(output, target)\n";

struct planned {
    struct model *model;
    struct unit_set *units;
    struct graph *graph;
    struct plan *plan;
    struct plan_timing *timings;
};

static void plan_net_with(struct planned *planned, int shard_world, struct plan_options options)
{
    ck_assert_ptr_null(model_parse(net, strlen(net), "net.yaml", &planned->model));
    const struct graph_options graph = {.batch_size = 16, .train = true};
    ck_assert_ptr_null(graph_build(planned->model, &graph, &planned->graph));
    const struct wrap_policy policy = {.kind = WRAP_NONE};
    ck_assert_ptr_null(units_build(planned->model, &policy, shard_world, &planned->units));
    const struct lowering lowering = {0};
    ck_assert_ptr_null(plan_build(planned->model, planned->units, planned->graph, &lowering, NULL,
                                  NULL, &options, &planned->plan));
    planned->timings =
        mem_alloc_array(planned->plan->train.instruction_count, sizeof *planned->timings);
}

static void plan_net_hybrid(struct planned *planned, int world, int shard_world, int slots)
{
    enum strategy strategy = shard_world < world ? STRATEGY_HYBRID_SHARD : STRATEGY_FULL_SHARD;
    plan_net_with(planned, shard_world,
                  (struct plan_options){.world = world,
                                        .strategy = strategy,
                                        .optimizer = OPTIMIZER_ADADELTA,
                                        .optimizer_slots = slots});
}

static void plan_net(struct planned *planned, int world, int slots)
{
    plan_net_hybrid(planned, world, world, slots);
}

static void plan_net_offloaded(struct planned *planned, int world, enum norm_kind norm)
{
    plan_net_with(planned, world,
                  (struct plan_options){.world = world,
                                        .strategy = STRATEGY_FULL_SHARD,
                                        .optimizer = OPTIMIZER_ADADELTA,
                                        .optimizer_slots = 2,
                                        .norm = norm,
                                        .cpu_offload = true,
                                        .host_apart = true});
}

static void planned_deinit(struct planned *planned)
{
    free(planned->timings);
    plan_free(planned->plan);
    units_free(planned->units);
    graph_free(planned->graph);
    model_free(planned->model);
}

static double seconds_of(const struct planned *planned, enum instruction_kind kind, const char *op)
{
    const struct plan_program *program = &planned->plan->train;
    for (int i = 0; i < program->instruction_count; i++) {
        const struct plan_instruction *it = &program->instructions[i];
        if (it->kind != kind) continue;
        if (op == NULL || strcmp(program->graph->ops[it->op].name, op) == 0)
            return planned->timings[i].seconds;
    }
    ck_abort_msg("no %s %s", plan_instruction_name(kind), op != NULL ? op : "");
    return 0;
}

static struct plan_rates rates(void)
{
    return (struct plan_rates){.flops_f32 = 1e30,
                               .flops_bf16 = 1e30,
                               .memory_bandwidth = 1e30,
                               .batch = {.bandwidth = 1e30},
                               .host_bandwidth = 1e30,
                               .inside = {.bandwidth = 1e30},
                               .between = {.bandwidth = 1e30},
                               .devices_per_host = 8};
}

TEST(ops_take_the_longer_of_both)
{
    struct planned planned;
    plan_net(&planned, 1, 2);
    struct plan_rates slow = rates();
    slow.flops_f32 = 2;
    /* 16 rows, 8 inputs, 4 outputs, a multiply and an add each, forward and for the weights */
    double flops =
        plan_estimate_instructions(planned.plan, &planned.plan->train, &slow, planned.timings);
    EXPECT(flops, 2 * 1024);
    EXPECT(seconds_of(&planned, INSTRUCTION_COMPUTE, "fc"), 512);
    slow.memory_bandwidth = 4;
    slow.op_seconds = 5;
    slow.batch = (struct plan_link){.bandwidth = 32, .latency = 1};
    plan_estimate_instructions(planned.plan, &planned.plan->train, &slow, planned.timings);
    /* x 512 bytes, weight 128, bias 16, y 256: 228 seconds, less than the arithmetic */
    EXPECT(seconds_of(&planned, INSTRUCTION_COMPUTE, "fc"), 512 + 5);
    slow.memory_bandwidth = 1;
    plan_estimate_instructions(planned.plan, &planned.plan->train, &slow, planned.timings);
    EXPECT(seconds_of(&planned, INSTRUCTION_COMPUTE, "fc"), 912 + 5);
    /* 36 parameters, padded to 40, 4 bytes: read and write them and two values of state, read the
     * gradient */
    EXPECT(seconds_of(&planned, INSTRUCTION_OPTIMIZER, NULL), 160 * 7 + 5);
    /* 512 bytes of input, 64 of targets */
    EXPECT(seconds_of(&planned, INSTRUCTION_COPY_BATCH, NULL), 1 + 18);
    planned_deinit(&planned);
}

TEST(rings_that_leave_the_host)
{
    struct planned planned;
    plan_net(&planned, 4, 0);
    struct plan_rates linked = rates();
    linked.inside = (struct plan_link){.bandwidth = 9, .latency = 1};
    linked.between = (struct plan_link){.bandwidth = 3, .latency = 10};
    /* 36 elements, padded to 64: each rank sends 3/4 of 256 bytes */
    plan_estimate_instructions(planned.plan, &planned.plan->train, &linked, planned.timings);
    EXPECT(seconds_of(&planned, INSTRUCTION_ALL_GATHER, NULL), 3 + 192 / 9.0);
    linked.devices_per_host = 2;
    plan_estimate_instructions(planned.plan, &planned.plan->train, &linked, planned.timings);
    EXPECT(seconds_of(&planned, INSTRUCTION_ALL_GATHER, NULL), 30 + 192 / 3.0);
    /* a network faster than the links within the host does not make the ring faster */
    linked.between = (struct plan_link){.bandwidth = 100, .latency = 0};
    plan_estimate_instructions(planned.plan, &planned.plan->train, &linked, planned.timings);
    EXPECT(seconds_of(&planned, INSTRUCTION_ALL_GATHER, NULL), 3 + 192 / 9.0);
    planned_deinit(&planned);
}

/* Eight ranks, four to a host, sharded over `shard_world`: the links of a gather and of the
 * replicas' sum. */
LOOP_TEST(groups_of_ranks, 0, 2)
{
    static const struct {
        int shard_world, gather_sends;
        double sum_seconds;
    } cases[] = {
        {4, 192, 20 + 64 / 3.0}, /* 3/4 of 256 bytes; two replicas of 64: a ring */
        {2, 96, 40 + 192 / 3.0}, /* half of 192; four replicas of 96: a tree of two levels */
    };
    struct planned planned;
    int shard_world = cases[_i].shard_world;
    plan_net_hybrid(&planned, 8, shard_world, 0);
    struct plan_rates linked = rates();
    linked.inside = (struct plan_link){.bandwidth = 9, .latency = 1};
    linked.between = (struct plan_link){.bandwidth = 3, .latency = 10};
    linked.devices_per_host = 4;
    plan_estimate_instructions(planned.plan, &planned.plan->train, &linked, planned.timings);
    EXPECT(seconds_of(&planned, INSTRUCTION_ALL_GATHER, NULL),
           shard_world - 1 + cases[_i].gather_sends / 9.0);
    EXPECT(seconds_of(&planned, INSTRUCTION_ALL_REDUCE, NULL), cases[_i].sum_seconds);
    /* hosts of three: groups straddle them */
    linked.devices_per_host = 3;
    plan_estimate_instructions(planned.plan, &planned.plan->train, &linked, planned.timings);
    EXPECT(seconds_of(&planned, INSTRUCTION_ALL_GATHER, NULL),
           10 * (shard_world - 1) + cases[_i].gather_sends / 3.0);
    planned_deinit(&planned);
}

TEST(a_whole_step)
{
    struct planned planned;
    plan_net(&planned, 2, 0);
    struct plan_rates linked = rates();
    linked.flops_f32 = 1024;
    linked.inside = (struct plan_link){.bandwidth = 1e30, .latency = 5};
    struct plan_estimate estimate;
    plan_estimate_program(planned.plan, &planned.plan->train, &linked, planned.timings, &estimate);
    EXPECT(estimate.flops, 2048);
    EXPECT(estimate.compute_seconds, 2);
    /* a gather, the statistics (there and back) and a reduction, which wait for the arithmetic: the
     * statistics run while the weights' gradients are computed */
    EXPECT(estimate.communication_seconds, 5 + 10 + 5);
    EXPECT(estimate.exposed_seconds, 5 + 9 + 5);
    EXPECT(estimate.step_seconds, 5 + 1 + 10 + 5);
    planned_deinit(&planned);
}

/* Transfers to and from the host use its link; the host's optimizer has the bandwidth of the host's
 * memory and no start-up cost. */
TEST(offloaded_units)
{
    struct planned planned;
    struct plan_rates slow = rates();
    slow.batch = (struct plan_link){.bandwidth = 16, .latency = 3};
    slow.host_bandwidth = 7;
    slow.op_seconds = 1000;
    slow.memory_bandwidth = 1;
    plan_net_offloaded(&planned, 1, NORM_NONE);
    plan_estimate_instructions(planned.plan, &planned.plan->train, &slow, planned.timings);
    /* 40 parameters with their padding, of 4 bytes, up, as many gradients down */
    EXPECT(seconds_of(&planned, INSTRUCTION_UPLOAD, NULL), 3 + 10);
    EXPECT(seconds_of(&planned, INSTRUCTION_DOWNLOAD, NULL), 3 + 10);
    /* parameter and two of state, read and written, the gradient read */
    EXPECT(seconds_of(&planned, INSTRUCTION_OPTIMIZER, NULL), 160);
    planned_deinit(&planned);

    /* Of two ranks each has 18, padded to 24; the statistics take a word's time to the host. */
    plan_net_offloaded(&planned, 2, NORM_2);
    plan_estimate_instructions(planned.plan, &planned.plan->train, &slow, planned.timings);
    EXPECT(seconds_of(&planned, INSTRUCTION_UPLOAD, NULL), 3 + 6);
    EXPECT(seconds_of(&planned, INSTRUCTION_DOWNLOAD, NULL), 3 + 6);
    EXPECT(seconds_of(&planned, INSTRUCTION_DOWNLOAD_STATS, NULL), 3);
    EXPECT(seconds_of(&planned, INSTRUCTION_OPTIMIZER, NULL), 96);
    planned_deinit(&planned);
}

TEST(an_offloaded_step)
{
    struct planned planned;
    struct plan_rates slow = rates();
    struct plan_estimate estimate;
    slow.flops_f32 = 1024;
    slow.batch = (struct plan_link){.bandwidth = 16, .latency = 3};
    slow.host_bandwidth = 7;
    plan_net_offloaded(&planned, 1, NORM_NONE);
    plan_estimate_program(planned.plan, &planned.plan->train, &slow, planned.timings, &estimate);
    /* The batch's 576 bytes and the parameters are copied one after the other; forward and the
     * weights' gradients take a second each. The statistics' transfer begins with the loss; then
     * come the gradients', and the optimizer. */
    EXPECT(estimate.copy_seconds, (3 + 36) + (3 + 10));
    EXPECT(estimate.compute_seconds, 2);
    EXPECT(estimate.download_seconds, (3 + 10) + 3);
    EXPECT(estimate.host_seconds, 160);
    EXPECT(estimate.communication_seconds, 0);
    EXPECT(estimate.step_seconds, 52 + 1 + 3 + 13 + 160);
    planned_deinit(&planned);

    /* The same on the device: on the link, only the batch's transfer is left. */
    plan_net(&planned, 1, 2);
    plan_estimate_program(planned.plan, &planned.plan->train, &slow, planned.timings, &estimate);
    EXPECT(estimate.copy_seconds, 3 + 36);
    EXPECT(estimate.download_seconds, 0);
    EXPECT(estimate.host_seconds, 0);
    EXPECT(estimate.step_seconds, 39 + 2);
    planned_deinit(&planned);
}
