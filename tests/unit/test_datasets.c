/* Dataset directories and .npy files, whole and broken; documents and masks as rows; mixtures. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/tree.h"
#include "data/token_data.h"
#include "dataset_files.h"
#include "tests/testing.h"

static char dir[64], other[80];

static void set_up(void)
{
    strcpy(dir, "/tmp/fsdpd-test-dataset-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(other, sizeof other, "%s/other", dir);
    ck_assert_int_eq(mkdir(other, 0700), 0);
}

static void tear_down(void)
{
    status_t status = tree_remove(dir);
    ck_assert_msg(status == NULL, "%s", status_message(status));
}

enum { TOKENS = 40, DOCUMENTS = 4 };
static const uint64_t borders[DOCUMENTS + 1] = {0, 3, 4, 20, 40};

/* Token i is `first` + i, and counts unless i % 3 is 0. */
static void write_split(const char *directory, const char *split, uint16_t first, struct buf *json)
{
    uint16_t tokens[TOKENS];
    uint8_t mask[TOKENS];
    for (int i = 0; i < TOKENS; i++) {
        tokens[i] = (uint16_t)(first + i);
        mask[i] = i % 3 != 0;
    }
    char names[3][32];
    snprintf(names[0], sizeof names[0], "%s.tokens.npy", split);
    snprintf(names[1], sizeof names[1], "%s.documents.npy", split);
    snprintf(names[2], sizeof names[2], "%s.mask.npy", split);
    struct dataset_sum a = dataset_write_npy(directory, names[0], "<u2", tokens, TOKENS, 2);
    struct dataset_sum b = dataset_write_npy(directory, names[1], "<u8", borders, DOCUMENTS + 1, 8);
    struct dataset_sum c = dataset_write_npy(directory, names[2], "|u1", mask, TOKENS, 1);
    buf_printf(json, "\"%s\": {", split);
    dataset_add_array(json, "tokens", names[0], "uint16", TOKENS, &a);
    dataset_add_array(json, "documents", names[1], "uint64", DOCUMENTS + 1, &b);
    dataset_add_array(json, "mask", names[2], "uint8", TOKENS, &c);
    buf_add_text(json, "}");
}

static void write_dataset(const char *directory, uint16_t first)
{
    struct buf json = {0};
    buf_add_text(&json, "{\"format\": \"fsdpd-dataset\", \"version\": 1, \"kind\": \"tokens\", "
                        "\"vocabulary\": 500, \"splits\": {");
    write_split(directory, "train", first, &json);
    buf_add_text(&json, ", ");
    write_split(directory, "validation", (uint16_t)(first + TOKENS), &json);
    buf_add_text(&json, "}}");
    dataset_write_bytes(directory, "dataset.json", &json);
    buf_deinit(&json);
}

TESTS_BELOW(.set_up = set_up, .tear_down = tear_down);

/* ---- .npy ---- */

#define SHAPED(shape) "{'descr': '<u2', 'fortran_order': False, 'shape': " shape ", }\n"

#define FIFTY "                                                  "

static const struct {
    const char *dictionary;
    size_t bytes;
    const char *message; /* NULL: valid */
} headers[] = {
    {SHAPED("(3,)"), 6, NULL},
    {SHAPED("(3, 1)"), 6, NULL},
    {"{\"shape\": (3,), \"descr\": \"<u2\", \"fortran_order\": False}", 6, NULL},
    {SHAPED("(3,)") FIFTY FIFTY FIFTY FIFTY FIFTY, 6, NULL}, /* more than 255 bytes */
    {SHAPED("(3,)"), 5, "cut short: its header promises (3,) of uint16, which make a file of"},
    {SHAPED("(3,)"), 7, "too long"},
    {SHAPED("(3)"), 6, "expected a tuple of sizes"},
    {SHAPED("()"), 2, "a single number"},
    {SHAPED("(0,)"), 0, "dimension 0 of its array is 0"},
    {SHAPED("(-3,)"), 6, "expected a tuple of sizes"},
    {SHAPED("(1, 1, 1, 1, 3)"), 6, "more than 4 dimensions"},
    {SHAPED("(4294967296, 4294967296)"), 6, "more elements than any file has"},
    {SHAPED("(99999999999999999999999,)"), 6, "more elements than any file has"},
    {"{'descr': '>u2', 'fortran_order': False, 'shape': (3,), }", 6, "elements of type '>u2'"},
    {"{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }", 24, "elements of type '<f8'"},
    {"{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (3,), }", 6, "one plain type"},
    {"{'descr': '<u2', 'fortran_order': True, 'shape': (3,), }", 6, "in Fortran order"},
    {"{'descr': '<u2', 'shape': (3,), }", 6, "descr, fortran_order and shape, each once"},
    {"{'descr': '<u2', 'descr': '<u2', 'shape': (3,), }", 6, "each once"},
    {SHAPED("(3,)") "x", 6, "expected nothing after its dictionary"},
    {"{'descr: <u2", 6, "expected a dictionary"},
    {"", 6, "expected a dictionary"},
};

LOOP_TEST(npy, 0, COUNT_OF(headers))
{
    static const uint16_t data[16] = {7, 8, 9};
    struct buf bytes = {0};
    dataset_make_npy(headers[_i].dictionary, data, headers[_i].bytes, &bytes);
    dataset_write_bytes(dir, "a.npy", &bytes);
    buf_deinit(&bytes);
    char *path = file_path_join(dir, "a.npy");
    struct npy npy;
    status_t status = npy_open(NULL, path, &npy);
    if (headers[_i].message != NULL) {
        ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
        ck_assert_msg(strstr(status_message(status), headers[_i].message) != NULL, "%s",
                      status_message(status));
        ck_assert_ptr_nonnull(strstr(status_message(status), path));
        status_free(status);
    } else {
        ck_assert_msg(status == NULL, "%s", status_message(status));
        ck_assert(npy.type == NPY_U16 && npy.count == 3 && npy.dims[0] == 3);
        uint16_t found[2];
        ck_assert_ptr_null(npy_read(&npy, 1, 2, found));
        ck_assert(found[0] == 8 && found[1] == 9);
        npy_close(&npy);
    }
    free(path);
}

/* A file of tokens may be an array, too. */
TEST(npy_as_tokens)
{
    uint32_t tokens[100];
    for (uint32_t i = 0; i < 100; i++) tokens[i] = 3 * i;
    dataset_write_npy(dir, "a.npy", "<u4", tokens, 100, 4);
    char *path = file_path_join(dir, "a.npy");
    struct token_file file;
    ck_assert_ptr_null(token_file_open(NULL, path, TOKENS_AUTO, &file));
    ck_assert_int_eq(file.count, 100);
    int32_t ids[100];
    ck_assert_ptr_null(token_file_read(&file, 0, 100, 300, ids));
    for (int i = 0; i < 100; i++) ck_assert_int_eq(ids[i], 3 * i);
    token_file_close(&file);
    dataset_write_npy(dir, "a.npy", "<i4", tokens, 100, 4);
    status_t status = token_file_open(NULL, path, TOKENS_AUTO, &file);
    ck_assert_ptr_nonnull(
        strstr(status_message(status), "an array (100,) of int32; expected tokens"));
    status_free(status);
    free(path);
}

/* ---- directories ---- */

static struct train_job make_job(const struct token_path *sources, int count)
{
    return (struct train_job){.data_format = DATA_DATASET,
                              .sources = sources,
                              .source_count = count,
                              .windows = WINDOWS_DOCUMENT,
                              .batch_size = 4,
                              .evaluate = true,
                              .world = 1};
}

/* Row `row` of all ranks. */
static int64_t read_row(const struct token_data *data, const struct train_job *job, bool validation,
                        int64_t row, int32_t *tokens, int32_t *targets)
{
    struct token_rows rows = token_data_rows(data, job, 0, validation);
    struct rows source = token_rows_source(&rows);
    int64_t samples = -1;
    ck_assert_ptr_null(source.fill(source.user, row, tokens, targets, &samples));
    return samples;
}

TEST(documents)
{
    enum { LENGTH = 10 };
    write_dataset(dir, 100);
    const struct token_path source = {.path = dir, .weight = 1};
    struct train_job job = make_job(&source, 1);
    struct token_data data;
    ck_assert_ptr_null(
        token_data_open(&job, &(struct token_model){.vocabulary = 500}, LENGTH, true, &data));
    ck_assert_int_eq(data.train.rows, DOCUMENTS);
    for (int validation = 0; validation < 2; validation++) {
        int first = validation ? 100 + TOKENS : 100;
        for (int d = 0; d < DOCUMENTS; d++) {
            int32_t tokens[LENGTH], targets[LENGTH];
            int64_t samples = read_row(&data, &job, validation, d, tokens, targets), counted = 0;
            int begin = (int)borders[d], last = (int)borders[d + 1] - 1;
            for (int i = 0; i < LENGTH; i++) {
                bool inside = begin + i < last, counts = inside && (begin + i + 1) % 3 != 0;
                ck_assert_int_eq(tokens[i], inside ? first + begin + i : 0);
                ck_assert_int_eq(targets[i], counts ? first + begin + i + 1 : -1);
                counted += counts;
            }
            ck_assert_int_eq(samples, counted);
        }
    }
    token_data_close(&data);
    job.windows = WINDOWS_CONTINUOUS; /* across them, and the mask still counts */
    ck_assert_ptr_null(
        token_data_open(&job, &(struct token_model){.vocabulary = 500}, 13, true, &data));
    ck_assert_int_eq(data.train.rows, 3);
    int32_t tokens[13], targets[13];
    ck_assert_int_eq(read_row(&data, &job, false, 1, tokens, targets), 9);
    for (int i = 0; i < 13; i++) {
        ck_assert_int_eq(tokens[i], 113 + i);
        ck_assert_int_eq(targets[i], (14 + i) % 3 != 0 ? 114 + i : -1);
    }
    token_data_close(&data);
}

/* Several documents per row, each from its start to its last token but one, with their masks. */
LOOP_TEST(packed, 0, 2)
{
    enum { LENGTH = 20 };
    write_dataset(dir, 100);
    const struct token_path source = {.path = dir, .weight = 1};
    struct train_job job = make_job(&source, 1);
    job.windows = WINDOWS_PACKED;
    job.shuffle = _i == 1;
    struct token_data data;
    ck_assert_ptr_null(
        token_data_open(&job, &(struct token_model){.vocabulary = 500}, LENGTH, true, &data));
    struct token_rows rows = token_data_rows(&data, &job, 0, false);
    struct rows source_rows = token_rows_source(&rows);
    bool seen[DOCUMENTS] = {false};
    int64_t alone = 0;
    for (int d = 0; d < DOCUMENTS; d++) alone += borders[d + 1] - borders[d] > 1;
    ck_assert_int_lt(data.train.rows, alone);
    for (int64_t row = 0; row < data.train.rows; row++) {
        int32_t tokens[LENGTH], targets[LENGTH], starts[LENGTH];
        int64_t samples = read_row(&data, &job, false, row, tokens, targets), counted = 0;
        ck_assert_ptr_null(source_rows.fill_starts(source_rows.user, row, starts));
        for (int i = 0; i < LENGTH; i++) {
            counted += targets[i] >= 0;
            if (tokens[i] == 0) { /* padding */
                ck_assert_int_eq(starts[i], i);
                ck_assert_int_eq(targets[i], -1);
                continue;
            }
            int token = tokens[i] - 100, d = 0; /* its place among all tokens */
            while ((int)borders[d + 1] <= token) d++;
            if (starts[i] == i) {
                ck_assert_int_eq(token, (int)borders[d]);
                ck_assert(!seen[d]);
                seen[d] = true;
            } else {
                ck_assert_int_eq(starts[i], starts[i - 1]);
                ck_assert_int_eq(tokens[i], tokens[i - 1] + 1);
            }
            ck_assert_int_lt(token + 1, (int)borders[d + 1]);
            ck_assert_int_eq(targets[i], (token + 1) % 3 != 0 ? tokens[i] + 1 : -1);
        }
        ck_assert_int_eq(samples, counted);
    }
    for (int d = 0; d < DOCUMENTS; d++) ck_assert_int_eq(seen[d], borders[d + 1] - borders[d] > 1);
    token_data_close(&data);
    job.masked = true;
    status_t status =
        token_data_open(&job, &(struct token_model){.vocabulary = 500}, LENGTH, true, &data);
    ck_assert_ptr_nonnull(strstr(status_message(status), "needs data.windows: continuous"));
    status_free(status);
}

/* A plan's figures for an epoch match its rows. */
TEST(measure)
{
    enum { LENGTH = 10 };
    write_dataset(dir, 100);
    write_dataset(other, 300);
    const struct token_path sources[] = {{.path = dir, .weight = 3}, {.path = other, .weight = 1}};
    for (int kind = WINDOWS_CONTINUOUS; kind <= WINDOWS_PACKED; kind++) {
        struct train_job job = make_job(sources, 2);
        job.windows = (enum window_kind)kind;
        struct token_data data;
        struct token_measure measure;
        bool known = false;
        ck_assert_ptr_null(
            token_data_open(&job, &(struct token_model){.vocabulary = 500}, LENGTH, true, &data));
        ck_assert_ptr_null(token_data_measure(&data, &measure, &known));
        ck_assert(known);
        int64_t counted = 0, filled = 0;
        for (int s = 0; s < 2; s++) {
            for (int64_t row = 0; row < data.train.splits[s]->windows.count; row++) {
                int32_t tokens[LENGTH], targets[LENGTH];
                int64_t samples = 0;
                ck_assert_ptr_null(
                    token_split_read(data.train.splits[s], row, 500, tokens, targets, &samples));
                counted += samples;
                for (int i = 0; i < LENGTH; i++) filled += tokens[i] != 0;
            }
        }
        ck_assert_int_eq(measure.rows, data.train.rows);
        ck_assert_int_eq(measure.counted, counted);
        ck_assert_int_eq(measure.filled, filled);
        ck_assert_int_eq(measure.packed, kind == WINDOWS_PACKED ? 6 : 0); /* not those of 1 token */
        ck_assert_int_eq(measure.cut,
                         kind != WINDOWS_CONTINUOUS ? 4 : 0); /* of 16 and 20 tokens, twice */
        token_data_close(&data);
    }
}

/* Every cycle has rows of each source in proportion to its weight, and each source's own rows
 * appear in their order, without a gap, from any position. */
/* A row may be longer than the part of its mask that is read at once. */
TEST(a_long_mask)
{
    enum { LENGTH = 140000, COUNTED = LENGTH - LENGTH / 7 };
    static uint16_t ids[LENGTH + 1];
    static uint8_t counts[LENGTH + 1];
    static int32_t tokens[LENGTH], targets[LENGTH];
    for (int i = 0; i <= LENGTH; i++) {
        ids[i] = (uint16_t)(i % 50021);
        counts[i] = i % 7 != 0;
    }
    dataset_write_npy(dir, "tokens.npy", "<u2", ids, LENGTH + 1, 2);
    dataset_write_npy(dir, "mask.npy", "|u1", counts, LENGTH + 1, 1);
    char *token_path = file_path_join(dir, "tokens.npy");
    char *mask_path = file_path_join(dir, "mask.npy");
    struct token_file file;
    struct npy mask;
    ck_assert_ptr_null(token_file_open(NULL, token_path, TOKENS_AUTO, &file));
    ck_assert_ptr_null(npy_open(NULL, mask_path, &mask));
    struct token_split split = {.file = &file, .count = file.count, .mask = &mask};
    ck_assert_ptr_null(token_split_cut(&split, LENGTH, 1, false, 0));
    int64_t samples = 0;
    ck_assert_ptr_null(token_split_read(&split, 0, 50021, tokens, targets, &samples));
    for (int i = 0; i < LENGTH; i++) {
        ck_assert_int_eq(tokens[i], ids[i]);
        ck_assert_int_eq(targets[i], counts[i + 1] ? ids[i + 1] : -1);
    }
    ck_assert_int_eq(samples, COUNTED);
    struct token_measure measure = {0};
    ck_assert_ptr_null(token_split_measure(&split, &measure));
    ck_assert_int_eq(measure.rows, 1);
    ck_assert_int_eq(measure.filled, LENGTH);
    ck_assert_int_eq(measure.counted, COUNTED);
    npy_close(&mask);
    token_file_close(&file);
    free(token_path);
    free(mask_path);
}

TEST(mixture)
{
    static const int64_t weights[] = {5, 1, 3};
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        struct mixture mixture;
        mixture_init(&mixture, weights, 3, shuffle, 7);
        int64_t moved = 0;
        for (int64_t cycle = 0; cycle < 50; cycle++) {
            bool seen[3][5] = {{0}};
            for (int64_t row = 0; row < 9; row++) {
                int source = -1;
                int64_t number = -1;
                mixture_find(&mixture, 9 * cycle + row, &source, &number);
                int64_t own = number - cycle * weights[source];
                ck_assert(own >= 0 && own < weights[source] && !seen[source][own]);
                seen[source][own] = true;
                moved += source != (row < 5 ? 0 : row < 6 ? 1 : 2);
            }
        }
        ck_assert(shuffle ? moved > 100 : moved == 0);
        mixture_deinit(&mixture);
    }
}

TEST(sources)
{
    write_dataset(dir, 100);
    write_dataset(other, 300);
    const struct token_path sources[] = {{.path = dir, .weight = 3}, {.path = other, .weight = 1}};
    struct train_job job = make_job(sources, 2);
    job.shuffle = true;
    struct token_data data;
    ck_assert_ptr_null(
        token_data_open(&job, &(struct token_model){.vocabulary = 500}, 8, true, &data));
    ck_assert_int_eq(data.train.rows, 2 * DOCUMENTS);
    int first[2] = {0};
    for (int64_t row = 0; row < 64; row++) {
        int32_t tokens[8], targets[8];
        read_row(&data, &job, false, row, tokens, targets);
        if (tokens[0] != 0) first[tokens[0] >= 300]++; /* except for the document of one token */
    }
    ck_assert(first[0] == 36 && first[1] == 12); /* 48 : 16, of which one in four has one token */
    for (int64_t row = 0; row < 2 * DOCUMENTS; row++) { /* a validation takes every row once */
        int32_t tokens[8], targets[8];
        int64_t counted = read_row(&data, &job, true, row, tokens, targets);
        ck_assert_int_eq(tokens[0],
                         row % 4 == 1 ? 0 : (row < 4 ? 140 : 340) + (int)borders[row % 4]);
        ck_assert(counted <= 8);
    }
    token_data_close(&data);
}

/* Invalid directories; `from` in the dataset.json becomes `to`. */
static const struct {
    const char *from, *to, *message;
} mistakes[] = {
    {"fsdpd-dataset", "x", "dataset.json: format: expected fsdpd-dataset, found 'x'"},
    {"\"version\": 1", "\"version\": 2", "dataset.json: version 2; this fsdpd reads version 1"},
    {"\"kind\": \"tokens\"", "\"kind\": \"sounds\"",
     "kind: expected tokens, pairs or images, found 'sounds'"},
    {"\"vocabulary\": 500", "\"vocabulary\": 0", "vocabulary: expected 1 to 2147483647, found 0"},
    {"\"vocabulary\": 500", "\"vocabulary\": 501", "its vocabulary has 501 ids, but the model's"},
    {"\"vocabulary\": 500", "\"vocabulary\": \"a\"", "dataset.json: Expected integer, got string"},
    {"train.mask.npy", "../a.npy", "expected the name of an .npy file beside it, found '../a.npy'"},
    {"train.mask.npy", "train.mask.txt", "expected the name of an .npy file beside it, found"},
    {"train.mask.npy", "gone.npy", "gone.npy"},
    {"train.mask.npy", "train.tokens.npy", "mask cannot be an array (40,) of uint16"},
    {"\"shape\": [40]", "\"shape\": [41]", "its header says (40,) of uint16, but"},
    {"\"shape\": [40]", "\"shape\": 40", "its header says (40,) of uint16, but"},
    {"\"shape\": [40]", "\"shape\": [40, 1]", "its header says (40,) of uint16, but"},
    {"\"type\": \"uint16\"", "\"type\": \"uint32\"", "its header says (40,) of uint16, but"},
    {"\"sha256\": \"", "\"sha256\": \"x", "sha256: expected 64 hexadecimal digits"},
    {"\"mask\"", "\"masks\"", "unknown array 'masks'"},
    {"\"tokens\": {", "\"documents\": {", "duplicate object key"},
    {"\"train\"", "\"test\"", "splits: expected a mapping 'train'"},
    {"\"validation\"", "\"test\"", "has no split to validate with"},
    {"{", "{{", "dataset.json:1: "},
};

static void expect_refusal(const char *message)
{
    const struct token_path source = {.path = dir, .weight = 1};
    struct train_job job = make_job(&source, 1);
    struct token_data data;
    status_t status =
        token_data_open(&job, &(struct token_model){.vocabulary = 500}, 10, true, &data);
    ck_assert_msg(status_code(status) == STATUS_INVALID_ARGUMENT ||
                      status_code(status) == STATUS_FAILED_PRECONDITION ||
                      status_code(status) == STATUS_NOT_FOUND,
                  "%s", status_message(status));
    ck_assert_msg(strstr(status_message(status), message) != NULL, "%s", status_message(status));
    ck_assert_ptr_nonnull(strstr(status_message(status), dir));
    status_free(status);
}

LOOP_TEST(mistakes, 0, COUNT_OF(mistakes))
{
    write_dataset(dir, 100);
    char *path = file_path_join(dir, "dataset.json");
    struct buf text = {0}, changed = {0};
    ck_assert_ptr_null(file_read(path, 1 << 20, &text));
    const char *at = strstr(buf_text(&text), mistakes[_i].from);
    ck_assert_ptr_nonnull(at);
    buf_add(&changed, buf_text(&text), (size_t)(at - buf_text(&text)));
    buf_add_text(&changed, mistakes[_i].to);
    buf_add_text(&changed, at + strlen(mistakes[_i].from));
    dataset_write_bytes(dir, "dataset.json", &changed);
    expect_refusal(mistakes[_i].message);
    buf_deinit(&text);
    buf_deinit(&changed);
    free(path);
}

/* Arrays that contradict dataset.json, or each other. */
TEST(changed_arrays)
{
    static const uint64_t bad[][5] = {{1, 3, 4, 20, 40},
                                      {0, 3, 3, 20, 40},
                                      {0, 3, 2, 20, 40},
                                      {0, 3, 4, 41, 40},
                                      {0, 3, 4, 20, 39}};
    static const char *const messages[] = {"document 0 goes from token 0 to 1",
                                           "document 1 goes from token 3 to 3",
                                           "document 1 goes from token 3 to 2",
                                           "document 2 goes from token 4 to 41",
                                           "the last document ends at token 39, but there are 40"};
    write_dataset(dir, 100);
    uint16_t tokens[TOKENS] = {0};
    dataset_write_npy(dir, "train.tokens.npy", "<u2", tokens, TOKENS, 2);
    expect_refusal("train.tokens.npy: it is not what was prepared: its SHA-256 is ");
    for (int i = 0; i < 5; i++) {
        struct buf json = {0};
        struct dataset_sum mask,
            documents = dataset_write_npy(dir, "d.npy", "<u8", bad[i], 5, 8),
            file = dataset_write_npy(dir, "train.tokens.npy", "<u2", tokens, TOKENS, 2);
        uint8_t some[TOKENS] = {0};
        mask = dataset_write_npy(dir, "m.npy", "|u1", some, TOKENS - 1, 1);
        buf_add_text(&json, "{\"format\": \"fsdpd-dataset\", \"version\": 1, \"kind\": \"tokens\", "
                            "\"vocabulary\": 500, \"splits\": {\"train\": {");
        dataset_add_array(&json, "tokens", "train.tokens.npy", "uint16", TOKENS, &file);
        dataset_add_array(&json, "documents", "d.npy", "uint64", 5, &documents);
        struct buf masked = {0};
        buf_add(&masked, buf_text(&json), json.length);
        dataset_add_array(&masked, "mask", "m.npy", "uint8", TOKENS - 1, &mask);
        buf_add_text(&json, "}}}");
        buf_add_text(&masked, "}}}");
        dataset_write_bytes(dir, "dataset.json", &json);
        expect_refusal(messages[i]);
        dataset_write_bytes(dir, "dataset.json", &masked);
        expect_refusal("m.npy has 39 elements, but ");
        buf_deinit(&json);
        buf_deinit(&masked);
    }
    dataset_write_text(dir, "dataset.json", "");
    expect_refusal("dataset.json");
}

/* Without the check, as in files too large for it, the read finds a document out of place. */
TEST(boundary_when_read)
{
    write_dataset(dir, 100);
    const uint64_t bad[] = {0, 3, 4, 41, 40};
    dataset_write_npy(dir, "train.documents.npy", "<u8", bad, 5, 8);
    const struct token_path source = {.path = dir, .weight = 1};
    struct train_job job = make_job(&source, 1);
    struct token_data data;
    ck_assert_ptr_null(
        token_data_open(&job, &(struct token_model){.vocabulary = 500}, 10, false, &data));
    struct token_rows rows = token_data_rows(&data, &job, 0, false);
    struct rows all = token_rows_source(&rows);
    int32_t tokens[10], targets[10];
    int64_t samples;
    status_t status = all.fill(all.user, 2, tokens, targets, &samples);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(status_message(status), "document 2 goes from token 4 to 41"));
    status_free(status);
    token_data_close(&data);
}
