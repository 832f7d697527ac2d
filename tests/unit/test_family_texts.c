/*
 * The model file of every configuration of the tests, byte for byte: of each architecture's
 * defaults, of tests/parity/configs.txt and of tests/parity/families. tests/golden/family-texts.txt
 * has each family's number of them and their digest; FSDPD_UPDATE_GOLDEN=1 rewrites it. To see what
 * changed, compare what "test_family_texts print" printed before and after.
 * docs/sampled-families.md has what a plan says of tokens that follow such models: it is rewritten,
 * too.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "digest/digest.h"
#include "family_files.h"
#include "model/graph.h"
#include "tests/testing.h"

static const char *source(void)
{
    const char *directory = getenv("srcdir");
    return directory != NULL ? directory : ".";
}

/* Not Check's: there is no test when the program prints. */
static void demand(bool holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "test_family_texts: %s\n", what);
    abort();
}

static void add_text(const char *json, struct buf *out)
{
    struct hf_family *family = NULL;
    char *model = NULL;
    status_t status = family_for(json, strlen(json), "config.json", &family);
    if (status == NULL)
        status = hf_config_to_model(family, json, strlen(json), "config.json", &model);
    buf_printf(out, "==== %s\n%s\n", json, status != NULL ? status_message(status) : model);
    status_free(status);
    free(model);
}

/* Each architecture of a family, with its defaults. */
static int add_defaults(const struct hf_family *family, const char *type, struct buf *out)
{
    const char *architecture;
    int count = 0;
    while ((architecture = hf_family_item(family, HF_FAMILY_ARCHITECTURES, count)) != NULL) {
        char *json = mem_printf("{\"model_type\": \"%s\", \"architectures\": [\"%s\"], "
                                "\"pad_token_id\": 0}",
                                type, architecture);
        add_text(json, out);
        free(json);
        count++;
    }
    return count;
}

static bool add_if_of(const char *json, const char *type, struct buf *out)
{
    char *found = NULL;
    status_t status = hf_config_type(json, strlen(json), "config.json", &found);
    bool is_of = status == NULL && strcmp(found, type) == 0;
    if (is_of) add_text(json, out);
    status_free(status);
    free(found);
    return is_of;
}

static int add_lines(const char *type, struct buf *out)
{
    char *path = mem_printf("%s/tests/parity/configs.txt", source()), *rest = NULL;
    struct buf text = {0};
    demand(file_read(path, 1 << 20, &text) == NULL, path);
    int count = 0;
    for (char *line = strtok_r(text.data, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        if (line[0] != '#') count += add_if_of(strchr(line, ' ') + 1, type, out);
    buf_deinit(&text);
    free(path);
    return count;
}

static json_t *read_numbers(const char *name)
{
    char *path = mem_printf("%s/tests/parity/%s.json", source(), name);
    json_t *root = json_load_file(path, 0, NULL);
    demand(root != NULL, path);
    free(path);
    return root;
}

/* That transformers has made of the family's configurations. */
static json_t *family_numbers(const char *name)
{
    char *path = mem_printf("families/%s", name);
    json_t *root = read_numbers(path);
    free(path);
    return root;
}

static int add_numbers(const char *name, const char *type, struct buf *out)
{
    json_t *root = family_numbers(name), *row;
    const char *key;
    int count = 0;
    json_object_foreach(root, key, row)
    {
        char *json = json_dumps(json_object_get(row, "config"), 0);
        if (json != NULL) count += add_if_of(json, type, out);
        free(json);
    }
    json_decref(root);
    return count;
}

static int add_family(const struct hf_family *family, struct buf *out)
{
    const char *type = hf_family_item(family, HF_FAMILY_MODEL_TYPES, 0);
    return add_defaults(family, type, out) + add_lines(type, out) +
           add_numbers(hf_family_name(family), type, out);
}

/* Returns the number of the source tree's, which are the first. */
static int read_families(const struct hf_families **families)
{
    char *directory = file_path_join(source(), "families");
    demand(hf_families_open((const char *[]){directory}, 1, families) == NULL, directory);
    int count = 0;
    while (count < (*families)->count &&
           strncmp((*families)->files[count].path, directory, strlen(directory)) == 0) {
        const status_t error = (*families)->files[count++].error;
        demand(error == NULL, error != NULL ? status_message(error) : "");
    }
    demand(count >= 32, "families are missing");
    free(directory);
    return count;
}

static int print_texts(int argc, char **argv)
{
    (void)argc, (void)argv;
    const struct hf_families *families;
    struct buf out = {0};
    int family_count = read_families(&families);
    for (int i = 0; i < family_count; i++) add_family(families->files[i].family, &out);
    fputs(buf_text(&out), stdout);
    buf_deinit(&out);
    hf_families_close(families);
    return 0;
}

TEST_PROGRAM("print", print_texts);

TESTS_BELOW(.timeout = 60);

TEST(texts_are_those_of_before)
{
    char *path = mem_printf("%s/tests/golden/family-texts.txt", source());
    const struct hf_families *families;
    struct buf seen = {0}, expected = {0};
    int family_count = read_families(&families);
    for (int i = 0; i < family_count; i++) {
        struct digest digest;
        char digits[DIGEST_DIGITS + 1];
        struct buf out = {0};
        int count = add_family(families->files[i].family, &out);
        digest_of(out.data, out.length, &digest);
        buf_printf(&seen, "%s %d %s\n", hf_family_name(families->files[i].family), count,
                   digest_format(&digest, digits));
        buf_deinit(&out);
    }
    if (getenv("FSDPD_UPDATE_GOLDEN"))
        ck_assert_ptr_null(file_write_atomic(path, seen.data, seen.length, 0644));
    ck_assert_ptr_null(file_read(path, 1 << 16, &expected));
    ck_assert_str_eq(buf_text(&seen), buf_text(&expected));
    buf_deinit(&seen);
    buf_deinit(&expected);
    hf_families_close(families);
    free(path);
}

/* Lines that a person can read. */
TEST(lines_are_short)
{
    const struct hf_families *families;
    int count = read_families(&families);
    for (int i = 0; i < count; i++) {
        struct buf text = {0};
        char *rest = NULL;
        ck_assert_ptr_null(file_read(families->files[i].path, HF_FAMILY_MAX, &text));
        for (char *line = strtok_r(text.data, "\n", &rest); line;
             line = strtok_r(NULL, "\n", &rest))
            ck_assert_msg(strlen(line) <= 120, "%s: %s", families->files[i].path, line);
        buf_deinit(&text);
    }
    hf_families_close(families);
}

/* Whether transformers' class makes the next token. */
static bool is_causal(const char *class)
{
    return strstr(class, "ForCausalLM") != NULL || strstr(class, "LMHeadModel") != NULL ||
           strstr(class, "ForConditionalGeneration") != NULL;
}

/* As a plan with sample.reserve would have it, for a whole context; NULL: it is sampled. */
static status_t sampled(const char *json)
{
    struct hf_family *family;
    struct model *model = NULL;
    struct graph *graph = NULL;
    char *text = NULL;
    ck_assert_ptr_null(family_for(json, strlen(json), "config.json", &family));
    ck_assert_ptr_null(hf_config_to_model(family, json, strlen(json), "config.json", &text));
    ck_assert_ptr_null(model_parse(text, strlen(text), "model.hf", &model));
    const struct graph_options options = {.batch_size = 1, .time = 1, .cache = model->context};
    status_t status = graph_build(model, &options, &graph);
    graph_free(graph);
    model_free(model);
    free(text);
    return status;
}

/* What the page has of a family: its types, if a case of it is sampled, and why others are not. */
static void add_sampled(const struct hf_family *family, struct buf *types, struct buf *refused)
{
    json_t *root = family_numbers(hf_family_name(family)), *row;
    const char *key, *type;
    bool any = false;
    json_object_foreach(root, key, row)
    {
        const char *class = json_string_value(json_object_get(row, "class"));
        if (strncmp(key, "model/", 6) != 0 || class == NULL || !is_causal(class)) continue;
        char *json = json_dumps(json_object_get(row, "config"), 0);
        status_t status = sampled(json);
        if (status == NULL) any = true;
        else
            buf_printf(refused, "| `%s` | %s |\n", key + 6,
                       strchr(status_message(status), ' ') + 1);
        status_free(status);
        free(json);
    }
    for (int i = 0; any && (type = hf_family_item(family, HF_FAMILY_MODEL_TYPES, i)) != NULL; i++)
        buf_printf(types, "%s`%s`", types->length > 0 ? ", " : "", type);
    json_decref(root);
}

static void add_compared(struct buf *out)
{
    json_t *root = read_numbers("generated"), *row;
    const char *key, *between = "";
    json_object_foreach(root, key, row)
    {
        if (json_object_get(row, "class") == NULL) continue;
        buf_printf(out, "%s`%s`", between, key);
        between = ", ";
    }
    json_decref(root);
}

TEST(the_page_has_the_families_that_are_sampled)
{
    char *path = mem_printf("%s/docs/sampled-families.md", source());
    const struct hf_families *families;
    struct buf types = {0}, refused = {0}, page = {0}, expected = {0};
    int family_count = read_families(&families);
    for (int i = 0; i < family_count; i++) add_sampled(families->files[i].family, &types, &refused);
    buf_printf(
        &page,
        "# Sampled families\n\n"
        "Which causal language models of [hugging-face.md](hugging-face.md) `fsdpctl sample`, "
        "`train.sample`, the plan of\n`sample.reserve` and `/v1/completions` continue token "
        "by token. `FSDPD_UPDATE_GOLDEN=1 tests/unit/test_family_texts`\nwrote this page: it "
        "plans a decode of each configuration of `tests/parity/families`.\n\n"
        "Sampled: %s.\n\nTheir greedy tokens are those of transformers' `generate`, and their "
        "logits within 1e-4, for these configurations\n(tests/parity/test_generated.py): ",
        buf_text(&types));
    add_compared(&page);
    buf_printf(&page, ".\n\n| configuration that is not | why |\n| --- | --- |\n%s",
               buf_text(&refused));
    if (getenv("FSDPD_UPDATE_GOLDEN"))
        ck_assert_ptr_null(file_write_atomic(path, page.data, page.length, 0644));
    ck_assert_ptr_null(file_read(path, 1 << 16, &expected));
    ck_assert_str_eq(buf_text(&page), buf_text(&expected));
    buf_deinit(&types);
    buf_deinit(&refused);
    buf_deinit(&page);
    buf_deinit(&expected);
    hf_families_close(families);
    free(path);
}
