/* Family files: one message for each mistake, the effect of their keys, and their search path. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/array.h"
#include "base/file.h"
#include "base/mem.h"
#include "hf/beside.h"
#include "hf/hf.h"
#include "tests/testing.h"

static const char small[] =
    "name: small\n"
    "model_type: [small, tiny]\n"
    "architecture: SmallForCausalLM\n"
    "config:\n"
    "  width: {type: size, default: 8, at: [width, sizes.width]}\n"
    "  depth: {type: integer, default: 2, from: 1, to: width}\n"
    "  kinds: {type: list, length: depth, supported: [a, b]}\n"
    "  p: {type: probability, default: 0.5}\n"
    "  rate: {type: number, needed: depth > 2, why: 'a depth of {depth}'}\n"
    "  mode: {type: text, default: plain, supported: [plain]}\n"
    "  flag: {type: boolean, default: false}\n"
    "checks:\n"
    "  - {key: depth, that: width % depth == 0, expected: 'one of {width}'}\n"
    "tensors:\n"
    "  left_out: {head.weight: flag}\n"
    "model: |\n"
    "  name: Small\n";

static status_t parse(const char *text, struct hf_family **family)
{
    return hf_family_parse(text, strlen(text), "small.yaml", family);
}

static char *with(const char *old, const char *new)
{
    const char *at = strstr(small, old);
    ck_assert_msg(at != NULL, "no '%s'", old);
    return mem_printf("%.*s%s%s", (int)(at - small), small, new, at + strlen(old));
}

static const struct {
    const char *old, *new, *message;
} mistakes[] = {
    {"name: small", "nome: small", "small.yaml:1: unknown key 'nome'; did you mean 'name'?"},
    {"architecture: SmallForCausalLM\n", "", "small.yaml:1: key 'architecture' is missing"},
    {"type: size", "type: siz", "small.yaml:5: key 'config.width.type': expected "},
    {"default: 8", "default: 8 +", "small.yaml:5: key 'config.width.default': expected a value"},
    {"at: [width, sizes.width]", "at: [[width]]", "small.yaml:5: key 'config.width.at[0]'"},
    {"  flag:", "  output:", "small.yaml:11: a key cannot be called 'output' here"},
    {"supported: [plain]", "supported: plain", "small.yaml:10: key 'config.mode.supported'"},
    {"key: depth", "key: deepness", "small.yaml:13: key 'checks[0].key': config has no key"},
    {", that: width % depth == 0", "", "small.yaml:13: key 'checks[0].that' is missing"},
    {"  left_out: {head.weight: flag}", "  old_names: {a.gamma: [a.weight]}",
     "small.yaml:15: key 'tensors.old_names.a.gamma': expected a text"},
    {"  kinds: {type: list,", "  kinds: {type: list, default: [1, 2 +],",
     "small.yaml:7: key 'config.kinds.default[1]': expected a value"},
    {"default: 0.5", "default: [0.5]",
     "small.yaml:8: key 'config.p.default': expected an expression, found a list"},
    {"  left_out: {head.weight: flag}", "  other_heads: head.*",
     "small.yaml:15: unknown key 'tensors.other_heads'"},
    {"  left_out: {head.weight: flag}", "  left_off: {}",
     "small.yaml:15: unknown key 'tensors.left_off'"},
    {"  left_out: {head.weight: flag}", "  grids: {places: -1}",
     "small.yaml:15: key 'tensors.grids.places': expected an integer from 0"},
    {"model: |\n  name: Small\n", "model: {name: Small}\n", "small.yaml:16: key 'model'"},
    {"  name: Small\n", "  name: Small\nbody: {input: tokens}\n", "small.yaml:18: key 'body'"},
    {"  name: Small\n", "  name: Small\nheads: [A]\n",
     "small.yaml:18: key 'heads': expected a mapping"},
    {"  name: Small\n", "  name: Small\nheads: {A: {old: x}}\n",
     "small.yaml:18: unknown key 'heads.A.old'"},
    {"  name: Small\n", "  name: Small\nheads: {A: {new: x}}\n",
     "small.yaml:18: key 'heads.A.model' is missing"},
};

LOOP_TEST(mistakes_are_named, 0, COUNT_OF(mistakes))
{
    char *text = with(mistakes[_i].old, mistakes[_i].new);
    struct hf_family *family = NULL;
    status_t status = parse(text, &family);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    ck_assert_msg(strncmp(status_message(status), mistakes[_i].message,
                          strlen(mistakes[_i].message)) == 0,
                  "%s", status_message(status));
    ck_assert_ptr_null(family);
    status_free(status);
    free(text);
}

/* A configuration, and the arguments that result from it or the message that refuses it. */
static const struct {
    const char *json, *result;
} configurations[] = {
    {"{}", "width: 8\n  depth: 2\n  kinds: None\n  p: 0.5\n  rate: None\n  mode: \"plain\"\n"
           "  flag: False\n"},
    {"{\"sizes\": {\"width\": 6}, \"depth\": 3, \"rate\": 1, \"kinds\": [\"a\", \"b\", \"a\"]}",
     "width: 6\n  depth: 3\n  kinds: [\"a\", \"b\", \"a\"]\n  p: 0.5\n  rate: 1.0\n"},
    {"{\"width\": 4, \"sizes\": {\"width\": 6}}", "width: 4\n"},
    {"{\"flag\": true, \"mode\": null}", "mode: \"plain\"\n  flag: True\n"},
    {"{\"sizes\": 3}", "c: sizes: expected an object, found 3"},
    {"{\"sizes\": {\"width\": 0}}", "c: sizes.width: expected an integer from 1 to 2147483647, "
                                    "found 0"},
    {"{\"depth\": 9}", "c: depth: expected an integer from 1 to 8, found 9"},
    {"{\"depth\": 3}", "c: rate: is missing; a depth of 3"},
    {"{\"depth\": 3, \"rate\": 1}", "c: depth: expected one of 8, found 3"},
    {"{\"kinds\": [\"a\"]}", "c: kinds: expected an array of 2 elements, found one of 1"},
    {"{\"kinds\": [\"a\", \"c\"]}", "c: kinds: 'c' is not supported; a and b are"},
    {"{\"kinds\": [\"a\", {}]}", "c: kinds: expected a text, a number or a boolean, found {}"},
    {"{\"p\": 1}", "c: p: expected a number below 1, found 1"},
    {"{\"mode\": \"odd\"}", "c: mode: 'odd' is not supported; plain is"},
    {"{\"mode\": 1}", "c: mode: expected a text, found 1"},
    {"{\"flag\": 1}", "c: flag: expected true or false, found 1"},
    {"{\"model_type\": \"other\"}", "c: model_type: 'other' is not of the family small"},
    {"{\"is_decoder\": true}", "c: is_decoder: true is not supported"},
};

LOOP_TEST(keys_follow_the_file, 0, COUNT_OF(configurations))
{
    struct hf_family *family = NULL;
    char *model = NULL;
    ck_assert_ptr_null(parse(small, &family));
    const char *json = configurations[_i].json, *result = configurations[_i].result;
    bool typed = strstr(json, "model_type") != NULL;
    char *whole =
        mem_printf("{\"model_type\": \"tiny\"%s%s", strcmp(json, "{}") == 0 ? "" : ", ", json + 1);
    const char *used = typed ? json : whole;
    status_t status = hf_config_to_model(family, used, strlen(used), "c", &model);
    if (status != NULL) ck_assert_str_eq(status_message(status), result);
    else {
        ck_assert_msg(strncmp(model, "name: Small\n\nargs:\n", 19) == 0, "%s", model);
        ck_assert_msg(strstr(model, result) != NULL, "%s", model);
        ck_assert_int_eq(hf_export_name(family, "head.weight") == NULL,
                         strstr(json, "\"flag\": true") != NULL);
    }
    status_free(status);
    free(model);
    hf_family_free(family);
    free(whole);
}

static void write_file(const char *directory, const char *name, const char *text)
{
    char *path = file_path_join(directory, name);
    ck_assert_ptr_null(file_write_atomic(path, text, strlen(text), 0600));
    free(path);
}

TEST(own_directories_come_first)
{
    char first[] = "/tmp/fsdpd-families-XXXXXX", second[] = "/tmp/fsdpd-families-XXXXXX";
    ck_assert(mkdtemp(first) != NULL && mkdtemp(second) != NULL);
    char *other = with("name: small", "name: other"), *found = NULL;
    write_file(second, "a.yaml", small);
    write_file(first, ".hidden.yaml", "not: a family");
    write_file(first, "notes.txt", "not a family");
    const char *dirs[] = {first, second};
    ck_assert_ptr_null(hf_family_find(dirs, 2, "tiny", &found));
    ck_assert_str_eq(found, small);
    free(found);
    write_file(first, "b.yaml", other);
    ck_assert_ptr_null(hf_family_find(dirs, 2, "tiny", &found));
    ck_assert_str_eq(found, other);
    free(found);
    status_t status = hf_family_find(dirs, 2, "none", &found);
    ck_assert_int_eq(status_code(status), STATUS_UNIMPLEMENTED);
    ck_assert_msg(strncmp(status_message(status),
                          "model_type: 'none' is not supported; small, tiny", 48) == 0,
                  "%s", status_message(status));
    status_free(status);
    const char *missing[] = {"/nonexistent/families"};
    status = hf_family_find(missing, 1, "tiny", &found);
    ck_assert_int_eq(status_code(status), STATUS_NOT_FOUND);
    status_free(status);
    char *command = mem_printf("rm -rf %s %s", first, second);
    ck_assert_int_eq(system(command), 0);
    free(command);
    free(other);
}

static void check_search(const char *directory, const char *type, const char *found,
                         const char *error)
{
    char *text = NULL;
    status_t status = hf_family_find((const char *[]){directory}, 1, type, &text);
    if (found != NULL) {
        ck_assert_msg(status == NULL, "%s: %s", type, status_message(status));
        ck_assert_str_eq(text, found);
    } else {
        ck_assert_msg(strstr(status_message(status), error) != NULL, "%s: %s", type,
                      status_message(status));
    }
    status_free(status);
    free(text);
}

/* A mistake in one file refuses the model types that it is meant for, by its name or its text, and
 * no others. */
LOOP_TEST(a_broken_file_refuses_its_own_family, 0, 4)
{
    static const char *const broken[] = {
        "name: [broken",
        "name: b\nmodel_type: [broken, mended]\nnome: x\n",
        "name: b\nmodel_type:\n  - broken\n  - 'mended'\n  - mended-twice\narchitecture: tiny\n",
        "name: b\nmodel_type: mended\nconfig: small",
    };
    char directory[] = "/tmp/fsdpd-families-XXXXXX";
    ck_assert(mkdtemp(directory) != NULL);
    write_file(directory, "broken.yaml", broken[_i]);
    write_file(directory, "small.yaml", small);
    check_search(directory, "small", small, NULL);
    check_search(directory, "tiny", small, NULL);
    check_search(directory, "broken", NULL, "broken.yaml");
    check_search(directory, "mended", NULL, _i == 0 ? "is not supported" : "/broken.yaml:");
    check_search(directory, "mended-twice", NULL, _i == 2 ? "/broken.yaml:" : "is not supported");
    check_search(directory, "mend", NULL, "a family file is broken: ");
    check_search(directory, "", NULL, "is not supported");
    char *command = mem_printf("rm -rf %s", directory);
    ck_assert_int_eq(system(command), 0);
    free(command);
}

/* "NAME model types; architectures; keys" or the error, a line each. */
static void *open_often(void *directory)
{
    const char *dirs[] = {directory};
    const struct hf_families *first = NULL;
    for (int i = 0; i < 50; i++) {
        const struct hf_families *families;
        char *text = NULL;
        ck_assert_ptr_null(hf_families_open(dirs, 1, &families));
        ck_assert(first == NULL || families == first);
        ck_assert_ptr_null(hf_family_find(dirs, 1, "tiny", &text));
        free(text);
        if (first == NULL) first = families;
        else hf_families_close(families);
    }
    return (void *)first; /* still open */
}

/* All threads have the families that were parsed first, until a file changes. */
TEST(files_are_parsed_once_while_they_stay_the_same)
{
    char directory[] = "/tmp/fsdpd-families-XXXXXX";
    ck_assert(mkdtemp(directory) != NULL);
    write_file(directory, "a.yaml", small);
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    void *seen[THREADS];
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, open_often, directory), 0);
    for (int i = 0; i < THREADS; i++) ck_assert_int_eq(pthread_join(threads[i], &seen[i]), 0);
    for (int i = 1; i < THREADS; i++) ck_assert_ptr_eq(seen[i], seen[0]);
    char *other = with("name: small", "name: other"); /* of the same length */
    write_file(directory, "a.yaml", other);
    const struct hf_families *changed, *old = seen[0];
    ck_assert_ptr_null(hf_families_open((const char *[]){directory}, 1, &changed));
    ck_assert_ptr_ne(changed, old);
    ck_assert_str_eq(hf_family_name(changed->files[0].family), "other");
    ck_assert_str_eq(hf_family_name(old->files[0].family), "small");
    for (int i = 0; i < THREADS; i++) hf_families_close(seen[i]);
    hf_families_close(changed);
    char *command = mem_printf("rm -rf %s", directory);
    ck_assert_int_eq(system(command), 0);
    free(command);
    free(other);
}

static void note_file(const struct hf_family_file *file, struct buf *seen)
{
    const char *item;
    ck_assert_int_eq(file->family == NULL, file->error != NULL);
    buf_add_text(seen,
                 file->error != NULL ? status_message(file->error) : hf_family_name(file->family));
    for (int list = HF_FAMILY_MODEL_TYPES; file->error == NULL && list <= HF_FAMILY_KEYS; list++)
        for (int i = 0; (item = hf_family_item(file->family, list, i)) != NULL; i++)
            buf_printf(seen, "%s%s", i == 0 ? "; " : " ", item);
    buf_add_char(seen, '\n');
}

TEST(all_files_are_read_in_order)
{
    char first[] = "/tmp/fsdpd-families-XXXXXX", second[] = "/tmp/fsdpd-families-XXXXXX";
    ck_assert(mkdtemp(first) != NULL && mkdtemp(second) != NULL);
    char *also = with("CausalLM\n", "CausalLM\nalso: SmallModel\n");
    write_file(second, "a.yaml", also);
    write_file(first, "b.yaml", "name: [broken");
    write_file(first, "a.yaml", small);
    const char *dirs[] = {first, second};
    struct buf seen = {0};
    const struct hf_families *families;
    ck_assert_ptr_null(hf_families_open(dirs, 2, &families));
    for (int i = 0; i < families->count; i++) note_file(&families->files[i], &seen);
    hf_families_close(families);
    static const char keys[] = "; width depth kinds p rate mode flag\n";
    char *start = mem_printf("small; small tiny; SmallForCausalLM%s%s/b.yaml:", keys, first);
    char *end = mem_printf("\nsmall; small tiny; SmallForCausalLM SmallModel%s", keys);
    ck_assert_msg(strncmp(buf_text(&seen), start, strlen(start)) == 0, "%s", buf_text(&seen));
    ck_assert_msg(strstr(buf_text(&seen), end) != NULL, "%s", buf_text(&seen));
    buf_deinit(&seen);
    free(start);
    free(end);
    free(also);
    char *command = mem_printf("rm -rf %s %s", first, second);
    ck_assert_int_eq(system(command), 0);
    free(command);
}

/* ---- heads ---- */

static const char headed[] = "name: headed\n"
                             "model_type: small\n"
                             "architecture: SmallForCausalLM\n"
                             "also: SmallModel\n"
                             "config:\n"
                             "  width: {type: size, default: 8}\n"
                             "  pad: {type: integer}\n"
                             "other_heads: classifier.*\n"
                             "new: lm_head.*\n"
                             "body: |\n"
                             "  input: tokens\n"
                             "  # for all\n"
                             "  blocks:\n"
                             "    Body:\n"
                             "      forward:\n"
                             "        - output = x\n"
                             "model: |\n"
                             "  name: SmallForCausalLM\n"
                             "  loss: one\n"
                             "heads:\n"
                             "  SmallForSequenceClassification:\n"
                             "    config:\n"
                             "      labels: {type: count, at: id2label, default: 2}\n"
                             "      pad: {type: integer, default: 5}\n"
                             "    other_heads: lm_head.*\n"
                             "    new: [classifier.*]\n"
                             "    model: |\n"
                             "      name: SmallForSequenceClassification\n"
                             "      classes: labels\n";

/* The head's sections follow those of the body; the family's own are not there. */
static const char composed[] = "input: tokens\n"
                               "# for all\n"
                               "blocks:\n"
                               "  Body:\n"
                               "    forward:\n"
                               "      - output = x\n"
                               "\n"
                               "name: SmallForSequenceClassification\n"
                               "classes: labels\n"
                               "\n"
                               "args:\n"
                               "  width: 8\n"
                               "  pad: 5\n"
                               "  labels: 3\n";

TEST(a_head_follows_the_body)
{
    static const char json[] = "{\"model_type\": \"small\", \"architectures\": "
                               "[\"SmallForSequenceClassification\"], "
                               "\"id2label\": {\"0\": \"a\", \"1\": \"b\", \"2\": \"c\"}}";
    struct hf_family *family = NULL;
    char *model = NULL;
    enum hf_tensor kind;
    ck_assert_ptr_null(parse(headed, &family));
    ck_assert_str_eq(hf_family_item(family, HF_FAMILY_ARCHITECTURES, 0), "SmallForCausalLM");
    ck_assert_str_eq(hf_family_item(family, HF_FAMILY_ARCHITECTURES, 1),
                     "SmallForSequenceClassification");
    ck_assert_str_eq(hf_family_item(family, HF_FAMILY_ARCHITECTURES, 2), "SmallModel");
    ck_assert_ptr_null(hf_family_item(family, HF_FAMILY_ARCHITECTURES, 3));
    ck_assert(!hf_parameter_is_new(family, "classifier.weight"));
    status_t status = hf_config_to_model(family, json, strlen(json), "config.json", &model);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert_str_eq(model, composed);
    ck_assert(hf_parameter_is_new(family, "classifier.weight"));
    ck_assert_ptr_null(hf_parameter_name(family, "lm_head.weight", &kind));
    ck_assert_int_eq(kind, HF_TENSOR_OTHER_HEAD);
    struct buf out = {0};
    ck_assert_ptr_null(hf_config_export(family, json, strlen(json), "float32", &out));
    ck_assert_ptr_nonnull(strstr(buf_text(&out), "SmallForSequenceClassification"));
    buf_deinit(&out);
    free(model);
    hf_family_free(family);
}

/* Files of the bare model lack the head of the family's own architecture, and no others may. */
TEST(bare_files_lack_the_head)
{
    static const char *const names[] = {"SmallModel", "SmallForCausalLM"};
    for (int i = 0; i < 2; i++) {
        struct hf_family *family = NULL;
        char *json =
            mem_printf("{\"model_type\": \"small\", \"architectures\": [\"%s\"]}", names[i]);
        ck_assert_ptr_null(parse(headed, &family));
        char *model = NULL;
        ck_assert_ptr_null(hf_config_to_model(family, json, strlen(json), "config.json", &model));
        free(model);
        ck_assert_int_eq(hf_parameter_is_new(family, "lm_head.weight"), i == 0);
        ck_assert(!hf_parameter_is_new(family, "body.weight"));
        hf_family_free(family);
        free(json);
    }
}

/* Another architecture leaves the family as it is; one that it does not have is refused. */
TEST(without_a_head_the_family_is_its_own)
{
    static const char plain[] = "{\"model_type\": \"small\", \"architectures\": [\"SmallModel\"]}";
    static const char unknown[] = "{\"model_type\": \"small\", \"architectures\": [\"Other\"]}";
    struct hf_family *family = NULL;
    char *model = NULL;
    ck_assert_ptr_null(parse(headed, &family));
    ck_assert_ptr_null(hf_config_to_model(family, plain, strlen(plain), "c", &model));
    ck_assert_ptr_nonnull(strstr(model, "loss: one"));
    free(model);
    status_t status = hf_config_to_model(family, unknown, strlen(unknown), "c", &model);
    ck_assert_str_eq(status_message(status),
                     "c: architectures: 'Other' is not supported; of headed, SmallForCausalLM and "
                     "SmallForSequenceClassification are");
    status_free(status);
    hf_family_free(family);
}

/* ---- Files that are like others ---- */

static const char close[] = "name: close\n"
                            "model_type: near\n"
                            "like: headed\n"
                            "rename: {Small: Near, lm_head: head}\n"
                            "config:\n"
                            "  width: {type: size,\n"
                            "    default: 9}\n"
                            "  depth: {type: size, default: 2}\n"
                            "other_heads: ~\n"
                            "body: |\n"
                            "  blocks:\n"
                            "    Body(\\\n"
                            "        wide):\n"
                            "      forward:\n"
                            "        - x = x + 1\n"
                            "        - ...\n"
                            "    More:\n"
                            "      forward: []\n"
                            "heads:\n"
                            "  NearForSequenceClassification:\n"
                            "    config:\n"
                            "      pad:\n"
                            "      labels: {type: count, at: id2label, default: 3}\n";

static const char composed_close[] = "input: tokens\n"
                                     "# for all\n"
                                     "blocks:\n"
                                     "  Body(wide):\n"
                                     "    forward:\n"
                                     "      - x = x + 1\n"
                                     "      - output = x\n"
                                     "  More:\n"
                                     "    forward: []\n"
                                     "\n"
                                     "name: NearForSequenceClassification\n"
                                     "classes: labels\n"
                                     "\n"
                                     "args:\n"
                                     "  width: 9\n"
                                     "  depth: 2\n"
                                     "  pad: 5\n"
                                     "  labels: 3\n";

/* What the file does not say is as in the other one, with other names; what a job keeps of it needs
 * no other file. */
TEST(a_family_is_like_another)
{
    static const char json[] = "{\"model_type\": \"near\", \"architectures\": "
                               "[\"NearForSequenceClassification\"]}";
    char directory[] = "/tmp/fsdpd-families-XXXXXX";
    ck_assert(mkdtemp(directory) != NULL);
    write_file(directory, "a.yaml", close);
    write_file(directory, "b.yaml", headed);
    struct hf_family *family = NULL;
    char *text = NULL, *model = NULL;
    status_t status = hf_family_find((const char *[]){directory}, 1, "near", &text);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert_ptr_null(parse(text, &family));
    status = hf_config_to_model(family, json, strlen(json), "c", &model);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert_str_eq(model, composed_close);
    ck_assert_str_eq(hf_family_item(family, HF_FAMILY_ARCHITECTURES, 0), "NearForCausalLM");
    ck_assert_str_eq(hf_family_item(family, HF_FAMILY_ARCHITECTURES, 2), "NearModel");
    ck_assert(!hf_parameter_is_new(family, "head.weight"));
    hf_family_free(family);
    free(model);
    free(text);
    char *command = mem_printf("rm -rf %s", directory);
    ck_assert_int_eq(system(command), 0);
    free(command);
}

/* What "like: headed" makes of a change, or the place of its mistake. */
static const struct {
    const char *change, *message;
} likes[] = {
    {"like: other\n", "/a.yaml:3: key 'like': there is no family 'other'"},
    {"like: near\n", "/a.yaml:3: key 'like': the family near is like this one"},
    {"like: round\n", "/a.yaml:3: key 'like': %s/c.yaml:3: key 'like': the family near is like"},
    {"like: broken\n", "/a.yaml:3: key 'like': %s/broken.yaml:2: "},
    {"like: headed\nrename: {Smal: Near, mall: x}\n",
     "/a.yaml:4: key 'rename.mall': no word begins so"},
    {"like: headed\nrename: Near\n", "/a.yaml:4: key 'rename': expected a mapping"},
    {"like: headed\nalso: SmallModel\n", "/a.yaml:4: key 'also': is the same in the family"},
    {"like: headed\nconfig:\n  wide: ~\n", "/a.yaml:5: key 'wide': overrides nothing"},
    {"like: headed\nconfig:\n  wide:\n", "/a.yaml:5: key 'wide': overrides nothing"},
    {"like: headed\nconfig:\n  width: {type: siz}\n", "/a.yaml:5: key 'config.width.type': "},
    {"like: headed\nbody: |\n  blocks:\n    Body:\n      forward: []\n      ...\n",
     "/a.yaml:8: key '...': expected a key"},
    {"like: headed\ntensors: {left_off: 1}\n", "/a.yaml:4: unknown key 'tensors.left_off'"},
    {"like: odd\n", "/e.yaml:4: unknown key 'nome'"},
    {"rename: {Small: Near}\n", "/a.yaml:3: unknown key 'rename'"},
};

LOOP_TEST(mistakes_in_likeness_are_named, 0, COUNT_OF(likes))
{
    char directory[] = "/tmp/fsdpd-families-XXXXXX";
    ck_assert(mkdtemp(directory) != NULL);
    char *file = mem_printf("name: near\nmodel_type: near\n%s", likes[_i].change), *text = NULL;
    write_file(directory, "a.yaml", file);
    write_file(directory, "b.yaml", headed);
    write_file(directory, "c.yaml", "name: round\nmodel_type: round\nlike: near\n");
    write_file(directory, "broken.yaml", "name: broken\nname: twice\n");
    write_file(directory, "e.yaml", "name: odd\nmodel_type: odd\nlike: headed\nnome: x\n");
    status_t status = hf_family_find((const char *[]){directory}, 1, "near", &text);
    const char *after = strstr(likes[_i].message, "%s");
    char *message = after == NULL ? mem_strdup(likes[_i].message)
                                  : mem_printf("%.*s%s%s", (int)(after - likes[_i].message),
                                               likes[_i].message, directory, after + 2);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    ck_assert_msg(strstr(status_message(status), message) != NULL, "%s", status_message(status));
    status_free(status);
    char *command = mem_printf("rm -rf %s", directory);
    ck_assert_int_eq(system(command), 0);
    free(command);
    free(message);
    free(file);
}

TEST(files_beside_the_weights_are_those_of_a_list)
{
    static const char *const others[] = {"",
                                         "config.json",
                                         "model.safetensors",
                                         "../tokenizer.json",
                                         "/tokenizer.json",
                                         "TOKENIZER.JSON",
                                         HF_TEMPLATES,
                                         HF_TEMPLATES "/",
                                         HF_TEMPLATES "/.jinja",
                                         HF_TEMPLATES "/a.txt",
                                         HF_TEMPLATES "/../a.jinja",
                                         HF_TEMPLATES "/a/b.jinja"};
    for (const char *const *name = hf_beside_names; *name != NULL; name++)
        ck_assert(hf_is_beside(*name));
    ck_assert(hf_is_beside(HF_TEMPLATES "/tool_use.jinja"));
    for (size_t i = 0; i < COUNT_OF(others); i++)
        ck_assert_msg(!hf_is_beside(others[i]), "%s", others[i]);
}
