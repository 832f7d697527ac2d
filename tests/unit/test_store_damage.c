/*
 * Damage to a store's files, by seed: for any bit flipped, any part truncated, missing or outdated,
 * either the acknowledged content is there or an error names the damage; and a crash is not damage.
 * FSDPD_STORE_FLIPS and FSDPD_STORE_SEED select the number of bits flipped, one at a time, and
 * which.
 */
#include <fcntl.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "coordinator/store/store.h"
#include "store_fixture.h"
#include "tests/testing.h"

enum { STORE, LOG, MARK, FILES };
static const char *const suffixes[FILES] = {"", "-wal", "-mark"};

static char *file_name(int which)
{
    return mem_printf("%s%s", store_path, suffixes[which]);
}

/* The bytes of a store's files at one moment. */
struct image {
    struct buf files[FILES];
    bool there[FILES];
};

static struct image take_image(void)
{
    struct image image = {0};
    for (int i = 0; i < FILES; i++) {
        char *name = file_name(i);
        image.there[i] = access(name, F_OK) == 0;
        if (image.there[i]) expect_ok(file_read(name, 1 << 26, &image.files[i]));
        free(name);
    }
    return image;
}

static void put_file(int which, const void *bytes, size_t size)
{
    char *name = file_name(which);
    FILE *file = fopen(name, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, size, file), size);
    ck_assert_int_eq(fclose(file), 0);
    free(name);
}

static void put_image(const struct image *image)
{
    store_remove();
    for (int i = 0; i < FILES; i++)
        if (image->there[i]) put_file(i, image->files[i].data, image->files[i].length);
}

static void remove_file(int which)
{
    char *name = file_name(which);
    ck_assert_int_eq(unlink(name), 0);
    free(name);
}

static void image_deinit(struct image *image)
{
    for (int i = 0; i < FILES; i++) buf_deinit(&image->files[i]);
}

/* ---- writing ---- */

static void write_job(struct store *store, const char *id, int state, uint64_t step, bool insert)
{
    static char dump[6000];
    memset(dump, 'p', sizeof dump - 1);
    Fsdpd__V1__Reason reason = FSDPD__V1__REASON__INIT;
    reason.code = (char *)"SOMETHING";
    reason.message = (char *)"for the record";
    job_spec spec = FSDPD__V1__JOB_SPEC__INIT;
    spec.name = (char *)"mnist";
    spec.workers = 2;
    Fsdpd__V1__Plan plan = FSDPD__V1__PLAN__INIT;
    plan.dump = dump;
    Fsdpd__V1__Metrics metrics = FSDPD__V1__METRICS__INIT;
    metrics.step = step;
    metrics.loss = 1.0 / (double)(step + 1);
    job_message job = FSDPD__V1__JOB__INIT;
    job.id = (char *)id;
    job.name = (char *)"mnist";
    job.owner = (char *)"ada";
    job.state = (Fsdpd__V1__JobState)state;
    job.reason = &reason;
    job.spec = &spec;
    job.plan = &plan;
    job.metrics = &metrics;
    job.step = step;
    job.steps = 1000;
    Google__Protobuf__Timestamp submitted;
    job.submit_time = message_time(&submitted, 17);
    Fsdpd__V1__Checkpoint checkpoint = FSDPD__V1__CHECKPOINT__INIT;
    checkpoint.step = step;
    checkpoint.path = (char *)"/srv/checkpoints";
    Fsdpd__V1__CheckpointEvent saved = FSDPD__V1__CHECKPOINT_EVENT__INIT;
    saved.checkpoint = &checkpoint;
    job_event event = FSDPD__V1__JOB_EVENT__INIT;
    event.sequence = step + 1;
    event.event_case = FSDPD__V1__JOB_EVENT__EVENT_CHECKPOINT;
    event.checkpoint = &saved;
    const job_event *events[] = {&event};
    const struct store_retries retries = {.failures = (uint32_t)step % 7};
    const struct store_change change = {.job = &job,
                                        .events = events,
                                        .event_count = 1,
                                        .durable = true,
                                        .report = (int64_t)step,
                                        .retries = &retries};
    if (insert) expect_ok(store_insert_job(store, &job, &event));
    else expect_ok(store_apply(store, &change));
}

enum { JOBS = 6 };

static void name_job(int number, char id[static 32])
{
    snprintf(id, 32, "mnist-%d", number);
}

static struct store *open_store(void)
{
    struct store *store = NULL;
    status_t status = store_open(store_path, &store);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    return store;
}

/* Fills a store in a process that ends without closing it: part of it is in store.db, part in the
 * log. */
static void fill(int updates)
{
    store_remove();
    pid_t child = fork();
    if (child == 0) {
        char id[32];
        struct store *store = open_store();
        for (int i = 1; i <= JOBS; i++) {
            name_job(i, id);
            write_job(store, id, JOB_QUEUED, 0, true);
        }
        expect_ok(store_add_drain(store, "node1/cpu:0", "ada", 1));
        write_job(store, "mnist-1", JOB_SUCCEEDED, 1, false);
        write_job(store, "mnist-2", JOB_FAILED, 1, false);
        store_close(store);
        store = open_store();
        expect_ok(store_forget_job(store, "mnist-1"));
        struct store_usage usage = {.user = "ada", .worker_ms = 7200000, .time_ms = 1};
        expect_ok(store_set_usage(store, &usage, 1));
        struct store_token token = {.name = "eve", .by = "ada", .expires_ms = 1, .job = ""};
        expect_ok(store_add_token(store, (const unsigned char[STORE_TOKEN_HASH]){1}, &token));
        struct store_weights weights = {.step = 5, .proved = true, .sums = "sums"};
        expect_ok(store_set_state_dict(store, "mnist-2", &weights));
        for (int i = 0; i < updates; i++) {
            name_job(3 + i % 3, id);
            write_job(store, id, JOB_RUNNING, (uint64_t)i + 2, false);
        }
        name_job(JOBS + 1, id);
        write_job(store, id, JOB_QUEUED, 0, true);
        write_job(store, "mnist-3", JOB_SUCCEEDED, 999, false);
        _exit(0);
    }
    int how = 0;
    ck_assert_int_eq(waitpid(child, &how, 0), child);
    ck_assert_int_eq(how, 0);
}

/* ---- reading ---- */

static bool add_event(void *user, const job_event *event)
{
    buf_printf(user, " %llu=%llu", (unsigned long long)event->sequence,
               (unsigned long long)event->checkpoint->checkpoint->step);
    return true;
}

static status_t add_checkpoint(void *user, const Fsdpd__V1__Checkpoint *checkpoint)
{
    buf_printf(user, " %llu:%s", (unsigned long long)checkpoint->step, checkpoint->path);
    return NULL;
}

static void add_drain(void *user, const char *worker, const char *by, int64_t time_ms)
{
    buf_printf(user, "%s %s %lld\n", worker, by, (long long)time_ms);
}

static bool add_id(void *user, const char *id)
{
    buf_printf(user, "%s ", id);
    return true;
}

/* Everything of one job as text; or the error that names it. */
static status_t describe_job(struct store *store, const char *id, struct buf *out)
{
    job_message *job = NULL;
    size_t size = 0;
    TRY(store_get_job(store, id, &job));
    uint8_t *bytes = message_pack(job, &size);
    for (size_t i = 0; i < size; i++) buf_printf(out, "%02x", bytes[i]);
    free(bytes);
    message_free(job);
    struct store_event_query query = {.job = id, .limit = 100000, .visit = add_event, .user = out};
    TRY(store_read_events(store, &query));
    TRY(store_each_checkpoint(store, id, add_checkpoint, out));
    struct store_retries retries;
    uint64_t report = 0;
    TRY(store_get_retries(store, id, &retries));
    TRY(store_get_report(store, id, &report));
    buf_printf(out, " %u %u %llu", retries.failures, retries.machine_failures,
               (unsigned long long)report);
    return NULL;
}

struct content {
    struct buf jobs[JOBS + 2], rest; /* of each job, by number; ids and drains */
    int damaged;                     /* jobs reported as damaged */
};

static struct content read_content(struct store *store)
{
    struct content content = {0};
    expect_ok(store_each_id(store, add_id, &content.rest));
    expect_ok(store_each_drain(store, add_drain, &content.rest));
    for (int i = 2; i <= JOBS + 1; i++) {
        char id[32];
        name_job(i, id);
        status_t status = describe_job(store, id, &content.jobs[i]);
        if (status == NULL) continue;
        expect_error(status, STATUS_DATA_LOSS, id);
        buf_clear(&content.jobs[i]);
        content.damaged++;
    }
    return content;
}

static void content_deinit(struct content *content)
{
    for (int i = 0; i < JOBS + 2; i++) buf_deinit(&content->jobs[i]);
    buf_deinit(&content->rest);
}

/* Checks that everything present is unchanged. Returns the number of jobs reported as damaged. */
static int expect_content(struct store *store, const struct content *expected, const char *what)
{
    struct content found = read_content(store);
    ck_assert_msg(strcmp(buf_text(&found.rest), buf_text(&expected->rest)) == 0,
                  "%s: expected \"%s\", found \"%s\"", what, buf_text(&expected->rest),
                  buf_text(&found.rest));
    for (int i = 2; i <= JOBS + 1; i++)
        ck_assert_msg(found.jobs[i].length == 0 ||
                          strcmp(buf_text(&found.jobs[i]), buf_text(&expected->jobs[i])) == 0,
                      "%s: mnist-%d has changed", what, i);
    content_deinit(&found);
    return found.damaged;
}

/* ---- flips ---- */

static int setting(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? atoi(text) : otherwise;
}

static uint64_t draw(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

/* Flips one bit of the file. Returns 1 if the store was refused as damaged; counts stores in *named
 * that have a damaged job. */
static int flip(const struct image *image, const struct content *expected, int which, uint64_t bit,
                int *named)
{
    put_image(image);
    struct buf bytes = {0};
    buf_add(&bytes, image->files[which].data, image->files[which].length);
    bytes.data[bit / 8] ^= (char)(1 << bit % 8);
    put_file(which, bytes.data, bytes.length);
    buf_deinit(&bytes);
    char *what = mem_printf("store.db%s, byte %llu, bit %d", suffixes[which],
                            (unsigned long long)bit / 8, (int)(bit % 8));
    struct store *store = NULL;
    status_t status = store_open(store_path, &store);
    int refused = status != NULL;
    if (status == NULL) *named += expect_content(store, expected, what) > 0;
    else
        ck_assert_msg(status_code(status) == STATUS_DATA_LOSS ||
                          strstr(status_message(status), "newer fsdpd") != NULL,
                      "%s: %s: %s", what, status_code_name(status_code(status)),
                      status_message(status));
    status_free(status);
    store_close(store);
    free(what);
    return refused;
}

static void flip_many(int updates, bool closed)
{
    fill(updates);
    if (closed) store_close(open_store());
    struct image image = take_image();
    ck_assert_int_eq(image.there[LOG], !closed);
    struct store *store = open_store(); /* a killed process is not damage */
    struct content expected = read_content(store);
    ck_assert_int_eq(expected.damaged, 0);
    store_close(store);

    int count = setting("FSDPD_STORE_FLIPS", 60), refused[FILES] = {0}, done[FILES] = {0};
    int named = 0;
    uint64_t seed = (uint64_t)setting("FSDPD_STORE_SEED", 1) * 0x9e3779b97f4a7c15u;
    for (int i = 0; i < count; i++) {
        int which = i % 10 == 0 ? MARK : i % 2 == 0 || closed ? STORE : LOG;
        refused[which] +=
            flip(&image, &expected, which, draw(&seed) % (8 * image.files[which].length), &named);
        done[which]++;
    }
    /* The log has all acknowledged content, or is refused. Pages of store.db that the log has too
     * may be damaged, and the mark is not part of the store. */
    ck_assert_int_gt(closed ? refused[STORE] + named : refused[LOG], 0);
    ck_assert_int_eq(refused[MARK], 0);
    printf("flips in the store: %d of %d refused, in its log: %d of %d, in its mark: %d of %d; "
           "%d had a damaged job\n",
           refused[STORE], done[STORE], refused[LOG], done[LOG], refused[MARK], done[MARK], named);
    content_deinit(&expected);
    image_deinit(&image);
}

/* These tests damage stores on purpose. */
static void quiet_log(void)
{
    log_set_level((enum log_level)(LOG_ERROR + 1));
}

TESTS_BELOW(.set_up_once = quiet_log, .timeout = 600, .set_up = store_set_up,
            .tear_down = store_tear_down);

TEST(flips)
{
    flip_many(12, false);
}

TEST(flips_in_a_store_without_a_log)
{
    flip_many(12, true);
}

/* The log was copied to store.db and restarted: old frames follow its new ones. */
TEST(flips_in_a_restarted_log)
{
    flip_many(400, false);
}

/* ---- truncated, missing or outdated files ---- */

static void expect_damage(const struct image *image, const char *words)
{
    struct store *store = NULL;
    struct image before = take_image();
    expect_error(store_open(store_path, &store), STATUS_DATA_LOSS, words);
    ck_assert_ptr_null(store);
    struct image after = take_image(); /* nothing changed */
    for (int i = 0; i < FILES; i++) {
        if (!before.there[i]) continue; /* SQLite may create an empty log */
        ck_assert(after.there[i] && after.files[i].length == before.files[i].length);
        if (after.files[i].length == 0) continue; /* its data may be NULL */
        ck_assert_int_eq(memcmp(after.files[i].data, before.files[i].data, after.files[i].length),
                         0);
    }
    image_deinit(&before);
    image_deinit(&after);
    put_image(image);
}

TEST(a_log_that_is_not_all_there)
{
    fill(12);
    struct image image = take_image();
    const struct buf *log = &image.files[LOG];
    remove_file(LOG);
    expect_damage(&image, "acknowledged changes are missing");
    static const size_t cuts[] = {0, 1, 31, 32, 33, 4152, 4153, 20000};
    for (size_t i = 0; i < COUNT_OF(cuts); i++) {
        put_file(LOG, log->data, cuts[i]);
        expect_damage(&image, "store.db");
    }
    put_file(LOG, log->data, log->length - 1);
    expect_damage(&image, "frames were acknowledged");

    /* After a crash: frames after the last acknowledged one, whole, torn, or garbage. */
    struct content expected;
    struct store *store = open_store();
    expected = read_content(store);
    store_close(store);
    for (int i = 0; i < 3; i++) {
        put_image(&image);
        struct buf more = {0};
        buf_add(&more, log->data, log->length);
        buf_add(&more, log->data + 32, i == 0 ? 4120 : i == 1 ? 1000 : 3 * 4120);
        put_file(LOG, more.data, more.length);
        buf_deinit(&more);
        store = open_store();
        ck_assert_int_eq(expect_content(store, &expected, "a torn end"), 0);
        store_close(store);
    }
    content_deinit(&expected);
    image_deinit(&image);
}

TEST(files_of_different_times)
{
    fill(3);
    struct image old = take_image();
    store_close(open_store());
    struct image old_closed = take_image();
    /* The same store continues. */
    struct store *store = open_store();
    for (int i = 0; i < 4; i++) write_job(store, "mnist-4", JOB_RUNNING, (uint64_t)i + 50, false);
    struct image now = take_image();
    for (int i = 0; i < 400; i++) write_job(store, "mnist-4", JOB_RUNNING, (uint64_t)i + 60, false);
    struct image later = take_image();
    store_close(store);
    struct image closed = take_image();
    ck_assert(!closed.there[LOG] && !old_closed.there[LOG]);

    put_image(&later);
    put_file(LOG, old.files[LOG].data, old.files[LOG].length);
    expect_damage(&later, "does not match");
    put_file(LOG, now.files[LOG].data, now.files[LOG].length);
    expect_damage(&later, "store.db");
    put_file(STORE, old_closed.files[STORE].data, old_closed.files[STORE].length);
    expect_damage(&later, "does not match its log");
    put_image(&closed);
    put_file(STORE, old_closed.files[STORE].data, old_closed.files[STORE].length);
    expect_damage(&closed, "acknowledged changes are missing");
    put_file(LOG, old.files[LOG].data, old.files[LOG].length);
    expect_damage(&closed, "store.db");

    /* A store whose log was never copied has nothing in its own file. */
    store_remove();
    pid_t child = fork();
    if (child == 0) {
        write_job(open_store(), "mnist-1", JOB_QUEUED, 0, true);
        _exit(0);
    }
    int how = 0;
    ck_assert_int_eq(waitpid(child, &how, 0), child);
    struct image fresh = take_image();
    remove_file(LOG);
    expect_damage(&fresh, "acknowledged changes are missing");
    image_deinit(&fresh);

    /* An older mark, as a power failure leaves it, requires less; without one the store is
     * trusted. */
    put_image(&closed);
    put_file(MARK, later.files[MARK].data, later.files[MARK].length);
    store_close(open_store());
    put_image(&closed);
    remove_file(MARK);
    store_close(open_store());
    image_deinit(&old);
    image_deinit(&old_closed);
    image_deinit(&now);
    image_deinit(&later);
    image_deinit(&closed);
}

TEST(no_store_where_one_was)
{
    fill(3);
    struct image image = take_image();
    remove_file(STORE);
    expect_damage(&image, "it is missing, but there is its log");
    put_file(STORE, "", 0);
    expect_damage(&image, "it is empty, but there is its log");
    remove_file(LOG);
    remove_file(STORE);
    expect_damage(&image, "it is missing, but its mark");

    store_remove();
    char *jobs = file_path_join(store_directory, "jobs/mnist-1");
    expect_ok(file_make_directory(jobs, 0700));
    struct store *store = NULL;
    expect_error(store_open(store_path, &store), STATUS_DATA_LOSS, "there are jobs in");
    put_file(STORE, "", 0);
    expect_error(store_open(store_path, &store), STATUS_DATA_LOSS, "there are jobs in");
    ck_assert_int_eq(rmdir(jobs), 0);
    store_close(open_store()); /* a killed first start leaves an empty file */
    free(jobs);
    image_deinit(&image);
}

/* ---- one record ---- */

static void execute(const char *sql)
{
    sqlite3 *database = NULL;
    ck_assert_int_eq(sqlite3_open(store_path, &database), SQLITE_OK);
    ck_assert_int_eq(sqlite3_exec(database, sql, NULL, NULL, NULL), SQLITE_OK);
    ck_assert_int_eq(sqlite3_close(database), SQLITE_OK);
}

static status_t count_job(void *user, const job_message *job)
{
    (void)job;
    ++*(int *)user;
    return NULL;
}

TEST(a_damaged_record_hides_one_job)
{
    static const char *const damage[] = {
        "UPDATE jobs SET step = step + 1 WHERE id = 'mnist-4'",
        "UPDATE jobs SET plan = plan || x'00' WHERE id = 'mnist-4'",
        "UPDATE retries SET failures = failures + 1 WHERE job = 'mnist-4'",
        "UPDATE checkpoints SET checkpoint = checkpoint || x'00' WHERE job = 'mnist-4'",
    };
    fill(12);
    store_close(open_store());
    struct image image = take_image();
    char *backup = file_path_join(store_directory, "backup.db");
    for (size_t i = 0; i < COUNT_OF(damage); i++) {
        put_image(&image);
        execute(damage[i]);
        expect_error(store_backup(store_path, backup), STATUS_DATA_LOSS, "mnist-4");
        struct store *store = open_store();
        job_message *job = NULL;
        int jobs = 0;
        const struct store_job_query query = {.visit = count_job, .user = &jobs};
        expect_error(store_get_job(store, "mnist-4", &job), STATUS_DATA_LOSS, "mnist-4");
        expect_ok(store_each_job(store, &query));
        ck_assert_int_eq(jobs, JOBS - 1);
        expect_ok(store_forget_job(store, "mnist-4"));
        store_close(store);
        expect_ok(store_backup(store_path, backup));
    }
    put_image(&image);
    execute("UPDATE drains SET by = 'eve'");
    expect_damage(&image, "the drain of node1/cpu:0");
    execute("UPDATE usage SET worker_ms = 0");
    expect_damage(&image, "the usage of ada");
    execute("UPDATE tokens SET operator = 1");
    expect_damage(&image, "a token of eve");
    execute("UPDATE events SET job = 'mnist-x' WHERE job = 'mnist-4' AND sequence = 1");
    expect_damage(&image, "a job now called mnist-x");
    free(backup);
    image_deinit(&image);
}

/* A damaged event is reported when it is read, and at the start if it is in the log. */
TEST(a_damaged_event)
{
    fill(12);
    store_close(open_store());
    execute("UPDATE events SET event = event || x'00' WHERE job = 'mnist-4' AND sequence > 2");
    struct store *store = open_store();
    struct buf out = {0};
    job_message *job = NULL;
    expect_ok(store_get_job(store, "mnist-4", &job));
    message_free(job);
    expect_error(describe_job(store, "mnist-4", &out), STATUS_DATA_LOSS, "an event of job mnist-4");
    buf_clear(&out);
    expect_ok(describe_job(store, "mnist-5", &out));
    buf_deinit(&out);
    store_close(store);
}

/* ---- backups ---- */

TEST(backups_of_a_damaged_store)
{
    fill(12);
    struct image image = take_image();
    struct store *store = open_store();
    struct content expected = read_content(store);
    char *backup = file_path_join(store_directory, "backup.db"), *kept = NULL;
    expect_ok(store_backup(store_path, backup));
    for (int i = 0; i < 3; i++) write_job(store, "mnist-4", JOB_RUNNING, (uint64_t)i + 50, false);
    store_close(store);

    /* A backup fails if the log lost content, instead of omitting it silently. */
    put_image(&image);
    put_file(LOG, image.files[LOG].data, 4152);
    char *other = file_path_join(store_directory, "other.db");
    expect_error(store_backup(store_path, other), STATUS_DATA_LOSS, "store.db");
    ck_assert_int_ne(access(other, F_OK), 0);

    /* Restored in place of a store that is damaged, or missing beside its log. */
    for (int i = 0; i < 2; i++) {
        if (i == 1) remove_file(STORE);
        expect_ok(store_restore(backup, store_path, &kept));
        free(kept);
        kept = NULL;
        store = open_store();
        ck_assert_int_eq(expect_content(store, &expected, "restored"), 0);
        write_job(store, "mnist-5", JOB_RUNNING, 70, false);
        store_close(store);
        put_image(&image);
        put_file(LOG, image.files[LOG].data, 4152);
    }
    /* A deliberate backup of the remains of a store. */
    put_image(&image);
    put_file(LOG, image.files[LOG].data, 4152);
    expect_ok(store_restore(store_path, store_path, &kept));
    store_close(open_store());
    free(kept);
    free(other);
    free(backup);
    content_deinit(&expected);
    image_deinit(&image);
}

/* ---- under an open store ---- */

TEST(files_removed_under_an_open_store)
{
    fill(3);
    struct store *store = open_store();
    char *aside = file_path_join(store_directory, "aside");
    for (int i = 0; i < FILES; i++) {
        char *name = file_name(i);
        expect_ok(store_check_files(store));
        ck_assert_int_eq(rename(name, aside), 0);
        expect_error(store_check_files(store), STATUS_UNAVAILABLE, name);
        expect_error(store_add_drain(store, "x", "y", 1), STATUS_UNAVAILABLE, "removed");
        expect_ok(file_write_atomic(name, "other", 5, 0600));
        expect_error(store_add_drain(store, "x", "y", 1), STATUS_UNAVAILABLE, "replaced");
        ck_assert_int_eq(rename(aside, name), 0);
        expect_ok(store_add_drain(store, "x", "y", 1));
        free(name);
    }
    free(aside);
    store_close(store);
}

/* ---- kills ---- */

/* Reports each change that is acknowledged. */
static void change_until_killed(int acknowledged)
{
    struct store *store = open_store();
    uint64_t step = 0;
    job_message *job = NULL;
    expect_ok(store_get_job(store, "mnist-4", &job));
    step = job->step;
    for (;;) {
        write_job(store, "mnist-4", JOB_RUNNING, ++step, false);
        if (write(acknowledged, &step, sizeof step) != sizeof step) _exit(1);
    }
}

TEST(kills_are_no_damage)
{
    fill(3);
    uint64_t seed = 7, acknowledged = 0;
    for (int round = 0; round < setting("FSDPD_STORE_KILLS", 12); round++) {
        int ends[2];
        ck_assert_int_eq(pipe(ends), 0);
        pid_t child = fork();
        if (child == 0) change_until_killed(ends[1]);
        close(ends[1]);
        /* At any moment: often during a copy of the log, which takes hundreds of changes. */
        uint64_t after = 1 + draw(&seed) % 400, step = 0;
        for (uint64_t i = 0; i < after && read(ends[0], &step, sizeof step) == sizeof step; i++)
            acknowledged = step;
        kill(child, SIGKILL);
        int how = 0;
        ck_assert_int_eq(waitpid(child, &how, 0), child);
        while (read(ends[0], &step, sizeof step) == sizeof step) acknowledged = step;
        close(ends[0]);
        struct store *store = open_store();
        job_message *job = NULL;
        expect_ok(store_get_job(store, "mnist-4", &job));
        ck_assert_uint_ge(job->step, acknowledged);
        message_free(job);
        store_close(store);
    }
    ck_assert_uint_gt(acknowledged, 12);
}
