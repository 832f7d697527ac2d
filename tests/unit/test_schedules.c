/*
 * Schedules of the learning rate against transformers' and torch's: tests/parity/schedules.txt,
 * printed by tests/parity/make_schedule_numbers.py, read as job files have them. And what follows
 * from a job's own progress.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "spec/spec.h"
#include "tests/testing.h"
#include "train/schedule.h"
#include "worker/job_message.h"

#define MODEL "modules: {fc: Linear(3, 2)}\nforward: x -> fc\n"

/* The job file that has this text as `schedule`. */
static status_t read_spec(const char *text, Fsdpd__V1__JobSpec **spec)
{
    AUTO_FREE char *file = mem_printf("name: a\nmodel: {file: net.yaml}\ndata: {dir: d}\n"
                                      "schedule: %s\n",
                                      text);
    Fsdpd__V1__JobFile sent = FSDPD__V1__JOB_FILE__INIT;
    Fsdpd__V1__JobFile__FilesEntry net = FSDPD__V1__JOB_FILE__FILES_ENTRY__INIT, *files = &net;
    net.key = (char *)"net.yaml";
    net.value = (char *)MODEL;
    sent.text = file;
    sent.n_files = 1;
    sent.files = &files;
    return spec_read_sent(&sent, spec);
}

static void read_schedule(const char *text, struct job_settings *settings)
{
    Fsdpd__V1__JobSpec *spec;
    status_t status = read_spec(text, &spec);
    if (status == NULL) status = spec_validate(spec);
    if (status == NULL) status = job_settings_init_without_data(settings, spec, "test", NULL);
    ck_assert_msg(status == NULL, "%s: %s", text, status_message(status));
    spec_free(spec);
}

static double factor(const char *text, uint64_t step, double place, double places)
{
    struct job_settings settings;
    read_schedule(text, &settings);
    double found = schedule_factor(&settings.job.schedule, step, place, places);
    job_settings_deinit(&settings);
    return found;
}

static void compare(const struct train_schedule *schedule, const char *text, const char *numbers)
{
    char *end;
    uint64_t step = 0;
    for (double expected; expected = strtod(numbers, &end), end != numbers; numbers = end, step++) {
        double found = schedule_factor(schedule, step, 3, 7);
        ck_assert_msg(fabs(found - expected) <= 1e-10 * fabs(expected) + 2e-12,
                      "%s: step %d: %.12g, expected %.12g", text, (int)step, found, expected);
        if (schedule->total_steps == 0) continue;
        /* a job of that length, which says nothing of its schedule's */
        struct train_schedule own = *schedule;
        own.total_steps = 0;
        ck_assert(schedule_factor(&own, step, (double)step, (double)schedule->total_steps) ==
                  found);
    }
    ck_assert_uint_gt(step, 0);
}

TEST(curves_of_transformers_and_torch)
{
    AUTO(buf_deinit) struct buf text = {0};
    AUTO_FREE char *path = file_path_join(getenv("srcdir"), "tests/parity/schedules.txt");
    status_t status = file_read(path, 1 << 20, &text);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    int count = 0, of_kind[SCHEDULE_COUNT] = {0};
    char *next = (char *)buf_text(&text);
    for (char *line; (line = strsep(&next, "\n")) != NULL;) {
        char *numbers = strchr(line, '\t');
        if (numbers == NULL) continue;
        *numbers++ = '\0';
        struct job_settings settings;
        read_schedule(line, &settings);
        compare(&settings.job.schedule, line, numbers);
        of_kind[settings.job.schedule.kind]++;
        job_settings_deinit(&settings);
        count++;
    }
    ck_assert_int_gt(count, 100);
    for (int kind = SCHEDULE_LINEAR; kind < SCHEDULE_COUNT; kind++)
        ck_assert_int_gt(of_kind[kind], 1);
}

/* What transformers does not have: a least rate of cosine_with_restarts and inverse_sqrt. */
TEST(end_factor_is_the_least_rate)
{
    const char *restarts = "{type: cosine_with_restarts, num_cycles: 2, end_factor: 0.2}";
    const char *root = "{type: inverse_sqrt, timescale: 1, end_factor: 0.1}";
    ck_assert(factor(restarts, 0, 0, 8) == 1 && factor(restarts, 4, 4, 8) == 1);
    ck_assert(fabs(factor(restarts, 2, 2, 8) - 0.6) < 1e-12);
    ck_assert(factor(restarts, 8, 8, 8) == 0.2);
    ck_assert(factor(root, 3, 0, 1) == 0.5 && factor(root, 1000, 0, 1) == 0.1);
}

/* The decay and the last phase end with the job, wherever another group began. */
TEST(ends_follow_the_job)
{
    const char *wsd = "{type: wsd, decay_steps: 10, decay_type: linear}";
    const char *phases = "{type: phases, phases: [{type: constant, steps: 10}, {type: linear}]}";
    ck_assert(factor(wsd, 5, 90, 100) == 1 && factor(wsd, 10, 95, 100) == 0.5);
    ck_assert(factor(phases, 9, 80, 110) == 1 && fabs(factor(phases, 20, 60, 110) - 0.5) < 1e-12);
    ck_assert(factor(phases, 20, 110, 110) == 0);
}

/* A last phase of a given length keeps its end; a phase has a warm-up of its own. */
TEST(phases_begin_at_their_own_step)
{
    const char *text = "{type: phases, phases: [{type: wsd, steps: 10, decay_steps: 4, decay_type: "
                       "linear, end_factor: 0.5}, {type: polynomial, warmup_steps: 2, steps: 6, "
                       "factor: 0.5, end_factor: 0.2}]}";
    ck_assert(factor(text, 5, 0, 9) == 1 && factor(text, 8, 0, 9) == 0.75);
    ck_assert(factor(text, 10, 0, 9) == 0 && factor(text, 12, 0, 9) == 0.5);
    ck_assert(fabs(factor(text, 14, 0, 9) - 0.3) < 1e-12);
    ck_assert(factor(text, 16, 0, 9) == 0.1 && factor(text, 99, 0, 9) == 0.1);
}

TEST(a_job_is_no_phase)
{
    Fsdpd__V1__JobSpec *spec;
    ck_assert_ptr_null(read_spec("{type: cosine}", &spec));
    spec->schedule->_steps_case = FSDPD__V1__SCHEDULE_SPEC___STEPS_STEPS;
    status_t status = spec_validate(spec);
    ck_assert_str_eq(status_message(status), "schedule.steps: belongs to schedule.phases only");
    status_free(status);
    spec_free(spec);
}

/* What is printed reads as the same, with every default; a message without them as well. */
TEST(settings_are_printed)
{
    static const struct {
        const char *given, *printed;
    } cases[] = {
        {"{type: wsd, decay_steps: 10}", "  decay_steps: 10\n  decay_type: cosine\n"},
        {"{type: one_cycle, three_phase: true}",
         "  pct_start: 0.3\n  div_factor: 25\n  final_div_factor: 10000\n  anneal_strategy: cos\n"
         "  three_phase: true\n"},
        {"{type: phases, phases: [{type: wsd, decay_type: 1-sqrt, decay_steps: 3, steps: 5}, "
         "{factor: 0.5}]}",
         "  phases: [{type: wsd, end_factor: 0, total_steps: 0, decay_steps: 3, decay_type: "
         "\"1-sqrt\", "
         "warmup_steps: 0, warmup_start_factor: 0, steps: 5, factor: 1}, {type: constant, "
         "warmup_steps: 0, warmup_start_factor: 0, steps: 0, factor: 0.5}]\n"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Fsdpd__V1__JobSpec *spec, *again;
        AUTO(buf_deinit) struct buf first = {0}, second = {0};
        ck_assert_ptr_null(read_spec(cases[i].given, &spec));
        spec_to_yaml(spec, &first);
        ck_assert_msg(strstr(buf_text(&first), cases[i].printed) != NULL, "%s", buf_text(&first));
        const char *phases = strstr(buf_text(&first), "  phases: ");
        if (phases != NULL) {
            AUTO_FREE char *text = mem_printf("{type: phases, phases: %.*s}",
                                              (int)strcspn(phases + 10, "\n"), phases + 10);
            for (size_t p = 0; p < spec->n_schedule_phases; p++) {
                spec->schedule_phases[p]->_factor_case *= spec->schedule_phases[p]->factor != 1;
                spec->schedule_phases[p]->_warmup_steps_case = 0;
            }
            spec_complete(spec);
            ck_assert_ptr_null(spec_validate(spec));
            ck_assert_ptr_null(read_spec(text, &again));
            spec_to_yaml(again, &second);
            ck_assert_str_eq(buf_text(&first), buf_text(&second));
            spec_free(again);
        }
        spec_free(spec);
    }
}

TEST(refusals)
{
    static const struct {
        const char *given, *message;
    } cases[] = {
        {"{type: wsd}", "job.yaml: schedule.decay_steps: is missing; expected an integer from 1 to "
                        "1000000000000"},
        {"{type: cosine, power: 2}", "job.yaml:4: schedule.power: belongs to schedule.type "
                                     "polynomial, but here it is cosine"},
        {"{num_warmup_steps: 2}",
         "job.yaml:4: schedule.num_warmup_steps: unknown key; did you mean schedule.warmup_steps?"},
        {"{type: wsd, warmup_steps: 4, total_steps: 10, decay_steps: 7}",
         "job.yaml: schedule.decay_steps: expected at most the 6 steps after the warm-up, found 7"},
        {"{type: one_cycle, warmup_steps: 4}", "job.yaml: schedule.warmup_steps: expected 0, as "
                                               "one_cycle has a rise of its own, found 4"},
        {"{type: phases}", "job.yaml: schedule.phases: is missing; expected a list of phases, such "
                           "as [{type: constant, steps: 100}, {type: cosine}]"},
        {"{type: phases, phases: []}",
         "job.yaml:4: schedule.phases: expected 1 to 64 phases, found 0"},
        {"{type: phases, phases: [3]}",
         "job.yaml:4: schedule.phases: expected a list of phases, such as [{type: constant, steps: "
         "100}, {type: cosine}]"},
        {"{type: phases, phases: [{type: cosine}, {}]}",
         "job.yaml:4: schedule.phases: phase 1: schedule.steps: is missing; only the last phase "
         "takes the rest"},
        {"{type: phases, phases: [{typ: cosine}]}",
         "job.yaml:4: schedule.phases: phase 1: typ: unknown key; expected steps, factor or a key "
         "of a schedule"},
        {"{type: phases, phases: [{type: step}]}",
         "job.yaml:4: schedule.phases: phase 1: schedule.type: expected a schedule of one phase "
         "that counts steps, found step"},
        {"{type: phases, phases: [{type: polynomial, power: 0}]}",
         "job.yaml:4: schedule.phases: phase 1: power: expected a number from 0.001 to 1000, found "
         "0"},
        {"{type: phases, phases: [{type: cosine, power: 2}]}",
         "job.yaml:4: schedule.phases: phase 1: schedule.power: belongs to schedule.type "
         "polynomial "
         "only"},
        {"{type: phases, phases: [{type: wsd, steps: 5, decay_steps: 6}]}",
         "job.yaml:4: schedule.phases: phase 1: schedule.decay_steps: expected at most the 5 steps "
         "after the warm-up, found 6"},
        {"{type: phases, phases: [{type: one_cycle, three_phase: 1}]}",
         "job.yaml:4: schedule.phases: phase 1: three_phase: expected true or false, found 1"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Fsdpd__V1__JobSpec *spec;
        status_t status = read_spec(cases[i].given, &spec);
        ck_assert_ptr_nonnull(status);
        ck_assert_str_eq(status_message(status), cases[i].message);
        status_free(status);
    }
}
