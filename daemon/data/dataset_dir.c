/* Dataset directories; see dataset_dir.h. */
#include "data/dataset_dir.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/beneath.h"
#include "base/file.h"
#include "base/mem.h"

#define FORMAT "fsdpd-dataset"
enum { VERSION = 1, JSON_MAX = 1 << 20, BLOCK = 4096 };

static const char *const split_names[DATASET_SPLITS] = {"train", "validation"};

#define TYPE(type) (1u << (type))
#define ANY_TYPE ((1u << NPY_TYPES) - 1)
#define INTEGERS (ANY_TYPE & ~TYPE(NPY_F32))
static const struct {
    const char *name;
    enum dataset_kind kind;
    unsigned types; /* allowed element types */
    int min_dims, max_dims;
    bool required;
} arrays[DATASET_ARRAYS] = {
    [DATASET_ARRAY_TOKENS] = {"tokens", DATASET_TOKENS, TYPE(NPY_U16) | TYPE(NPY_U32), 1, 1, true},
    [DATASET_ARRAY_DOCUMENTS] = {"documents", DATASET_TOKENS, TYPE(NPY_U64), 1, 1, false},
    [DATASET_ARRAY_MASK] = {"mask", DATASET_TOKENS, TYPE(NPY_U8), 1, 1, false},
    [DATASET_ARRAY_LABELS] = {"labels", DATASET_TOKENS, INTEGERS, 1, 1, false},
    [DATASET_ARRAY_NUMBERS] = {"targets", DATASET_TOKENS, TYPE(NPY_F32), 1, 2, false},
    [DATASET_ARRAY_TOKEN_LABELS] = {"token_labels", DATASET_TOKENS, INTEGERS, 1, 1, false},
    [DATASET_ARRAY_IMAGES] = {"images", DATASET_IMAGES, TYPE(NPY_U8) | TYPE(NPY_F32), 2, 4, true},
    [DATASET_ARRAY_TARGETS] = {"targets", DATASET_IMAGES, ANY_TYPE, 1, 2, true},
};

/* The place being read, for messages. */
struct dataset_reader {
    const char *root, *directory;
    bool check;
    struct dataset_dir *dir;
};

/* ---- dataset.json ---- */

static status_t unpacked(const struct dataset_reader *reader, int result, const json_error_t *error)
{
    if (result == 0) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "%s: %s", reader->dir->path, error->text);
}

static bool same_shape(const struct npy *npy, const json_t *shape)
{
    if (!json_is_array(shape) || json_array_size(shape) != (size_t)npy->dim_count) return false;
    for (int d = 0; d < npy->dim_count; d++) {
        const json_t *size = json_array_get(shape, (size_t)d);
        if (!json_is_integer(size) || json_integer_value(size) != npy->dims[d]) return false;
    }
    return true;
}

static status_t check_array(const struct dataset_reader *reader, int which, const struct npy *npy,
                            const char *type, const json_t *shape)
{
    char text[96];
    if (npy->dim_count < arrays[which].min_dims || npy->dim_count > arrays[which].max_dims ||
        !(arrays[which].types & TYPE(npy->type)))
        return status_new(STATUS_INVALID_ARGUMENT, "%s: %s cannot be an array %s of %s",
                          npy->file.path, arrays[which].name,
                          npy_format_shape(npy->dim_count, npy->dims, text),
                          npy_type_name(npy->type));
    if (strcmp(type, npy_type_name(npy->type)) == 0 && same_shape(npy, shape)) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s: its header says %s of %s, but %s says otherwise", npy->file.path,
                      npy_format_shape(npy->dim_count, npy->dims, text), npy_type_name(npy->type),
                      reader->dir->path);
}

static status_t sum_file(const struct data_file *file, struct digest *sum)
{
    enum { PIECE = 1 << 20 };
    unsigned char *piece = mem_alloc(PIECE);
    struct digester *digester = digester_new();
    status_t status = NULL;
    for (int64_t at = 0; at < file->size && status == NULL; at += PIECE) {
        size_t size = file->size - at < PIECE ? (size_t)(file->size - at) : PIECE;
        status = data_file_read(file, piece, size, at);
        if (status == NULL) digester_add(digester, piece, size);
    }
    if (status == NULL) digester_take(digester, sum);
    digester_free(digester);
    free(piece);
    return status != NULL ? status : data_file_check_unchanged(file);
}

static status_t check_sum(const struct dataset_reader *reader, const struct dataset_array *array)
{
    const struct data_file *file = &array->npy.file;
    struct digest sum;
    char found[DIGEST_DIGITS + 1], expected[DIGEST_DIGITS + 1];
    if (!reader->check || file->size > DATASET_SUM_MAX) return NULL;
    TRY(sum_file(file, &sum));
    if (digest_equal(&sum, &array->sum)) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s: it is not what was prepared: its SHA-256 is %s, but %s has %s",
                      file->path, digest_format(&sum, found), reader->dir->path,
                      digest_format(&array->sum, expected));
}

static status_t read_array(const struct dataset_reader *reader, int which, json_t *entry,
                           struct dataset_array *array)
{
    json_error_t error;
    const char *name, *type, *sum;
    json_t *shape;
    TRY(unpacked(reader,
                 json_unpack_ex(entry, &error, 0, "{s:s, s:s, s:o, s:s}", "file", &name, "type",
                                &type, "shape", &shape, "sha256", &sum),
                 &error));
    if (!file_name_is_plain(name, ".npy"))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: file: expected the name of an .npy file beside it, found '%s'",
                          reader->dir->path, name);
    if (strlen(sum) != DIGEST_DIGITS || !digest_parse(sum, &array->sum))
        return status_new(STATUS_INVALID_ARGUMENT, "%s: sha256: expected %d hexadecimal digits",
                          reader->dir->path, DIGEST_DIGITS);
    AUTO_FREE char *path = file_path_join(reader->directory, name);
    TRY(npy_open(reader->root, path, &array->npy));
    TRY(check_array(reader, which, &array->npy, type, shape));
    return check_sum(reader, array);
}

static int find_array(enum dataset_kind kind, const char *name)
{
    for (int a = 0; a < DATASET_ARRAYS; a++)
        if (arrays[a].kind == kind && strcmp(arrays[a].name, name) == 0) return a;
    return -1;
}

static status_t read_arrays(const struct dataset_reader *reader, json_t *object,
                            struct dataset_split *split)
{
    const char *name;
    json_t *entry;
    json_object_foreach(object, name, entry)
    {
        int which = find_array(reader->dir->kind, name);
        if (which < 0)
            return status_new(STATUS_INVALID_ARGUMENT, "%s: unknown array '%s'", reader->dir->path,
                              name);
        TRY(status_wrap(read_array(reader, which, entry, &split->arrays[which]), "%s", name));
    }
    for (int a = 0; a < DATASET_ARRAYS; a++)
        if (arrays[a].required && arrays[a].kind == reader->dir->kind &&
            split->arrays[a].npy.file.path == NULL)
            return status_new(STATUS_INVALID_ARGUMENT, "%s: there is no array '%s'",
                              reader->dir->path, arrays[a].name);
    return NULL;
}

/* ---- consistency of arrays ---- */

static status_t bad_boundary(const struct npy *documents, int64_t number, uint64_t begin,
                             uint64_t end, int64_t tokens)
{
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s: document %" PRId64 " goes from token %" PRIu64 " to %" PRIu64
                      "; expected an end after its start, at most %" PRId64
                      ", the number of tokens",
                      documents->file.path, number, begin, end, tokens);
}

static bool is_document(uint64_t begin, uint64_t end, int64_t tokens)
{
    return begin < end && end <= (uint64_t)tokens;
}

status_t dataset_document(const struct npy *documents, int64_t number, int64_t tokens,
                          int64_t *begin, int64_t *end)
{
    unsigned char bytes[16];
    TRY(npy_read(documents, number, 2, bytes));
    uint64_t from = data_file_u64(bytes), to = data_file_u64(bytes + 8);
    if (!is_document(from, to, tokens)) return bad_boundary(documents, number, from, to, tokens);
    *begin = (int64_t)from;
    *end = (int64_t)to;
    return NULL;
}

static status_t check_boundaries(const struct npy *documents, int64_t tokens)
{
    unsigned char bytes[BLOCK * 8];
    uint64_t last = 0;
    for (int64_t at = 0; at < documents->count; at += BLOCK) {
        int64_t count = documents->count - at < BLOCK ? documents->count - at : BLOCK;
        TRY(npy_read(documents, at, count, bytes));
        for (int64_t i = 0; i < count; i++) {
            uint64_t place = data_file_u64(bytes + 8 * i);
            bool first = at + i == 0;
            if (first ? place != 0 : !is_document(last, place, tokens))
                return bad_boundary(documents, at + i - !first, last, place, tokens);
            last = place;
        }
    }
    if (last == (uint64_t)tokens) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s: the last document ends at token %" PRIu64 ", but there are %" PRId64,
                      documents->file.path, last, tokens);
}

/* Whether there is an element for each token. */
static status_t check_per_token(const struct npy *array, const struct npy *tokens)
{
    if (array->file.path == NULL || array->count == tokens->count) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s has %" PRId64 " elements, but %s has %" PRId64 " tokens",
                      array->file.path, array->count, tokens->file.path, tokens->count);
}

/* Whether there is an element, or a row of them, for each document. */
static status_t check_per_document(const struct npy *array, const struct npy *documents)
{
    if (array->file.path == NULL) return NULL;
    if (documents->file.path == NULL)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s is of documents, but there is no array 'documents'",
                          array->file.path);
    if (array->dims[0] == documents->count - 1) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s has %" PRId64 " elements, but %s has %" PRId64 " documents",
                      array->file.path, array->dims[0], documents->file.path, documents->count - 1);
}

static status_t check_together(const struct dataset_reader *reader,
                               const struct dataset_split *split)
{
    const struct npy *tokens = &split->arrays[DATASET_ARRAY_TOKENS].npy,
                     *documents = &split->arrays[DATASET_ARRAY_DOCUMENTS].npy;
    TRY(check_per_token(&split->arrays[DATASET_ARRAY_MASK].npy, tokens));
    TRY(check_per_token(&split->arrays[DATASET_ARRAY_TOKEN_LABELS].npy, tokens));
    TRY(check_per_document(&split->arrays[DATASET_ARRAY_LABELS].npy, documents));
    TRY(check_per_document(&split->arrays[DATASET_ARRAY_NUMBERS].npy, documents));
    const struct npy *images = &split->arrays[DATASET_ARRAY_IMAGES].npy,
                     *targets = &split->arrays[DATASET_ARRAY_TARGETS].npy;
    if (images->file.path != NULL && images->dims[0] != targets->dims[0])
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s has %" PRId64 " images but %s has %" PRId64 " targets",
                          images->file.path, images->dims[0], targets->file.path, targets->dims[0]);
    int64_t texts = reader->dir->texts;
    if (documents->file.path == NULL && reader->dir->pairs)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: its kind is pairs, but there is no array 'documents'",
                          reader->dir->path);
    if (documents->file.path == NULL && texts > 1)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: texts is %" PRId64 ", but there is no array 'documents'",
                          reader->dir->path, texts);
    if (documents->file.path == NULL) return NULL;
    if (documents->count < 2)
        return status_new(STATUS_INVALID_ARGUMENT, "%s has no document", documents->file.path);
    if (reader->dir->pairs && (documents->count - 1) % 2 != 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s has %" PRId64 " documents, an odd number: expected pairs, each of a "
                          "chosen document and the rejected one",
                          documents->file.path, documents->count - 1);
    if ((documents->count - 1) % texts != 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s has %" PRId64
                          " documents, which is not a multiple of texts, %" PRId64,
                          documents->file.path, documents->count - 1, texts);
    return reader->check ? check_boundaries(documents, tokens->count) : NULL;
}

/* ---- the directory ---- */

static status_t read_splits(const struct dataset_reader *reader, json_t *splits)
{
    for (int s = 0; s < DATASET_SPLITS; s++) {
        json_t *object = json_object_get(splits, split_names[s]);
        struct dataset_split *split = &reader->dir->splits[s];
        if (object == NULL && s != DATASET_TRAIN) continue;
        if (!json_is_object(object))
            return status_new(STATUS_INVALID_ARGUMENT, "%s: splits: expected a mapping '%s'",
                              reader->dir->path, split_names[s]);
        TRY(read_arrays(reader, object, split));
        TRY(check_together(reader, split));
    }
    return NULL;
}

/* Reads the number that all ids or targets are below. */
static status_t read_bound(const struct dataset_reader *reader, json_t *root, const char *key,
                           int64_t *bound)
{
    json_error_t error;
    json_int_t number;
    TRY(unpacked(reader, json_unpack_ex(root, &error, 0, "{s:I}", key, &number), &error));
    if (number < 1 || number > INT32_MAX)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: %s: expected 1 to %d, found %" JSON_INTEGER_FORMAT,
                          reader->dir->path, key, INT32_MAX, number);
    *bound = number;
    return NULL;
}

static status_t read_token_keys(const struct dataset_reader *reader, json_t *root)
{
    TRY(read_bound(reader, root, "vocabulary", &reader->dir->vocabulary));
    if (json_object_get(root, "texts") != NULL)
        TRY(read_bound(reader, root, "texts", &reader->dir->texts));
    if (json_object_get(root, "classes") == NULL) return NULL;
    return read_bound(reader, root, "classes", &reader->dir->classes);
}

static status_t read_image_keys(const struct dataset_reader *reader, json_t *root)
{
    json_error_t error;
    const char *layout = NULL;
    if (json_object_get(root, "classes") != NULL) /* not of numbers */
        TRY(read_bound(reader, root, "classes", &reader->dir->classes));
    TRY(unpacked(reader, json_unpack_ex(root, &error, 0, "{s?s}", "layout", &layout), &error));
    if (layout == NULL) return NULL;
    bool first = strcmp(layout, "NCHW") == 0;
    if (!first && strcmp(layout, "NHWC") != 0)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: layout: expected NCHW or NHWC, found '%s'",
                          reader->dir->path, layout);
    reader->dir->layout = first ? DATASET_NCHW : DATASET_NHWC;
    return NULL;
}

static status_t read_root(const struct dataset_reader *reader, json_t *root)
{
    json_error_t error;
    const char *format, *kind;
    int version;
    TRY(unpacked(reader,
                 json_unpack_ex(root, &error, 0, "{s:s, s:i, s:s}", "format", &format, "version",
                                &version, "kind", &kind),
                 &error));
    if (strcmp(format, FORMAT) != 0)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: format: expected " FORMAT ", found '%s'",
                          reader->dir->path, format);
    if (version != VERSION)
        return status_new(STATUS_FAILED_PRECONDITION, "%s: version %d; this fsdpd reads version %d",
                          reader->dir->path, version, VERSION);
    reader->dir->kind = strcmp(kind, "images") == 0 ? DATASET_IMAGES : DATASET_TOKENS;
    reader->dir->pairs = strcmp(kind, "pairs") == 0;
    if (reader->dir->kind == DATASET_TOKENS && !reader->dir->pairs && strcmp(kind, "tokens") != 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: kind: expected tokens, pairs or images, found '%s'",
                          reader->dir->path, kind);
    if (reader->dir->kind == DATASET_TOKENS) TRY(read_token_keys(reader, root));
    if (reader->dir->pairs) reader->dir->texts = 2;
    else TRY(read_image_keys(reader, root));
    json_t *splits;
    TRY(unpacked(reader, json_unpack_ex(root, &error, 0, "{s:o}", "splits", &splits), &error));
    return read_splits(reader, splits);
}

static status_t read_directory(const struct dataset_reader *reader)
{
    struct buf text = {0};
    TRY(beneath_read(reader->root, reader->dir->path, JSON_MAX, &text));
    json_error_t error;
    json_t *root = json_loadb(buf_text(&text), text.length, JSON_REJECT_DUPLICATES, &error);
    buf_deinit(&text);
    if (root == NULL)
        return status_new(STATUS_INVALID_ARGUMENT, "%s:%d: %s", reader->dir->path, error.line,
                          error.text);
    status_t status = read_root(reader, root);
    json_decref(root);
    return status;
}

status_t dataset_dir_open(const char *root, const char *path, bool check, struct dataset_dir *dir)
{
    struct dataset_dir opened = {.path = file_path_join(path, "dataset.json"), .texts = 1};
    const struct dataset_reader reader = {root, path, check, &opened};
    status_t status = read_directory(&reader);
    if (status != NULL) {
        dataset_dir_close(&opened);
        return status;
    }
    *dir = opened;
    return NULL;
}

void dataset_dir_close(struct dataset_dir *dir)
{
    for (int s = 0; s < DATASET_SPLITS; s++)
        for (int a = 0; a < DATASET_ARRAYS; a++) npy_close(&dir->splits[s].arrays[a].npy);
    free(dir->path);
    *dir = (struct dataset_dir){0};
}

const struct npy *dataset_dir_array(const struct dataset_dir *dir, enum dataset_split_name split,
                                    enum dataset_array_name array)
{
    const struct npy *npy = &dir->splits[split].arrays[array].npy;
    return npy->file.path != NULL ? npy : NULL;
}
