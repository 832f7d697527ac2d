/* .npy files; see npy.h. */
#include "data/npy.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PREFIX = 8, HEADER_MAX = 4096 };
static const char magic[6] = "\x93NUMPY";

static const struct {
    const char *name, *descr;
    int width;
} types[NPY_TYPES] = {
    [NPY_U8] = {"uint8", "|u1", 1},    [NPY_U16] = {"uint16", "<u2", 2},
    [NPY_U32] = {"uint32", "<u4", 4},  [NPY_U64] = {"uint64", "<u8", 8},
    [NPY_I32] = {"int32", "<i4", 4},   [NPY_I64] = {"int64", "<i8", 8},
    [NPY_F32] = {"float32", "<f4", 4},
};

const char *npy_type_name(enum npy_type type)
{
    return types[type].name;
}

int npy_type_width(enum npy_type type)
{
    return types[type].width;
}

char *npy_format_shape(int dim_count, const int64_t *dims, char text[static 96])
{
    int length = 0;
    for (int d = 0; d < dim_count; d++)
        length +=
            snprintf(text + length, 96 - (size_t)length, "%s%" PRId64, d > 0 ? ", " : "(", dims[d]);
    snprintf(text + length, 96 - (size_t)length, dim_count == 1 ? ",)" : ")");
    return text;
}

/* ---- the header's dictionary ---- */

struct header {
    const char *path, *at;
    bool has_descr, has_order, has_shape;
};

static status_t malformed(const struct header *header, const char *expected)
{
    return status_new(STATUS_INVALID_ARGUMENT, "%s: the header of its array: expected %s",
                      header->path, expected);
}

static void skip_spaces(struct header *header)
{
    while (*header->at == ' ' || *header->at == '\n') header->at++;
}

static bool accept(struct header *header, char c)
{
    skip_spaces(header);
    if (*header->at != c) return false;
    header->at++;
    return true;
}

/* Accepts text without escapes; valid keys and types contain none. */
static bool accept_text(struct header *header, char text[static 32])
{
    skip_spaces(header);
    char quote = *header->at;
    if (quote != '\'' && quote != '"') return false;
    const char *end = strchr(header->at + 1, quote);
    if (end == NULL || end - header->at > 31) return false;
    size_t length = (size_t)(end - header->at - 1);
    memcpy(text, header->at + 1, length);
    text[length] = '\0';
    header->at = end + 1;
    return true;
}

static status_t read_descr(struct header *header, struct npy *npy)
{
    char descr[32];
    if (!accept_text(header, descr)) return malformed(header, "the text of one plain type");
    bool is_byte = strcmp(descr, "|b1") == 0 || strcmp(descr, "<u1") == 0;
    for (int t = 0; t < NPY_TYPES; t++) {
        if (strcmp(descr, is_byte ? "|u1" : types[t].descr) != 0 && !(is_byte && t == NPY_U8))
            continue;
        npy->type = (enum npy_type)t;
        return NULL;
    }
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s: elements of type '%s'; expected little-endian uint8, uint16, uint32, "
                      "uint64, int32, int64, float32 or bool",
                      header->path, descr);
}

static status_t read_order(struct header *header)
{
    skip_spaces(header);
    if (strncmp(header->at, "False", 5) == 0) {
        header->at += 5;
        return NULL;
    }
    if (strncmp(header->at, "True", 4) != 0) return malformed(header, "True or False");
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s: an array in Fortran order; expected C order (numpy.ascontiguousarray)",
                      header->path);
}

static status_t read_size(struct header *header, struct npy *npy)
{
    char *end;
    skip_spaces(header);
    if (*header->at < '0' || *header->at > '9') return malformed(header, "a tuple of sizes");
    unsigned long long size = strtoull(header->at, &end, 10);
    header->at = end;
    if (npy->dim_count == NPY_DIMS_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: an array of more than %d dimensions",
                          header->path, NPY_DIMS_MAX);
    if (size == 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: dimension %d of its array is 0: it is empty", header->path,
                          npy->dim_count);
    if (size > INT64_MAX / 8 / (unsigned long long)npy->count)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: its header promises more elements than any file has", header->path);
    npy->count *= (int64_t)size;
    npy->dims[npy->dim_count++] = (int64_t)size;
    return NULL;
}

static status_t read_shape(struct header *header, struct npy *npy)
{
    if (!accept(header, '(')) return malformed(header, "a tuple of sizes");
    npy->dim_count = 0;
    npy->count = 1;
    while (!accept(header, ')')) {
        TRY(read_size(header, npy));
        if (accept(header, ',')) continue;
        if (npy->dim_count == 1 || !accept(header, ')'))
            return malformed(header, "a tuple of sizes");
        break;
    }
    if (npy->dim_count == 0)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: a single number; expected an array",
                          header->path);
    return NULL;
}

static status_t read_entry(struct header *header, struct npy *npy)
{
    char key[32];
    if (!accept_text(header, key) || !accept(header, ':')) return malformed(header, "a dictionary");
    bool *has = strcmp(key, "descr") == 0           ? &header->has_descr
                : strcmp(key, "fortran_order") == 0 ? &header->has_order
                : strcmp(key, "shape") == 0         ? &header->has_shape
                                                    : NULL;
    if (has == NULL || *has) return malformed(header, "descr, fortran_order and shape, each once");
    *has = true;
    if (has == &header->has_descr) return read_descr(header, npy);
    return has == &header->has_order ? read_order(header) : read_shape(header, npy);
}

static status_t read_dictionary(struct header *header, struct npy *npy)
{
    if (!accept(header, '{')) return malformed(header, "a dictionary");
    while (!accept(header, '}')) {
        TRY(read_entry(header, npy));
        if (accept(header, ',')) continue;
        if (!accept(header, '}')) return malformed(header, "a dictionary");
        break;
    }
    if (!header->has_descr || !header->has_order || !header->has_shape)
        return malformed(header, "descr, fortran_order and shape, each once");
    skip_spaces(header);
    return *header->at == '\0' ? NULL : malformed(header, "nothing after its dictionary");
}

/* ---- the file ---- */

status_t npy_is(const struct data_file *file, bool *is)
{
    char found[sizeof magic];
    *is = false;
    if (file->size < (int64_t)sizeof found) return NULL;
    TRY(data_file_read(file, found, sizeof found, 0));
    *is = memcmp(found, magic, sizeof magic) == 0;
    return NULL;
}

/* Reads the place and length of the header's dictionary. */
static status_t read_prefix(const struct data_file *file, int64_t *first, uint32_t *length)
{
    unsigned char prefix[PREFIX + 4];
    if (file->size < (int64_t)sizeof prefix)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: cut short: no header of an .npy file",
                          file->path);
    TRY(data_file_read(file, prefix, sizeof prefix, 0));
    if (memcmp(prefix, magic, sizeof magic) != 0)
        return status_new(STATUS_INVALID_ARGUMENT, "%s is not an .npy file: its first bytes differ",
                          file->path);
    if (prefix[6] < 1 || prefix[6] > 3)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: version %d of the .npy format; expected 1 to 3", file->path,
                          prefix[6]);
    bool two = prefix[6] == 1;
    *length =
        two ? prefix[PREFIX] | (uint32_t)prefix[PREFIX + 1] << 8 : data_file_u32(prefix + PREFIX);
    *first = PREFIX + (two ? 2 : 4);
    if (*length > HEADER_MAX)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: a header of %u bytes; at most %d are possible", file->path, *length,
                          HEADER_MAX);
    if (file->size < *first + *length)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: cut short: its header takes %" PRId64 " bytes, there are %" PRId64,
                          file->path, *first + *length, file->size);
    return NULL;
}

static status_t check_size(const struct npy *npy)
{
    int width = npy_type_width(npy->type);
    int64_t expected = npy->first_byte + npy->count * width;
    char shape[96];
    if (npy->file.size == expected) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s: %s: its header promises %s of %s, which make a file of %" PRId64
                      " bytes; it has %" PRId64,
                      npy->file.path, npy->file.size < expected ? "cut short" : "too long",
                      npy_format_shape(npy->dim_count, npy->dims, shape), npy_type_name(npy->type),
                      expected, npy->file.size);
}

status_t npy_parse(const struct data_file *file, struct npy *out)
{
    int64_t first = 0;
    uint32_t length = 0;
    TRY(read_prefix(file, &first, &length));
    char text[HEADER_MAX + 1];
    TRY(data_file_read(file, text, length, first));
    text[length] = '\0';
    struct header header = {.path = file->path, .at = text};
    struct npy npy = {.file = *file, .first_byte = first + length};
    if (strlen(text) != length) return malformed(&header, "a dictionary");
    TRY(read_dictionary(&header, &npy));
    TRY(check_size(&npy));
    *out = npy;
    return NULL;
}

status_t npy_open(const char *root, const char *path, struct npy *npy)
{
    struct data_file file = {0};
    TRY(data_file_open(root, path, &file));
    status_t status = npy_parse(&file, npy);
    if (status != NULL) data_file_close(&file);
    return status;
}

void npy_close(struct npy *npy)
{
    data_file_close(&npy->file);
    *npy = (struct npy){0};
}

status_t npy_read(const struct npy *npy, int64_t first, int64_t count, void *bytes)
{
    int width = npy_type_width(npy->type);
    TRY(data_file_read(&npy->file, bytes, (size_t)(count * width),
                       npy->first_byte + first * width));
    return data_file_check_unchanged(&npy->file);
}

int64_t npy_integer(enum npy_type type, const unsigned char *bytes)
{
    switch (type) {
    case NPY_U8: return bytes[0];
    case NPY_U16: return bytes[0] | bytes[1] << 8;
    case NPY_U32: return data_file_u32(bytes);
    case NPY_I32: return (int32_t)data_file_u32(bytes);
    case NPY_U64:
    case NPY_I64: return (int64_t)data_file_u64(bytes);
    case NPY_F32: break;
    }
    return -1; /* not integers */
}
