/* Notices of jobs: signatures, commands, retries, deadlines, the queue. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/mem.h"
#include "coordinator/monitor/notices.h"
#include "test_coordinator_world.h"
#include "tests/testing.h"

static struct world world;
static struct fake fake;
static char *id;

static void set_up(void)
{
    world_init(&world);
    world.options.limits.notice_retry_ms = 10;
}

static void tear_down(void)
{
    if (fake.world != NULL) fake_deinit(&fake);
    free(id);
    world_deinit(&world);
}

/* ---- webhooks ---- */

/* The example of Standard Webhooks' specification. */
TEST(a_webhook_is_signed_as_published)
{
    struct notice_target target = {0};
    status_t status =
        notice_key_parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", &target.key, &target.key_size);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert_uint_eq(target.key_size, 24);
    char *signature = notice_signature(&target, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330,
                                       "{\"test\": 2432232314}");
    ck_assert_str_eq(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    free(signature);
    free(target.key);
}

static const char *const bad_secrets[] = {
    "",
    "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",       /* no prefix */
    "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS",  /* cut */
    "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLa!w", /* not base64 */
    "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLQ==", /* 22 bytes */
    "whsec_"
    "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFB",
};

LOOP_TEST(a_bad_secret_is_refused_and_not_shown, 0, COUNT_OF(bad_secrets))
{
    unsigned char *key = NULL;
    size_t size = 0;
    status_t status = notice_key_parse(bad_secrets[_i], &key, &size);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(status_message(status), "expected whsec_"));
    if (bad_secrets[_i][0] != '\0')
        ck_assert_ptr_null(strstr(status_message(status), bad_secrets[_i]));
    status_free(status);
}

/* What a job contains cannot end a line of curl's configuration. */
TEST(a_request_is_quoted)
{
    const struct notice_target target = {.url = (char *)"https://a/\"b", .ca_file = (char *)"/c"};
    struct buf out = {0};
    notice_request(&target, "msg_1", 7, "{\"m\":\"a\\n\\\\\"}\nurl = x", 1500, &out);
    const char *lines[] = {"url = \"https://a/\\\"b\"\n",
                           "proto = \"=https\"\n",
                           "cacert = \"/c\"\n",
                           "max-time = \"1.500\"\n",
                           "header = \"webhook-id: msg_1\"\n",
                           "header = \"webhook-timestamp: 7\"\n",
                           "header = \"webhook-signature: v1,",
                           "data-raw = \"{\\\"m\\\":\\\"a\\\\n\\\\\\\\\\\"}\\nurl = x\"\n"};
    for (size_t i = 0; i < COUNT_OF(lines); i++)
        ck_assert_msg(strstr(buf_text(&out), lines[i]) != NULL, "no %s in\n%s", lines[i],
                      buf_text(&out));
    buf_deinit(&out);
}

TESTS_BELOW(.set_up = set_up, .tear_down = tear_down);

TEST(a_secret_that_everyone_can_read_is_refused)
{
    static const char secret[] = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n";
    char *path = world_path(&world, "secret");
    expect_ok(file_write_atomic(path, secret, strlen(secret), 0644));
    world.options.notify[0] =
        (struct notice_setting){.name = "hook", .url = "https://a/", .secret_file = path};
    world.options.notify_count = 1;
    struct notice_targets targets;
    expect_status(notice_targets_read(&world.options, &targets), STATUS_PERMISSION_DENIED,
                  "every user may use this secret (mode 644)");
    notice_targets_deinit(&targets);
    ck_assert_int_eq(chmod(path, 0600), 0);
    expect_ok(notice_targets_read(&world.options, &targets));
    ck_assert_uint_eq(notice_targets_find(&targets, "hook")->key_size, 24);
    notice_targets_deinit(&targets);
    expect_ok(file_write_atomic(path, "secret", 6, 0600));
    expect_status(notice_targets_read(&world.options, &targets), STATUS_INVALID_ARGUMENT,
                  "notify.hook.secret_file: ");
    notice_targets_deinit(&targets);
    free(path);
}

/* ---- jobs ---- */

static const char *arguments[] = {NULL, "an argument; with $signs", NULL};
static char *program;

/* A command "ops" with this text of /bin/sh. */
static void start(const char *script)
{
    char *text = mem_printf("#!/bin/sh\ncd \"${0%%/*}\"\n%s\n", script);
    program = world_path(&world, "ops");
    expect_ok(file_write_atomic(program, text, strlen(text), 0700));
    free(text);
    arguments[0] = program;
    world.options.notify[0] = (struct notice_setting){.name = "ops", .command = arguments};
    world.options.notify_count = 1;
    world_start(&world);
}

static status_t submit(const char *to, char **on, size_t count)
{
    static Fsdpd__V1__NotifySpec notify;
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    request.spec = world_spec(1);
    fsdpd__v1__notify_spec__init(&notify);
    notify.to = (char *)to;
    notify.on = on;
    notify.n_on = count;
    request.spec->notify = &notify;
    void *response = NULL;
    TRY(world_call(&world, &control_submit_job, &request, &response));
    id = mem_strdup(((job_message *)response)->id);
    message_free(response);
    return NULL;
}

static void run_job(char **on, size_t count)
{
    fake_attach(&world, &fake, "host/cpu:0", 1000);
    expect_ok(submit("ops", on, count));
    WAIT(&world, fake.assignments == 1);
    fake_started(&fake, 42);
    WAIT(&world, world_job_is(&world, id, JOB_RUNNING));
}

static bool has_noted(const char *code)
{
    Fsdpd__V1__GetHistoryRequest request = FSDPD__V1__GET_HISTORY_REQUEST__INIT;
    request.id = id;
    void *response = NULL;
    expect_ok(world_call(&world, &control_get_history, &request, &response));
    const Fsdpd__V1__GetHistoryResponse *history = response;
    bool noted = false;
    for (size_t i = 0; i < history->n_entries; i++)
        noted = noted || strcmp(history->entries[i]->reason->code, code) == 0;
    message_free(response);
    return noted;
}

static char *read_text(const char *name)
{
    struct buf text = {0};
    char *path = world_path(&world, name);
    expect_ok(file_read(path, 1 << 20, &text));
    free(path);
    return buf_take(&text);
}

static void stop(void)
{
    world_stop(&world);
    free(program);
}

/* The first two tries fail; the same notice comes again, and all three are in the history of a job
 * that is over. */
TEST(a_failed_command_is_tried_again)
{
    start("echo \"$1\" >>words; cat >>data; echo >>data; [ $(wc -l <data) = 3 ]");
    run_job(NULL, 0);
    fake_finished(&fake, STATUS_INTERNAL, "it is \"bad\"");
    WAIT(&world, world_job_is(&world, id, JOB_FAILED));
    WAIT(&world, has_noted("NOTICE_SENT"));
    world_check_reached(&world, id, "NOTICE_RETRIES",
                        "ops exited with status 1; the next in 0.01 s");
    world_check_reached(&world, id, "NOTICE_RETRIES", "try 2 of 5");
    world_check_reached(&world, id, "NOTICE_SENT", "after 3 tries");
    ck_assert(world_job_is(&world, id, JOB_FAILED));
    char *words = read_text("words"), *data = read_text("data");
    ck_assert_str_eq(words, "an argument; with $signs\nan argument; with $signs\n"
                            "an argument; with $signs\n");
    size_t length = strcspn(data, "\n");
    ck_assert_mem_eq(data, data + length + 1, length + 1);
    ck_assert_ptr_eq(strstr(data, "{\"type\":\"job.failure\",\"timestamp\":\""), data);
    char *job = mem_printf("\"job\":\"%s\"", id);
    ck_assert_ptr_nonnull(strstr(data, job));
    ck_assert_ptr_nonnull(strstr(data, "\"state\":\"FAILED\""));
    ck_assert_ptr_nonnull(strstr(data, "it is \\\"bad\\\""));
    const struct notice_counts counts = notices_count(world.coordinator);
    ck_assert_uint_eq(counts.sent, 1);
    ck_assert_uint_eq(counts.retried, 2);
    ck_assert_int_eq(counts.queued, 0);
    free(job);
    free(words);
    free(data);
    stop();
}

/* Stalls and preemptions of a job that is not over, and only what it chose. */
TEST(events_that_were_chosen_send_notices)
{
    char *on[] = {(char *)"stall", (char *)"preemption"};
    start("cat >>data; echo >>data");
    run_job(on, 2);
    struct job *job = jobs_find(world.coordinator, id);
    job_set_reason(job, "STALLED", "step 3 has not advanced");
    WAIT(&world, notices_count(world.coordinator).sent == 1);
    job_set_state(job, JOB_QUEUED, "PREEMPTED", "for another");
    WAIT(&world, notices_count(world.coordinator).sent == 2);
    expect_ok(world_cancel(&world, id));
    WAIT(&world, world_job_is(&world, id, JOB_CANCELLED));
    char *data = read_text("data"), *stall = strstr(data, "\"type\":\"job.stall\"");
    ck_assert_ptr_nonnull(stall);
    ck_assert_ptr_nonnull(strstr(stall, "\"type\":\"job.preemption\""));
    ck_assert_ptr_null(strstr(data, "job.end"));
    ck_assert_int_eq(notices_count(world.coordinator).queued, 0);
    world_check_reached(&world, id, "NOTICE_SENT", "after 1 try");
    free(data);
    stop();
}

TEST(a_command_that_hangs_is_killed_and_given_up)
{
    world.options.limits.notice_ms = 50;
    start("exec sleep 1000");
    run_job(NULL, 0);
    fake_finished(&fake, STATUS_OK, "");
    WAIT(&world, has_noted("NOTICE_FAILED"));
    world_check_reached(&world, id, "NOTICE_RETRIES", "it did not end within 0.05 s");
    world_check_reached(&world, id, "NOTICE_FAILED", "try 5 of 5");
    ck_assert_uint_eq(notices_count(world.coordinator).failed, 1);
    ck_assert_uint_eq(notices_count(world.coordinator).retried, 4);
    stop();
}

/* At most four run at a time, and closing does not wait for them. */
TEST(the_queue_is_bounded)
{
    char *on[] = {(char *)"stall"};
    start("echo >>starts; exec sleep 1000");
    run_job(on, 1);
    struct job *job = jobs_find(world.coordinator, id);
    for (int i = 0; i < 300; i++) notices_add(job, NOTICE_STALL);
    ck_assert_int_eq(notices_count(world.coordinator).queued, 256);
    ck_assert_uint_eq(notices_count(world.coordinator).dropped, 44);
    char *starts = NULL;
    struct stat info;
    char *path = world_path(&world, "starts");
    WAIT(&world, stat(path, &info) == 0 && info.st_size >= 4);
    world_run(&world, 250); /* two ticks */
    starts = read_text("starts");
    ck_assert_str_eq(starts, "\n\n\n\n");
    free(path);
    free(starts);
    stop();
}

/* A name must exist at submission; a reload brings and takes names. */
TEST(names_are_those_of_the_configuration)
{
    start("exit 1");
    fake_attach(&world, &fake, "host/cpu:0", 1000);
    expect_status(submit("opps", NULL, 0), STATUS_INVALID_ARGUMENT,
                  "notify.to: expected a name of notify in fsdpd.yaml: ops, found 'opps'");
    expect_ok(submit("ops", NULL, 0));
    struct coordinator_options options = world.options;
    options.notify_count = 0;
    world_reload(&world, &options);
    char *first = id;
    expect_status(
        submit("ops", NULL, 0), STATUS_INVALID_ARGUMENT,
        "notify.to: expected a name of notify in fsdpd.yaml, which has none, found 'ops'");
    id = first;
    expect_ok(world_cancel(&world, id));
    WAIT(&world, has_noted("NOTICE_FAILED"));
    world_check_reached(&world, id, "NOTICE_FAILED", "notify in fsdpd.yaml has no ops any more");
    stop();
}
