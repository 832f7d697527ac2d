/*
 * The MNIST job planned for eight H200: the whole output of `fsdpd plan -o json` against
 * tests/golden/plan-mnist-h200x8.json; jobs that do not fit, or need no advice.
 *
 * FSDPD_UPDATE_GOLDEN=1 in the environment rewrites the file; read the difference before committing
 * it. The hash is omitted: test_plan_golden has it.
 */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "planning/planning.h"
#include "print/json.h"
#include "print/plan_report.h"
#include "spec/spec.h"
#include "tests/testing.h"
#include "worker/job_message.h"

static char *source_path(const char *name)
{
    const char *root = getenv("srcdir");
    return file_path_join(root != NULL ? root : ".", name);
}

static bool chooses; /* make_plan also chooses the settings */

/* The example job with up to two changes, for a profile (its name, or its content), without
 * data. */
static status_t make_plan(const char *profile_text, const char *first, const char *second,
                          Fsdpd__V1__Plan **plan)
{
    const struct spec_override overrides[] = {{.text = first}, {.text = second}};
    char *path = source_path("examples/mnist/job.yaml");
    Fsdpd__V1__JobSpec *spec = NULL;
    struct job_settings settings;
    struct profile profile;
    status_t status = spec_read_file(path, overrides, second ? 2 : first ? 1 : 0, &spec);
    free(path);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    if (strchr(profile_text, ':') == NULL) status = profile_find(profile_text, &profile);
    else status = profile_parse(profile_text, strlen(profile_text), "profile.yaml", &profile);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    if (profile.world > 0) spec->workers = (uint32_t)profile.world;
    status = job_settings_init_without_data(&settings, spec, "test", NULL);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    const struct planning_options options = {.profile = &profile,
                                             .details = true,
                                             .choose = chooses};
    status = planning_make(&settings.job, &options, plan);
    job_settings_deinit(&settings);
    spec_free(spec);
    return status;
}

static Fsdpd__V1__Plan *good_plan(const char *profile, const char *first, const char *second)
{
    Fsdpd__V1__Plan *plan = NULL;
    status_t status = make_plan(profile, first, second, &plan);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    return plan;
}

static bool has(char *const *texts, size_t count, const char *words)
{
    for (size_t i = 0; i < count; i++)
        if (strstr(texts[i], words) != NULL) return true;
    return false;
}

TESTS_BELOW(.timeout = 120);

/* A unit with its own sharding: fc1 whole on both ranks, the rest on half of it. */
TEST(units_of_their_own)
{
    Fsdpd__V1__Plan *plan = good_plan("cpux2", "fsdp.wrap.policy=units",
                                      "fsdp.wrap.units=[{modules: fc1, strategy: no_shard}]");
    ck_assert_uint_eq(plan->n_units, 2);
    ck_assert_str_eq(plan->units[0]->name, "fc1");
    ck_assert_uint_eq(plan->units[0]->shard_bytes, 4 * plan->units[0]->padded);
    ck_assert_uint_eq(plan->units[1]->shard_bytes, 2 * plan->units[1]->padded);
    bool gathered = false, reduced = false;
    for (size_t k = 0; k < plan->n_collectives; k++) {
        const Fsdpd__V1__Collective *it = plan->collectives[k];
        /* of the root alone, and of fc1 alone */
        if (strcmp(it->kind, "all_gather") == 0)
            gathered = it->bytes == it->count * plan->units[1]->shard_bytes;
        if (strcmp(it->kind, "all_reduce") == 0) reduced = it->bytes == plan->units[0]->shard_bytes;
    }
    ck_assert(gathered);
    ck_assert(reduced);
    fsdpd__v1__plan__free_unpacked(plan, NULL);
}

/* A plan for devices lists what it does not count; one for others notes that they have no such
 * buffers. */
LOOP_TEST(registered_buffers, 0, 3)
{
    static const struct {
        const char *profile, *note;
    } cases[] = {{"h200x8", "NCCL uses registered buffers; memory that it allocates beyond them"},
                 {"h200x1", "fsdp.register_buffers has no effect with one worker"},
                 {"cpux8", "fsdp.register_buffers has no effect on a CPU"}};
    Fsdpd__V1__Plan *plan = good_plan(cases[_i].profile, "fsdp.register_buffers=true", "name=it");
    ck_assert(has(plan->notes, plan->n_notes, cases[_i].note));
    fsdpd__v1__plan__free_unpacked(plan, NULL);
}

/* The settings of a step and its units: the resulting bytes and memory, offload with and without
 * effect. */
TEST(settings_of_units)
{
    Fsdpd__V1__Plan *plan =
        good_plan("cpux8", "fsdp.wrap.policy=units",
                  "fsdp.wrap.units=[{modules: conv2, reshard_after_forward: 2, cpu_offload: true}, "
                  "fc1]");
    ck_assert(has(plan->notes, plan->n_notes, "cpu_offload of a unit has no effect on a CPU"));
    ck_assert_ptr_nonnull(strstr(plan->module_tree, ", resharded to 2 ranks after forward, "
                                                    "offloaded to the CPU\n"));
    Fsdpd__V1__Plan *whole =
        good_plan("cpux8", "fsdp.wrap.policy=units", "fsdp.wrap.units=[conv2, fc1]");
    /* seven eighths again, or half */
    ck_assert_uint_eq(whole->communicated_bytes - plan->communicated_bytes,
                      7 * plan->units[0]->shard_bytes - 4 * plan->units[0]->shard_bytes);
    fsdpd__v1__plan__free_unpacked(whole, NULL);
    fsdpd__v1__plan__free_unpacked(plan, NULL);
    plan = good_plan("h200x8", "fsdp.wrap.policy=units",
                     "fsdp.wrap.units=[{modules: fc1, cpu_offload: true}]");
    whole = good_plan("h200x8", "fsdp.wrap.policy=units", "fsdp.wrap.units=[fc1]");
    uint64_t kept = 0; /* of values, gradients, and Adadelta's two each */
    for (size_t u = 0; u < plan->n_units; u++)
        if (strcmp(plan->units[u]->name, "fc1") == 0) kept = plan->units[u]->shard_bytes;
    ck_assert_uint_gt(kept, 0);
    ck_assert_uint_ge(plan->host_bytes, 4 * kept);
    /* these four and the statistics begin at multiples of 256 */
    ck_assert_uint_lt(plan->host_bytes, 4 * kept + 5 * UINT64_C(256));
    ck_assert_uint_eq(whole->host_bytes, 0);
    ck_assert_uint_lt(plan->state_bytes, whole->state_bytes - 2 * kept);
    ck_assert(has(plan->notes, plan->n_notes, "of pinned host memory per rank"));
    fsdpd__v1__plan__free_unpacked(whole, NULL);
    fsdpd__v1__plan__free_unpacked(plan, NULL);
}

/* The optimizer of all offloaded units reads and writes its bytes at the host memory's
 * bandwidth. */
TEST(offload_is_estimated)
{
    static const double bandwidths[] = {1e9, 10e9};
    for (int i = 0; i < 2; i++) {
        char *profile = mem_printf("{like: h200, world: 1, host_memory_bandwidth: %g, "
                                   "host_link: {bandwidth: 2e9, latency: 0}}",
                                   bandwidths[i]);
        Fsdpd__V1__Plan *plan = good_plan(profile, "fsdp.cpu_offload=true", NULL);
        const Fsdpd__V1__Estimate *train = plan->programs[0]->estimate;
        double kept = 0; /* of one rank: all */
        for (size_t u = 0; u < plan->n_units; u++) kept += (double)plan->units[u]->shard_bytes;
        ck_assert_double_eq_tol(kept, 4.0 * (double)plan->parameters, 64.0 * (double)plan->n_units);
        /* values and Adadelta's two, read and written, and gradients, read; to four digits */
        ck_assert_double_eq_tol(train->host_seconds, 7 * kept / bandwidths[i],
                                1e-3 * train->host_seconds);
        ck_assert_double_eq_tol(train->download_seconds, kept / 2e9, 1e-3 * kept / 2e9);
        ck_assert_double_ge(train->copy_seconds, kept / 2e9);
        if (i == 0) ck_assert_double_ge(train->step_seconds, train->host_seconds);
        struct buf text = {0};
        report_plan(plan, 0, &text);
        ck_assert_ptr_nonnull(strstr(buf_text(&text), "\nhost's optimizer "));
        buf_deinit(&text);
        fsdpd__v1__plan__free_unpacked(plan, NULL);
        free(profile);
    }
}

/* The biases of four layers, one of which has a value of its own. */
TEST(weight_decay_exclusions_are_noted)
{
    Fsdpd__V1__Plan *plan = good_plan("cpux2", "optimizer.weight_decay_exclude=auto",
                                      "optimizer.groups=[{match: fc2.*, weight_decay: 1}, "
                                      "{match: 'conv*', lr_scale: 0.5}]");
    ck_assert(has(plan->notes, plan->n_notes,
                  "weight_decay_exclude: 3 norms, biases and embeddings, of 224 elements, have no "
                  "weight decay"));
    fsdpd__v1__plan__free_unpacked(plan, NULL);
    plan = good_plan("cpux2", "optimizer.groups=[{match: fc2.*, weight_decay: 1}]", NULL);
    ck_assert(!has(plan->notes, plan->n_notes, "weight_decay_exclude"));
    fsdpd__v1__plan__free_unpacked(plan, NULL);
}

/* A byte for each value of the three large weights and a scale for each 256; the rest in f32. */
TEST(state_in_8_bits_is_planned)
{
    Fsdpd__V1__Plan *plan =
        good_plan("cpux2", "optimizer={type: adamw, state_dtype: int8}", "workers=2");
    Fsdpd__V1__Plan *f32 = good_plan("cpux2", "optimizer.type=adamw", "workers=2");
    double saved = (double)f32->state_bytes - (double)plan->state_bytes;
    double values = (double)plan->parameters; /* of half of them, in two slots */
    ck_assert_double_gt(saved, 0.98 * values * (4 - 260.0 / 256));
    ck_assert_uint_lt(plan->optimizer_bytes, (uint64_t)(2.05 * values * 260 / 256));
    ck_assert_uint_ge(plan->optimizer_bytes, (uint64_t)(2 * values * 260 / 256));
    ck_assert(
        has(plan->notes, plan->n_notes, "optimizer.state_dtype: the optimizer's state takes"));
    ck_assert_uint_eq(f32->optimizer_bytes, 0);
    fsdpd__v1__plan__free_unpacked(f32, NULL);
    fsdpd__v1__plan__free_unpacked(plan, NULL);
    plan = good_plan("cpux2", "optimizer={type: adamw, state_dtype: bf16}", "workers=2");
    f32 = good_plan("cpux2", "optimizer.type=adamw", "workers=2");
    ck_assert_double_gt((double)(f32->state_bytes - plan->state_bytes), 0.99 * values * 2);
    ck_assert_uint_ge(plan->optimizer_bytes, 2 * 2 * plan->parameters);
    ck_assert_uint_lt(plan->optimizer_bytes, 2 * 2 * plan->parameters + 1000);
    ck_assert(has(plan->notes, plan->n_notes, "optimizer.state_dtype: the optimizer's state"));
    fsdpd__v1__plan__free_unpacked(f32, NULL);
    fsdpd__v1__plan__free_unpacked(plan, NULL);
    static const char *const of_gpus[] = {"optimizer={type: adamw, state_dtype: int8}",
                                          "optimizer={type: adamw, state_dtype: bf16}",
                                          "precision={param_dtype: bf16, master_dtype: bf16}"};
    for (size_t i = 0; i < COUNT_OF(of_gpus); i++) {
        plan = good_plan("h200x8", of_gpus[i], NULL);
        f32 = good_plan("h200x8", i < 2 ? "optimizer.type=adamw" : "precision.param_dtype=bf16",
                        NULL);
        ck_assert_uint_lt(plan->state_bytes, f32->state_bytes);
        fsdpd__v1__plan__free_unpacked(f32, NULL);
        fsdpd__v1__plan__free_unpacked(plan, NULL);
        plan = good_plan("h200x8", of_gpus[i], "fsdp.cpu_offload=true");
        fsdpd__v1__plan__free_unpacked(plan, NULL);
    }
    plan = good_plan("cpux2", "precision={param_dtype: bf16, master_dtype: bf16}", "workers=2");
    f32 = good_plan("cpux2", "precision.param_dtype=bf16", "workers=2");
    ck_assert_double_gt((double)(f32->state_bytes - plan->state_bytes), 0.99 * values);
    ck_assert(
        has(plan->notes, plan->n_notes, "precision.master_dtype: parameters of units in bf16"));
    fsdpd__v1__plan__free_unpacked(f32, NULL);
    fsdpd__v1__plan__free_unpacked(plan, NULL);
}

/* Rows and columns of matrices, and each value of biases: of Adafactor; the momentum of matrices,
 * and both averages of the rest: of Muon. Gaps before the next parameter count, too. */
TEST(state_of_matrices_is_planned)
{
    Fsdpd__V1__Plan *plan = good_plan("cpux2", "optimizer.type=adafactor", "workers=2");
    /* (32, 1, 3, 3), (64, 32, 3, 3), (128, 9216), (10, 128), and their biases */
    uint64_t values = 32 * 6 + 64 * 32 * 6 + 128 + 9216 + 10 + 128 + 32 + 64 + 128 + 10;
    ck_assert_uint_ge(plan->optimizer_bytes, 4 * values);
    ck_assert_uint_lt(plan->optimizer_bytes, 4 * (values + 32));
    ck_assert(has(plan->notes, plan->n_notes, "optimizer.type: adafactor keeps 87.8 kB of rows"));
    ck_assert(has(plan->notes, plan->n_notes, "of the 1199648 elements of 4 matrices"));
    fsdpd__v1__plan__free_unpacked(plan, NULL);
    plan =
        good_plan("cpux2", "optimizer={type: muon, groups: [{match: fc2.*, ndim: 2, use: main}]}",
                  "workers=2");
    values = plan->parameters + plan->parameters - 128 * 9216 - 10 * 128;
    ck_assert_uint_ge(plan->optimizer_bytes, 4 * values);
    ck_assert_uint_lt(plan->optimizer_bytes, 4 * (values + 32));
    fsdpd__v1__plan__free_unpacked(plan, NULL);
}

static uint64_t bytes_of(const Fsdpd__V1__Plan *plan, const char *name)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < plan->programs[0]->n_memory; i++)
        if (strcmp(plan->programs[0]->memory[i]->name, name) == 0)
            bytes += plan->programs[0]->memory[i]->bytes;
    return bytes;
}

/* In a row of its own, and sharded: a float for each parameter, and what fills shards up. */
TEST(an_average_is_planned)
{
    Fsdpd__V1__Plan *plan = good_plan("cpux2", "train.ema.decay=0.9", "workers=2");
    Fsdpd__V1__Plan *without = good_plan("cpux2", "workers=2", NULL);
    uint64_t average = bytes_of(plan, "average (ema)");
    ck_assert_uint_ge(average, 4 * plan->parameters / 2);
    ck_assert_uint_lt(average, 4 * plan->parameters / 2 + 4096);
    ck_assert_uint_eq(plan->state_bytes - without->state_bytes, average);
    ck_assert_uint_eq(bytes_of(without, "average (ema)"), 0);
    fsdpd__v1__plan__free_unpacked(without, NULL);
    fsdpd__v1__plan__free_unpacked(plan, NULL);
}

/* A GPU computes what a CPU does; the daemon chooses settings for the rest. */
LOOP_TEST(optimizers_are_planned_and_chosen_for, 0, 5)
{
    static const char *const settings[] = {
        "optimizer.type=adafactor",
        "optimizer.type=muon",
        "optimizer={type: adamw, state_dtype: bf16}",
        "optimizer={type: adamw, state_dtype: int8}",
        "precision={param_dtype: bf16, master_dtype: bf16}",
    };
    for (int k = 0; k < 4; k++) {
        chooses = k % 2 == 1;
        Fsdpd__V1__Plan *plan = good_plan(k < 2 ? "cpux2" : "h200x8", settings[_i], NULL);
        ck_assert(!chooses || plan->n_choices > 0);
        fsdpd__v1__plan__free_unpacked(plan, NULL);
    }
    chooses = false;
}

LOOP_TEST(matrices_are_not_offloaded, 0, 2)
{
    Fsdpd__V1__Plan *plan = NULL;
    static const char *const settings[] = {"optimizer.type=muon", "optimizer.type=adafactor"};
    static const char *const words[] = {"optimizer.type: muon with fsdp.cpu_offload: the updates",
                                        "optimizer.type: adafactor with fsdp.cpu_offload"};
    status_t status = make_plan("h200x8", settings[_i], "fsdp.cpu_offload=true", &plan);
    ck_assert_int_eq(status_code(status), STATUS_UNIMPLEMENTED);
    ck_assert_msg(strstr(status_message(status), words[_i]) != NULL, "%s", status_message(status));
    status_free(status);
}

/* A job that does not fit a device may fit with the host's memory. */
TEST(offload_is_advised)
{
    Fsdpd__V1__Plan *plan = NULL;
    status_t status = make_plan("{like: a100, world: 1, memory: 35e6}",
                                "fsdp.wrap.min_num_params=1000", NULL, &plan);
    ck_assert_int_eq(status_code(status), STATUS_RESOURCE_EXHAUSTED);
    ck_assert_msg(strstr(status_message(status), "fsdp.cpu_offload=true") != NULL, "%s",
                  status_message(status));
    status_free(status);
}

/* Where the job as it is fits nowhere, other settings may, which the plan then has; or none, and
 * the reason has what was tried. */
TEST(chosen_settings_fit)
{
    static const char small[] = "{like: a100, world: 2, memory: 35e6}";
    static const char batch[] = "train.batch_size=2048";
    Fsdpd__V1__Plan *plan = NULL;
    status_t status = make_plan(small, batch, NULL, &plan);
    ck_assert_int_eq(status_code(status), STATUS_RESOURCE_EXHAUSTED);
    status_free(status);
    chooses = true;
    plan = good_plan(small, batch, NULL);
    ck_assert_uint_gt(plan->n_choices, 0);
    ck_assert_uint_le(plan->peak_bytes, 35000000);
    fsdpd__v1__plan__free_unpacked(plan, NULL);
    status = make_plan("{like: a100, world: 2, memory: 1e6}", batch, NULL, &plan);
    ck_assert_int_eq(status_code(status), STATUS_RESOURCE_EXHAUSTED);
    ck_assert_msg(strstr(status_message(status), "no settings fit in 1.00 MB") != NULL, "%s",
                  status_message(status));
    status_free(status);
}

TEST(golden)
{
    Fsdpd__V1__Plan *plan = good_plan("h200x8", NULL, NULL);
    struct buf text = {0}, expected = {0};
    plan->hash = 0;
    json_add_message(&text, &plan->base, 0);
    buf_add_char(&text, '\n');
    char *path = source_path("tests/golden/plan-mnist-h200x8.json");
    const char *update = getenv("FSDPD_UPDATE_GOLDEN");
    status_t status = NULL;
    if (update != NULL && strcmp(update, "1") == 0)
        status = file_write_atomic(path, buf_text(&text), text.length, 0644);
    if (status == NULL) status = file_read(path, 1 << 20, &expected);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    size_t same = 0, line = 1;
    for (; same < text.length && text.data[same] == expected.data[same]; same++)
        line += text.data[same] == '\n';
    ck_assert_msg(text.length == expected.length && same == text.length,
                  "%s differs from line %zu on; now: %.200s", path, line,
                  text.data + (same > 60 ? same - 60 : 0));
    free(path);
    buf_deinit(&expected);
    buf_deinit(&text);
    fsdpd__v1__plan__free_unpacked(plan, NULL);
}

LOOP_TEST(advice, 0, 14)
{
    static const struct {
        const char *profile, *first, *second, *words; /* "!...": not this */
    } cases[] = {
        {"h200x8", NULL, NULL, "fsdp.strategy=no_shard would take"},
        {"t4x2", NULL, NULL, "!fsdp.strategy=no_shard"},
        {"t4x4", "fsdp.strategy=no_shard", NULL, "fsdp.strategy=full_shard would save"},
        {"t4x4", "fsdp.wrap.policy=none", NULL, "(root) holds 100% of the parameters: fsdp.wrap"},
        {"h200x4096", "fsdp.wrap.policy=none", NULL, "outweighs compute"},
        {"h200x1", NULL, NULL, "!fsdp."},
        {"h200x64", "fsdp.wrap.policy=none", NULL, "hybrid_shard with fsdp.shard_size=8"},
        {"h200x8", "fsdp.wrap.policy=none", NULL, "!hybrid_shard"},
        {"h200x64", "fsdp.wrap.min_num_params=100", NULL, "shard_grad_op would take"},
        {"h200x64", "fsdp.wrap.min_num_params=100", NULL,
         "fsdp.reshard_after_forward=8 (a host) would take"},
        {"h200x8", "fsdp.wrap.min_num_params=100", NULL, "!fsdp.reshard_after_forward"},
        {"h200x8", "fsdp.backward_prefetch=none", "fsdp.wrap.min_num_params=100",
         "fsdp.backward_prefetch=pre would take"},
        {"{like: t4, world: 1, flops: {f32: 8e12, bf16: 2e12}}", "precision.param_dtype=bf16", NULL,
         "precision.param_dtype=f32 would take"},
        {"h200x1", "precision.param_dtype=bf16", NULL, "!precision.param_dtype"},
    };
    Fsdpd__V1__Plan *plan = good_plan(cases[_i].profile, cases[_i].first, cases[_i].second);
    bool expected = cases[_i].words[0] != '!';
    const char *words = cases[_i].words + !expected;
    struct buf all = {0};
    report_advice(plan, &all);
    ck_assert_msg(has(plan->advice, plan->n_advice, words) == expected, "%s\n%s", cases[_i].words,
                  buf_text(&all));
    buf_deinit(&all);
    fsdpd__v1__plan__free_unpacked(plan, NULL);
}

TEST(notes)
{
    Fsdpd__V1__Plan *plan = good_plan("h200x8", NULL, NULL);
    ck_assert(has(plan->notes, plan->n_notes, "scratch memory of ops on h200"));
    ck_assert(has(plan->notes, plan->n_notes, "number of steps is not known"));
    fsdpd__v1__plan__free_unpacked(plan, NULL);
    plan = good_plan("cpux2", NULL, NULL);
    ck_assert(!has(plan->notes, plan->n_notes, "scratch memory"));
    fsdpd__v1__plan__free_unpacked(plan, NULL);
}

LOOP_TEST(what_does_not_fit, 0, 3)
{
    static const struct {
        const char *profile, *first, *second, *words;
    } cases[] = {
        {"t4x8", "train.batch_size=200000", NULL, "fit with train.batch_size=25000 ("},
        {"t4x8", "train.batch_size=200000", "fsdp.strategy=no_shard", "fit with train.batch_size="},
        {"t4x8", "train.batch_size=200000", NULL, "largest unit is fc1 with 4.72 MB"},
    };
    Fsdpd__V1__Plan *plan = NULL;
    status_t status = make_plan(cases[_i].profile, cases[_i].first, cases[_i].second, &plan);
    ck_assert_int_eq(status_code(status), STATUS_RESOURCE_EXHAUSTED);
    ck_assert_msg(strstr(status_message(status), cases[_i].words) != NULL, "%s",
                  status_message(status));
    ck_assert_ptr_null(plan);
    status_free(status);
}

TEST(durations)
{
    static const struct {
        double seconds;
        const char *text;
    } cases[] = {{0, "0 us"},          {-1, "0 us"},         {3e-7, "0 us"},
                 {4.04e-5, "40 us"},   {9.994e-4, "999 us"}, {9.996e-4, "1.00 ms"},
                 {0.01234, "12.3 ms"}, {0.4567, "457 ms"},   {0.9996, "1.00 s"},
                 {41.26, "41.3 s"},    {125, "2m05s"},       {1e300, "277777h46m"}};
    char text[32];
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        ck_assert_str_eq(text_format_duration(cases[i].seconds, text), cases[i].text);
}

/* The text has the content of the message. */
TEST(report)
{
    Fsdpd__V1__Plan *plan = good_plan("h200x8", NULL, NULL);
    struct buf text = {0};
    report_plan(plan, 0, &text);
    static const char *const words[] = {"UNIT ",          "MEMORY PER RANK ",
                                        "EVALUATE\n",     "ESTIMATE FOR h200",
                                        "COLLECTIVE ",    "train: ",
                                        "all_gather fc1", "Advice: ",
                                        "Note: "};
    for (size_t i = 0; i < COUNT_OF(words); i++)
        ck_assert_msg(strstr(buf_text(&text), words[i]) != NULL, "%s is missing", words[i]);
    buf_clear(&text);
    report_schedule(plan, 3, 0, &text);
    ck_assert_ptr_nonnull(strstr(buf_text(&text), "more; --dump shows all\n"));
    ck_assert_ptr_null(strstr(buf_text(&text), "optimizer"));
    buf_clear(&text);
    /* of a daemon that does not know programs */
    Fsdpd__V1__Plan old = *plan;
    old.n_programs = old.n_advice = old.n_notes = 0;
    report_plan(&old, 0, &text);
    ck_assert_ptr_nonnull(strstr(buf_text(&text), "\npeak "));
    ck_assert_ptr_null(strstr(buf_text(&text), "ESTIMATE"));
    buf_deinit(&text);
    fsdpd__v1__plan__free_unpacked(plan, NULL);
}
