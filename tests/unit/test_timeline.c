/*
 * A trace's chunks as a timeline: the file's content, clocks of several hosts, chunks that do not
 * fit together. tests/system/test_trace.py checks the content of a real trace.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "page/timeline.h"
#include "tests/testing.h"

enum { INSTRUCTIONS = 4 };

static Fsdpd__V1__TraceInstruction instructions[INSTRUCTIONS];
static Fsdpd__V1__TraceInstruction *instruction_list[INSTRUCTIONS];
static Fsdpd__V1__TraceProgram program;
static Fsdpd__V1__TraceProgram *program_list[] = {&program};
static struct timeline timeline;

static void set_instruction(int i, const char *name, const char *kind, const char *lane,
                            const char *unit, uint64_t bytes, uint64_t live, uint32_t awaited_by)
{
    fsdpd__v1__trace_instruction__init(&instructions[i]);
    instructions[i].name = (char *)name;
    instructions[i].kind = (char *)kind;
    instructions[i].lane = (char *)lane;
    instructions[i].unit = (char *)unit;
    instructions[i].bytes = bytes;
    instructions[i].live_bytes = live;
    instructions[i].awaited_by = awaited_by;
    if (strcmp(kind, "compute") == 0) instructions[i].op = (char *)"linear";
    instruction_list[i] = &instructions[i];
}

static void set_up(void)
{
    set_instruction(0, "copy_batch", "copy_batch", "copy", "", 0, 100, 0);
    set_instruction(1, "all_gather a", "all_gather", "comm", "a", 64, 300, 2);
    set_instruction(2, "a \"1\"", "compute", "compute", "a", 0, 400, 0);
    set_instruction(3, "free a", "free", "compute", "a", 0, 200, 0);
    fsdpd__v1__trace_program__init(&program);
    program.name = (char *)"train";
    program.n_instructions = INSTRUCTIONS;
    program.instructions = instruction_list;
    program.live_peak_bytes = 400;
}

static void tear_down(void)
{
    timeline_deinit(&timeline);
}

static void add_workers(const char *first, const char *second)
{
    char *workers[] = {(char *)first, (char *)second};
    Fsdpd__V1__TraceChunk chunk = FSDPD__V1__TRACE_CHUNK__INIT;
    chunk.workers = workers;
    chunk.n_workers = second != NULL ? 2 : 1;
    timeline_add(&timeline, &chunk);
}

static void add_program(void)
{
    Fsdpd__V1__TraceChunk chunk = FSDPD__V1__TRACE_CHUNK__INIT;
    chunk.programs = program_list;
    chunk.n_programs = 1;
    timeline_add(&timeline, &chunk);
}

/* A step of 10 microseconds from `begin_ns`, in a chunk of its own. */
static void add_step_of(uint32_t rank, uint64_t number, int64_t begin_ns, size_t count)
{
    uint64_t begins[] = {0, 1000, 3001, 5000}, durations[] = {500, 2000, 1999, 0};
    Fsdpd__V1__TraceStep step = FSDPD__V1__TRACE_STEP__INIT;
    step.step = number;
    step.begin_ns = begin_ns;
    step.end_ns = begin_ns + 10000;
    step.n_begins = step.n_durations = count;
    step.begins = begins;
    step.durations = durations;
    Fsdpd__V1__TraceStep *steps[] = {&step};
    Fsdpd__V1__TraceChunk chunk = FSDPD__V1__TRACE_CHUNK__INIT;
    chunk.rank = rank;
    chunk.steps = steps;
    chunk.n_steps = 1;
    timeline_add(&timeline, &chunk);
}

/* A batch before the step's last: one instruction, half a microsecond into it. */
static void add_batch(uint32_t rank, uint64_t number, int64_t begin_ns)
{
    uint64_t begins[] = {500}, durations[] = {1000};
    Fsdpd__V1__TraceStep step = FSDPD__V1__TRACE_STEP__INIT;
    step.step = number;
    step.begin_ns = begin_ns;
    step.end_ns = begin_ns + 2000;
    step.n_begins = step.n_durations = 1;
    step.begins = begins;
    step.durations = durations;
    step.program = (char *)"accumulate";
    Fsdpd__V1__TraceStep *steps[] = {&step};
    Fsdpd__V1__TraceChunk chunk = FSDPD__V1__TRACE_CHUNK__INIT;
    chunk.rank = rank;
    chunk.steps = steps;
    chunk.n_steps = 1;
    timeline_add(&timeline, &chunk);
}

/* It runs only its first instruction. */
static void add_accumulate_program(void)
{
    Fsdpd__V1__TraceProgram earlier = program, *list[] = {&earlier};
    earlier.name = (char *)"accumulate";
    earlier.n_instructions = 1;
    earlier.live_peak_bytes = 700;
    Fsdpd__V1__TraceChunk chunk = FSDPD__V1__TRACE_CHUNK__INIT;
    chunk.programs = list;
    chunk.n_programs = 1;
    timeline_add(&timeline, &chunk);
}

static void add_step(uint32_t rank, uint64_t number, int64_t begin_ns)
{
    add_step_of(rank, number, begin_ns, INSTRUCTIONS);
}

static const char *written(void)
{
    static struct buf text;
    status_t status = timeline_finish(&timeline);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    text.length = 0;
    timeline_write(&timeline, "job-1", &text);
    return buf_text(&text);
}

static void expect_line(const char *text, const char *line)
{
    ck_assert_msg(strstr(text, line) != NULL, "expected %s in\n%s", line, text);
}

TESTS_BELOW(.set_up = set_up, .tear_down = tear_down);

/* A step begins with its first batch and ends with its last. */
TEST(batches)
{
    add_workers("host/cpu:0", NULL);
    add_program();
    add_accumulate_program();
    for (uint64_t step = 7; step < 9; step++) {
        int64_t begin = (int64_t)step * 1000000;
        add_batch(0, step, begin);
        add_batch(0, step, begin + 3000);
        add_step(0, step, begin + 6000);
    }
    const char *text = written();
    expect_line(text, "\"first_step\":7,\"last_step\":8,\"live_peak_bytes\":700,");
    expect_line(text, "\"name\":\"step 7\",\"cat\":\"step\",\"args\":{\"step\":7},\"ts\":0.000,"
                      "\"dur\":16.000}");
    expect_line(text, "\"name\":\"step 8\",\"cat\":\"step\",\"args\":{\"step\":8},\"ts\":1000.000,"
                      "\"dur\":16.000}");
    expect_line(text, "\"ts\":0.500,\"dur\":1.000,\"args\":{\"step\":7,\"instruction\":0,"
                      "\"batch\":1}}");
    expect_line(text, "\"ts\":3.500,\"dur\":1.000,\"args\":{\"step\":7,\"instruction\":0,"
                      "\"batch\":2}}");
    expect_line(text, "\"ts\":6.000,\"dur\":0.500,\"args\":{\"step\":7,\"instruction\":0,"
                      "\"batch\":3}}");
}

/* Batches without the step that they belong to, and of another step. */
LOOP_TEST(batches_out_of_order, 0, 3)
{
    add_workers("host/cpu:0", NULL);
    add_program();
    add_accumulate_program();
    add_batch(0, 7, 1000);
    if (_i > 0) add_step(0, _i == 1 ? 8 : 7, 4000);
    if (_i == 2) add_batch(0, 7, 20000);
    status_t status = timeline_finish(&timeline);
    ck_assert_int_eq(status_code(status), _i ? STATUS_DATA_LOSS : STATUS_FAILED_PRECONDITION);
    status_free(status);
}

TEST(one_rank)
{
    add_workers("host/cpu:0", NULL);
    add_program();
    add_step(0, 7, 5000000);
    const char *text = written();
    expect_line(text,
                "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"job\":\"job-1\",\"first_step\":7,"
                "\"last_step\":7,\"live_peak_bytes\":400,\"hosts\":1,\"clock\":\"one, of the "
                "ranks' host\"},\"traceEvents\":[\n");
    expect_line(text, "\n{\"ph\":\"M\",\"pid\":0,\"tid\":0,\"name\":\"process_name\",\"args\":{"
                      "\"name\":\"rank 0 (host/cpu:0)\"}},\n");
    expect_line(text, "\n{\"ph\":\"X\",\"pid\":0,\"tid\":1,\"name\":\"all_gather a\",\"cat\":"
                      "\"all_gather\",\"ts\":1.000,\"dur\":2.000,\"args\":{\"step\":7,"
                      "\"instruction\":1,\"unit\":\"a\",\"bytes\":64}},\n"
                      "{\"ph\":\"C\",\"pid\":0,\"tid\":0,\"name\":\"memory\",\"ts\":1.000,\"args\":"
                      "{\"live bytes\":300}},\n");
    /* names are quoted; no span has zero duration, and none starts before an earlier one ends */
    expect_line(text,
                "\"name\":\"a \\\"1\\\"\",\"cat\":\"compute\",\"ts\":3.001,\"dur\":1.999,\"args\":{"
                "\"step\":7,\"instruction\":2,\"op\":\"linear\",\"unit\":\"a\"}}");
    ck_assert_ptr_null(strstr(text, "\"host\""));
    expect_line(text, "\"name\":\"free a\",\"cat\":\"free\",\"ts\":5.000,\"dur\":0.001");
    expect_line(text, "{\"ph\":\"s\",\"pid\":0,\"tid\":1,\"name\":\"gathered\",\"cat\":\"gather\","
                      "\"id\":1,\"ts\":2.999},\n"
                      "{\"ph\":\"f\",\"pid\":0,\"tid\":0,\"name\":\"gathered\",\"cat\":\"gather\","
                      "\"id\":1,\"bp\":\"e\",\"ts\":3.001}\n]}\n");
}

/* Offloaded units have separate lanes: their spans do not move those that compute. */
TEST(more_lanes)
{
    instructions[1].lane = (char *)"download";
    instructions[3].lane = (char *)"host";
    instructions[1].awaited_by = 0;
    add_workers("host/cuda:0", NULL);
    add_program();
    add_step(0, 7, 5000000);
    const char *text = written();
    expect_line(text, "\"tid\":3,\"name\":\"thread_name\",\"args\":{\"name\":\"steps\"}");
    expect_line(text, "\"tid\":4,\"name\":\"thread_name\",\"args\":{\"name\":\"download\"}");
    expect_line(text, "\"tid\":5,\"name\":\"thread_name\",\"args\":{\"name\":\"host\"}");
    expect_line(text, "\"tid\":4,\"name\":\"all_gather a\",\"cat\":\"all_gather\",\"ts\":1.000,");
    expect_line(text, "\"tid\":5,\"name\":\"free a\",\"cat\":\"free\",\"ts\":5.000,");
}

/* Two ranks, two steps of two batches: means over ranks and steps, by op or instruction. */
TEST(times)
{
    static const struct {
        const char *what, *lane;
        double often, seconds;
    } expected[] = {{"all_gather", "comm", 1, 2e-6},
                    {"copy_batch", "copy", 2, 1.5e-6},
                    {"linear", "compute", 1, 1.999e-6},
                    {"free", "compute", 1, 0}};
    static const int order[] = {0, 2, 1, 3};
    add_workers("host/cpu:0", "host/cpu:1");
    add_program();
    add_accumulate_program();
    for (uint64_t step = 7; step < 9; step++)
        for (uint32_t rank = 0; rank < 2; rank++) {
            add_batch(rank, step, (int64_t)step * 1000000);
            add_step(rank, step, (int64_t)step * 1000000 + 6000);
        }
    written();
    struct timeline_times times;
    timeline_sum_up(&timeline, &times);
    ck_assert_int_eq(times.count, 4);
    for (int i = 0; i < 4; i++) {
        ck_assert_str_eq(times.times[i].what, expected[order[i]].what);
        ck_assert_str_eq(times.times[i].lane, expected[order[i]].lane);
        ck_assert_double_eq_tol(times.times[i].often, expected[order[i]].often, 1e-12);
        ck_assert_double_eq_tol(times.times[i].seconds, expected[order[i]].seconds, 1e-15);
    }
    timeline_times_deinit(&times);
}

/* Two hosts' clocks are aligned at the end of the first step; one host's are left unchanged. */
LOOP_TEST(hosts, 0, 2)
{
    bool same = _i == 0;
    add_workers("a/cpu:0", same ? "a/cpu:1" : "b/cpu:0");
    add_program();
    add_step(0, 1, 1000000);
    add_step(1, 1, 1002000);
    add_step(0, 2, 1020000);
    add_step(1, 2, 1023000);
    const char *text = written();
    expect_line(text,
                same ? "\"hosts\":1,\"clock\":\"one" : "\"hosts\":2,\"clock\":\"each host has");
    char line[128];
    for (int step = 0; step < 2; step++) {
        int rank0 = step * 20, rank1 = same ? step * 21 + 2 : step * 21;
        snprintf(line, sizeof line, "\"args\":{\"step\":%d},\"ts\":%d.000,", step + 1, rank0);
        expect_line(text, line);
        snprintf(line, sizeof line,
                 "\"pid\":1,\"tid\":3,\"name\":\"step %d\",\"cat\":\"step\","
                 "\"args\":{\"step\":%d},\"ts\":%d.000,",
                 step + 1, step + 1, rank1);
        expect_line(text, line);
    }
}

static void expect_failure(enum status_code code, const char *message)
{
    status_t status = timeline_finish(&timeline);
    ck_assert_int_eq(status_code(status), code);
    ck_assert_msg(strstr(status_message(status), message) != NULL, "%s", status_message(status));
    status_free(status);
}

LOOP_TEST(incomplete, 0, 7)
{
    switch (_i) {
    case 0:
        add_workers("a/cpu:0", NULL);
        add_program();
        expect_failure(STATUS_FAILED_PRECONDITION, "the job ended before a step was traced");
        break;
    case 1:
        add_workers("a/cpu:0", "a/cpu:1");
        add_program();
        add_step(0, 1, 0);
        add_step(0, 2, 0);
        add_step(1, 1, 0);
        expect_failure(STATUS_DATA_LOSS, "rank 1 was traced from step 1 to 1, rank 0 from 1 to 2");
        break;
    case 2:
        add_workers("a/cpu:0", NULL);
        add_program();
        add_step(0, 1, 0);
        add_step(0, 3, 0);
        expect_failure(STATUS_DATA_LOSS, "step 3 of rank 0 is out of order");
        break;
    case 3:
        add_workers("a/cpu:0", NULL);
        add_program();
        add_step(1, 1, 0);
        expect_failure(STATUS_DATA_LOSS, "step 1 of rank 1 is out of order");
        break;
    case 4:
        add_workers("a/cpu:0", NULL);
        add_program();
        add_step_of(0, 1, 0, INSTRUCTIONS - 1);
        expect_failure(STATUS_DATA_LOSS,
                       "expected the times of 4 instructions in step 1 of rank 0, found 3 and 3");
        break;
    case 5:
        add_workers("a/cpu:0", NULL);
        program.first = 2;
        add_program();
        expect_failure(STATUS_DATA_LOSS, "expected instruction 0 of the traced step, found 2");
        break;
    case 6: expect_failure(STATUS_DATA_LOSS, "expected the ranks' workers first"); break;
    }
}
