/*
 * Pulls from checkpoints, which the test writes itself: which pulls they serve, clients that do not
 * read or that disconnect, a coordinator that ends during a read, and files that are not a
 * checkpoint of the job.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/block_sums.h"
#include "checkpoint/folder.h"
#include "checkpoint/manifest.h"
#include "hf/safetensors.h"
#include "test_coordinator_world.h"
#include "tests/testing.h"

enum { RANKS = 2, SHARD = 5 << 18, PADDING = 3 }; /* elements: 5 MiB of each rank */

static struct world world;
static struct fake fakes[RANKS];
static char *id;

static void set_up(void)
{
    world_init(&world);
    world.options.limits.pulls_per_job = 3;
    world_start(&world);
    id = world_start_running(&world, fakes);
}

static void tear_down(void)
{
    world_deinit_running(&world, fakes, RANKS, id);
}

static unsigned char byte_at(uint64_t offset)
{
    return (unsigned char)(offset * 131 + (offset >> 9) * 17 + (offset >> 21));
}

static char *checkpoint_path(uint64_t step, const char *name)
{
    char *part = mem_printf("state/jobs/%s/checkpoints/step-%012llu%s%s", id,
                            (unsigned long long)step, name[0] != '\0' ? "/" : "", name);
    char *path = world_path(&world, part);
    free(part);
    return path;
}

static void write_rank(int rank, uint64_t step, struct saved_file *file)
{
    char tensor[48], name[32], dtype[] = "F32";
    struct safetensors_entry entry = {.name = manifest_tensor_name(0, -1, tensor),
                                      .dtype = dtype,
                                      .dim_count = 1,
                                      .dims = {SHARD}};
    struct buf bytes = {0};
    safetensors_write_header(&bytes, &entry, 1, NULL, 0);
    uint64_t first = (uint64_t)rank * SHARD * sizeof(float);
    for (uint64_t i = 0; i < SHARD * sizeof(float); i++)
        buf_add_char(&bytes, (char)byte_at(first + i));
    char *path = checkpoint_path(step, manifest_file_name(rank, name));
    ck_assert_ptr_null(file_write_atomic(path, bytes.data, bytes.length, 0600));
    file->bytes = bytes.length;
    block_sums_of(bytes.data, bytes.length, &file->sum);
    free(path);
    buf_deinit(&bytes);
}

/* Writes one with one unit of one parameter; `run` NULL: the job's own. */
static void write_checkpoint(uint64_t step, const char *run)
{
    char *directory = checkpoint_path(step, ""), *path = checkpoint_path(step, MANIFEST_FILE);
    ck_assert_ptr_null(file_make_directory(directory, 0700));
    job_message *message = world_job(&world, id);
    struct manifest manifest = {.run = run != NULL ? mem_strdup(run)
                                                   : mem_printf("%s@%lld", id,
                                                                (long long)message_time_ms(
                                                                    message->submit_time)),
                                .job = mem_strdup(id),
                                .optimizer = mem_strdup("sgd"),
                                .progress = {.step = step},
                                .world = RANKS,
                                .unit_count = 1,
                                .entry_count = 1};
    manifest.files = mem_alloc_array(RANKS, sizeof *manifest.files);
    manifest.units = mem_alloc_array(1, sizeof *manifest.units);
    manifest.units[0] =
        (struct saved_unit){.name = mem_strdup("(root)"), .shard = SHARD, .shard_world = RANKS};
    manifest.entries = mem_alloc_array(1, sizeof *manifest.entries);
    manifest.entries[0] = (struct state_entry){.name = mem_strdup("weight"),
                                               .dim_count = 1,
                                               .dims = {RANKS * SHARD - PADDING}};
    for (int r = 0; r < RANKS; r++) write_rank(r, step, &manifest.files[r]);
    struct buf text = {0};
    manifest_write(&manifest, &text);
    ck_assert_ptr_null(file_write_atomic(path, text.data, text.length, 0600));
    buf_deinit(&text);
    manifest_deinit(&manifest);
    message_free(message);
    free(path);
    free(directory);
}

static void pull(struct listener *listener, bool checkpoint, uint64_t step, bool paused)
{
    Fsdpd__V1__PullStateDictRequest request = FSDPD__V1__PULL_STATE_DICT_REQUEST__INIT;
    request.id = id;
    request.from_checkpoint = checkpoint;
    request.checkpoint_step = step;
    listener_open(&world, listener, &control_pull_state_dict, &request, paused);
}

static void check_pulled(struct listener *listener, uint64_t step)
{
    WAIT(&world, listener->closed);
    expect_ok(listener->status);
    const Fsdpd__V1__PullStateDictResponse *first = listener->messages[0];
    struct buf file = {0};
    ck_assert_uint_eq(first->step, step);
    ck_assert_uint_eq(first->checkpoint->step, step);
    ck_assert_uint_eq(first->checkpoint->world, RANKS);
    for (int i = 0; i < listener->count; i++) {
        const Fsdpd__V1__PullStateDictResponse *chunk = listener->messages[i];
        ck_assert(i == 0 || (chunk->checkpoint == NULL && chunk->total_size == 0));
        ck_assert_uint_le(chunk->data.len, 1 << 20);
        buf_add(&file, chunk->data.data, chunk->data.len);
    }
    ck_assert_uint_eq(file.length, first->total_size);
    struct safetensors_header header;
    uint64_t needed;
    expect_ok(safetensors_read_header(file.data, file.length, file.length, &header, &needed));
    ck_assert_int_eq(header.count, 1);
    ck_assert_str_eq(header.entries[0].name, "weight");
    ck_assert_uint_eq(header.data_offset + (RANKS * SHARD - PADDING) * sizeof(float), file.length);
    for (uint64_t i = header.data_offset; i < file.length; i++)
        if ((unsigned char)file.data[i] != byte_at(i - header.data_offset))
            ck_abort_msg("byte %llu is wrong", (unsigned long long)i);
    safetensors_header_deinit(&header);
    buf_deinit(&file);
    listener_deinit(listener);
}

static void check_end(struct listener *listener, enum status_code code, const char *words)
{
    WAIT(&world, listener->closed);
    status_t status = listener->status;
    listener->status = NULL;
    expect_status(status, code, words);
    listener_deinit(listener);
}

static void fail_job(void)
{
    for (int r = 0; r < RANKS; r++) fake_finished(&fakes[r], STATUS_INVALID_ARGUMENT, "its data");
    WAIT(&world, world_job_is(&world, id, JOB_FAILED));
}

TESTS_BELOW(.timeout = 60, .set_up = set_up, .tear_down = tear_down);

TEST(choice_of_checkpoint)
{
    struct listener listener, waiting;
    pull(&listener, true, 0, false);
    check_end(&listener, STATUS_FAILED_PRECONDITION, "no checkpoint");
    write_checkpoint(4, NULL);
    write_checkpoint(8, NULL);
    pull(&listener, true, 0, false);
    check_pulled(&listener, 8);
    pull(&listener, true, 4, false);
    check_pulled(&listener, 4);
    ck_assert_int_eq(fakes[0].pulls, 0); /* the ranks received nothing */
    pull(&listener, true, 5, false);
    check_end(&listener, STATUS_NOT_FOUND, "checkpoints: step 4, 8");
    pull(&listener, false, 4, false);
    check_end(&listener, STATUS_INVALID_ARGUMENT, "from_checkpoint");

    pull(&waiting, false, 0, false); /* from the ranks, which do not get to it */
    WAIT(&world, fakes[0].pulls == 1);
    fail_job();
    check_pulled(&waiting, 8);
    pull(&listener, false, 0, false);
    check_pulled(&listener, 8);

    world_stop(&world); /* and every later coordinator has it, too */
    world_start(&world);
    pull(&listener, false, 0, false);
    check_pulled(&listener, 8);

    write_checkpoint(9, "another@5"); /* of an earlier job with this id, or a copy */
    pull(&listener, false, 0, false);
    check_end(&listener, STATUS_FAILED_PRECONDITION,
              "step-000000000009 belongs to another run, another@5");
    pull(&listener, true, 9, false);
    check_end(&listener, STATUS_FAILED_PRECONDITION, "available checkpoints: step 4, 8");
    pull(&listener, true, 8, false);
    check_pulled(&listener, 8);
}

/* A directory with another step's name does not count as that step. */
TEST(renamed)
{
    struct listener listener;
    write_checkpoint(4, NULL);
    write_checkpoint(8, NULL);
    char *eight = checkpoint_path(8, ""), *six = checkpoint_path(6, "");
    ck_assert_int_eq(rename(eight, six), 0);
    free(eight);
    free(six);
    for (uint64_t step = 0; step < 7; step += 6) {
        pull(&listener, true, step, false);
        check_end(&listener, STATUS_DATA_LOSS, "manifest.json is of step 8");
    }
    pull(&listener, true, 4, false);
    check_pulled(&listener, 4);
}

/* A client that does not read gets no more than is in flight; others are served. */
TEST(slow_and_disconnected_clients)
{
    struct listener slow, fast, many[4];
    write_checkpoint(4, NULL);
    fail_job();
    pull(&slow, false, 0, true);
    pull(&fast, false, 0, false);
    check_pulled(&fast, 4);
    ck_assert_int_eq(slow.count, 0);
    listener_resume(&slow);
    check_pulled(&slow, 4);
    /* The maximum number; the next one is refused, and works once they have ended. */
    for (int i = 0; i < 3; i++) pull(&many[i], false, 0, true);
    world_run(&world, 50);
    pull(&many[3], false, 0, false);
    check_end(&many[3], STATUS_RESOURCE_EXHAUSTED, "3 pulls");
    for (int i = 0; i < 3; i++) {
        rpc_stream_cancel(many[i].stream);
        WAIT(&world, many[i].closed);
        listener_deinit(&many[i]);
    }
    for (bool served = false; !served;) { /* the coordinator learns of it in time */
        pull(&fast, false, 0, false);
        WAIT(&world, fast.closed);
        served = fast.status == NULL;
        if (served) check_pulled(&fast, 4);
        else check_end(&fast, STATUS_RESOURCE_EXHAUSTED, "pulls");
    }
    /* At any moment of the disconnect. */
    for (int i = 0; i < 20; i++) {
        pull(&fast, false, 0, i % 2 == 0);
        world_run(&world, i);
        if (!fast.closed) rpc_stream_cancel(fast.stream);
        WAIT(&world, fast.closed);
        listener_deinit(&fast);
    }
}

LOOP_TEST(coordinator_ends, 0, 12)
{
    struct listener listeners[2];
    write_checkpoint(4, NULL);
    fail_job();
    pull(&listeners[0], false, 0, false);
    pull(&listeners[1], false, 0, true);
    world_run(&world, _i);
    world_stop(&world);
    for (int i = 0; i < 2; i++) {
        listener_resume(&listeners[i]);
        WAIT(&world, listeners[i].closed);
        listener_deinit(&listeners[i]);
    }
}

/* A checkpoint removed during the read is not reported as damaged. */
TEST(removed_meanwhile)
{
    struct listener listener;
    write_checkpoint(4, NULL);
    pull(&listener, true, 0, true);
    rpc_stream_read(listener.stream); /* only the first chunk: the file is open */
    WAIT(&world, listener.count == 1);
    struct folder folder; /* removed as the ranks do it: first its name */
    char *part = mem_printf("state/jobs/%s/checkpoints", id), *path = world_path(&world, part);
    ck_assert_ptr_null(folder_open(NULL, path, false, &folder));
    ck_assert_ptr_null(folder_remove(&folder, "step-000000000004"));
    folder_close(&folder);
    free(path);
    free(part);
    listener_resume(&listener);
    check_end(&listener, STATUS_ABORTED, "removed while it was read");
}

TEST(files_of_a_models_directory_come_from_a_worker)
{
    Fsdpd__V1__GetModelFileRequest request = FSDPD__V1__GET_MODEL_FILE_REQUEST__INIT;
    request.id = id;
    expect_status(world_call(&world, &control_get_model_file, &request, NULL),
                  STATUS_FAILED_PRECONDITION, "is a file (model.file)");
    request.id = (char *)"none-1";
    expect_status(world_call(&world, &control_get_model_file, &request, NULL), STATUS_NOT_FOUND,
                  "none-1");
    Fsdpd__V1__SubmitJobRequest submission = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    submission.spec = world_spec(RANKS);
    submission.spec->model->file_name = submission.spec->model->text = (char *)"";
    submission.spec->model->hf = (char *)"models/tiny";
    void *submitted = NULL, *response = NULL;
    expect_ok(world_call(&world, &control_submit_job, &submission, &submitted));
    request.id = ((job_message *)submitted)->id;
    request.name = (char *)"tokenizer.json";
    request.offset = 7;
    int plans = fakes[0].plans + fakes[1].plans;
    expect_ok(world_call(&world, &control_get_model_file, &request, &response));
    ck_assert_int_eq(fakes[0].plans + fakes[1].plans, plans + 1);
    const ProtobufCBinaryData *data = &((Fsdpd__V1__GetModelFileResponse *)response)->data;
    static const char expected[] = "models/tiny/tokenizer.json+7";
    ck_assert_uint_eq(data->len, sizeof expected - 1);
    ck_assert_mem_eq(data->data, expected, data->len);
    fakes[0].plan_code = fakes[1].plan_code = STATUS_NOT_FOUND;
    expect_status(world_call(&world, &control_get_model_file, &request, NULL), STATUS_NOT_FOUND,
                  "9216 expected");
    message_free(response);
    message_free(submitted);
}
