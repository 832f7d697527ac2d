/* Megatron's index; see token_file.h. As Megatron-LM's indexed_dataset.py writes it. */
#include "data/token_file.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/mem.h"

/* Magic, version (8 bytes), type (1), numbers of sequences and of document borders (8 each). */
enum { MAGIC = 9, HEADER = MAGIC + 8 + 1 + 8 + 8, BLOCK = 1 << 12 };
static const char magic[MAGIC] = "MMIDIDX\0";

/* Its numbers of types: uint8, int32, uint16. */
static const struct {
    int code, width;
} types[] = {{1, 1}, {4, 4}, {8, 2}};

struct megatron_header {
    int width;
    int64_t sequences, borders;
};

static status_t read_header(const struct data_file *index, struct megatron_header *header)
{
    unsigned char bytes[HEADER];
    if (index->size < HEADER)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: cut short: the header of Megatron's index takes %d bytes, there are "
                          "%" PRId64,
                          index->path, HEADER, index->size);
    TRY(data_file_read(index, bytes, sizeof bytes, 0));
    if (memcmp(bytes, magic, MAGIC) != 0)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: not an index of Megatron", index->path);
    uint64_t version = data_file_u64(bytes + MAGIC), sequences = data_file_u64(bytes + MAGIC + 9),
             borders = data_file_u64(bytes + MAGIC + 17);
    if (version != 1)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: version %" PRIu64 " of Megatron's index; expected 1", index->path,
                          version);
    header->width = 0;
    for (size_t i = 0; i < COUNT_OF(types); i++)
        if (types[i].code == bytes[MAGIC + 8]) header->width = types[i].width;
    if (header->width == 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: tokens of type %d; expected 1 (uint8), 4 (int32) or 8 (uint16)",
                          index->path, bytes[MAGIC + 8]);
    uint64_t most = (uint64_t)index->size / 8; /* keeps the sum below from overflowing */
    if (sequences > most || borders > most ||
        HEADER + 12 * sequences + 8 * borders != (uint64_t)index->size)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: its header promises %" PRIu64 " sequences and %" PRIu64
                          " document borders, which do not make a file of %" PRId64 " bytes",
                          index->path, sequences, borders, index->size);
    header->sequences = (int64_t)sequences;
    header->borders = (int64_t)borders;
    return NULL;
}

/* Sequences follow each other from byte 0 on; *end is where the last one ends. */
static status_t check_sequences(const struct data_file *index, const struct megatron_header *header,
                                int64_t bytes, int64_t *end)
{
    unsigned char lengths[4 * BLOCK], places[8 * BLOCK];
    *end = 0;
    for (int64_t at = 0; at < header->sequences; at += BLOCK) {
        int64_t now = header->sequences - at < BLOCK ? header->sequences - at : BLOCK;
        TRY(data_file_read(index, lengths, (size_t)now * 4, HEADER + at * 4));
        TRY(data_file_read(index, places, (size_t)now * 8,
                           HEADER + header->sequences * 4 + at * 8));
        for (int64_t i = 0; i < now; i++) {
            uint64_t place = data_file_u64(places + i * 8);
            int64_t length = (int32_t)data_file_u32(lengths + i * 4);
            if (place != (uint64_t)*end)
                return status_new(STATUS_INVALID_ARGUMENT,
                                  "%s: sequence %" PRId64 " begins at byte %" PRIu64
                                  "; expected %" PRId64 ", behind the one before",
                                  index->path, at + i, place, *end);
            if (length < 0 || length > (bytes - *end) / header->width)
                return status_new(STATUS_INVALID_ARGUMENT,
                                  "%s: sequence %" PRId64 " has %" PRId64
                                  " tokens; expected 0 to %" PRId64 ", which there are from here",
                                  index->path, at + i, length, (bytes - *end) / header->width);
            *end += length * header->width;
        }
    }
    return NULL;
}

static status_t check_borders(const struct data_file *index, const struct megatron_header *header)
{
    unsigned char borders[8 * BLOCK];
    uint64_t last = 0;
    for (int64_t at = 0; at < header->borders; at += BLOCK) {
        int64_t now = header->borders - at < BLOCK ? header->borders - at : BLOCK;
        TRY(data_file_read(index, borders, (size_t)now * 8,
                           HEADER + header->sequences * 12 + at * 8));
        for (int64_t i = 0; i < now; i++) {
            uint64_t border = data_file_u64(borders + i * 8);
            if (border < last || border > (uint64_t)header->sequences)
                return status_new(STATUS_INVALID_ARGUMENT,
                                  "%s: document border %" PRId64 " is sequence %" PRIu64
                                  "; expected %" PRIu64 " to %" PRId64,
                                  index->path, at + i, border, last, header->sequences);
            last = border;
        }
    }
    return NULL;
}

status_t megatron_parse(const struct data_file *index, int64_t bytes, struct megatron *megatron)
{
    struct megatron_header header;
    int64_t end = 0;
    TRY(read_header(index, &header));
    TRY(check_sequences(index, &header, bytes, &end));
    TRY(check_borders(index, &header));
    if (end != bytes)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: its sequences take %" PRId64
                          " bytes of tokens, but there are %" PRId64,
                          index->path, end, bytes);
    *megatron = (struct megatron){.width = header.width, .count = end / header.width};
    return data_file_check_unchanged(index);
}

/* NAME.idx of NAME.bin; NULL for another name. The caller frees it. */
static char *index_path(const char *path)
{
    size_t length = strlen(path);
    if (length < 4 || strcmp(path + length - 4, ".bin") != 0) return NULL;
    return mem_printf("%.*s.idx", (int)(length - 4), path);
}

static status_t parse_if_index(const struct data_file *index, int64_t bytes, bool *found,
                               struct megatron *megatron)
{
    char start[MAGIC] = "";
    if (index->size >= MAGIC) TRY(data_file_read(index, start, sizeof start, 0));
    *found = memcmp(start, magic, MAGIC) == 0;
    return *found ? megatron_parse(index, bytes, megatron) : NULL;
}

status_t megatron_find(const char *root, const struct data_file *tokens, bool *found,
                       struct megatron *megatron)
{
    *found = false;
    AUTO_FREE char *path = index_path(tokens->path);
    if (path == NULL || access(path, F_OK) != 0) return NULL;
    AUTO(data_file_close) struct data_file index = {0};
    TRY(data_file_open(root, path, &index));
    return parse_if_index(&index, tokens->size, found, megatron);
}
