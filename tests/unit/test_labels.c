/* Labels of texts: what a model's keys say of its targets, and the arrays of datasets that are
 * these. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "base/tree.h"
#include "data/token_data.h"
#include "dataset_files.h"
#include "model/graph.h"
#include "tests/testing.h"

static char dir[64];

static void set_up(void)
{
    strcpy(dir, "/tmp/fsdpd-test-labels-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
}

static void tear_down(void)
{
    status_t status = tree_remove(dir);
    ck_assert_msg(status == NULL, "%s", status_message(status));
}

TESTS_BELOW(.set_up = set_up, .tear_down = tear_down);

/* ---- models ---- */

/* `keys` and `loss` in a model of tokens; its output is of windows, or of tokens. */
static status_t make_graph(const char *keys, const char *output, const char *loss,
                           struct model **model, struct graph **graph)
{
    char *text = mem_printf("name: N\nargs: {kind: many, size: 3, none: null}\ninput: tokens\n"
                            "vocabulary: 11\ncontext: 6\n%s\n"
                            "modules: {e: 'Embedding(11, 4)', head: 'Linear(4, 3)'}\n"
                            "forward: ['output = %s']\nloss: %s\n",
                            keys, output, loss);
    *model = NULL;
    status_t status = model_parse(text, strlen(text), "net.yaml", model);
    free(text);
    if (status != NULL) return status;
    const struct graph_options options = {.batch_size = 2, .time = 5, .train = true};
    status = graph_build(*model, &options, graph);
    if (status != NULL) model_free(*model);
    return status;
}

#define WINDOWS "head(mean(e(x), dim=1))"
#define OF_TOKENS "head(e(x))"
#define RANKING "multiple_negatives_ranking_loss(output)"
#define CHOSEN                                                                                     \
    "\"cross_entropy(output, target) if kind == 'one' else "                                       \
    "binary_cross_entropy_with_logits(output, target)\""

static const struct {
    const char *keys, *output, *loss;
    enum model_target target;
    const char *shape;
} models[] = {
    {"classes: 3", WINDOWS, "cross_entropy(output, target)", TARGET_CLASS, "(2,)"},
    {"classes: size", WINDOWS, "cross_entropy(output, target)", TARGET_CLASS, "(2,)"},
    {"token_classes: 3", OF_TOKENS, "cross_entropy(output, target)", TARGET_TOKEN_CLASS, "(2, 5)"},
    {"targets: [3]", WINDOWS, "mse_loss(output, target)", TARGET_NUMBERS, "(2, 3)"},
    {"texts: 2", WINDOWS, RANKING, TARGET_PAIR, "(2,)"},
    {"texts: size", WINDOWS, RANKING, TARGET_PAIR, "(2,)"},
    {"classes: \"size if kind == 'one' else None\"\n"
     "targets: \"None if kind == 'one' else size\"",
     WINDOWS, CHOSEN, TARGET_NUMBERS, "(2, 3)"},
};

LOOP_TEST(a_model_says_what_its_targets_are, 0, COUNT_OF(models))
{
    struct model *model;
    struct graph *graph = NULL;
    status_t status =
        make_graph(models[_i].keys, models[_i].output, models[_i].loss, &model, &graph);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert_int_eq(model->target, models[_i].target);
    ck_assert_int_eq(model->vocabulary, 11);
    char shape[128];
    const struct tensor_type *type = &graph->values[graph->target].type;
    ck_assert_str_eq(tensor_format_shape(type, shape), models[_i].shape);
    ck_assert_int_eq(type->dtype, model->target == TARGET_NUMBERS ? DTYPE_F32 : DTYPE_I32);
    graph_free(graph);
    model_free(model);
}

static const struct {
    const char *keys, *output, *message, *loss;
} wrong_models[] = {
    {"texts: 3", OF_TOKENS,
     "net.yaml:9: multiple_negatives_ranking_loss: input is (6, 5, 3), but it must be an embedding "
     "of each text, (6, width)",
     RANKING},
    {"texts: 2", WINDOWS,
     "net.yaml:9: cross_entropy() has no targets in a model with 'texts'; expected "
     "multiple_negatives_ranking_loss(output) or triplet_margin_loss(output)",
     NULL},
    {"texts: 2", WINDOWS,
     "net.yaml:9: triplet_margin_loss: an anchor, its positive and a negative: expected texts: 3",
     "triplet_margin_loss(output)"},
    {"texts: 3", WINDOWS, "net.yaml:9: triplet_margin_loss(): only p=2 is supported",
     "triplet_margin_loss(output, p=1)"},
    {"classes: 3", WINDOWS, "net.yaml:9: multiple_negatives_ranking_loss() needs 'texts: 2'",
     RANKING},
    {"texts: 17", WINDOWS, "net.yaml:6: key 'texts': expected 2 to 16 texts in a sample, found 17",
     RANKING},
    {"texts: 2", WINDOWS,
     "net.yaml:9: multiple_negatives_ranking_loss(): argument 'scale': expected a number "
     "above 0, found 0",
     "multiple_negatives_ranking_loss(output, scale=0)"},
    {"classes: 3", OF_TOKENS,
     "net.yaml:9: cross_entropy: input is (2, 5, 3), but with classes: 3 it must be (2, 3)", NULL},
    {"token_classes: 3", WINDOWS,
     "net.yaml:9: cross_entropy: input is (2, 3), but with token_classes: 3 it must be (2, 5, 3)",
     NULL},
    {"classes: kind", WINDOWS, "net.yaml:6: key 'classes': a text cannot stand here", NULL},
    {"targets: 3", WINDOWS, "net.yaml:9: cross_entropy() needs 'classes' instead of 'targets'",
     NULL},
};

LOOP_TEST(outputs_match_the_targets, 0, COUNT_OF(wrong_models))
{
    struct model *model;
    struct graph *graph = NULL;
    const char *loss =
        wrong_models[_i].loss != NULL ? wrong_models[_i].loss : "cross_entropy(output, target)";
    status_t status =
        make_graph(wrong_models[_i].keys, wrong_models[_i].output, loss, &model, &graph);
    ck_assert_str_eq(status_message(status), wrong_models[_i].message);
    status_free(status);
}

/* ---- datasets ---- */

enum { TOKENS = 12, DOCUMENTS = 3, LENGTH = 5 };
static const uint64_t borders[DOCUMENTS + 1] = {0, 3, 4, TOKENS};
static const uint8_t labels[DOCUMENTS] = {2, 0, 1};
static const int32_t token_labels[TOKENS] = {0, -100, 1, 2, 0, 1, 2, 0, -1, 1, 1, 1};
static const float numbers[2 * DOCUMENTS] = {0.5F, -1, NAN, 2, 3, 4};

/* Token i is i + 1; `array` names the labels that the dataset has, of all three kinds. */
static void write_texts(const char *array, int texts)
{
    uint16_t tokens[TOKENS];
    for (int i = 0; i < TOKENS; i++) tokens[i] = (uint16_t)(i + 1);
    struct dataset_sum sums[] = {
        dataset_write_npy(dir, "t.npy", "<u2", tokens, TOKENS, 2),
        dataset_write_npy(dir, "d.npy", "<u8", borders, DOCUMENTS + 1, 8),
        dataset_write_npy(dir, "labels.npy", "|u1", labels, DOCUMENTS, 1),
        dataset_write_npy(dir, "token_labels.npy", "<i4", token_labels, TOKENS, 4),
        dataset_write_npy(dir, "targets.npy", "<f4", numbers, DOCUMENTS, 4),
    };
    struct buf json = {0};
    buf_add_text(&json, "{\"format\": \"fsdpd-dataset\", \"version\": 1, \"kind\": \"tokens\", "
                        "\"vocabulary\": 50, ");
    if (texts > 0) buf_printf(&json, "\"texts\": %d, ", texts);
    buf_add_text(&json, "\"splits\": {\"train\": {");
    dataset_add_array(&json, "tokens", "t.npy", "uint16", TOKENS, &sums[0]);
    dataset_add_array(&json, "documents", "d.npy", "uint64", DOCUMENTS + 1, &sums[1]);
    if (strcmp(array, "labels") == 0)
        dataset_add_array(&json, array, "labels.npy", "uint8", DOCUMENTS, &sums[2]);
    if (strcmp(array, "token_labels") == 0)
        dataset_add_array(&json, array, "token_labels.npy", "int32", TOKENS, &sums[3]);
    if (strcmp(array, "targets") == 0)
        dataset_add_array(&json, array, "targets.npy", "float32", DOCUMENTS, &sums[4]);
    buf_add_text(&json, "}}}");
    dataset_write_bytes(dir, "dataset.json", &json);
    buf_deinit(&json);
}

static void write_dataset(const char *array)
{
    write_texts(array, 0);
}

static const struct {
    const char *array;
    enum model_target target;
    int targets, counted[DOCUMENTS];
} kinds[] = {
    {"labels", TARGET_CLASS, 1, {1, 1, 1}},
    {"token_labels", TARGET_TOKEN_CLASS, LENGTH, {2, 1, 4}},
    {"targets", TARGET_NUMBERS, 1, {1, 1, 0}},
};

static int32_t expected_target(int kind, int document, int i)
{
    int32_t bits;
    if (kind == 0) return labels[document];
    memcpy(&bits, &numbers[document], sizeof bits);
    if (kind == 2) return document == 2 ? -1 : bits;
    int place = (int)borders[document] + i;
    return place < (int)borders[document + 1] && token_labels[place] >= 0 ? token_labels[place]
                                                                          : -1;
}

static struct train_job make_job(const struct token_path *source)
{
    return (struct train_job){.data_format = DATA_DATASET,
                              .sources = source,
                              .source_count = 1,
                              .windows = WINDOWS_DOCUMENT,
                              .batch_size = 4,
                              .world = 1};
}

/* A document's tokens start its window, the model's padding fills it, and a longer one is cut. */
LOOP_TEST(labels_are_the_targets_of_documents, 0, COUNT_OF(kinds))
{
    write_dataset(kinds[_i].array);
    const struct token_path source = {.path = dir, .weight = 1};
    const struct train_job job = make_job(&source);
    const struct token_model model = {
        .vocabulary = 50, .target = kinds[_i].target, .classes = 3, .numbers = 1, .padding = 49};
    struct token_data data;
    status_t status = token_data_open(&job, &model, LENGTH, true, &data);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    struct token_rows rows = token_data_rows(&data, &job, 0, false);
    struct rows all = token_rows_source(&rows);
    ck_assert_int_eq(all.targets, kinds[_i].targets);
    for (int d = 0; d < DOCUMENTS; d++) {
        int32_t tokens[LENGTH], targets[LENGTH];
        int64_t samples = 0;
        ck_assert_ptr_null(all.fill(all.user, d, tokens, targets, &samples));
        ck_assert_int_eq(samples, kinds[_i].counted[d]);
        for (int i = 0; i < LENGTH; i++) {
            int place = (int)borders[d] + i;
            ck_assert_int_eq(tokens[i], place < (int)borders[d + 1] ? place + 1 : 49);
        }
        for (int i = 0; i < kinds[_i].targets; i++)
            ck_assert_int_eq(targets[i], expected_target(_i, d, i));
    }
    struct token_measure measure;
    bool known = false;
    ck_assert_ptr_null(token_data_measure(&data, &measure, &known));
    ck_assert(known && measure.filled == 3 + 1 + 5 && measure.cut == 1);
    int64_t counted = 0;
    for (int d = 0; d < DOCUMENTS; d++) counted += kinds[_i].counted[d];
    ck_assert_int_eq(measure.counted, counted);
    token_data_close(&data);
}

static const struct {
    const char *array;
    enum model_target target;
    int classes, numbers;
    enum window_kind windows;
    const char *message;
} mistakes[] = {
    {"labels", TARGET_CLASS, 2, 0, WINDOWS_DOCUMENT,
     "labels.npy: label 0 is 2, but the model's classes are 0 to 1"},
    {"token_labels", TARGET_TOKEN_CLASS, 2, 0, WINDOWS_DOCUMENT,
     "token_labels.npy: label 3 is 2, but the model's classes are 0 to 1"},
    {"targets", TARGET_NUMBERS, 0, 2, WINDOWS_DOCUMENT,
     "targets.npy: it has 1 targets per document, but the model has 2"},
    {"labels", TARGET_NUMBERS, 0, 1, WINDOWS_DOCUMENT,
     "it has no array 'targets', which the model's 'targets' need"},
    {"", TARGET_TOKEN_CLASS, 3, 0, WINDOWS_DOCUMENT,
     "it has no array 'token_labels', which the model's 'token_classes' need"},
    {"labels", TARGET_TOKEN, 50, 0, WINDOWS_DOCUMENT,
     "it has the array 'labels', but the model predicts tokens; expected a model with 'classes'"},
    {"labels", TARGET_CLASS, 3, 0, WINDOWS_PACKED, "each window is one labelled document"},
};

LOOP_TEST(labels_that_do_not_fit_are_refused, 0, COUNT_OF(mistakes))
{
    write_dataset(mistakes[_i].array);
    const struct token_path source = {.path = dir, .weight = 1};
    struct train_job job = make_job(&source);
    job.windows = mistakes[_i].windows;
    const struct token_model model = {.vocabulary = 50,
                                      .target = mistakes[_i].target,
                                      .classes = mistakes[_i].classes,
                                      .numbers = mistakes[_i].numbers};
    struct token_data data;
    status_t status = token_data_open(&job, &model, LENGTH, true, &data);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    ck_assert_msg(strstr(status_message(status), mistakes[_i].message) != NULL, "%s",
                  status_message(status));
    status_free(status);
}

/* The documents of a pair stand side by side, each in a part of its own; the target only says that
 * the pair counts. */
TEST(texts_of_a_pair_are_one_row)
{
    write_texts("", DOCUMENTS);
    const struct token_path source = {.path = dir, .weight = 1};
    const struct train_job job = make_job(&source);
    const struct token_model model = {
        .vocabulary = 50, .target = TARGET_PAIR, .classes = 1, .texts = DOCUMENTS, .padding = 49};
    struct token_data data;
    status_t status = token_data_open(&job, &model, LENGTH, true, &data);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    struct token_rows rows = token_data_rows(&data, &job, 0, false);
    struct rows all = token_rows_source(&rows);
    int32_t tokens[DOCUMENTS * LENGTH], target = -1;
    int64_t samples = 0;
    ck_assert(all.targets == 1 && all.input_bytes == sizeof tokens && data.train.rows == 1);
    ck_assert_ptr_null(all.fill(all.user, 0, tokens, &target, &samples));
    ck_assert(target == 0 && samples == 1);
    for (int i = 0; i < DOCUMENTS * LENGTH; i++) {
        int place = (int)borders[i / LENGTH] + i % LENGTH;
        ck_assert_int_eq(tokens[i], place < (int)borders[i / LENGTH + 1] ? place + 1 : 49);
    }
    struct token_measure measure;
    bool known = false;
    ck_assert_ptr_null(token_data_measure(&data, &measure, &known));
    ck_assert(known && measure.rows == 1 && measure.filled == 3 + 1 + 5 && measure.cut == 1);
    token_data_close(&data);
}

/* A text of one token has no target: then none of its pair's counts. */
TEST(a_pair_counts_with_both_texts)
{
    static const uint64_t ends[] = {0, 3, 4, 8, TOKENS};
    uint16_t ids[TOKENS];
    for (int i = 0; i < TOKENS; i++) ids[i] = (uint16_t)(i + 1);
    struct dataset_sum sums[] = {
        dataset_write_npy(dir, "t.npy", "<u2", ids, TOKENS, 2),
        dataset_write_npy(dir, "d.npy", "<u8", ends, COUNT_OF(ends), 8),
    };
    struct buf json = {0};
    buf_add_text(&json, "{\"format\": \"fsdpd-dataset\", \"version\": 1, \"kind\": \"pairs\", "
                        "\"vocabulary\": 50, \"splits\": {\"train\": {");
    dataset_add_array(&json, "tokens", "t.npy", "uint16", TOKENS, &sums[0]);
    dataset_add_array(&json, "documents", "d.npy", "uint64", COUNT_OF(ends), &sums[1]);
    buf_add_text(&json, "}}}");
    dataset_write_bytes(dir, "dataset.json", &json);
    buf_deinit(&json);
    const struct token_path source = {.path = dir, .weight = 1};
    const struct train_job job = make_job(&source);
    const struct token_model model = {.vocabulary = 50,
                                      .target = TARGET_PREFERENCE,
                                      .texts = 2,
                                      .padding = 49};
    struct token_data data;
    status_t status = token_data_open(&job, &model, LENGTH, true, &data);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    struct token_rows rows = token_data_rows(&data, &job, 0, false);
    struct rows all = token_rows_source(&rows);
    ck_assert_uint_eq(all.targets, 2 * LENGTH);
    for (int row = 0; row < 2; row++) {
        int32_t tokens[2 * LENGTH], targets[2 * LENGTH];
        int64_t samples = -1;
        ck_assert_ptr_null(all.fill(all.user, row, tokens, targets, &samples));
        ck_assert_int_eq(samples, row);
        for (int i = 0; i < 2 * LENGTH; i++) {
            const uint64_t *text = &ends[2 * row + i / LENGTH];
            int place = (int)text[0] + i % LENGTH;
            ck_assert_int_eq(targets[i], row == 1 && place + 1 < (int)text[1] ? place + 2 : -1);
        }
    }
    token_data_close(&data);
}

static const struct {
    int in_data, in_model;
    enum window_kind windows;
    const char *message;
} wrong_texts[] = {
    {2, 2, WINDOWS_DOCUMENT, "d.npy has 3 documents, which is not a multiple of texts, 2"},
    {3, 2, WINDOWS_DOCUMENT, "3 of its documents belong together (texts), but the model takes 2"},
    {3, 0, WINDOWS_DOCUMENT, "3 of its documents belong together (texts), but the model takes 1"},
    {0, 3, WINDOWS_DOCUMENT, "1 of its documents belong together (texts), but the model takes 3"},
    {3, 3, WINDOWS_PACKED, "data.windows: the model has 'texts', so each window is one text"},
};

LOOP_TEST(texts_that_do_not_fit_are_refused, 0, COUNT_OF(wrong_texts))
{
    write_texts("", wrong_texts[_i].in_data);
    const struct token_path source = {.path = dir, .weight = 1};
    struct train_job job = make_job(&source);
    job.windows = wrong_texts[_i].windows;
    bool pairs = wrong_texts[_i].in_model > 0;
    const struct token_model model = {.vocabulary = 50,
                                      .target = pairs ? TARGET_PAIR : TARGET_TOKEN,
                                      .texts = wrong_texts[_i].in_model};
    struct token_data data;
    status_t status = token_data_open(&job, &model, LENGTH, true, &data);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    ck_assert_msg(strstr(status_message(status), wrong_texts[_i].message) != NULL, "%s",
                  status_message(status));
    status_free(status);
}
