/*
 * Writing a state_dict to files: whole and in pieces of any size, as bf16, in shards, with the
 * names and ties of Hugging Face's transformers, with what is beside a language model; and
 * directories that are created whole or not at all.
 */
#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "client/directory.h"
#include "client/rest.h"
#include "client/rewrite.h"
#include "family_files.h"
#include "hf/safetensors.h"
#include "tests/testing.h"

/* Tensors as the daemon sends them: tied ones twice. */
static const struct {
    const char *name;
    int64_t rows, columns;
} tensors[] = {
    {"transformer.wte.weight", 7, 3},  {"lm_head.weight", 7, 3},
    {"transformer.ln_f.weight", 1, 3}, {"transformer.ln_f.bias", 1, 3},
    {"transformer.h.0.empty", 0, 3},   {"transformer.h.0.big", 50, 3},
};
enum { TENSORS = 6, FILES = 8 };

static float value_of(int tensor, int64_t i)
{
    if (tensor == 1) tensor = 0;
    return (float)(tensor + 1) + (float)i * 0x1.0p-9F; /* most are between two bf16 */
}

static void make_stream(struct buf *stream)
{
    struct safetensors_entry entries[TENSORS];
    char dtype[] = "F32";
    for (int t = 0; t < TENSORS; t++)
        entries[t] = (struct safetensors_entry){.name = (char *)tensors[t].name,
                                                .dtype = dtype,
                                                .dim_count = 2,
                                                .dims = {tensors[t].rows, tensors[t].columns}};
    safetensors_write_header(stream, entries, TENSORS, NULL, 0);
    for (int t = 0; t < TENSORS; t++)
        for (int64_t i = 0; i < tensors[t].rows * tensors[t].columns; i++) {
            float value = value_of(t, i);
            buf_add(stream, &value, sizeof value);
        }
}

struct files {
    struct buf files[FILES];
    int count, announced;
    bool open;
};

static status_t begin_file(void *user, int number, int count)
{
    struct files *files = user;
    ck_assert_int_eq(number, files->count + 1);
    ck_assert_int_le(number, count);
    ck_assert(!files->open);
    files->announced = count;
    files->open = true;
    files->count++;
    return NULL;
}

static status_t write_file(void *user, const void *bytes, size_t size)
{
    struct files *files = user;
    ck_assert(files->open);
    buf_add(&files->files[files->count - 1], bytes, size);
    return NULL;
}

static status_t end_file(void *user)
{
    struct files *files = user;
    ck_assert(files->open);
    files->open = false;
    return NULL;
}

static struct rewrite *pass(const struct rewrite_options *options, struct files *files,
                            const struct rewrite_sink *sink, size_t piece)
{
    struct buf stream = {0};
    make_stream(&stream);
    *files = (struct files){0};
    struct rewrite *rewrite = rewrite_new(options, sink);
    for (size_t at = 0; at < stream.length; at += piece) {
        size_t size = stream.length - at < piece ? stream.length - at : piece;
        void *bytes = mem_dup(stream.data + at, size); /* reveals a read past its end */
        status_t status = rewrite_add(rewrite, bytes, size, at == 0 ? stream.length : 0, 9);
        ck_assert_msg(status == NULL, "%s", status_message(status));
        free(bytes);
    }
    status_t status = rewrite_finish(rewrite);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert_uint_eq(rewrite_received(rewrite), stream.length);
    ck_assert_uint_eq(rewrite_step(rewrite), 9);
    ck_assert_int_eq(files->count, files->announced);
    ck_assert_int_eq(files->count, rewrite_file_count(rewrite));
    ck_assert(!files->open);
    buf_deinit(&stream);
    return rewrite;
}

/* The files' tensors, in order: those of `expected`, which is -1 where a file ends. */
static void expect_tensors(const struct files *files, const int *expected, bool bf16)
{
    for (int f = 0; f < files->count; f++) {
        const struct buf *file = &files->files[f];
        struct safetensors_header header;
        uint64_t needed;
        status_t status =
            safetensors_read_header(file->data, file->length, file->length, &header, &needed);
        ck_assert_msg(status == NULL, "%s", status_message(status));
        for (int i = 0; i < header.count; i++, expected++) {
            const struct safetensors_entry *entry = &header.entries[i];
            ck_assert_str_eq(entry->name, tensors[*expected].name);
            ck_assert_str_eq(entry->dtype, bf16 ? "BF16" : "F32");
            ck_assert_int_eq(entry->dims[0], tensors[*expected].rows);
            const char *data = file->data + header.data_offset + entry->begin;
            for (int64_t e = 0; e < entry->dims[0] * entry->dims[1]; e++) {
                float wanted = value_of(*expected, e), found = 0;
                if (bf16) memcpy((char *)&found + 2, data + 2 * e, 2);
                else memcpy(&found, data + 4 * e, 4);
                if (bf16)
                    wanted = rintf(wanted * 128 / exp2f(floorf(log2f(wanted)))) / 128 *
                             exp2f(floorf(log2f(wanted)));
                ck_assert_msg(found == wanted, "%s[%d] is %a, not %a", entry->name, (int)e,
                              (double)found, (double)wanted);
            }
        }
        ck_assert_int_eq(*expected++, -1);
        safetensors_header_deinit(&header);
    }
}

static void files_deinit(struct files *files)
{
    for (int f = 0; f < FILES; f++) buf_deinit(&files->files[f]);
}

/* An empty tensor begins where the next one does, and comes first there. */
static const int all[] = {0, 1, 2, 3, 4, 5, -1};
static const int without_tied[] = {0, 2, 3, 4, 5, -1};

LOOP_TEST(pieces, 0, 5)
{
    static const size_t pieces[] = {1, 3, 7, 64, 1 << 20};
    struct files files;
    const struct rewrite_sink sink = {begin_file, write_file, end_file, &files};
    for (int bf16 = 0; bf16 < 2; bf16++) {
        const struct rewrite_options options = {.bf16 = bf16};
        struct rewrite *rewrite = pass(&options, &files, &sink, pieces[_i]);
        ck_assert_int_eq(files.count, 1);
        expect_tensors(&files, all, bf16);
        ck_assert_ptr_nonnull(
            strstr(files.files[0].data + 8, "{\"__metadata__\":{\"format\":\"pt\"},"));
        rewrite_free(rewrite);
        files_deinit(&files);
    }
}

/* The family of a GPT-2 whose lm_head.weight is tied, or not. */
static const struct hf_family *gpt2(bool tied)
{
    struct hf_family *family = family_file("gpt2");
    char *text = NULL, *json = mem_printf("{\"model_type\": \"gpt2\", \"tie_word_embeddings\": %s}",
                                          tied ? "true" : "false");
    ck_assert_ptr_null(hf_config_to_model(family, json, strlen(json), "config.json", &text));
    free(text);
    free(json);
    return family;
}

TEST(hf)
{
    struct files files;
    const struct rewrite_sink sink = {begin_file, write_file, end_file, &files};
    struct rewrite_options options = {.family = gpt2(true)};
    struct rewrite *rewrite = pass(&options, &files, &sink, 33);
    expect_tensors(&files, without_tied, false);
    ck_assert_ptr_nonnull(
        strstr(files.files[0].data + 8, "{\"__metadata__\":{\"format\":\"pt\"},"));
    rewrite_free(rewrite);
    files_deinit(&files);
    options.family = gpt2(false);
    rewrite = pass(&options, &files, &sink, 33);
    expect_tensors(&files, all, false);
    rewrite_free(rewrite);
    files_deinit(&files);
}

TEST(shards)
{
    static const struct {
        uint64_t limit;
        bool bf16;
        int files[16];
        int count;
    } cases[] = {
        /* 84 bytes, 12, 12, 0, 600 */
        {1000000, false, {0, 2, 3, 4, 5, -1}, 1},    {708, false, {0, 2, 3, 4, 5, -1}, 1},
        {707, false, {0, 2, 3, 4, -1, 5, -1}, 2},    {107, false, {0, 2, -1, 3, 4, -1, 5, -1}, 3},
        {90, false, {0, -1, 2, 3, 4, -1, 5, -1}, 3}, {1, false, {0, -1, 2, -1, 3, 4, -1, 5, -1}, 4},
        {107, true, {0, 2, 3, 4, -1, 5, -1}, 2},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct files files;
        const struct rewrite_sink sink = {begin_file, write_file, end_file, &files};
        const struct rewrite_options options = {.family = gpt2(true),
                                                .bf16 = cases[i].bf16,
                                                .max_shard_bytes = cases[i].limit};
        struct rewrite *rewrite = pass(&options, &files, &sink, 50);
        ck_assert_int_eq(files.count, cases[i].count);
        expect_tensors(&files, cases[i].files, cases[i].bf16);
        if (cases[i].limit == 707) {
            struct buf text = {0};
            rewrite_index(rewrite, &text);
            json_t *root = json_loads(buf_text(&text), 0, NULL);
            json_t *wanted =
                json_loads("{\"metadata\": {\"total_size\": 708}, \"weight_map\": {"
                           "\"transformer.wte.weight\": \"model-00001-of-00002.safetensors\","
                           "\"transformer.ln_f.weight\": \"model-00001-of-00002.safetensors\","
                           "\"transformer.ln_f.bias\": \"model-00001-of-00002.safetensors\","
                           "\"transformer.h.0.empty\": \"model-00001-of-00002.safetensors\","
                           "\"transformer.h.0.big\": \"model-00002-of-00002.safetensors\"}}",
                           0, NULL);
            ck_assert_msg(json_equal(root, wanted), "%s", buf_text(&text));
            json_decref(root);
            json_decref(wanted);
            buf_deinit(&text);
        }
        rewrite_free(rewrite);
        files_deinit(&files);
    }
}

/* What is beside a language model goes into a file of its own, as it was. */
TEST(rest_of_a_directory)
{
    char directory[] = "/tmp/fsdpd-rest-XXXXXX", f32[] = "F32", bf16[] = "BF16";
    static const char data[] = "languagethe tower's.half";
    struct safetensors_entry entries[] = {
        {(char *)"language_model.model.norm.weight", f32, 1, {2}, 0, 0},
        {(char *)"vision_tower.a", bf16, 2, {2, 3}, 0, 0},
        {(char *)"multi_modal_projector.b", f32, 1, {1}, 0, 0},
    };
    struct buf stream = {0}, original = {0}, index = {0};
    struct files files = {0};
    struct rest *rest = NULL;
    const struct rewrite_sink sink = {begin_file, write_file, end_file, &files};
    struct rewrite_options options = {.bf16 = true};
    ck_assert_ptr_nonnull(mkdtemp(directory));
    AUTO_FREE char *path = file_path_join(directory, "model.safetensors");
    safetensors_write_header(&original, entries, 3, NULL, 0);
    buf_add(&original, data, sizeof data - 1);
    ck_assert_ptr_null(file_write_atomic(path, original.data, original.length, 0600));
    status_t status = rest_open(directory, family_file("qwen3_vl"), &rest);
    ck_assert_ptr_nonnull(strstr(status_message(status), "nothing to copy from it"));
    status_free(status);
    ck_assert_ptr_null(rest_open(directory, family_file("gemma3"), &rest));
    options.more = rest_entries(rest, &options.more_count);
    make_stream(&stream);
    struct rewrite *rewrite = rewrite_new(&options, &sink);
    ck_assert_ptr_null(rewrite_add(rewrite, stream.data, stream.length, stream.length, 9));
    ck_assert_ptr_null(rewrite_finish(rewrite));
    ck_assert_int_eq(rewrite_file_count(rewrite), 2);
    ck_assert_ptr_null(rest_write(rest, &sink, 2, 2));
    ck_assert_int_eq(files.count, 2);
    ck_assert_int_eq(files.announced, 2);

    struct safetensors_header header;
    uint64_t needed;
    ck_assert_ptr_null(safetensors_read_header(files.files[1].data, files.files[1].length,
                                               files.files[1].length, &header, &needed));
    ck_assert_int_eq(header.count, 2);
    ck_assert_str_eq(header.entries[0].name, "vision_tower.a");
    ck_assert_str_eq(header.entries[0].dtype, "BF16");
    ck_assert_str_eq(header.entries[1].name, "multi_modal_projector.b");
    ck_assert_int_eq((int64_t)(files.files[1].length - header.data_offset), 16);
    ck_assert_mem_eq(files.files[1].data + header.data_offset, data + 8, 16);
    rewrite_index(rewrite, &index);
    ck_assert_ptr_nonnull(
        strstr(buf_text(&index), "\"vision_tower.a\": \"model-00002-of-00002.safetensors\""));
    ck_assert_ptr_nonnull(
        strstr(buf_text(&index),
               "\"transformer.wte.weight\": \"model-00001-of-00002.safetensors\""));

    safetensors_header_deinit(&header);
    rewrite_free(rewrite);
    rest_free(rest);
    files_deinit(&files);
    buf_deinit(&stream);
    buf_deinit(&original);
    buf_deinit(&index);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(directory), 0);
}

/* Rounding to nearest, ties to even, for the critical values. */
TEST(rounding)
{
    static const struct {
        uint32_t from;
        uint16_t to;
    } cases[] = {
        {0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f808001, 0x3f81}, {0x3f818000, 0x3f82},
        {0x3f817fff, 0x3f81}, {0xbf808001, 0xbf81}, {0x00000000, 0x0000}, {0x80000000, 0x8000},
        {0x00008000, 0x0000}, {0x00008001, 0x0001}, {0x7f7fffff, 0x7f80}, {0x7f800000, 0x7f80},
        {0xff800000, 0xff80}, {0x7f800001, 0x7fc0}, {0xffc00000, 0xffc0}, {0x7fffffff, 0x7fff},
    };
    enum { CASES = COUNT_OF(cases) };
    char name[] = "x", dtype[] = "F32";
    struct safetensors_entry entry = {.name = name,
                                      .dtype = dtype,
                                      .dim_count = 1,
                                      .dims = {CASES}};
    struct buf stream = {0};
    safetensors_write_header(&stream, &entry, 1, NULL, 0);
    for (int i = 0; i < CASES; i++) buf_add(&stream, &cases[i].from, 4);
    struct files files = {0};
    const struct rewrite_sink sink = {begin_file, write_file, end_file, &files};
    const struct rewrite_options options = {.bf16 = true};
    struct rewrite *rewrite = rewrite_new(&options, &sink);
    ck_assert_ptr_null(rewrite_add(rewrite, stream.data, stream.length, stream.length, 0));
    ck_assert_ptr_null(rewrite_finish(rewrite));
    const char *data = files.files[0].data + files.files[0].length - 2 * CASES;
    for (int i = 0; i < CASES; i++) {
        uint16_t found;
        memcpy(&found, data + 2 * i, 2);
        ck_assert_msg(found == cases[i].to, "%08x is %04x, not %04x", cases[i].from, found,
                      cases[i].to);
    }
    rewrite_free(rewrite);
    files_deinit(&files);
    buf_deinit(&stream);
}

TEST(broken_stream)
{
    struct files files = {0};
    const struct rewrite_sink sink = {begin_file, write_file, end_file, &files};
    const struct rewrite_options options = {.bf16 = true};
    struct buf stream = {0};
    make_stream(&stream);
    static const struct {
        int what;
        const char *message;
    } cases[] = {
        {0, "expected the size of the file in it, found none"},
        {1, "found more"},
        {2, "found the end after"},
        {3, "the header is not a JSON object"},
        {4, "expected tensors of the type F32 or I64, found U8"},
        {5, "found the end after 12"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct rewrite *rewrite = rewrite_new(&options, &sink);
        char *bytes = mem_dup(stream.data, stream.length);
        uint64_t total = stream.length;
        size_t size = stream.length;
        if (cases[i].what == 0) total = 0;
        if (cases[i].what == 1) total -= 8, size--;
        if (cases[i].what == 2) size -= 8;
        if (cases[i].what == 3) bytes[8] = '[';
        if (cases[i].what == 5) size = 12;
        if (cases[i].what == 4) {
            char name[] = "x", dtype[] = "U8";
            struct safetensors_entry entry = {.name = name,
                                              .dtype = dtype,
                                              .dim_count = 1,
                                              .dims = {4}};
            struct buf other = {0};
            safetensors_write_header(&other, &entry, 1, NULL, 0);
            buf_add(&other, "abcd", 4);
            free(bytes);
            total = size = other.length;
            bytes = buf_take(&other);
        }
        status_t status = rewrite_add(rewrite, bytes, size, total, 0);
        if (cases[i].what == 1 && status == NULL) status = rewrite_add(rewrite, bytes, 1, 0, 0);
        if (status == NULL) status = rewrite_finish(rewrite);
        ck_assert_msg(status != NULL, "%s", cases[i].message);
        ck_assert_int_eq(status_code(status), STATUS_DATA_LOSS);
        ck_assert_msg(strstr(status_message(status), cases[i].message) != NULL, "%s",
                      status_message(status));
        status_free(status);
        free(bytes);
        rewrite_free(rewrite);
        files_deinit(&files);
        files = (struct files){0};
    }
    buf_deinit(&stream);
}

/* ---- directories ---- */

static char scratch[] = "/tmp/fsdpd-directory-XXXXXX";

static void set_up(void)
{
    ck_assert_ptr_nonnull(mkdtemp(scratch));
    ck_assert_int_eq(chdir(scratch), 0);
}

static void tear_down(void)
{
    char command[80];
    ck_assert_int_eq(chdir("/"), 0);
    snprintf(command, sizeof command, "rm -rf %s", scratch);
    ck_assert_int_eq(system(command), 0);
}

static int entries_in(const char *path)
{
    int count = 0;
    DIR *entries = opendir(path);
    ck_assert_ptr_nonnull(entries);
    while (readdir(entries) != NULL) count++;
    closedir(entries);
    return count - 2;
}

static void put(struct directory *directory, const char *name, const char *text)
{
    ck_assert_ptr_null(directory_open(directory, name));
    ck_assert_ptr_null(directory_write(directory, text, strlen(text)));
    ck_assert_ptr_null(directory_close(directory));
}

static void make_directory(const char *path)
{
    struct directory directory;
    status_t status = directory_begin(&directory, path);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    put(&directory, "a", "one");
    put(&directory, "b", "three");
    ck_assert_uint_eq(directory.bytes, 8);
    ck_assert_ptr_null(directory_finish(&directory));
    directory_deinit(&directory);
}

TESTS_BELOW(.set_up = set_up, .tear_down = tear_down);

TEST(directory)
{
    struct stat info;
    umask(027);
    make_directory("new/");
    ck_assert_int_eq(entries_in("new"), 2);
    ck_assert_int_eq(entries_in("."), 1);
    ck_assert_int_eq(stat("new", &info), 0);
    ck_assert_int_eq(info.st_mode & 0777, 0750);
    ck_assert_int_eq(stat("new/b", &info), 0);
    ck_assert_int_eq(info.st_mode & 0777, 0640);
    ck_assert_int_eq(info.st_size, 5);

    ck_assert_int_eq(mkdir("empty", 0700), 0);
    ck_assert_int_eq(symlink("empty", "link"), 0);
    make_directory("link");
    ck_assert_int_eq(entries_in("empty"), 2);
    ck_assert_int_eq(lstat("link", &info), 0);
    ck_assert(S_ISLNK(info.st_mode));
}

TEST(directory_abandoned)
{
    struct directory directory;
    ck_assert_ptr_null(directory_begin(&directory, "new"));
    put(&directory, "a", "one");
    ck_assert_ptr_null(directory_open(&directory, "b"));
    ck_assert_int_eq(entries_in("."), 1);
    directory_deinit(&directory);
    ck_assert_int_eq(entries_in("."), 0);
    /* another process created it in the meantime */
    ck_assert_ptr_null(directory_begin(&directory, "new"));
    put(&directory, "a", "one");
    ck_assert_int_eq(mkdir("new", 0700), 0);
    ck_assert_int_eq(mkdir("new/theirs", 0700), 0);
    status_t status = directory_finish(&directory);
    ck_assert_ptr_nonnull(status);
    status_free(status);
    directory_deinit(&directory);
    ck_assert_int_eq(entries_in("."), 1);
    ck_assert_int_eq(entries_in("new"), 1);
}

TEST(directory_refused)
{
    static const struct {
        const char *path, *message;
        enum status_code code;
    } cases[] = {
        {"full", "full is not empty; expected a new directory, or an empty one",
         STATUS_INVALID_ARGUMENT},
        {"file", "file is not a directory", STATUS_INVALID_ARGUMENT},
        {"-", "expected a directory, found '-'", STATUS_INVALID_ARGUMENT},
        {"nowhere/new", "cannot write nowhere/new", STATUS_NOT_FOUND},
    };
    ck_assert_int_eq(mkdir("full", 0700), 0);
    ck_assert_ptr_null(file_write_atomic("full/x", "x", 1, 0600));
    ck_assert_ptr_null(file_write_atomic("file", "x", 1, 0600));
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct directory directory;
        status_t status = directory_begin(&directory, cases[i].path);
        ck_assert_int_eq(status_code(status), cases[i].code);
        ck_assert_msg(strstr(status_message(status), cases[i].message) != NULL, "%s",
                      status_message(status));
        status_free(status);
        directory_deinit(&directory);
    }
    ck_assert_int_eq(entries_in("."), 2);
}
