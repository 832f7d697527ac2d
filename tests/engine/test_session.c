/*
 * The training session with ranks as threads, on generated digits: learning, the ranks' agreements,
 * orders, cancellation, aborts, and every failure of the setup.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "kernels/kernels.h"
#include "session_group.h"
#include "tests/testing.h"

static void expect_close(double a, double b, double relative)
{
    ck_assert_msg(fabs(a - b) <= relative * fmax(fabs(a), fabs(b)), "%.9g and %.9g differ", a, b);
}

TESTS_BELOW(.timeout = 90, .set_up_once = group_draw_digits, .tear_down_once = group_remove_digits);

LOOP_TEST(learns, 0, GROUP_WORLDS)
{
    int world = group_worlds[_i].world;
    struct group group;
    group_init(&group, group_sum_model, group_data, world);
    group.job.plan.strategy = group_worlds[_i].strategy;
    group.job.epochs = 4;
    group.job.batch_size = world == 8 ? 5 : 10;
    group_run(&group);
    group_expect_success(&group);
    int per_rank = (GROUP_TRAIN + world - 1) / world;
    uint64_t epoch_steps =
        (uint64_t)((per_rank + (int)group.job.batch_size - 1) / (int)group.job.batch_size);
    for (int rank = 0; rank < world; rank++) {
        const struct member *member = &group.members[rank];
        ck_assert_int_eq(member->started, 1);
        ck_assert_int_eq(member->finished, 1);
        ck_assert_uint_eq(member->steps, 4 * epoch_steps);
        ck_assert_uint_eq(member->last_step, 4 * epoch_steps);
        ck_assert_uint_eq(member->plan_hash, group.members[0].plan_hash);
        ck_assert_uint_eq(member->memory_peak, member->memory_planned);
        ck_assert_int_eq(member->epoch_count, 4);
        for (int e = 0; e < 4; e++) {
            const struct train_epoch *epoch = &member->epochs[e];
            ck_assert_uint_eq(epoch->epoch, e + 1);
            ck_assert(epoch->evaluated);
            ck_assert_uint_eq(epoch->test_samples, GROUP_TEST); /* repeats are not counted */
            ck_assert_uint_le(epoch->correct, GROUP_TEST);
            expect_close(epoch->accuracy, (double)epoch->correct / GROUP_TEST, 1e-12);
            ck_assert(epoch->seconds > 0);
            /* Every rank has the same numbers, to the bit. */
            ck_assert(epoch->train_loss == group.members[0].epochs[e].train_loss);
            ck_assert(epoch->test_loss == group.members[0].epochs[e].test_loss);
            ck_assert_uint_eq(epoch->correct, group.members[0].epochs[e].correct);
        }
        ck_assert_msg(member->epochs[0].train_loss < 2.4, "%g", member->epochs[0].train_loss);
        ck_assert_msg(member->epochs[3].train_loss < 0.6 * member->epochs[0].train_loss, "%g to %g",
                      member->epochs[0].train_loss, member->epochs[3].train_loss);
        ck_assert_msg(member->epochs[3].accuracy > 0.7, "%g", member->epochs[3].accuracy);
        ck_assert(member->epochs[3].test_loss < member->epochs[0].test_loss);
    }
    group_reset(&group);
}

/* The losses that are reported are divided by the weights, too, over all ranks and batches. */
LOOP_TEST(weights_that_are_alike_change_nothing, 1, 4)
{
    double losses[2][2];
    for (int weighted = 0; weighted < 2; weighted++) {
        struct group group;
        group_init(&group, weighted ? group_alike_model : group_mean_model, group_data, _i);
        group.job.epochs = 1;
        group.job.accumulation_steps = 2;
        group_run(&group);
        group_expect_success(&group);
        losses[weighted][0] = group.members[0].epochs[0].train_loss;
        losses[weighted][1] = group.members[0].epochs[0].test_loss;
        group_reset(&group);
    }
    expect_close(losses[0][0], losses[1][0], 1e-6);
    expect_close(losses[0][1], losses[1][1], 1e-6);
}

static int kernels_take_ms; /* 0: their usual time */
static struct train_session *looked_at; /* from within every kernel; NULL: nothing is */

static int looks[2]; /* at the program for a step, and at others */

/* What a look from within a kernel shows: the train program, and on its lane one instruction, which
 * computes. */
static void expect_computing(void *user, const struct train_now *now)
{
    const struct executor_now *executor = &now->executor;
    int computing = 0;
    (void)user;
    ck_assert_ptr_nonnull(now->place);
    if (executor->program == NULL) return; /* a kernel that is made ready */
    ck_assert_int_le(executor->lane_count, LANE_COUNT);
    for (int i = 0; i < executor->lane_count; i++) {
        const struct executor_lane *lane = &executor->lanes[i];
        if (lane->lane != LANE_COMPUTE) continue;
        computing++;
        ck_assert_int_ge(lane->instruction, 0);
        ck_assert_int_lt(lane->instruction, executor->program->instruction_count);
        ck_assert_int_eq(executor->program->instructions[lane->instruction].lane, LANE_COMPUTE);
        ck_assert_int_eq(lane->awaits, -1);
    }
    ck_assert_int_eq(computing, 1);
    looks[strcmp(executor->name, "train") != 0]++;
}

/* The linker (--wrap) replaces kernel_run by this. */
status_t __real_kernel_run(struct kernel *kernel, const struct kernel_call *call);
status_t __wrap_kernel_run(struct kernel *kernel, const struct kernel_call *call);
status_t __wrap_kernel_run(struct kernel *kernel, const struct kernel_call *call)
{
    if (kernels_take_ms > 0) clock_sleep_ms(kernels_take_ms);
    if (looked_at != NULL) train_session_look(looked_at, expect_computing, NULL);
    return __real_kernel_run(kernel, call);
}

/* Steps that take many times a rank's deadline for its peers, on any machine: no peer is lost. */
TEST(slow_steps)
{
    struct group group;
    group_init(&group, group_mean_model, group_data, 1);
    group.timeout_ms = 1;
    group.job.max_steps = 3;
    group.job.log_interval = 1;
    kernels_take_ms = 20 * (int)group.timeout_ms;
    group_run(&group);
    group_expect_success(&group);
    kernels_take_ms = 0;
    ck_assert_uint_eq(group.members[0].last_step, 3);
    /* Each step had at least one kernel with the requested delay. */
    ck_assert_double_ge(group.members[0].metrics[0].step_seconds,
                        20 * (double)group.timeout_ms / 1e3);
    group_reset(&group);
}

static void look_from_now_on(struct member *member, uint64_t step)
{
    (void)step;
    looked_at = member->session;
}

TEST(a_look_shows_what_each_lane_does)
{
    struct group group;
    group_init(&group, group_mean_model, group_data, 1);
    group.job.epochs = 2;
    group.progressed = look_from_now_on;
    group_run(&group);
    looked_at = NULL;
    group_expect_success(&group);
    ck_assert_int_gt(looks[0], 0);
    ck_assert_int_gt(looks[1], 0); /* evaluations */
    group_reset(&group);
}

TEST(metrics)
{
    struct group group;
    group_init(&group, group_sum_model, group_data, 2);
    group.job.epochs = 2;
    group.job.log_interval = 4;
    group_run(&group);
    group_expect_success(&group);
    const struct member *member = &group.members[0];
    /* 301 samples per rank in batches of 20: 16 steps per epoch. */
    ck_assert_uint_eq(member->steps, 32);
    ck_assert_int_eq(member->metric_count, 8);
    double sum[2] = {0};
    for (int i = 0; i < 8; i++) {
        const struct train_metrics *metrics = &member->metrics[i];
        ck_assert_uint_eq(metrics->step, 4 * (i + 1));
        expect_close(metrics->epoch, (i + 1) / 4.0, 1e-12);
        ck_assert(metrics->learning_rate == (i < 4 ? 1 : 0.7));
        ck_assert(metrics->samples_per_second > 0 && metrics->step_seconds > 0);
        ck_assert(metrics->train_seconds > 0);
        ck_assert(i == 7 || metrics->seconds_left > 0);
        ck_assert_uint_gt(metrics->communicated_bytes, 0);
        ck_assert_uint_eq(metrics->memory_peak_bytes, member->memory_planned);
        sum[i / 4] += metrics->loss * (i % 4 == 3 ? 2 * (301 - 15 * 20) + 120 : 160);
    }
    /* The intervals' means make up the epoch's; the last step of an epoch is short. */
    for (int e = 0; e < 2; e++) expect_close(sum[e] / 602, member->epochs[e].train_loss, 1e-6);
    /* Test batches are no larger than training batches: three of 20 for 51 samples per rank. */
    ck_assert_uint_eq(member->progress_calls, 2 * (16 + 3));
    group_reset(&group);
}

/* Without learning the losses are properties of the data: the division into batches must not
 * matter. */
TEST(losses_are_means_over_samples)
{
    static const struct {
        const char *model;
        int world;
        uint32_t batch_size, test_batch_size;
    } cuts[] = {
        {group_sum_model, 1, 20, 50},  {group_sum_model, 1, 601, 103},
        {group_sum_model, 1, 1000, 1}, {group_sum_model, 1, 7, 1000},
        {group_mean_model, 1, 20, 50}, {group_mean_model, 1, 7, 10},
        {group_sum_model, 2, 20, 50},  {group_mean_model, 2, 20, 50},
        {group_mean_model, 2, 13, 7},
    };
    double train_loss[2] = {0}, test_loss = 0;
    uint64_t correct = 0;
    for (size_t i = 0; i < COUNT_OF(cuts); i++) {
        struct group group;
        group_init(&group, cuts[i].model, group_data, cuts[i].world);
        group_freeze(&group);
        group.job.batch_size = cuts[i].batch_size;
        group.job.test_batch_size = cuts[i].test_batch_size;
        group_run(&group);
        group_expect_success(&group);
        const struct train_epoch *epoch = &group.members[0].epochs[0];
        /* In training two ranks repeat one sample, as PyTorch does: one mean for each world. */
        double *train = &train_loss[cuts[i].world - 1];
        if (*train == 0) *train = epoch->train_loss;
        if (i == 0) {
            test_loss = epoch->test_loss;
            correct = epoch->correct;
        }
        expect_close(epoch->train_loss, *train, 1e-5);
        expect_close(epoch->test_loss, test_loss, 1e-5);
        ck_assert_uint_eq(epoch->correct, correct);
        ck_assert_uint_eq(epoch->test_samples, GROUP_TEST);
        group_reset(&group);
    }
    expect_close(train_loss[0], train_loss[1], 1e-2);
    ck_assert(train_loss[0] > 2 && train_loss[0] < 3); /* about ln 10 */
}

TEST(max_steps)
{
    static const struct {
        uint64_t max_steps, steps;
        int epochs;
    } cases[] = {{1, 1, 1}, {16, 16, 1}, {17, 17, 2}, {32, 32, 2}, {1000, 32, 2}, {0, 32, 2}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct group group;
        group_init(&group, group_sum_model, group_data, 2);
        group.job.epochs = 2;
        group.job.max_steps = cases[i].max_steps;
        group_run(&group);
        group_expect_success(&group);
        ck_assert_uint_eq(group.members[1].steps, cases[i].steps);
        ck_assert_uint_eq(group.members[1].last_step, cases[i].steps);
        ck_assert_int_eq(group.members[1].epoch_count, cases[i].epochs);
        ck_assert_uint_eq(group.members[1].metrics[group.members[1].metric_count - 1].step,
                          cases[i].steps);
        group_reset(&group);
    }
}

/* Orders. */

LOOP_TEST(orders, 0, GROUP_WORLDS)
{
    struct group group;
    group_init(&group, group_sum_model, group_data, group_worlds[_i].world);
    group.job.plan.strategy = group_worlds[_i].strategy;
    group.job.batch_size = 40;
    group_run(&group);
    group_expect_success(&group);
    uint64_t calls = group.members[0].progress_calls, steps = group.members[0].steps;
    group_reset(&group);
    /* Two at once before anything, one in training, one in the evaluation, one too late for any
     * step. */
    const uint64_t at[] = {0, 0, 1, steps, calls};
    memcpy(group.order_at, at, sizeof at);
    group.order_count = 5;
    group_run(&group);
    group_expect_success(&group);
    const struct member *first = &group.members[0];
    ck_assert_int_eq(first->order_count, 4);
    ck_assert_uint_eq(first->orders[0].sequence, 2);
    ck_assert_uint_eq(first->orders[0].step, 1);
    ck_assert_uint_eq(first->orders[1].sequence, 3);
    ck_assert_uint_eq(first->orders[1].step, 2);
    ck_assert_uint_eq(first->orders[2].sequence, 4);
    ck_assert_uint_eq(first->orders[2].step, steps);
    ck_assert_uint_eq(first->orders[2].progress_calls, steps + 1);
    ck_assert_uint_eq(first->orders[3].sequence, 5);
    ck_assert_uint_eq(first->orders[3].progress_calls, calls);
    for (int rank = 1; rank < group.job.world; rank++) {
        const struct member *member = &group.members[rank];
        ck_assert_int_eq(member->order_count, first->order_count);
        ck_assert_mem_eq(member->orders, first->orders, sizeof first->orders);
    }
    group_reset(&group);
}

LOOP_TEST(cancel, 0, GROUP_WORLDS)
{
    struct group group;
    group_init(&group, group_sum_model, group_data, group_worlds[_i].world);
    group.job.plan.strategy = group_worlds[_i].strategy;
    group.order_at[0] = 1;
    group.order_at[1] = 2;
    group.order_count = 2;
    group.cancel = 2;
    group_run(&group);
    for (int rank = 0; rank < group.job.world; rank++) {
        const struct member *member = &group.members[rank];
        ck_assert_int_eq(status_code(member->status), STATUS_CANCELLED);
        ck_assert_str_eq(status_message(member->status), "a caller requested it");
        ck_assert_int_eq(member->order_count, 2);
        ck_assert_uint_eq(member->last_step, 3);
        ck_assert_int_eq(member->finished, 0);
    }
    group_reset(&group);
}

/* Ends. */

LOOP_TEST(abort, 0, GROUP_WORLDS)
{
    for (int rank = 0; rank<group_worlds[_i].world; rank += group_worlds[_i].world> 3 ? 5 : 1) {
        struct group group;
        group_init(&group, group_sum_model, group_data, group_worlds[_i].world);
        group.job.plan.strategy = group_worlds[_i].strategy;
        group.job.epochs = 1000;
        group.abort_rank = rank;
        group.abort_at = 4;
        group_run(&group);
        for (int other = 0; other < group.job.world; other++) {
            const struct member *member = &group.members[other];
            enum status_code code = status_code(member->status);
            if (other == rank) {
                ck_assert_int_eq(code, STATUS_ABORTED);
                ck_assert_str_eq(status_message(member->status), "pulled the plug");
            } else {
                ck_assert_msg(code == STATUS_ABORTED || code == STATUS_UNAVAILABLE, "%s: %s",
                              status_code_name(code), status_message(member->status));
            }
            ck_assert_int_eq(member->finished, 0);
        }
        group_reset(&group);
    }
}

TEST(abort_before_run)
{
    struct group group;
    group_init(&group, group_sum_model, group_data, 1);
    struct device *device;
    struct train_session *session;
    const struct train_hooks hooks = {0};
    ck_assert_ptr_null(device_open("cpu", 1, &device));
    ck_assert_ptr_null(train_session_new(&group.job, device, 0, false, &session));
    train_session_abort(session, "changed my mind");
    train_session_abort(session, "again");
    status_t status = train_session_run(session, NULL, 1000, &hooks, NULL);
    ck_assert_int_eq(status_code(status), STATUS_ABORTED);
    ck_assert_str_eq(status_message(status), "changed my mind");
    status_free(status);
    train_session_free(session);
    device_close(device);
}

/* No hook is mandatory, and a session may run twice, with the same result. */
TEST(no_hooks)
{
    struct group group;
    group_init(&group, group_sum_model, group_data, 1);
    group.job.max_steps = 3;
    struct device *device;
    struct train_session *session;
    const struct train_hooks hooks = {0};
    ck_assert_ptr_null(device_open("cpu", 1, &device));
    ck_assert_ptr_null(train_session_new(&group.job, device, 0, false, &session));
    for (int i = 0; i < 2; i++) {
        status_t status = train_session_run(session, NULL, 1000, &hooks, NULL);
        ck_assert_msg(status == NULL, "%s", status_message(status));
        ck_assert_uint_eq(train_session_step(session), 3);
    }
    train_session_free(session);
    device_close(device);
}

LOOP_TEST(loss_that_is_no_number, 0, 4)
{
    struct group group;
    group_init(&group, _i & 1 ? group_mean_model : group_sum_model, group_data, _i < 2 ? 1 : 3);
    group.job.optimizer = (struct optimizer_step){.kind = OPTIMIZER_SGD, .lr = 1e30};
    group_run(&group);
    const char *message = status_message(group.members[0].status);
    for (int rank = 0; rank < group.job.world; rank++) {
        status_t status = group.members[rank].status;
        ck_assert_int_eq(status_code(status), STATUS_FAILED_PRECONDITION);
        ck_assert_msg(strstr(message, "the loss is ") != NULL &&
                          strstr(message, "-nan") == NULL && strstr(message, " at step ") != NULL &&
                          strstr(message, "; try a smaller optimizer.lr") != NULL,
                      "%s", message);
        ck_assert_str_eq(status_message(status), message);
    }
    group_reset(&group);
}

static void other_seed(struct train_job *job, int rank)
{
    if (rank == 1) job->seed = 2;
}

static void other_batch(struct train_job *job, int rank)
{
    if (rank == 2) job->batch_size = 21;
}

static void other_rate(struct train_job *job, int rank)
{
    if (rank == 2) job->schedule.gamma = 0.71;
}

LOOP_TEST(ranks_that_differ, 0, 3)
{
    static const struct {
        void (*tweak)(struct train_job *job, int rank);
        const char *expected;
    } cases[] = {{other_seed, "the data or settings of rank 1 differ"},
                 {other_rate, "the data or settings of rank 2 differ"},
                 {other_batch, "the plan of rank 2 differs from that of rank 0"}};
    struct group group;
    group_init(&group, group_sum_model, group_data, 3);
    group.tweak = cases[_i].tweak;
    group_run(&group);
    for (int rank = 0; rank < 3; rank++) {
        status_t status = group.members[rank].status;
        ck_assert_int_eq(status_code(status), STATUS_FAILED_PRECONDITION);
        ck_assert_msg(strstr(status_message(status), cases[_i].expected) != NULL, "%s",
                      status_message(status));
        ck_assert_int_eq(group.members[rank].started, 0);
    }
    group_reset(&group);
}

static void missing_data(struct train_job *job, int rank)
{
    if (rank == 1) job->data_dir = "/nonexistent";
}

/* A rank that never begins: its communicator is dropped, and the others do not wait for the
 * deadline. */
TEST(rank_that_never_comes)
{
    struct group group;
    group_init(&group, group_sum_model, group_data, 3);
    group.timeout_ms = 100000; /* longer than this test may take */
    group.tweak = missing_data;
    group_run(&group);
    ck_assert_int_eq(status_code(group.members[1].status), STATUS_NOT_FOUND);
    ck_assert_int_eq(status_code(group.members[0].status), STATUS_UNAVAILABLE);
    ck_assert_int_eq(status_code(group.members[2].status), STATUS_UNAVAILABLE);
    group_reset(&group);
}

/* Setting up. */

static status_t set_up(const struct train_job *job, int rank, bool headers_only)
{
    struct device *device;
    struct train_session *session = NULL;
    ck_assert_ptr_null(device_open("cpu", 1, &device));
    status_t status = train_session_new(job, device, rank, headers_only, &session);
    if (status != NULL) ck_assert_ptr_null(session);
    train_session_free(session);
    device_close(device);
    return status;
}

static void expect_refusal(const struct train_job *job, int rank, enum status_code code,
                           const char *expected)
{
    /* A session that only plans cannot know the available memory. */
    int modes = code == STATUS_RESOURCE_EXHAUSTED ? 1 : 2;
    for (int headers_only = 0; headers_only < modes; headers_only++) {
        status_t status = set_up(job, rank, headers_only);
        ck_assert_msg(status_code(status) == code, "expected %s (%s): %s", status_code_name(code),
                      expected, status_message(status));
        ck_assert_msg(strstr(status_message(status), expected) != NULL, "%s",
                      status_message(status));
        status_free(status);
    }
}

TEST(refusals)
{
    struct group group;
    group_init(&group, group_sum_model, group_data, 2);
    struct train_job job = group.job;

    static const char other_shape[] = "name: Other\n"
                                      "input: [1, 32, 28]\n"
                                      "classes: 10\n"
                                      "modules:\n"
                                      "  out: Linear(896, 10)\n"
                                      "forward:\n"
                                      "  - output = log_softmax(out(flatten(x, 1)), 1)\n"
                                      "loss: nll_loss(output, target)\n";
    job.model_text = other_shape;
    job.model_length = strlen(other_shape);
    expect_refusal(&job, 0, STATUS_INVALID_ARGUMENT, "(1, 32, 28)");
    expect_refusal(&job, 0, STATUS_INVALID_ARGUMENT, "(1, 28, 28)");
    expect_refusal(&job, 0, STATUS_INVALID_ARGUMENT, "small.yaml");

    job = group.job;
    job.model_text = "name: [";
    job.model_length = strlen(job.model_text);
    expect_refusal(&job, 0, STATUS_INVALID_ARGUMENT, "small.yaml:");

    job = group.job;
    job.data_dir = "/nonexistent";
    expect_refusal(&job, 0, STATUS_NOT_FOUND, "/nonexistent");

    job = group.job;
    job.wrap.min_num_params = 1000000;
    expect_refusal(&job, 0, STATUS_INVALID_ARGUMENT, "");

    job = group.job;
    job.batch_size = 400000000;
    expect_refusal(&job, 1, STATUS_RESOURCE_EXHAUSTED, "");

    job = group.job;
    expect_refusal(&job, 2, STATUS_INVALID_ARGUMENT, "rank 2 in a world of 2");
    expect_refusal(&job, -1, STATUS_INVALID_ARGUMENT, "rank -1");
    job.world = 0;
    expect_refusal(&job, 0, STATUS_INVALID_ARGUMENT, "world of 0");
    job = group.job;
    job.batch_size = 0;
    expect_refusal(&job, 0, STATUS_INVALID_ARGUMENT, "at least 1");
}

/* Nine classes in the model, ten in the data: only reading the data shows it. */
TEST(label_out_of_range)
{
    static const char nine[] = "name: Nine\n"
                               "input: [28, 28]\n"
                               "classes: 9\n"
                               "modules:\n"
                               "  out: Linear(784, 9)\n"
                               "forward:\n"
                               "  - output = log_softmax(out(flatten(x, 1)), 1)\n"
                               "loss: nll_loss(output, target)\n";
    struct group group;
    group_init(&group, nine, group_data, 1);
    group.job.wrap.kind = WRAP_NONE;
    ck_assert_ptr_null(set_up(&group.job, 0, true));
    status_t status = set_up(&group.job, 0, false);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    ck_assert_msg(strstr(status_message(status), "train-labels-idx1-ubyte: label ") != NULL, "%s",
                  status_message(status));
    status_free(status);
}

/* Without evaluation the test files are not needed. */
TEST(without_test_files)
{
    char *directory = mem_printf("%s/half", group_data);
    char *command = mem_printf("mkdir %s && cp %s/train-* %s", directory, group_data, directory);
    ck_assert_int_eq(system(command), 0);
    struct group group;
    group_init(&group, group_sum_model, directory, 2);
    group.job.max_steps = 2;
    status_t status = set_up(&group.job, 0, false);
    ck_assert_int_eq(status_code(status), STATUS_NOT_FOUND);
    status_free(status);
    group.job.evaluate = false;
    group_run(&group);
    group_expect_success(&group);
    ck_assert_int_eq(group.members[0].epoch_count, 1);
    ck_assert(!group.members[0].epochs[0].evaluated);
    ck_assert(group.members[0].epochs[0].train_loss > 0);
    group_reset(&group);
    free(command);
    free(directory);
}

TEST(planning)
{
    struct group group;
    group_init(&group, group_sum_model, group_data, 2);
    group.job.max_steps = 1;
    struct device *device;
    struct train_session *planned;
    ck_assert_ptr_null(device_open("cpu", 1, &device));
    ck_assert_ptr_null(train_session_new(&group.job, device, 0, true, &planned));
    ck_assert_uint_eq(train_session_steps(planned), 1);
    ck_assert_int_gt(train_session_units(planned)->unit_count, 1);
    ck_assert_int_eq(train_session_model(planned)->parameter_count, 6);
    ck_assert_uint_eq(train_session_memory_peak(planned), 0);
    const struct train_hooks hooks = {0};
    status_t status = train_session_run(planned, NULL, 1000, &hooks, NULL);
    ck_assert_int_eq(status_code(status), STATUS_FAILED_PRECONDITION);
    status_free(status);

    group_run(&group);
    group_expect_success(&group);
    ck_assert_uint_eq(group.members[0].plan_hash, train_session_plan(planned)->hash);
    ck_assert_uint_eq(group.members[0].memory_peak, train_session_plan(planned)->peak_bytes);
    group_reset(&group);
    train_session_free(planned);
    train_session_free(NULL);
    device_close(device);
}
