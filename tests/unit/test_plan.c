/*
 * Plans of the MNIST net: the collectives and their order, the waits, the memory; refused options;
 * a large model in little time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/text.h"
#include "fsdp/plan_internal.h"
#include "fsdp_fixture.h"
#include "ops/op_attributes.h"
#include "tests/testing.h"

static struct plan_options options_for(enum strategy strategy, int world)
{
    return (struct plan_options){.world = world,
                                 .strategy = strategy,
                                 .backward_prefetch = PREFETCH_PRE,
                                 .optimizer = OPTIMIZER_ADADELTA,
                                 .optimizer_slots = 2,
                                 .collective_workspace_bytes = world > 1 ? 4096 : 0};
}

/* A plan with everything that it borrows. */
struct planned {
    struct model *model;
    struct unit_set *units;
    struct graph *train, *evaluate;
    struct fixture_lowering train_lowering, evaluate_lowering;
    struct plan *plan;
};

/* The MNIST net; no policy if min_num_params is 0, no evaluation if its batch is 0. */
static void plan_mnist(struct planned *planned, uint64_t min_num_params,
                       struct plan_options options, int64_t batch, int64_t evaluate_batch)
{
    *planned = (struct planned){.model = fixture_mnist()};
    struct wrap_policy policy = {.kind = min_num_params > 0 ? WRAP_SIZE : WRAP_NONE,
                                 .min_num_params = min_num_params};
    int shard_world = options.strategy == STRATEGY_NO_SHARD ? 1 : options.world;
    status_t status = units_build(planned->model, &policy, shard_world, &planned->units);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    planned->train = fixture_mnist_graph(planned->model, batch, true);
    fixture_lower(&planned->train_lowering, planned->train, NULL);
    if (evaluate_batch > 0) {
        planned->evaluate = fixture_mnist_graph(planned->model, evaluate_batch, false);
        fixture_lower(&planned->evaluate_lowering, planned->evaluate, NULL);
    }
    status = plan_build(planned->model, planned->units, planned->train,
                        &planned->train_lowering.lowering, planned->evaluate,
                        &planned->evaluate_lowering.lowering, &options, &planned->plan);
    ck_assert_msg(status == NULL, "%s", status_message(status));
}

static void planned_deinit(struct planned *planned)
{
    plan_free(planned->plan);
    fixture_lowering_deinit(&planned->train_lowering);
    fixture_lowering_deinit(&planned->evaluate_lowering);
    graph_free(planned->train);
    if (planned->evaluate != NULL) graph_free(planned->evaluate);
    units_free(planned->units);
    model_free(planned->model);
}

/* "all_gather fc1, ..." of one lane, frees and optimizers only on the compute lane. */
static char *lane_text(const struct plan *plan, const struct plan_program *program, enum lane lane)
{
    struct buf out = {0};
    for (int i = 0; i < program->instruction_count; i++) {
        const struct plan_instruction *it = &program->instructions[i];
        if (it->lane != lane || it->kind == INSTRUCTION_COMPUTE) continue;
        buf_printf(&out, "%s%s%s%s", out.length > 0 ? ", " : "", plan_instruction_name(it->kind),
                   it->unit >= 0 ? " " : "",
                   it->unit >= 0 ? plan->units->units[it->unit].name : "");
    }
    return buf_take(&out);
}

static void expect_lane(const struct plan *plan, const struct plan_program *program, enum lane lane,
                        const char *expected)
{
    char *text = lane_text(plan, program, lane);
    ck_assert_str_eq(text, expected);
    free(text);
}

static int find(const struct plan *plan, const struct plan_program *program,
                enum instruction_kind kind, const char *subject, int which)
{
    for (int i = 0; i < program->instruction_count; i++) {
        const struct plan_instruction *it = &program->instructions[i];
        const char *name = it->op >= 0     ? program->graph->ops[it->op].name
                           : it->unit >= 0 ? plan->units->units[it->unit].name
                                           : "";
        if (it->kind == kind && strcmp(name, subject) == 0 && which-- == 0) return i;
    }
    ck_abort_msg("no %s %s", plan_instruction_name(kind), subject);
    return -1;
}

TESTS_BELOW(.timeout = 60);

TEST(collectives_in_order)
{
    static const struct {
        uint64_t min_num_params;
        enum prefetch prefetch;
        const char *train, *evaluate, *compute;
    } cases[] = {
        {0, PREFETCH_PRE, "all_gather (root), reduce_stats, reduce_scatter (root)",
         "all_gather (root), reduce_stats", "free (root), optimizer (root)"},
        {20000, PREFETCH_PRE,
         "all_gather (root), all_gather fc1, reduce_stats, reduce_scatter fc1, reduce_scatter "
         "(root)",
         "all_gather (root), all_gather fc1, reduce_stats",
         "free fc1, free (root), optimizer fc1, optimizer (root)"},
        {100, PREFETCH_PRE,
         "all_gather conv1, all_gather conv2, all_gather fc1, all_gather fc2, reduce_stats, "
         "all_gather fc1, reduce_scatter fc2, all_gather conv2, reduce_scatter fc1, "
         "reduce_scatter conv2, reduce_scatter conv1",
         "all_gather conv1, all_gather conv2, all_gather fc1, all_gather fc2, reduce_stats",
         "free conv1, free conv2, free fc1, free fc2, free fc1, free conv2, optimizer fc2, "
         "optimizer fc1, optimizer conv2, optimizer conv1"},
        {100, PREFETCH_POST,
         "all_gather conv1, all_gather conv2, all_gather fc1, all_gather fc2, reduce_stats, "
         "all_gather fc1, reduce_scatter fc2, all_gather conv2, reduce_scatter fc1, "
         "reduce_scatter conv2, reduce_scatter conv1",
         "all_gather conv1, all_gather conv2, all_gather fc1, all_gather fc2, reduce_stats",
         "free conv1, free conv2, free fc1, free fc2, free fc1, free conv2, optimizer fc2, "
         "optimizer fc1, optimizer conv2, optimizer conv1"},
        {100, PREFETCH_NONE,
         "all_gather conv1, all_gather conv2, all_gather fc1, all_gather fc2, reduce_stats, "
         "reduce_scatter fc2, reduce_scatter fc1, all_gather fc1, reduce_scatter conv2, "
         "all_gather conv2, reduce_scatter conv1",
         "all_gather conv1, all_gather conv2, all_gather fc1, all_gather fc2, reduce_stats",
         "free conv1, free conv2, free fc1, free fc2, free fc1, free conv2, optimizer fc2, "
         "optimizer fc1, optimizer conv2, optimizer conv1"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct planned planned;
        struct plan_options options = options_for(STRATEGY_FULL_SHARD, 2);
        options.backward_prefetch = cases[i].prefetch;
        plan_mnist(&planned, cases[i].min_num_params, options, 4, 4);
        expect_lane(planned.plan, &planned.plan->train, LANE_COMM, cases[i].train);
        expect_lane(planned.plan, &planned.plan->evaluate, LANE_COMM, cases[i].evaluate);
        expect_lane(planned.plan, &planned.plan->train, LANE_COMPUTE, cases[i].compute);
        expect_lane(planned.plan, &planned.plan->train, LANE_COPY, "copy_batch");
        planned_deinit(&planned);
    }
}

TEST(no_shard_reduces_during_backward)
{
    struct planned planned;
    plan_mnist(&planned, 100, options_for(STRATEGY_NO_SHARD, 3), 4, 4);
    const struct plan *plan = planned.plan;
    expect_lane(plan, &plan->train, LANE_COMM,
                "reduce_stats, all_reduce fc2, all_reduce fc1, all_reduce conv2, all_reduce conv1");
    expect_lane(plan, &plan->evaluate, LANE_COMM, "reduce_stats");
    int reduce = find(plan, &plan->train, INSTRUCTION_ALL_REDUCE, "fc1", 0);
    int later = find(plan, &plan->train, INSTRUCTION_COMPUTE, "conv2.backward_weights", 0);
    int optimizer = find(plan, &plan->train, INSTRUCTION_OPTIMIZER, "fc1", 0);
    ck_assert(!plan_happens_before(&plan->train, reduce, later));
    ck_assert(plan_happens_before(&plan->train, reduce, optimizer));
    /* fc1 has 1,179,776 elements: rank 0 sums 393,259 of them and sends the sums to two others. */
    ck_assert_int_eq(planned.units->units[2].flat.padded, 1179776);
    ck_assert_uint_eq(plan->train.instructions[reduce].communicated,
                      4 * (1179776 - 393259 + 2 * 393259));
    planned_deinit(&planned);
}

TEST(one_rank_communicates_nothing)
{
    for (int strategy = 0; strategy < 2; strategy++) {
        struct planned planned;
        plan_mnist(&planned, 1000, options_for(strategy, 1), 4, 4);
        const struct plan_program *train = &planned.plan->train;
        expect_lane(planned.plan, train, LANE_COMM, "");
        expect_lane(planned.plan, train, LANE_COMPUTE,
                    "optimizer fc2, optimizer fc1, optimizer conv2, optimizer (root)");
        for (int v = 0; v < train->graph->value_count; v++) {
            if (train->graph->values[v].kind != VALUE_PARAMETER) continue;
            ck_assert_int_eq(train->buffers[train->buffer_of_value[v]].class, BUFFER_SHARD);
        }
        planned_deinit(&planned);
    }
}

TEST(gathers_overlap_and_obey_the_limit)
{
    struct planned planned;
    plan_mnist(&planned, 100, options_for(STRATEGY_FULL_SHARD, 2), 4, 0);
    const struct plan *plan = planned.plan;
    const struct plan_program *train = &plan->train;
    /* The second unit is gathered while the first computes; the third only when the first is free.
     */
    int conv1 = find(plan, train, INSTRUCTION_COMPUTE, "conv1", 0);
    int gather_conv2 = find(plan, train, INSTRUCTION_ALL_GATHER, "conv2", 0);
    int gather_fc1 = find(plan, train, INSTRUCTION_ALL_GATHER, "fc1", 0);
    ck_assert(!plan_happens_before(train, conv1, gather_conv2));
    ck_assert(
        plan_happens_before(train, find(plan, train, INSTRUCTION_FREE, "conv1", 0), gather_fc1));
    int conv2 = find(plan, train, INSTRUCTION_COMPUTE, "conv2", 0);
    ck_assert(!plan_happens_before(train, conv2, gather_fc1));
    /* Backward, pre: conv2 is gathered while fc1's gradients are computed. */
    int fc1 = find(plan, train, INSTRUCTION_COMPUTE, "fc1.backward_weights", 0);
    gather_conv2 = find(plan, train, INSTRUCTION_ALL_GATHER, "conv2", 1);
    ck_assert(!plan_happens_before(train, fc1, gather_conv2));
    /* A reduction does not delay the compute lane before the optimizer. */
    int reduce = find(plan, train, INSTRUCTION_REDUCE_SCATTER, "fc1", 0);
    for (int i = 0; i < train->instruction_count; i++)
        if (train->instructions[i].kind == INSTRUCTION_COMPUTE)
            ck_assert(!plan_happens_before(train, reduce, i) ||
                      plan_happens_before(train,
                                          find(plan, train, INSTRUCTION_ALL_GATHER, "conv2", 1),
                                          i));
    planned_deinit(&planned);

    struct plan_options options = options_for(STRATEGY_FULL_SHARD, 2);
    options.gathered_limit = 1;
    plan_mnist(&planned, 100, options, 4, 0);
    train = &planned.plan->train;
    ck_assert(plan_happens_before(train, find(planned.plan, train, INSTRUCTION_FREE, "conv1", 0),
                                  find(planned.plan, train, INSTRUCTION_ALL_GATHER, "conv2", 0)));
    planned_deinit(&planned);

    options = options_for(STRATEGY_FULL_SHARD, 2);
    options.backward_prefetch = PREFETCH_POST;
    plan_mnist(&planned, 100, options, 4, 0);
    train = &planned.plan->train;
    gather_conv2 = find(planned.plan, train, INSTRUCTION_ALL_GATHER, "conv2", 1);
    ck_assert(
        plan_happens_before(train,
                            find(planned.plan, train, INSTRUCTION_COMPUTE, "fc1.backward_data", 0),
                            gather_conv2));
    ck_assert(!plan_happens_before(train,
                                   find(planned.plan, train, INSTRUCTION_REDUCE_SCATTER, "fc1", 0),
                                   gather_conv2));
    planned_deinit(&planned);
}

/* No wait is implied by the lane's order and the other waits. */
TEST(waits_are_minimal)
{
    for (int prefetch = PREFETCH_NONE; prefetch <= PREFETCH_POST; prefetch++) {
        struct planned planned;
        struct plan_options options = options_for(STRATEGY_FULL_SHARD, 2);
        options.backward_prefetch = prefetch;
        plan_mnist(&planned, 100, options, 4, 4);
        const struct plan_program *train = &planned.plan->train;
        int before[LANE_COUNT] = {-1, -1, -1}, waits = 0;
        for (int i = 0; i < train->instruction_count; i++) {
            const struct plan_instruction *it = &train->instructions[i];
            for (int k = 0; k < it->wait_count; k++, waits++) {
                int other = it->waits[k];
                ck_assert_int_ne(train->instructions[other].lane, it->lane);
                ck_assert(before[it->lane] < 0 ||
                          !plan_happens_before(train, other, before[it->lane]));
                for (int j = 0; j < it->wait_count; j++)
                    ck_assert(!plan_happens_before(train, other, it->waits[j]));
            }
            before[it->lane] = i;
        }
        ck_assert_int_gt(waits, 5);
        planned_deinit(&planned);
    }
}

static uint64_t peak(uint64_t min_num_params, enum strategy strategy, int world, int64_t batch,
                     int64_t evaluate_batch)
{
    struct planned planned;
    plan_mnist(&planned, min_num_params, options_for(strategy, world), batch, evaluate_batch);
    uint64_t bytes = planned.plan->peak_bytes;
    ck_assert_uint_le(planned.plan->train.live_peak, bytes);
    planned_deinit(&planned);
    return bytes;
}

TEST(sharding_saves_memory)
{
    static const int64_t evaluate_batches[] = {0, 64, 1000};
    for (int world = 2; world <= 8; world += 2) {
        for (int i = 0; i < 3; i++) {
            uint64_t replicated = peak(0, STRATEGY_NO_SHARD, world, 64, evaluate_batches[i]);
            uint64_t whole = peak(0, STRATEGY_FULL_SHARD, world, 64, evaluate_batches[i]);
            uint64_t wrapped = peak(20000, STRATEGY_FULL_SHARD, world, 64, evaluate_batches[i]);
            ck_assert_uint_gt(replicated, whole);
            ck_assert_uint_gt(whole, wrapped);
        }
    }
}

/* What NVIDIA's libraries want: arenas' buffers at 256 bytes, parameters at 16, also in bf16. */
TEST(buffers_and_parameters_are_aligned)
{
    for (int world = 1; world <= 3; world++) {
        struct planned planned;
        plan_mnist(&planned, 20000, options_for(STRATEGY_FULL_SHARD, world), 64, 1000);
        const struct plan_program *program = &planned.plan->train;
        for (int b = 0; b < program->buffer_count; b++)
            ck_assert_uint_eq(program->buffers[b].offset % 256, 0);
        for (int u = 0; u < planned.units->unit_count; u++) {
            const struct flat_parameter *flat = &planned.units->units[u].flat;
            ck_assert_int_eq(2 * flat->shard % 16, 0);
            for (int i = 0; i < flat->parameter_count; i++)
                ck_assert_int_eq(2 * flat->offsets[i] % 16, 0);
        }
        planned_deinit(&planned);
    }
}

TEST(fragments_are_small)
{
    static const uint64_t policies[] = {0, 100, 1000, 20000};
    for (int i = 0; i < 4; i++) {
        struct planned planned;
        plan_mnist(&planned, policies[i], options_for(STRATEGY_FULL_SHARD, 2), 64, 1000);
        const struct plan *plan = planned.plan;
        const struct plan_program *programs[] = {&plan->train, &plan->evaluate};
        for (int k = 0; k < 2; k++) {
            uint64_t arenas = plan->state_bytes + programs[k]->work_bytes;
            ck_assert_uint_le(arenas - programs[k]->live_peak, arenas / 200);
        }
        planned_deinit(&planned);
    }
}

static void expect_host(const struct plan *plan, struct plan_host host, const char *words)
{
    status_t status = plan_check_host_fits(plan, &host);
    ck_assert_int_eq(status_code(status), words != NULL ? STATUS_RESOURCE_EXHAUSTED : STATUS_OK);
    if (words != NULL)
        ck_assert_msg(strstr(status_message(status), words) != NULL, "%s", status_message(status));
    status_free(status);
}

/* The limit of the host's memory, like the device's: for all of a host's ranks, with their
 * copies. */
TEST(offloaded_to_a_small_host)
{
    struct planned planned;
    struct plan_options options = options_for(STRATEGY_FULL_SHARD, 2);
    options.cpu_offload = options.host_apart = true;
    plan_mnist(&planned, 20000, options, 64, 64);
    ck_assert_uint_gt(planned.plan->host_bytes, 0);
    const struct plan *plan = planned.plan;
    const uint64_t units = plan->host_bytes, copies = 50000000, all = 8 * (units + copies);
    char bytes[32], *words;
    expect_host(plan, (struct plan_host){units, 0, 1}, NULL);
    expect_host(plan, (struct plan_host){units - 1, 0, 1},
                "of host memory per rank, and copies 0 B,");
    expect_host(plan, (struct plan_host){units + copies, copies, 1}, NULL);
    expect_host(plan, (struct plan_host){units + copies - 1, copies, 1}, "and copies 50.0 MB, but");
    expect_host(plan, (struct plan_host){all, copies, 8}, NULL);
    words = mem_printf("and copies 50.0 MB, %s for the 8 ranks of a host, but",
                       text_format_bytes(all, bytes));
    expect_host(plan, (struct plan_host){all - 1, copies, 8}, words);
    free(words);
    words = mem_printf("but %s are available there; offload fewer units, or use more hosts",
                       text_format_bytes(all - 1, bytes));
    expect_host(plan, (struct plan_host){all - 1, copies, 8}, words);
    free(words);
    /* a product that overflows does not count as small */
    expect_host(plan, (struct plan_host){UINT64_MAX, UINT64_MAX / 8, 1 << 20}, "are available");
    planned_deinit(&planned);
    /* units that are not offloaded are copied, too */
    plan_mnist(&planned, 20000, options_for(STRATEGY_FULL_SHARD, 2), 64, 64);
    ck_assert_uint_eq(planned.plan->host_bytes, 0);
    expect_host(planned.plan, (struct plan_host){2 * copies, copies, 2}, NULL);
    expect_host(
        planned.plan, (struct plan_host){2 * copies - 1, copies, 2},
        "copies need 50.0 MB of host memory per rank, 100 MB for the 2 ranks of a host, but "
        "100 MB are available there");
    planned_deinit(&planned);
}

TEST(refusals)
{
    struct planned planned;
    plan_mnist(&planned, 20000, options_for(STRATEGY_FULL_SHARD, 2), 64, 64);
    status_t status = plan_check_fits(planned.plan, 0, planned.plan->peak_bytes);
    ck_assert_ptr_null(status);
    status = plan_check_fits(planned.plan, 1000, planned.plan->peak_bytes + 1000);
    ck_assert_ptr_null(status);
    status = plan_check_fits(planned.plan, 1000, planned.plan->peak_bytes + 999);
    ck_assert_int_eq(status_code(status), STATUS_RESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(status_message(status), "and 1.00 kB outside of it"));
    status_free(status);
    status = plan_check_fits(planned.plan, 0, planned.plan->peak_bytes - 1);
    ck_assert_int_eq(status_code(status), STATUS_RESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(status_message(status), "activations"));
    ck_assert_ptr_nonnull(strstr(status_message(status), "the largest unit is fc1 with 4.72 MB"));
    status_free(status);

    struct plan_options wrong[] = {options_for(STRATEGY_FULL_SHARD, 3),
                                   options_for(STRATEGY_FULL_SHARD, 2),
                                   options_for(STRATEGY_FULL_SHARD, 2),
                                   options_for(STRATEGY_FULL_SHARD, 2),
                                   options_for(STRATEGY_FULL_SHARD, 2)};
    wrong[4].reshard = RESHARD_GROUP;
    wrong[4].reshard_ranks = 3;
    wrong[1].rank = 2;
    wrong[2].gathered_limit = -1;
    wrong[3].optimizer_slots = OPTIMIZER_MAX_SLOTS + 1;
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        struct plan *plan = NULL;
        status = plan_build(planned.model, planned.units, planned.train,
                            &planned.train_lowering.lowering, NULL, NULL, &wrong[i], &plan);
        ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
        ck_assert_ptr_null(plan);
        if (i == 4)
            ck_assert_str_eq(status_message(status),
                             "unit fc1 is sharded over 2 ranks, which cannot be resharded after "
                             "forward in groups of 3; expected a divisor");
        status_free(status);
    }
    /* A trainable parameter without a gradient, here because the graph does not train. */
    struct plan_options options = options_for(STRATEGY_FULL_SHARD, 2);
    struct plan *plan = NULL;
    status = plan_build(planned.model, planned.units, planned.evaluate,
                        &planned.evaluate_lowering.lowering, NULL, NULL, &options, &plan);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(status_message(status),
                                 "'conv1.weight' is trainable, but the loss "
                                 "does not depend on it"));
    status_free(status);
    /* An impossible view. */
    for (int o = 0; o < planned.train->op_count; o++)
        if (planned.train->ops[o].kind == OP_MAX_POOL2D) planned.train_lowering.view[o] = true;
    status = plan_build(planned.model, planned.units, planned.train,
                        &planned.train_lowering.lowering, NULL, NULL, &options, &plan);
    ck_assert_int_eq(status_code(status), STATUS_INTERNAL);
    status_free(status);
    planned_deinit(&planned);
}

TEST(hash_is_of_what_ranks_must_share)
{
    struct planned a, b;
    struct plan_options options = options_for(STRATEGY_FULL_SHARD, 2);
    plan_mnist(&a, 20000, options, 64, 64);
    options.rank = 1;
    options.collective_workspace_bytes = 128;
    plan_mnist(&b, 20000, options, 64, 64);
    ck_assert_uint_eq(a.plan->hash, b.plan->hash);
    planned_deinit(&b);
    struct plan_options others[] = {options, options, options};
    others[0].backward_prefetch = PREFETCH_NONE;
    others[1].optimizer = OPTIMIZER_SGD;
    others[2].gathered_limit = 3;
    for (int i = 0; i < 3; i++) {
        plan_mnist(&b, 20000, others[i], 64, 64);
        ck_assert_uint_ne(a.plan->hash, b.plan->hash);
        planned_deinit(&b);
    }
    plan_mnist(&b, 1000, options, 64, 64);
    ck_assert_uint_ne(a.plan->hash, b.plan->hash);
    planned_deinit(&b);
    plan_mnist(&b, 20000, options, 32, 64);
    ck_assert_uint_ne(a.plan->hash, b.plan->hash);
    planned_deinit(&b);
    planned_deinit(&a);
}

/* Each attribute of each op: ranks that compute something else must not start. */
TEST(hash_has_every_attribute)
{
    struct planned planned;
    plan_mnist(&planned, 20000, options_for(STRATEGY_FULL_SHARD, 2), 64, 64);
    uint64_t hash = planned.plan->hash;
    int attributes = 0;
    for (int o = 0; o < planned.train->op_count; o++) {
        struct graph_op *op = &planned.train->ops[o];
        const struct op_attribute *attribute = op_info_get(op->kind)->attributes;
        for (; attribute != NULL && attribute->name != NULL; attribute++, attributes++) {
            union op_attrs kept = op->attrs;
            unsigned char *at = (unsigned char *)&op->attrs + attribute->offset;
            static const float half = 0.5f;
            if (attribute->type == ATTRIBUTE_WEIGHTS)
                *(struct op_weights *)(void *)at = (struct op_weights){&half, 1};
            else *at ^= 1;
            ck_assert_msg(plan_compute_hash(planned.plan) != hash, "%s: %s is not in the hash",
                          op->name, attribute->name);
            op->attrs = kept;
        }
    }
    ck_assert_int_gt(attributes, 20);
    ck_assert_uint_eq(plan_compute_hash(planned.plan), hash);
    planned_deinit(&planned);
}

/* Registered buffers must have the other ranks' offsets; otherwise only sizes count. */
TEST(hash_has_places_of_what_is_registered)
{
    struct planned a, b;
    struct plan_options options = options_for(STRATEGY_FULL_SHARD, 2);
    plan_mnist(&a, 20000, options, 64, 64);
    uint64_t plain = a.plan->hash;
    planned_deinit(&a);
    options.register_buffers = true;
    plan_mnist(&a, 20000, options, 64, 64);
    ck_assert_uint_ne(a.plan->hash, plain);
    options.rank = 1;
    plan_mnist(&b, 20000, options, 64, 64);
    ck_assert_uint_eq(b.plan->hash, a.plan->hash);
    planned_deinit(&b);
    options.collective_workspace_bytes = 1 << 20;
    plan_mnist(&b, 20000, options, 64, 64);
    ck_assert_uint_ne(b.plan->hash, a.plan->hash);
    planned_deinit(&b);
    planned_deinit(&a);
}

/* Thousands of ops and ranks are planned in well under a second (a limit that sanitizers keep too).
 */
TEST(large_models_are_quick)
{
    struct model *model = fixture_model_new("Deep");
    for (int i = 0; i < 500; i++) {
        char name[16];
        snprintf(name, sizeof name, "block%d", i);
        int block = fixture_module(model, 0, name, "Block", "");
        fixture_linear(model, block, "up", 64, 256);
        fixture_linear(model, block, "down", 256, 64);
    }
    struct fixture_random random = {.state = 12345};
    struct wrap_policy policy = {.kind = WRAP_SIZE, .min_num_params = 30000};
    struct unit_set *units = NULL;
    status_t status = units_build(model, &policy, 4096, &units);
    ck_assert_ptr_null(status);
    ck_assert_int_eq(units->unit_count, 501);
    struct graph *graph = fixture_random_graph(&random, model, 4, true);
    struct fixture_lowering lowering;
    fixture_lower(&lowering, graph, &random);
    struct plan_options options = options_for(STRATEGY_FULL_SHARD, 4096);
    clock_t start = clock();
    struct plan *plan = NULL;
    status = plan_build(model, units, graph, &lowering.lowering, NULL, NULL, &options, &plan);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC; /* of processor time: ours alone */
    ck_assert_msg(status == NULL, "%s", status_message(status));
    printf("%d ops, %d instructions, %d buffers: %.3f s\n", graph->op_count,
           plan->train.instruction_count, plan->train.buffer_count, seconds);
    ck_assert_int_gt(graph->op_count, 3000);
    ck_assert_double_lt(seconds, 5.0);
    plan_free(plan);
    fixture_lowering_deinit(&lowering);
    graph_free(graph);
    units_free(units);
    model_free(model);
}
