/* Files of token ids; see token_file.h. An open file is immutable: any thread may read it. */
#include "data/token_file.h"

#include <inttypes.h>

#include "base/array.h"

enum {
    LLMC_HEADER = 256 * 4,
    BLOCK_BYTES = 1 << 16 /* read at a time; a multiple of every width */
};

/* The starts of headers of llm.c and its relatives. Width 0: the header's fourth word has it. */
static const struct llmc_kind {
    uint32_t magic, version;
    int width;
} llmc_kinds[] = {{20240520, 1, 2}, {20240801, 7, 4}, {278895051, 1, 0}};

static int64_t token_at(const unsigned char *at, int width)
{
    if (width == 1) return at[0];
    return width == 2 ? (int64_t)(at[0] | at[1] << 8) : (int64_t)data_file_u32(at);
}

static const struct llmc_kind *llmc_kind_find(uint32_t magic)
{
    for (size_t i = 0; i < COUNT_OF(llmc_kinds); i++)
        if (llmc_kinds[i].magic == magic) return &llmc_kinds[i];
    return NULL;
}

static status_t read_llmc_header(struct token_file *file)
{
    unsigned char header[16];
    if (file->data.size < LLMC_HEADER)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: cut short: the header of llm.c takes %d bytes, there are %" PRId64,
                          file->data.path, LLMC_HEADER, file->data.size);
    TRY(data_file_read(&file->data, header, sizeof header, 0));
    const struct llmc_kind *kind = llmc_kind_find(data_file_u32(header));
    if (kind == NULL)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: a file of llm.c's tokens starts with %u, %u or %u, this one with %u",
                          file->data.path, llmc_kinds[0].magic, llmc_kinds[1].magic,
                          llmc_kinds[2].magic, data_file_u32(header));
    uint32_t version = data_file_u32(header + 4);
    if (version != kind->version)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: version %u of its format (%u) is not known; expected %u",
                          file->data.path, version, kind->magic, kind->version);
    uint32_t count = data_file_u32(header + 8);
    if (count > INT32_MAX)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: its header promises %" PRId32 " tokens, more than any file can hold",
                          file->data.path, (int32_t)count);
    uint32_t width = kind->width > 0 ? (uint32_t)kind->width : data_file_u32(header + 12);
    if (width != 2 && width != 4)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: its header promises tokens of %u bytes; expected 2 or 4",
                          file->data.path, width);
    int64_t expected = LLMC_HEADER + (int64_t)count * width;
    if (file->data.size != expected)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: %s: its header promises %u tokens of %u bytes, which make a file of "
                          "%" PRId64 " bytes; it has %" PRId64,
                          file->data.path, file->data.size < expected ? "cut short" : "too long",
                          count, width, expected, file->data.size);
    file->width = (int)width;
    file->first_byte = LLMC_HEADER;
    file->count = count;
    return NULL;
}

status_t token_file_from_npy(const struct npy *npy, struct token_file *file)
{
    if (npy->dim_count != 1 ||
        (npy->type != NPY_U8 && npy->type != NPY_U16 && npy->type != NPY_U32)) {
        char shape[96];
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: an array %s of %s; expected tokens, one dimension of uint16 or "
                          "uint32",
                          npy->file.path, npy_format_shape(npy->dim_count, npy->dims, shape),
                          npy_type_name(npy->type));
    }
    *file = (struct token_file){.data = npy->file,
                                .first_byte = npy->first_byte,
                                .count = npy->count,
                                .width = npy_type_width(npy->type)};
    return NULL;
}

static status_t find_tokens(const char *root, struct token_file *file, enum token_encoding encoding)
{
    unsigned char magic[4];
    struct megatron megatron;
    bool indexed = false, llmc = encoding == TOKENS_LLMC, npy = encoding == TOKENS_NPY;
    if (encoding == TOKENS_AUTO) TRY(npy_is(&file->data, &npy));
    if (encoding == TOKENS_AUTO && !npy && file->data.size >= (int64_t)sizeof magic) {
        TRY(data_file_read(&file->data, magic, sizeof magic, 0));
        llmc = llmc_kind_find(data_file_u32(magic)) != NULL;
    }
    if (encoding == TOKENS_AUTO && !npy && !llmc)
        TRY(megatron_find(root, &file->data, &indexed, &megatron));
    if (indexed) {
        file->width = megatron.width;
        file->count = megatron.count;
    } else if (npy) {
        struct npy array;
        TRY(npy_parse(&file->data, &array));
        TRY(token_file_from_npy(&array, file));
    } else if (llmc) {
        TRY(read_llmc_header(file));
    } else {
        file->width = encoding == TOKENS_BYTES ? 1 : encoding == TOKENS_UINT32 ? 4 : 2;
        if (file->data.size % file->width != 0)
            return status_new(STATUS_INVALID_ARGUMENT,
                              "%s: %" PRId64
                              " bytes are not a whole number of tokens of %d bytes%s",
                              file->data.path, file->data.size, file->width,
                              encoding == TOKENS_AUTO
                                  ? " (a text needs data.format: text; llm.c's files have a header)"
                                  : "");
        file->count = file->data.size / file->width;
        file->guessed = encoding == TOKENS_AUTO;
    }
    if (file->count > 0) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "%s has no tokens", file->data.path);
}

status_t token_file_open(const char *root, const char *path, enum token_encoding encoding,
                         struct token_file *file)
{
    struct token_file opened = {0};
    TRY(data_file_open(root, path, &opened.data));
    status_t status = find_tokens(root, &opened, encoding);
    if (status != NULL) {
        token_file_close(&opened);
        return status;
    }
    *file = opened;
    return NULL;
}

void token_file_close(struct token_file *file)
{
    data_file_close(&file->data);
    *file = (struct token_file){0};
}

static status_t too_large(const struct token_file *file, int64_t place, int64_t id,
                          int64_t vocabulary)
{
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s: token %" PRId64 " (byte %" PRId64 ") is %" PRId64
                      ", but the model's vocabulary has the ids 0 to %" PRId64 "%s",
                      file->data.path, place, file->first_byte + place * file->width, id,
                      vocabulary - 1,
                      file->guessed ? "; nothing says that its tokens are uint16: if they are "
                                      "not, set data.encoding"
                                    : "");
}

/* With `ids` NULL only checks them. */
static status_t read_ids(const struct token_file *file, int64_t first, int64_t count,
                         int64_t vocabulary, int32_t *ids)
{
    unsigned char bytes[BLOCK_BYTES];
    int width = file->width;
    int64_t most = BLOCK_BYTES / width;
    for (int64_t done = 0; done < count; done += most) {
        int64_t now = count - done < most ? count - done : most;
        int64_t offset = file->first_byte + (first + done) * width;
        TRY(data_file_read(&file->data, bytes, (size_t)(now * width), offset));
        for (int64_t i = 0; i < now; i++) {
            int64_t id = token_at(bytes + i * width, width);
            if (id >= vocabulary) return too_large(file, first + done + i, id, vocabulary);
            if (ids != NULL) ids[done + i] = (int32_t)id;
        }
    }
    return data_file_check_unchanged(&file->data);
}

/* As small uint32 are that are read as uint16, little-endian. */
static bool every_second_is_zero(const int32_t *ids, int64_t count)
{
    int32_t first = 0, second = 0;
    for (int64_t i = 0; i + 1 < count; i += 2) {
        first |= ids[i];
        second |= ids[i + 1];
    }
    return first != 0 && second == 0;
}

status_t token_file_check_start(const struct token_file *file, int64_t vocabulary)
{
    enum { LEAST = 32, MOST = 1 << 12, UINT16_IDS = UINT16_MAX + 1 };
    int64_t count = file->count < MOST ? file->count : MOST;
    if (!file->guessed) return token_file_check(file, 0, count, vocabulary);
    if (vocabulary > UINT16_IDS)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: nothing says what type its tokens have, and the model's vocabulary "
                          "has %" PRId64 " ids, more than uint16 can hold: set data.encoding: "
                          "uint32, or uint16 if none is above %d",
                          file->data.path, vocabulary, UINT16_MAX);
    int32_t ids[MOST];
    TRY(token_file_read(file, 0, count, UINT16_IDS, ids));
    if (count >= LEAST && every_second_is_zero(ids, count))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: every second of its first %" PRId64 " tokens is 0, as in uint32 "
                          "that are read as uint16: set data.encoding: uint32, or uint16 if they "
                          "are right",
                          file->data.path, count);
    return token_file_check(file, 0, count, vocabulary);
}

status_t token_file_check(const struct token_file *file, int64_t first, int64_t count,
                          int64_t vocabulary)
{
    if (file->width < 4 && vocabulary >= (int64_t)1 << 8 * file->width) return NULL;
    return read_ids(file, first, count, vocabulary, NULL);
}

status_t token_file_read(const struct token_file *file, int64_t first, int64_t count,
                         int64_t vocabulary, int32_t *ids)
{
    return read_ids(file, first, count, vocabulary, ids);
}
