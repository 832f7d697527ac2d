/* Rewrites a state_dict into files; see rewrite.h. */
#include "rewrite.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "hf/index.h"
#include "hf/peft.h"

enum { HEADER_MAX = 100000008 };

/* A tensor in the stream. */
struct item {
    const char *name; /* in the files; NULL: left out */
    uint64_t bytes;   /* in the stream */
    bool count;       /* a 64-bit integer, which has no bf16 */
    int file;         /* from 0 */
    int entry;        /* in the header */
    char *made;       /* the name, if it is this item's own */
    int merged;       /* of an adapter's last matrix: the item that it is added to; else -1 */
    bool held;        /* written only when such a matrix has arrived, or if it is flipped */
    bool flipped;     /* the file has the transpose */
};

struct rewrite {
    const struct rewrite_options *options;
    const struct rewrite_sink *sink;
    uint64_t total, received, step;
    struct buf start; /* the first bytes of the stream, until the header is complete */
    uint64_t needed;  /* bytes of it required before the next attempt to read the header */
    struct safetensors_header header;
    struct item *items; /* in stream order; NULL before the header is read */
    int item_count, file_count;
    int open_file;                     /* from 0; -1: none */
    int item;                          /* the one that arrives now */
    uint64_t done;                     /* bytes of it received */
    unsigned char rest[sizeof(float)]; /* of an element split between two pieces */
    size_t rest_size;
    struct buf out;
    struct buf held; /* bytes of items that are held, one after the other */
};

struct rewrite *rewrite_new(const struct rewrite_options *options, const struct rewrite_sink *sink)
{
    struct rewrite *rewrite = mem_alloc(sizeof *rewrite);
    rewrite->options = options;
    rewrite->sink = sink;
    rewrite->open_file = -1;
    return rewrite;
}

void rewrite_free(struct rewrite *rewrite)
{
    if (rewrite == NULL) return;
    safetensors_header_deinit(&rewrite->header);
    buf_deinit(&rewrite->start);
    buf_deinit(&rewrite->out);
    buf_deinit(&rewrite->held);
    for (int i = 0; i < rewrite->item_count; i++) free(rewrite->items[i].made);
    free(rewrite->items);
    free(rewrite);
}

static uint64_t bytes_in_file(const struct rewrite *rewrite, const struct item *item)
{
    return rewrite->options->bf16 && !item->count ? item->bytes / 2 : item->bytes;
}

/* Files are filled in stream order; a tensor is never split. */
static void assign_files(struct rewrite *rewrite)
{
    uint64_t limit = rewrite->options->max_shard_bytes, filled = 0;
    int file = 0;
    for (int i = 0; i < rewrite->item_count; i++) {
        struct item *item = &rewrite->items[i];
        uint64_t bytes = bytes_in_file(rewrite, item);
        if (item->name == NULL) continue;
        if (limit > 0 && filled > 0 && bytes > limit - (filled < limit ? filled : limit)) {
            file++;
            filled = 0;
        }
        item->file = file;
        filled += bytes;
    }
    rewrite->file_count = file + 1 + (rewrite->options->more_count > 0);
}

/* Whether peft saves the module's own matrix, too: of these, if they have an adapter. The caller
 * frees what it is called then. */
static char *name_own(const struct rewrite *rewrite, const struct item *item)
{
    static const char *const saved[] = {"embed_tokens", "lm_head"};
    const char *name = rewrite->header.entries[item->entry].name;
    const char *end = strrchr(name, '.');
    size_t length = end != NULL ? (size_t)(end - name) : 0;
    bool known = false, adapted = false;
    for (size_t i = 0; i < COUNT_OF(saved); i++) {
        size_t size = strlen(saved[i]);
        known |= length >= size && memcmp(end - size, saved[i], size) == 0 &&
                 (length == size || end[-(ptrdiff_t)size - 1] == '.');
    }
    for (int i = 0; known && i < rewrite->header.count; i++) {
        struct peft_matrix matrix;
        const char *other = rewrite->header.entries[i].name;
        adapted |= peft_find_matrix(other, &matrix) && matrix.module == length &&
                   memcmp(other, name, length) == 0;
    }
    if (!adapted || item->name == NULL) return NULL;
    return mem_printf("%s%.*s%s%s", PEFT_PREFIX, (int)length, name, PEFT_OWN, end);
}

/* Only an adapter's tensors, under peft's names. */
static void name_adapter(struct rewrite *rewrite, struct item *item)
{
    const struct safetensors_entry *entry = &rewrite->header.entries[item->entry];
    struct peft_matrix matrix;
    if (item->name != NULL && adapter_has(rewrite->options->adapted->lora, entry->name))
        item->made = mem_printf("%s%s", PEFT_PREFIX, item->name);
    else item->made = name_own(rewrite, item);
    item->name = item->made;
    item->held = item->flipped = entry->dim_count == 2 && peft_find_matrix(entry->name, &matrix) &&
                                 matrix.embedding && matrix.place == 0;
}

/* A matrix that another module has, too, as a head is tied to an embedding: with the adapter of one
 * of them added they would be two. The files leave one of the names out. */
static status_t refuse_tied(const struct rewrite *rewrite, int at)
{
    const struct safetensors_entry *own = &rewrite->header.entries[at];
    for (int i = 0; i < rewrite->item_count; i++) {
        const struct safetensors_entry *other = &rewrite->header.entries[i];
        bool left_out = rewrite->items[i].name == NULL || rewrite->items[at].name == NULL;
        struct peft_matrix matrix;
        if (i == at || !left_out || other->dim_count != 2 ||
            memcmp(other->dims, own->dims, 2 * sizeof *own->dims) != 0 ||
            peft_find_matrix(other->name, &matrix))
            continue;
        return status_new(STATUS_FAILED_PRECONDITION,
                          "%s and %s share their memory, and only one of them has an adapter: "
                          "--merge would need both; --format peft has the adapter",
                          own->name, other->name);
    }
    return NULL;
}

/* The tensors of a module with an adapter follow each other: its own, the first matrix, the
 * second. */
static status_t plan_merge(struct rewrite *rewrite, int last, const struct peft_matrix *second)
{
    const struct safetensors_entry *entries = rewrite->header.entries;
    const char *name = entries[last].name;
    int at = last;
    AUTO_FREE char *weight = mem_printf("%.*s.weight", (int)second->module, name);
    struct peft_matrix first = {.place = -1};
    while (at > 0 && strcmp(entries[at].name, weight) != 0) at--;
    if (last > 0) peft_find_matrix(entries[last - 1].name, &first);
    const int64_t *w = entries[at].dims, *b = entries[last].dims;
    const int64_t *a = entries[last > 0 ? last - 1 : 0].dims;
    int64_t rank = a[second->embedding], inputs = a[!second->embedding];
    bool there = last - at >= 2 && strcmp(entries[at].name, weight) == 0 && first.place == 0 &&
                 first.embedding == second->embedding && first.module == second->module &&
                 strncmp(entries[last - 1].name, name, first.module) == 0 &&
                 entries[at].dim_count == 2 && entries[last - 1].dim_count == 2 &&
                 entries[last].dim_count == 2 && rank == b[1] &&
                 ((w[0] == b[0] && w[1] == inputs) || (w[0] == inputs && w[1] == b[0]));
    if (!there)
        return status_new(STATUS_DATA_LOSS, "%s has no matrix before it that it belongs to", name);
    TRY(refuse_tied(rewrite, at));
    for (int i = at; i <= last; i++) rewrite->items[i].held = true;
    rewrite->items[last].merged = at;
    rewrite->items[last].name = rewrite->items[last - 1].name = NULL;
    return NULL;
}

static status_t plan_adapters(struct rewrite *rewrite)
{
    if (rewrite->options->adapted == NULL) return NULL;
    for (int i = 0; i < rewrite->item_count; i++) {
        struct peft_matrix matrix;
        if (!rewrite->options->merge) name_adapter(rewrite, &rewrite->items[i]);
        else if (peft_find_matrix(rewrite->header.entries[i].name, &matrix) && matrix.place == 1)
            TRY(plan_merge(rewrite, i, &matrix));
    }
    return NULL;
}

static status_t plan_files(struct rewrite *rewrite)
{
    const struct rewrite_options *options = rewrite->options;
    const struct safetensors_header *header = &rewrite->header;
    rewrite->items = mem_alloc_array((size_t)header->count + 1, sizeof *rewrite->items);
    for (int i = 0; i < header->count; i++) {
        const struct safetensors_entry *entry = &header->entries[i];
        bool count = strcmp(entry->dtype, "I64") == 0;
        if (!count && strcmp(entry->dtype, "F32") != 0)
            return status_new(STATUS_DATA_LOSS, "expected tensors of the type F32 or I64, found %s",
                              entry->dtype);
        rewrite->items[rewrite->item_count++] =
            (struct item){.name = options->family != NULL
                                      ? hf_export_name(options->family, entry->name)
                                      : entry->name,
                          .bytes = entry->end - entry->begin,
                          .count = count,
                          .entry = i,
                          .merged = -1};
    }
    TRY(plan_adapters(rewrite));
    assign_files(rewrite);
    return NULL;
}

static status_t write_header(struct rewrite *rewrite, int file)
{
    AUTO_FREE struct safetensors_entry *entries =
        mem_alloc_array((size_t)rewrite->item_count + 1, sizeof *entries);
    static const struct safetensors_metadata metadata[] = {{"format", "pt"}};
    char dtype[] = "BF16";
    if (!rewrite->options->bf16) strcpy(dtype, "F32");
    int count = 0;
    for (int i = 0; i < rewrite->item_count; i++) {
        const struct item *item = &rewrite->items[i];
        if (item->name == NULL || item->file != file) continue;
        entries[count] = rewrite->header.entries[item->entry];
        entries[count].name = (char *)item->name;
        if (!item->count) entries[count].dtype = dtype;
        const int64_t *dims = rewrite->header.entries[item->entry].dims;
        for (int d = 0; item->flipped && d < 2; d++) entries[count].dims[d] = dims[1 - d];
        count++;
    }
    buf_clear(&rewrite->out);
    safetensors_write_header(&rewrite->out, entries, count, metadata, 1);
    return rewrite->sink->write(rewrite->sink->user, rewrite->out.data, rewrite->out.length);
}

static status_t need_file(struct rewrite *rewrite, int file)
{
    if (rewrite->open_file == file) return NULL;
    if (rewrite->open_file >= 0) TRY(rewrite->sink->end(rewrite->sink->user));
    rewrite->open_file = file;
    TRY(rewrite->sink->begin(rewrite->sink->user, file + 1, rewrite->file_count));
    return write_header(rewrite, file);
}

static void add_bf16(struct buf *out, const unsigned char *bytes)
{
    uint32_t bits;
    memcpy(&bits, bytes, sizeof bits);
    uint16_t half;
    if ((bits & 0x7fffffff) > 0x7f800000) half = (uint16_t)(bits >> 16 | 0x40); /* a quiet NaN */
    else half = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    buf_add(out, &half, sizeof half);
}

/* Writes bytes of one tensor. */
static status_t write_values(struct rewrite *rewrite, const struct item *item,
                             const unsigned char *bytes, size_t size)
{
    const struct rewrite_sink *sink = rewrite->sink;
    if (!rewrite->options->bf16 || item->count) return sink->write(sink->user, bytes, size);
    buf_clear(&rewrite->out);
    while (size > 0 && (rewrite->rest_size > 0 || size < sizeof rewrite->rest)) {
        rewrite->rest[rewrite->rest_size++] = *bytes++;
        size--;
        if (rewrite->rest_size < sizeof rewrite->rest) continue;
        add_bf16(&rewrite->out, rewrite->rest);
        rewrite->rest_size = 0;
        break;
    }
    for (; size >= sizeof(float); bytes += sizeof(float), size -= sizeof(float))
        add_bf16(&rewrite->out, bytes);
    while (size > 0) {
        rewrite->rest[rewrite->rest_size++] = *bytes++;
        size--;
    }
    if (rewrite->out.length == 0) return NULL;
    return sink->write(sink->user, rewrite->out.data, rewrite->out.length);
}

/* Writes a matrix, which was held, as its transpose. */
static status_t write_flipped(struct rewrite *rewrite, const struct item *item)
{
    const int64_t *dims = rewrite->header.entries[item->entry].dims;
    const float *from = (const float *)(const void *)rewrite->held.data;
    AUTO_FREE float *to = mem_alloc_array((size_t)item->bytes / sizeof *to + 1, sizeof *to);
    for (int64_t r = 0; r < dims[0]; r++)
        for (int64_t c = 0; c < dims[1]; c++) to[c * dims[0] + r] = from[r * dims[1] + c];
    buf_clear(&rewrite->held);
    TRY(need_file(rewrite, item->file));
    return write_values(rewrite, item, (const unsigned char *)to, item->bytes);
}

/* Adds the product of an adapter to its module's matrix w: scale * b * a. */
static void add_product(const struct rewrite *rewrite, int last, float *w, const float *a,
                        const float *b)
{
    const Fsdpd__V1__ModelSpec *model = rewrite->options->adapted;
    const struct safetensors_entry *entries = rewrite->header.entries;
    const int64_t *shape = entries[rewrite->items[last].merged].dims;
    int64_t rank = entries[last].dims[1], rows = entries[last].dims[0];
    const char *name = entries[last].name;
    struct peft_matrix second = {0};
    peft_find_matrix(name, &second);
    int64_t columns = entries[last - 1].dims[!second.embedding];
    int64_t next = second.embedding ? rank : 1; /* from a column of a to the next */
    int64_t row_of_a = second.embedding ? 1 : columns;
    bool transposed =
        rows != columns ? shape[0] != rows : second.embedding || adapter_transposed(model);
    AUTO_FREE char *module = mem_strndup(name, second.module);
    double scale = adapter_scale(model->lora, module, rank);
    AUTO_FREE double *row = mem_alloc_array((size_t)columns + 1, sizeof *row);
    for (int64_t o = 0; o < rows; o++) {
        memset(row, 0, (size_t)columns * sizeof *row);
        for (int64_t k = 0; k < rank; k++)
            for (int64_t i = 0; i < columns; i++)
                row[i] += (double)b[o * rank + k] * (double)a[k * row_of_a + i * next];
        for (int64_t i = 0; i < columns; i++) {
            float *to = &w[transposed ? i * rows + o : o * columns + i];
            *to = (float)((double)*to + scale * row[i]);
        }
    }
}

/* Writes what was held of a module, whose adapter is complete. */
static status_t write_merged(struct rewrite *rewrite, int last)
{
    unsigned char *at = (unsigned char *)rewrite->held.data, *w = at;
    unsigned char *b = at + rewrite->held.length - rewrite->items[last].bytes;
    unsigned char *a = b - rewrite->items[last - 1].bytes;
    add_product(rewrite, last, (float *)(void *)w, (float *)(void *)a, (float *)(void *)b);
    for (int i = rewrite->items[last].merged; i < last - 1; i++) {
        const struct item *item = &rewrite->items[i];
        if (item->name != NULL) TRY(need_file(rewrite, item->file));
        if (item->name != NULL) TRY(write_values(rewrite, item, at, item->bytes));
        at += item->bytes;
    }
    buf_clear(&rewrite->held);
    return NULL;
}

/* Takes a part of the item that arrives now. */
static status_t add_part(struct rewrite *rewrite, const struct item *item,
                         const unsigned char *bytes, size_t size)
{
    if (item->held) {
        buf_add(&rewrite->held, bytes, size);
        return NULL;
    }
    if (item->name == NULL) return NULL;
    TRY(need_file(rewrite, item->file));
    return size > 0 ? write_values(rewrite, item, bytes, size) : NULL;
}

static status_t add_data(struct rewrite *rewrite, const unsigned char *bytes, size_t size)
{
    while (rewrite->item < rewrite->item_count) {
        const struct item *item = &rewrite->items[rewrite->item];
        uint64_t left = item->bytes - rewrite->done;
        size_t part = size < left ? size : (size_t)left;
        TRY(add_part(rewrite, item, bytes, part));
        rewrite->done += part;
        bytes += part;
        size -= part;
        if (rewrite->done < item->bytes) return NULL;
        if (item->merged >= 0) TRY(write_merged(rewrite, rewrite->item));
        if (item->flipped) TRY(write_flipped(rewrite, item));
        rewrite->item++;
        rewrite->done = 0;
    }
    return NULL;
}

/* Reads the header as soon as it is complete; the bytes after it are data. */
static status_t add_start(struct rewrite *rewrite, const void *bytes, size_t size)
{
    buf_add(&rewrite->start, bytes, size);
    if (rewrite->start.length < rewrite->needed && rewrite->start.length < HEADER_MAX) return NULL;
    status_t status = safetensors_read_header(rewrite->start.data, rewrite->start.length,
                                              rewrite->total, &rewrite->header, &rewrite->needed);
    if (status_code(status) == STATUS_OUT_OF_RANGE) {
        status_free(status);
        return NULL;
    }
    if (status == NULL) status = plan_files(rewrite);
    if (status_code(status) == STATUS_FAILED_PRECONDITION) return status;
    if (status != NULL) {
        status_t lost = status_new(STATUS_DATA_LOSS, "the state_dict that fsdpd sent: %s",
                                   status_message(status));
        status_free(status);
        return lost;
    }
    uint64_t data = rewrite->header.data_offset;
    status = add_data(rewrite, (const unsigned char *)rewrite->start.data + data,
                      rewrite->start.length - (size_t)data);
    buf_deinit(&rewrite->start);
    return status;
}

status_t rewrite_add(struct rewrite *rewrite, const void *bytes, size_t size, uint64_t total,
                     uint64_t step)
{
    if (rewrite->total == 0) {
        if (total == 0)
            return status_new(STATUS_DATA_LOSS,
                              "the first chunk: expected the size of the file in it, found none");
        rewrite->total = total;
        rewrite->step = step;
    }
    if (size > rewrite->total - rewrite->received)
        return status_new(STATUS_DATA_LOSS, "expected a file of %llu bytes, found more",
                          (unsigned long long)rewrite->total);
    rewrite->received += size;
    if (rewrite->items == NULL) return add_start(rewrite, bytes, size);
    return add_data(rewrite, bytes, size);
}

status_t rewrite_finish(struct rewrite *rewrite)
{
    if (rewrite->total == 0 || rewrite->received != rewrite->total || rewrite->items == NULL)
        return status_new(STATUS_DATA_LOSS,
                          "expected a file of %llu bytes, found the end after %llu",
                          (unsigned long long)rewrite->total,
                          (unsigned long long)rewrite->received);
    if (rewrite->open_file < 0) TRY(need_file(rewrite, 0)); /* if it has no tensors */
    rewrite->open_file = -1;
    return rewrite->sink->end(rewrite->sink->user);
}

uint64_t rewrite_received(const struct rewrite *rewrite)
{
    return rewrite->received;
}

uint64_t rewrite_total(const struct rewrite *rewrite)
{
    return rewrite->total;
}

uint64_t rewrite_step(const struct rewrite *rewrite)
{
    return rewrite->step;
}

const struct safetensors_header *rewrite_header(const struct rewrite *rewrite)
{
    return &rewrite->header;
}

int rewrite_file_count(const struct rewrite *rewrite)
{
    return rewrite->file_count;
}

void rewrite_index(const struct rewrite *rewrite, struct buf *out)
{
    AUTO(hf_index_deinit) struct hf_index index = {.file_count = rewrite->file_count};
    index.files = mem_alloc_array((size_t)rewrite->file_count, sizeof *index.files);
    const struct rewrite_options *options = rewrite->options;
    index.entries = mem_alloc_array((size_t)(rewrite->item_count + options->more_count + 1),
                                    sizeof *index.entries);
    uint64_t total = 0;
    for (int i = 0; i < rewrite->file_count; i++)
        index.files[i] = hf_shard_name(i + 1, rewrite->file_count);
    for (int i = 0; i < rewrite->item_count; i++) {
        const struct item *item = &rewrite->items[i];
        if (item->name == NULL) continue;
        index.entries[index.entry_count++] =
            (struct hf_index_entry){mem_strdup(item->name), item->file};
        total += bytes_in_file(rewrite, item);
    }
    for (int i = 0; i < options->more_count; i++) {
        index.entries[index.entry_count++] =
            (struct hf_index_entry){mem_strdup(options->more[i].name), rewrite->file_count - 1};
        total += options->more[i].end - options->more[i].begin;
    }
    hf_index_write(&index, total, out);
}
