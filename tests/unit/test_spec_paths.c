/* common/spec: what the paths of a job file lead to: data, model files, model directories; weights
 * of data, and wrap policies alone. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/array.h"
#include "base/file.h"
#include "base/mem.h"
#include "spec_fixture.h"
#include "tests/testing.h"

TESTS_BELOW(.set_up = spec_set_up, .tear_down = spec_tear_down);

TEST(paths)
{
    /* Relative to the file unchanged, from the command line absolute if it exists here, "~"
     * anywhere. */
    ck_assert_int_eq(mkdir("d", 0755), 0);
    ck_assert_int_eq(setenv("HOME", "/home/user", 1), 0);
    Fsdpd__V1__JobSpec *spec = must_read(MINIMAL, NULL);
    ck_assert_str_eq(spec->data->dir, "d");
    spec_free(spec);
    spec = must_read(MINIMAL, "data.dir=../not-here-fsdpd");
    ck_assert_str_eq(spec->data->dir, "../not-here-fsdpd");
    spec_free(spec);
    spec = must_read(MINIMAL, "data.dir=./d");
    char *real = realpath("d", NULL);
    ck_assert_str_eq(spec->data->dir, real);
    free(real);
    spec_free(spec);
    spec = must_read(MINIMAL, "data.dir=~/mnist");
    ck_assert_str_eq(spec->data->dir, "/home/user/mnist");
    spec_free(spec);

    /* Likewise a file of tokens, but not a directory in its place. */
    static const char tokens[] = MINIMAL "train: {max_steps: 1}\n";
    static const char *const sets[] = {"data={format: text, path: d, validation_path: no}",
                                       "data.path=net.yaml"};
    status_t read = read_with(tokens, sets, 1, &spec);
    ck_assert_msg(read == NULL, "%s", status_message(read));
    ck_assert_str_eq(spec->data->path, "d");
    ck_assert_str_eq(spec->data->validation_path, "no");
    spec_free(spec);
    read = read_with(tokens, sets, 2, &spec);
    ck_assert_msg(read == NULL, "%s", status_message(read));
    real = realpath("net.yaml", NULL);
    ck_assert_str_eq(spec->data->path, real);
    free(real);
    spec_free(spec);

    /* The model lies beside the job file, whatever the working directory. */
    ck_assert_int_eq(mkdir("sub", 0755), 0);
    status_t status = file_write_atomic("sub/job.yaml", MINIMAL, strlen(MINIMAL), 0644);
    status = status_first(status, file_write_atomic("sub/net.yaml", "beside", 6, 0644));
    ck_assert_msg(status == NULL, "%s", status_message(status));
    status = spec_read_file("sub/job.yaml", NULL, 0, &spec);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert_str_eq(spec->model->text, "beside");
    ck_assert_str_eq(spec->model->file_name, "net.yaml");
    spec_free(spec);
    status = spec_read_file("nowhere.yaml", NULL, 0, &spec);
    ck_assert_int_eq(status_code(status), STATUS_NOT_FOUND);
    status_free(status);
}

TEST(model_files)
{
    Fsdpd__V1__JobSpec *spec = NULL;
    const char *set = "model.file=odd";
    char *large = mem_alloc(SPEC_MODEL_MAX + 1);
    memset(large, 'x', SPEC_MODEL_MAX + 1);
    const struct {
        const char *bytes;
        size_t size;
        const char *part;
    } cases[] = {
        {"", 0, "odd is empty"},
        {"a\0b", 3, "odd is not a text file"},
        {large, SPEC_MODEL_MAX + 1, "odd is larger than the 1048576 bytes allowed"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        status_t status = file_write_atomic("odd", cases[i].bytes, cases[i].size, 0644);
        ck_assert_msg(status == NULL, "%s", status_message(status));
        status = read_with(MINIMAL, &set, 1, &spec);
        ck_assert_msg(strstr(status_message(status), cases[i].part) != NULL, "%s",
                      status_message(status));
        ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
        status_free(status);
    }
    free(large);
}

TEST(model_directories)
{
    static const char text[] = "name: a\nmodel: {hf: models/gpt2}\ndata: {dir: d}\n";
    const char *file = "model.file=net.yaml", *hf = "model.hf=models/llama";
    Fsdpd__V1__JobSpec *spec = NULL;
    ck_assert_ptr_null(read_with(text, &file, 0, &spec));
    ck_assert_str_eq(spec->model->hf, "models/gpt2");
    ck_assert_str_eq(spec->model->file_name, "");
    ck_assert_str_eq(spec->model->text, "");
    struct buf yaml = {0};
    spec_to_yaml(spec, &yaml);
    ck_assert_ptr_nonnull(
        strstr(buf_text(&yaml), "model:\n  hf: models/gpt2\n  base_dtype: f32\ndata:\n"));
    buf_deinit(&yaml);
    const char *patterns[] = {"model.ignore=[v_head.*]", "model.freeze=[transformer.wte.*]"};
    Fsdpd__V1__JobSpec *patterned = NULL;
    ck_assert_ptr_null(read_with(text, patterns, 2, &patterned));
    struct buf again = {0};
    spec_to_yaml(patterned, &again);
    ck_assert_msg(strstr(buf_text(&again), "  ignore: [\"v_head.*\"]\n"
                                           "  freeze: [\"transformer.wte.*\"]\n") != NULL,
                  "%s", buf_text(&again));
    buf_deinit(&again);
    spec_free(patterned);
    ck_assert_ptr_null(spec_validate(spec));
    /* the daemon fills in these together */
    char *empty = spec->model->text, config[] = "{}", model[] = "name: x";
    spec->model->hf_config = config;
    expect_invalid(spec, "model.hf_config: expected the config.json that model.text is of, found 2 "
                         "bytes");
    spec->model->text = model;
    ck_assert_ptr_null(spec_validate(spec));
    spec->model->hf_config = empty;
    expect_invalid(spec, "model.hf_config: expected the config.json that model.text is of, found 0 "
                         "bytes");
    spec->model->text = empty;
    Fsdpd__V1__ModelSpec teacher = FSDPD__V1__MODEL_SPEC__INIT; /* of a teacher, too */
    spec->model->teacher = &teacher;
    ck_assert_ptr_null(spec_validate(spec));
    teacher.hf = config;
    spec_complete(spec);
    ck_assert_ptr_null(spec_validate(spec));
    teacher.hf_family = model;
    expect_invalid(spec, "model.teacher.hf_family: expected the family file by which "
                         "model.teacher.text was made, found 7 bytes");
    teacher.hf_family = empty;
    teacher.text = model;
    expect_invalid(spec, "model.teacher.hf_config: expected the config.json that "
                         "model.teacher.text is of, found 0 bytes");
    teacher.hf_config = config;
    ck_assert_ptr_null(spec_validate(spec));
    teacher.weights = model;
    expect_invalid(spec, "model.teacher: expected its directory, hf, and no other field");
    spec->model->teacher = NULL;
    spec_free(spec);
    /* the command line's choice replaces the file's */
    ck_assert_ptr_null(read_with(text, &file, 1, &spec));
    ck_assert_str_eq(spec->model->hf, "");
    ck_assert_str_eq(spec->model->file_name, "net.yaml");
    spec_free(spec);
    spec = must_read(MINIMAL, hf);
    ck_assert_str_eq(spec->model->hf, "models/llama");
    ck_assert_str_eq(spec->model->file_name, "");
    ck_assert_str_eq(spec->model->text, "");
    spec->model->file_name = model;
    expect_invalid(spec, "model: expected exactly one of model.file and model.hf, found both");
    spec->model->file_name = empty;
    char *path = spec->model->hf;
    spec->model->hf = empty;
    expect_invalid(spec, "model: expected exactly one of model.file and model.hf, found neither");
    spec->model->hf = path;
    spec_free(spec);
}

TEST(weights_of_sources_are_numbers)
{
    static const char *const weights[] = {"two", "'2'", "[2]", "{}"};
    for (size_t i = 0; i < COUNT_OF(weights); i++) {
        AUTO_FREE char *set =
            mem_printf("data={format: dataset, sources: [{path: b, weight: %s}]}", weights[i]);
        Fsdpd__V1__JobSpec *spec = NULL;
        const char *const sets[] = {set};
        status_t status = read_with(MINIMAL "train: {max_steps: 5}\n", sets, 1, &spec);
        ck_assert_ptr_nonnull(status);
        ck_assert_ptr_nonnull(
            strstr(status_message(status), "source 1: weight: expected a number"));
        status_free(status);
    }
}

/* Of `fsdpctl wrap set`. */
TEST(a_wrap_policy_alone)
{
    struct spec_setting settings[] = {{"fsdp.wrap.policy", "size", "--policy"},
                                      {"fsdp.wrap.min_num_params", "5000", "--min-num-params"}};
    Fsdpd__V1__WrapSpec *wrap = NULL;
    status_t status = spec_read_wrap("wrap set", settings, 2, &wrap);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert_int_eq(wrap->policy, FSDPD__V1__WRAP_POLICY__WRAP_POLICY_SIZE);
    ck_assert_int_eq(wrap->min_num_params, 5000);
    fsdpd__v1__wrap_spec__free_unpacked(wrap, NULL);
    settings[1].value = "some";
    status = spec_read_wrap("wrap set", settings, 2, &wrap);
    ck_assert_ptr_nonnull(strstr(status_message(status), "--min-num-params"));
    status_free(status);
}
