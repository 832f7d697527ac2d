/*
 * client: what people see on terminals of 80 and 200 columns, as golden text. The files are
 * tests/golden/screens-*.txt; FSDPD_UPDATE_GOLDEN=1 in the environment rewrites them: read the
 * difference before committing it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "client/job_table.h"
#include "client/options.h"
#include "client/report.h"
#include "proto/message.h"
#include "spec/metric_table.h"
#include "tests/testing.h"

enum { NOW_S = 1000000, JOBS = 7, WORKERS = 3 };

static Fsdpd__V1__Job jobs[JOBS], *job_list[JOBS];
static Fsdpd__V1__Metrics metrics[JOBS];
static Fsdpd__V1__Reason reasons[JOBS];
static Fsdpd__V1__JobSpec specs[JOBS];
static Google__Protobuf__Timestamp times[JOBS][2];

static Fsdpd__V1__Job *make_job(int i, const char *id, Fsdpd__V1__JobState state, const char *why)
{
    Fsdpd__V1__Job *job = &jobs[i];
    fsdpd__v1__job__init(job);
    fsdpd__v1__reason__init(&reasons[i]);
    fsdpd__v1__job_spec__init(&specs[i]);
    fsdpd__v1__metrics__init(&metrics[i]);
    job->id = (char *)id;
    job->owner = (char *)(i % 2 ? "bob" : "alice");
    job->state = state;
    job->reason = &reasons[i];
    job->reason->message = (char *)why;
    job->submit_time = message_time(&times[i][0], (NOW_S - 1000 * i) * 1000LL);
    job->state_time = message_time(&times[i][1], (NOW_S - 100 * i) * 1000LL);
    job->spec = &specs[i];
    job->spec->workers = 2;
    return job_list[i] = job;
}

static Fsdpd__V1__Metrics *measure(Fsdpd__V1__Job *job, uint64_t step, uint64_t steps, double loss)
{
    Fsdpd__V1__Metrics *m = job->metrics = &metrics[job - jobs];
    m->step = step;
    m->loss = loss;
    m->samples_per_second = 5812.4;
    m->step_seconds = 0.011;
    m->train_seconds = 4.5;
    job->step = step;
    job->steps = steps;
    return m;
}

/* One in each state; only the first two may show a rate and the time that is left. */
static void make_jobs(void)
{
    Fsdpd__V1__Metrics *m = measure(make_job(0, "mnist-1", FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING,
                                             "training on 2 workers"),
                                    412, 9380, 0.23414);
    metric_set(&m->base, "test_loss", 0);
    metric_set(&m->base, "accuracy", 0.9812);
    m->seconds_left = 125;
    m = measure(make_job(1, "shakespeare-12", FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING,
                         "training on 2 workers"),
                250, 2000, 2.46812);
    metric_set(&m->base, "tokens_per_second", 64012);
    metric_set(&m->base, "val_loss", 2.5014);
    m->seconds_left = 11520;
    make_job(2, "gpt2-3", FSDPD__V1__JOB_STATE__JOB_STATE_QUEUED,
             "2nd; waits for 2 of 4 cuda workers: node7 is drained, and mnist-1 keeps cuda:1 until "
             "its end")
        ->priority = 5;
    make_job(3, "gpt2-2", FSDPD__V1__JOB_STATE__JOB_STATE_STARTING, "2 workers set up the job");
    m = measure(make_job(4, "llama-1", FSDPD__V1__JOB_STATE__JOB_STATE_PAUSED, "alice paused it"),
                10, 500, 3.1);
    m->seconds_left = 77; /* when it was paused */
    measure(make_job(5, "digits", FSDPD__V1__JOB_STATE__JOB_STATE_FAILED,
                     "rank 1 (node7/cpu:1): the loss is nan after step 53"),
            53, 9380, 0);
    measure(make_job(6, "digits-2", FSDPD__V1__JOB_STATE__JOB_STATE_SUCCEEDED, "all epochs done"),
            9380, 9380, 0.0123);
}

static void add_title(struct buf *out, const char *title)
{
    buf_printf(out, "%s== %s ==\n", out->length > 0 ? "\n" : "", title);
}

static void add_jobs(const struct view *view, struct buf *out)
{
    struct job_table table = {.view = *view};
    add_title(out, "list");
    job_table_print(&table, job_list, JOBS, out);
    add_title(out, "list of new jobs: nothing has been measured");
    job_table_print(&table, &job_list[2], 2, out);
    add_title(out, "list of jobs with a test");
    job_table_print(&table, job_list, 1, out);
    add_title(out, "top");
    struct job_table live = {.view = *view, .bars = true};
    live.view.width--;
    job_table_print(&live, job_list, 4, out);
}

static void add_history(const struct view *view, struct buf *out)
{
    Fsdpd__V1__HistoryEntry entries[3], *list[3];
    Google__Protobuf__Timestamp then[3];
    for (int i = 0; i < 3; i++) {
        fsdpd__v1__history_entry__init(list[i] = &entries[i]);
        list[i]->time = message_time(&then[i], (NOW_S + 60 * i) * 1000LL);
        list[i]->by = (char *)(i == 0 ? "alice" : "");
    }
    entries[0].state = FSDPD__V1__JOB_STATE__JOB_STATE_QUEUED;
    entries[0].reason = &reasons[2];
    reasons[2].code = (char *)"WAITING_FOR_WORKERS";
    entries[1].state = FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING;
    entries[1].reason = &reasons[0];
    reasons[0].code = (char *)"RUNNING";
    entries[2].state = FSDPD__V1__JOB_STATE__JOB_STATE_FAILED;
    entries[2].reason = &reasons[5];
    reasons[5].code = (char *)"NOT_FINITE";
    entries[1].attempt = entries[2].attempt = 1;
    entries[2].step = 53;
    Fsdpd__V1__GetHistoryResponse history = FSDPD__V1__GET_HISTORY_RESPONSE__INIT;
    history.n_entries = 3;
    history.entries = list;
    add_title(out, "history");
    report_history(&history, view, out);
}

static void add_workers(const struct view *view, struct buf *out)
{
    Fsdpd__V1__Worker workers[WORKERS], *list[WORKERS];
    Google__Protobuf__Timestamp attached;
    static const char *const ids[] = {"node7/cuda:0", "node7/cuda:1", "node8/cuda:0"};
    static const Fsdpd__V1__WorkerState states[] = {FSDPD__V1__WORKER_STATE__WORKER_STATE_BUSY,
                                                    FSDPD__V1__WORKER_STATE__WORKER_STATE_IDLE,
                                                    FSDPD__V1__WORKER_STATE__WORKER_STATE_DRAINING};
    for (int i = 0; i < WORKERS; i++) {
        fsdpd__v1__worker__init(list[i] = &workers[i]);
        list[i]->id = (char *)ids[i];
        list[i]->state = states[i];
        list[i]->job = (char *)(i == 1 ? "" : "shakespeare-12");
        list[i]->rank = i / 2;
        list[i]->memory_bytes = 141000000000;
        list[i]->attach_time = message_time(&attached, (NOW_S - 7200) * 1000LL);
        list[i]->pid = 4211 + i;
        list[i]->version = (char *)"0.9.0";
        list[i]->host = (char *)"270 GB, 31 GB free";
        list[i]->device = (char *)"NVIDIA H200";
    }
    add_title(out, "workers");
    report_workers(list, WORKERS, view, out);
}

/* A model of four equal blocks, a fifth that is larger, and what is around them. */
static void add_units(const struct view *view, struct buf *out)
{
    static const char *const names[] = {"(root)", "h.0", "h.1", "h.4", "h.2", "h.3"};
    Fsdpd__V1__Unit units[6], *list[6];
    char *modules[6];
    for (int i = 0; i < 6; i++) {
        fsdpd__v1__unit__init(list[i] = &units[i]);
        list[i]->name = modules[i] = (char *)names[i];
        list[i]->n_modules = 1;
        list[i]->modules = &modules[i];
        list[i]->parameters = list[i]->padded = i == 0 || i == 3 ? 41088000 : 7087872;
        list[i]->shard_bytes = list[i]->padded / 2;
    }
    modules[0] = (char *)"";
    add_title(out, "units");
    report_units(list, 6, view->width, out);
}

/* Three layers in turn, forward and backward; the last line is too small a repetition. */
static void add_schedule(const struct view *view, struct buf *out)
{
    static const struct {
        const char *kind, *lane, *subject;
        double seconds;
    } lines[] = {
        {"all_gather", "comm", "(root)", 28e-6},
        {"all_gather", "comm", "h.0", 30e-6},
        {"compute", "compute", "h.0.ln_1 ... h.0.mlp.c_proj", 50e-6},
        {"all_gather", "comm", "h.1", 30.001e-6},
        {"compute", "compute", "h.1.ln_1 ... h.1.mlp.c_proj", 50e-6},
        {"all_gather", "comm", "h.2", 30e-6},
        {"compute", "compute", "h.2.ln_1 ... h.2.mlp.c_proj", 50e-6},
        {"compute", "compute", "h.2.mlp.c_proj.backward_weights ... h.2.ln_1.backward", 99e-6},
        {"optimizer", "compute", "h.2", 5e-6},
        {"optimizer", "compute", "h.1", 5e-6},
        {"optimizer", "compute", "h.0", 5e-6},
        {"optimizer", "compute", "(root)", 5e-6},
        {"download", "download", "h.0", 5e-6},
        {"download", "download", "h.1", 5e-6},
    };
    Fsdpd__V1__ScheduleLine schedule[COUNT_OF(lines)], *list[COUNT_OF(lines)];
    for (uint32_t i = 0; i < COUNT_OF(lines); i++) {
        fsdpd__v1__schedule_line__init(list[i] = &schedule[i]);
        list[i]->first = list[i]->last = 2 * i;
        list[i]->last += lines[i].seconds > 40e-6;
        list[i]->start_seconds = 25e-6 * i;
        list[i]->kind = (char *)lines[i].kind;
        list[i]->lane = (char *)lines[i].lane;
        list[i]->subject = (char *)lines[i].subject;
        list[i]->seconds = lines[i].seconds;
        list[i]->bytes = strcmp(lines[i].kind, "all_gather") == 0 ? 689000 : 0;
    }
    list[0]->exposed_seconds = 28e-6;
    Fsdpd__V1__PlanProgram program = FSDPD__V1__PLAN_PROGRAM__INIT, *programs[] = {&program};
    program.name = (char *)"train";
    program.instructions = 30;
    program.schedule = list;
    program.n_schedule = COUNT_OF(lines);
    Fsdpd__V1__Plan plan = FSDPD__V1__PLAN__INIT;
    plan.programs = programs;
    plan.n_programs = 1;
    add_title(out, "schedule");
    report_schedule(&plan, 48, view->width, out);
    add_title(out, "schedule of 3 rows");
    report_schedule(&plan, 3, view->width, out);
    add_title(out, "schedule in full");
    report_schedule(&plan, 0, view->width, out);
}

static void add_screens(const struct view *view, struct buf *out)
{
    make_jobs();
    add_jobs(view, out);
    add_history(view, out);
    add_workers(view, out);
    add_units(view, out);
    add_schedule(view, out);
    add_title(out, "show");
    report_job(&jobs[1], view, out);
    if (view->width > 80) return; /* help is the same everywhere */
    add_title(out, "help");
    options_help(NULL, out);
    add_title(out, "help pull");
    options_help(verb_find("pull"), out);
    add_title(out, "help cancel");
    options_help(verb_find("cancel"), out);
}

static char *golden_path(int width)
{
    char name[64];
    const char *root = getenv("srcdir");
    snprintf(name, sizeof name, "tests/golden/screens-%d.txt", width);
    return file_path_join(root != NULL ? root : ".", name);
}

static void expect_golden(const struct buf *text, int width)
{
    char *path = golden_path(width);
    const char *update = getenv("FSDPD_UPDATE_GOLDEN");
    status_t status = NULL;
    if (update != NULL && strcmp(update, "1") == 0)
        status = file_write_atomic(path, buf_text(text), text->length, 0644);
    struct buf expected = {0};
    if (status == NULL) status = file_read(path, 1 << 20, &expected);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    size_t same = 0; /* the texts are too long for Check to print */
    while (same < text->length && text->data[same] == buf_text(&expected)[same]) same++;
    ck_assert_msg(same == text->length && same == expected.length, "%s differs; now: %.200s", path,
                  buf_text(text) + same);
    buf_deinit(&expected);
    free(path);
}

static void expect_width(const char *text, int width)
{
    for (const char *line = text; *line != '\0';) {
        size_t length = strcspn(line, "\n");
        ck_assert_msg((int)length <= width, "%zu columns: %.*s", length, (int)length, line);
        line += length + (line[length] == '\n');
    }
}

static const int golden_widths[] = {80, 200};

LOOP_TEST(screens, 0, 2)
{
    struct view view = {.now_ms = NOW_S * 1000LL, .width = golden_widths[_i]};
    struct buf text = {0};
    add_screens(&view, &text);
    expect_width(buf_text(&text), view.width);
    expect_golden(&text, view.width);
    buf_deinit(&text);
}

/* Colours change nothing else, and every state has its own. */
TEST(colours_take_no_room)
{
    struct view view = {.now_ms = NOW_S * 1000LL, .width = 80};
    struct buf plain = {0}, coloured = {0}, stripped = {0};
    add_screens(&view, &plain);
    view.colour = true;
    add_screens(&view, &coloured);
    for (const char *at = buf_text(&coloured); *at != '\0'; at++) {
        if (*at == '\033') at += strcspn(at, "m");
        else buf_add_char(&stripped, *at);
    }
    ck_assert_str_eq(buf_text(&stripped), buf_text(&plain));
    ck_assert_ptr_null(strchr(buf_text(&plain), '\033'));
    static const char *const states[] = {
        "\033[1;32mRUNNING\033[0m ", "\033[33mQUEUED\033[0m ",   "\033[36mSTARTING\033[0m ",
        "\033[34mPAUSED\033[0m ",    "\033[1;31mFAILED\033[0m ", "\033[32mSUCCEEDED\033[0m ",
        "\033[1;32mbusy\033[0m ",    "\033[33mdraining\033[0m ",
    };
    for (size_t i = 0; i < COUNT_OF(states); i++)
        ck_assert_msg(strstr(buf_text(&coloured), states[i]) != NULL, "no %s", states[i] + 5);
    buf_deinit(&plain);
    buf_deinit(&coloured);
    buf_deinit(&stripped);
}
