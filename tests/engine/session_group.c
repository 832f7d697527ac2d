/* Ranks as threads; see session_group.h. */
#include "session_group.h"

#include <check.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "hf/safetensors.h"

const char group_sum_model[] = GROUP_SUM_MODEL;
const char group_mean_model[] = GROUP_MODEL("nll_loss(output, target)");
const char group_alike_model[] =
    GROUP_MODEL("nll_loss(output, target, weight=[4,4,4,4,4,4,4,4,4,4])");

char group_data[64];

void group_draw_digits(void)
{
    strcpy(group_data, "/tmp/fsdpd-test-session-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(group_data));
    const char *builddir = getenv("builddir");
    char *command = mem_printf("%s/fsdpd-digits --seed 7 --train %d --test %d -o %s",
                               builddir ? builddir : ".", GROUP_TRAIN, GROUP_TEST, group_data);
    ck_assert_int_eq(system(command), 0);
    free(command);
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *ftw)
{
    (void)info;
    (void)type;
    (void)ftw;
    return remove(path);
}

void group_remove_digits(void)
{
    nftw(group_data, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

const struct optimizer_step group_adafactor = {.kind = OPTIMIZER_ADAFACTOR,
                                               .lr = 0.02,
                                               .weight_decay = 0.1,
                                               .eps1 = 0x1p-23,
                                               .eps2 = 1e-3,
                                               .clip = 1,
                                               .beta2_decay = -0.8};

const struct group_world group_worlds[GROUP_WORLDS] = {
    {1, STRATEGY_FULL_SHARD}, {2, STRATEGY_FULL_SHARD},    {3, STRATEGY_FULL_SHARD},
    {8, STRATEGY_FULL_SHARD}, {1, STRATEGY_NO_SHARD},      {2, STRATEGY_NO_SHARD},
    {3, STRATEGY_NO_SHARD},   {2, STRATEGY_SHARD_GRAD_OP}, {4, STRATEGY_HYBRID_SHARD},
};

void group_init(struct group *group, const char *model, const char *data, int world)
{
    *group = (struct group){
        .timeout_ms = 20000,
        .job =
            {
                .id = "digits-1",
                .model_text = model,
                .model_length = strlen(model),
                .model_file = "small.yaml",
                .data_dir = data,
                .transform.mean = 0.1307,
                .transform.std = 0.3081,
                .epochs = 1,
                .batch_size = 20,
                .test_batch_size = 50,
                .seed = 1,
                .log_interval = 5,
                .dropout = true,
                .shuffle = true,
                .evaluate = true,
                .optimizer = {.kind = OPTIMIZER_ADADELTA, .lr = 1, .rho = 0.9, .eps = 1e-6},
                .schedule.kind = SCHEDULE_STEP,
                .schedule.step_size = 1,
                .schedule.gamma = 0.7,
                .plan.strategy = STRATEGY_FULL_SHARD,
                .shard_size = 2,
                .plan.gathered_limit = 2,
                .wrap = {.kind = WRAP_SIZE, .min_num_params = 1000},
                .plan.backward_prefetch = PREFETCH_PRE,
                .world = world,
            },
    };
}

void group_freeze(struct group *group)
{
    group->job.optimizer = (struct optimizer_step){.kind = OPTIMIZER_SGD};
    group->job.dropout = false;
}

static void on_started(void *user, uint64_t plan_hash, uint64_t steps)
{
    struct member *member = user;
    member->started++;
    member->plan_hash = plan_hash;
    member->steps = steps;
}

static void on_metrics(void *user, const struct train_metrics *metrics)
{
    struct member *member = user;
    if (member->metric_count < GROUP_MAX_RECORDS)
        member->metrics[member->metric_count++] = *metrics;
}

static void on_epoch(void *user, const struct train_epoch *epoch)
{
    struct member *member = user;
    if (member->epoch_count < GROUP_MAX_RECORDS) member->epochs[member->epoch_count++] = *epoch;
}

static void on_validation(void *user, const struct train_validation *validation)
{
    struct member *member = user;
    if (member->validation_count < GROUP_MAX_RECORDS)
        member->validations[member->validation_count++] = *validation;
}

static void on_progress(void *user, uint64_t step)
{
    struct member *member = user;
    member->last_step = step;
    member->progress_calls++;
    const struct group *group = member->group;
    bool at = group->abort_at == member->progress_calls ||
              (group->abort_step > 0 && group->abort_step == step);
    if (at && group->abort_rank == member->rank)
        train_session_abort(member->session, "pulled the plug");
    if (group->progressed != NULL) group->progressed(member, step);
}

static uint64_t latest_order(void *user)
{
    const struct member *member = user;
    const struct group *group = member->group;
    if (member->rank != 0) abort(); /* only rank 0 gets this call */
    uint64_t latest = 0;
    while (latest < (uint64_t)group->order_count &&
           member->progress_calls >= group->order_at[latest])
        latest++;
    return latest;
}

static status_t set_wrap(struct member *member, int order)
{
    const struct wrap_policy *policy = member->group->wraps[order];
    if (member->group->instead != NULL) TRY(member->group->instead(member, order, &policy));
    const struct plan *old = train_session_plan(member->session);
    for (int u = 0; u < old->units->unit_count; u++) {
        uint64_t bytes = (uint64_t)old->units->units[u].flat.padded * sizeof(float);
        if (bytes > member->changes[order].largest_unit)
            member->changes[order].largest_unit = bytes;
    }
    struct train_wrap_change change;
    TRY(train_session_set_wrap(member->session, policy, &change));
    const struct plan *new = train_session_plan(member->session);
    member->changes[order].refused = change.refused;
    member->changes[order].peak_bytes = change.peak_bytes;
    member->changes[order].planned_bytes = change.planned_bytes;
    member->changes[order].state_bytes = new->state_bytes;
    member->changes[order].work_bytes = new->work_bytes;
    return NULL;
}

/* True: the next attempt can continue with the ranks that stay. */
static status_t hand_over(struct member *member, bool *handed)
{
    status_t refused = NULL;
    TRY(train_session_hand_over(member->session, member->group->leaves, NULL, NULL, &refused));
    *handed = refused == NULL;
    snprintf(member->not_handed_over, sizeof member->not_handed_over, "%s",
             refused != NULL ? status_message(refused) : "");
    status_free(refused);
    return NULL;
}

static status_t run_orders(void *user, uint64_t sequence, struct executor *executor, uint64_t step)
{
    struct member *member = user;
    ck_assert_ptr_eq(executor, train_session_executor(member->session));
    member->orders[member->order_count].sequence = sequence;
    member->orders[member->order_count].step = step;
    member->orders[member->order_count].progress_calls = member->progress_calls;
    struct snapshot **pulled = &member->pulled[member->order_count++];
    bool cancels = member->group->cancel != 0 && sequence >= member->group->cancel;
    if (cancels && member->group->leaves != NULL) TRY(hand_over(member, &cancels));
    if (cancels) return status_new(STATUS_CANCELLED, "a caller requested it");
    for (; member->orders_done < sequence; member->orders_done++)
        if (member->group->wraps[member->orders_done] != NULL)
            TRY(set_wrap(member, (int)member->orders_done));
    *pulled = snapshot_take(train_session_executor(member->session), step);
    return NULL;
}

static status_t checkpoint(void *user)
{
    struct member *member = user;
    ck_assert_int_lt(member->captured_count, GROUP_MAX_ORDERS);
    member->captured[member->captured_count++] = train_session_capture(member->session);
    if (member->group->captured != NULL) member->group->captured(member);
    return NULL;
}

static void resumed(void *user, uint64_t step, const char *name, const char *note)
{
    struct member *member = user;
    member->resumed_step = step;
    snprintf(member->resumed_name, sizeof member->resumed_name, "%s", name != NULL ? name : "");
    snprintf(member->note, sizeof member->note, "%s", note != NULL ? note : "");
}

static status_t finish(void *user, struct executor *executor, uint64_t step)
{
    struct member *member = user;
    member->finished++;
    member->last_step = step;
    member->final = member->group->average ? snapshot_take_average(executor, step)
                                           : snapshot_take(executor, step);
    if (member->group->ended != NULL) member->group->ended(member, executor);
    return NULL;
}

static status_t train(struct member *member)
{
    const struct group *group = member->group;
    TRY(device_open(group->device != NULL ? group->device : "cpu", 1, &member->device));
    if (group->join != NULL && group->job.world > 1)
        TRY(group->join(member->device, member->rank, group->job.world, &member->comm));
    if (member->group->memory != NULL)
        device_limit_memory(member->device, member->group->memory(member->rank));
    device_share_host(member->device, member->group->host_ranks);
    TRY(train_session_new(&member->job, member->device, member->rank, false, &member->session));
    if (group->kept != NULL) {
        const struct train_spare spare = {.kept = &group->kept[member->rank],
                                          .comm = member->spare,
                                          .attempt = group->attempt,
                                          .since = group->since,
                                          .shared = group->shares};
        kept_begin(spare.kept, "digits-1@7");
        train_session_set_spare(member->session, &spare);
    }
    member->memory_planned = train_session_plan(member->session)->peak_bytes;
    const struct train_hooks hooks = {.started = on_started,
                                      .metrics = on_metrics,
                                      .epoch = on_epoch,
                                      .progress = on_progress,
                                      .latest_order = latest_order,
                                      .run_orders = run_orders,
                                      .validation = on_validation,
                                      .user = member,
                                      .checkpoint = checkpoint,
                                      .resumed = resumed};
    TRY(train_session_run(member->session, member->comm, member->group->timeout_ms, &hooks,
                          finish));
    return NULL;
}

static void *member_thread(void *argument)
{
    struct member *member = argument;
    member->status = train(member);
    if (member->status != NULL && member->group->failed != NULL) member->group->failed();
    if (member->session != NULL) member->memory_peak = train_session_memory_peak(member->session);
    train_session_free(member->session);
    member->session = NULL;
    comm_free(member->comm);
    comm_free(member->spare);
    member->comm = member->spare = NULL;
    device_close(member->device);
    member->device = NULL;
    return NULL;
}

void group_run(struct group *group)
{
    struct comm *comms[GROUP_MAX_WORLD] = {NULL}, *spare[GROUP_MAX_WORLD] = {NULL};
    pthread_t threads[GROUP_MAX_WORLD];
    if (group->job.world > 1 && group->join == NULL)
        ck_assert_ptr_null(comm_local_new(group->job.world, group->timeout_ms, comms));
    if (group->job.world > 1 && group->kept != NULL)
        ck_assert_ptr_null(comm_local_new(group->job.world, group->timeout_ms, spare));
    for (int rank = 0; rank < group->job.world; rank++) {
        struct member *member = &group->members[rank];
        *member = (struct member){.group = group,
                                  .rank = rank,
                                  .job = group->job,
                                  .comm = comms[rank],
                                  .spare = spare[rank]};
        if (group->tweak != NULL) group->tweak(&member->job, rank);
        ck_assert_int_eq(pthread_create(&threads[rank], NULL, member_thread, member), 0);
    }
    for (int rank = 0; rank < group->job.world; rank++) pthread_join(threads[rank], NULL);
}

void group_reset(struct group *group)
{
    for (int rank = 0; rank < GROUP_MAX_WORLD; rank++) {
        struct member *member = &group->members[rank];
        status_free(member->status);
        for (int i = 0; i < GROUP_MAX_ORDERS; i++) {
            snapshot_free(member->pulled[i]);
            status_free(member->changes[i].refused);
        }
        snapshot_free(member->final);
        for (int i = 0; i < member->captured_count; i++) capture_free(member->captured[i]);
        *member = (struct member){0};
    }
}

void group_expect_success(const struct group *group)
{
    for (int rank = 0; rank < group->job.world; rank++)
        ck_assert_msg(group->members[rank].status == NULL, "rank %d: %s", rank,
                      status_message(group->members[rank].status));
}

void group_run_without_error(struct group *group)
{
    group_run(group);
    group_expect_success(group);
}

struct pull {
    const struct snapshot *snapshot;
    struct comm *comm;
    int rank, fail_at, calls;
    struct buf *file;
    uint64_t total_size;
    status_t status;
};

static status_t count_call(struct pull *pull)
{
    if (pull->calls++ == pull->fail_at) return status_new(STATUS_UNAVAILABLE, "no process listens");
    return NULL;
}

static status_t sink_begin(void *user, uint64_t total_size, uint64_t step)
{
    struct pull *pull = user;
    (void)step;
    pull->total_size = total_size;
    return count_call(pull);
}

static status_t sink_write(void *user, const void *bytes, size_t size)
{
    struct pull *pull = user;
    if (size == 0 || size > 1 << 20) return status_new(STATUS_INTERNAL, "%zu bytes", size);
    TRY(count_call(pull));
    buf_add(pull->file, bytes, size);
    return NULL;
}

static void *pull_thread(void *argument)
{
    struct pull *pull = argument;
    struct device *device = NULL;
    struct lane_queue *lane = NULL;
    status_t status = device_open("cpu", 1, &device);
    if (status == NULL) status = lane_open(device, LANE_COMM, &lane);
    const struct state_dict_sink sink = {sink_begin, sink_write, pull};
    if (status == NULL)
        status =
            state_dict_stream(pull->snapshot, pull->comm, &lane, pull->rank == 0 ? &sink : NULL);
    pull->status = status;
    lane_close(lane);
    comm_free(pull->comm);
    device_close(device);
    return NULL;
}

void group_pull(struct group *group, int order, int fail_at, struct buf *file,
                status_t statuses[GROUP_MAX_WORLD])
{
    struct comm *comms[GROUP_MAX_WORLD] = {NULL};
    struct pull pulls[GROUP_MAX_WORLD];
    pthread_t threads[GROUP_MAX_WORLD];
    if (group->job.world > 1)
        ck_assert_ptr_null(comm_local_new(group->job.world, group->timeout_ms, comms));
    for (int rank = 0; rank < group->job.world; rank++) {
        const struct member *member = &group->members[rank];
        pulls[rank] = (struct pull){.snapshot = order < 0 ? member->final : member->pulled[order],
                                    .comm = comms[rank],
                                    .rank = rank,
                                    .fail_at = fail_at,
                                    .file = file};
        ck_assert_ptr_nonnull(pulls[rank].snapshot);
        ck_assert_int_eq(pthread_create(&threads[rank], NULL, pull_thread, &pulls[rank]), 0);
    }
    for (int rank = 0; rank < group->job.world; rank++) {
        pthread_join(threads[rank], NULL);
        statuses[rank] = pulls[rank].status;
    }
    if (fail_at < 0) ck_assert_uint_eq(pulls[0].total_size, file->length);
}

struct buf group_pull_file(struct group *group, int order)
{
    struct buf file = {0};
    status_t statuses[GROUP_MAX_WORLD];
    group_pull(group, order, -1, &file, statuses);
    for (int rank = 0; rank < group->job.world; rank++)
        ck_assert_msg(statuses[rank] == NULL, "rank %d: %s", rank, status_message(statuses[rank]));
    return file;
}

struct save_thread {
    struct group *group;
    struct group_saving *saving;
    struct comm *comm;
    int rank;
    pthread_t thread;
};

void group_save_rank(struct group *group, struct group_saving *saving, struct comm *comm, int rank)
{
    struct device *device = NULL;
    struct lane_queue *lane = NULL;
    status_t status = device_open("cpu", 1, &device);
    if (status == NULL) status = lane_open(device, LANE_COMM, &lane);
    if (saving->before != NULL) saving->before(rank);
    const struct capture_target target = {.folder = rank > 0 && saving->apart != NULL
                                                        ? saving->apart
                                                        : saving->folder,
                                          .root = saving->root,
                                          .number = (uint64_t)saving->index,
                                          .keep = saving->keep,
                                          .pack_reports = saving->pack_reports,
                                          .user = comm};
    if (status == NULL)
        status = capture_save(group->members[rank].captured[saving->index], &target, comm, &lane,
                              group->timeout_ms, &saving->results[rank]);
    saving->statuses[rank] = status;
    lane_close(lane);
    comm_free(comm);
    device_close(device);
}

static void *save_thread(void *argument)
{
    struct save_thread *own = argument;
    group_save_rank(own->group, own->saving, own->comm, own->rank);
    return NULL;
}

void group_save(struct group *group, struct group_saving *saving)
{
    struct comm *comms[GROUP_MAX_WORLD] = {NULL};
    struct save_thread threads[GROUP_MAX_WORLD];
    if (group->job.world > 1)
        ck_assert_ptr_null(comm_local_new(group->job.world, group->timeout_ms, comms));
    for (int rank = 0; rank < group->job.world; rank++) {
        ck_assert_int_lt(saving->index, group->members[rank].captured_count);
        threads[rank] = (struct save_thread){group, saving, comms[rank], rank, 0};
        ck_assert_int_eq(pthread_create(&threads[rank].thread, NULL, save_thread, &threads[rank]),
                         0);
    }
    for (int rank = 0; rank < group->job.world; rank++) pthread_join(threads[rank].thread, NULL);
}

void group_save_without_error(struct group *group, int index, const char *folder, uint32_t keep)
{
    struct group_saving saving = {.folder = folder, .index = index, .keep = keep};
    group_save(group, &saving);
    for (int rank = 0; rank < group->job.world; rank++) {
        ck_assert_msg(saving.statuses[rank] == NULL, "rank %d: %s", rank,
                      status_message(saving.statuses[rank]));
        free(saving.results[rank].path);
        free(saving.results[rank].removed);
    }
}

void group_expect_same_file(struct buf *a, struct buf *b)
{
    ck_assert_uint_gt(a->length, 0);
    ck_assert_uint_eq(a->length, b->length);
    ck_assert_mem_eq(a->data, b->data, a->length);
    buf_deinit(a);
    buf_deinit(b);
}
