/*
 * Weights from files; see weights.h. A file is opened when it is read from, one at a time, and must
 * still be the one whose header was checked.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/beneath.h"
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/weights_internal.h"
#include "hf/peft.h"

enum {
    PIECE_BYTES = 1 << 20,
    NAME_SHOWN = 100,    /* bytes of their names */
    GRID_COLUMNS = 1024, /* that are interpolated at a time */
    CHECKED = 256        /* elements; a constant number becomes vectors */
};

void weights_free(struct weights *weights)
{
    if (weights == NULL) return;
    for (int i = 0; i < weights->file_count; i++) free(weights->files[i].name);
    for (int i = 0; i < weights->parameter_count; i++) free(weights->slots[i].tensor);
    if (weights->fd >= 0) close(weights->fd);
    free(weights->files);
    free(weights->slots);
    free(weights->note);
    free(weights->piece);
    free(weights);
}

bool weights_has(const struct weights *weights, int parameter)
{
    return weights->slots[parameter].tensor != NULL;
}

bool weights_are_bf16(const struct weights *weights, int parameter)
{
    const struct slot *slot = &weights->slots[parameter];
    return slot->tensor != NULL && slot->dtype == WEIGHTS_BF16 && slot->grid.from == 0;
}

bool weights_is_partial(const struct weights *weights)
{
    return weights->is_partial;
}

const char *weights_note(const struct weights *weights)
{
    return weights->note;
}

/* A name as it may be shown: no control characters, and cut between characters. */
void weights_add_name(struct buf *out, const char *name)
{
    size_t length = strlen(name), shown = length;
    if (shown > NAME_SHOWN) {
        shown = NAME_SHOWN;
        while (shown > 0 && ((unsigned char)name[shown] & 0xc0) == 0x80) shown--;
    }
    for (size_t i = 0; i < shown; i++)
        buf_add_char(out, (unsigned char)name[i] < ' ' || name[i] == 127 ? '?' : name[i]);
    if (shown < length) buf_add_text(out, "...");
}

/* Wherever links lead below the root. */
status_t weights_open_file(const struct weights_file *file, int *fd, struct stat *info)
{
    AUTO_FREE char *path = file_path_join(file->dir, file->name);
    status_t status = beneath_open(file->root, path, false, fd);
    if (status == NULL && fstat(*fd, info) != 0) {
        status = status_from_errno(errno, "cannot stat %s", path);
        close(*fd);
    }
    return status;
}

static bool has_file(const char *dir, const char *name)
{
    struct stat info;
    AUTO_FREE char *path = file_path_join(dir, name);
    bool there = lstat(path, &info) == 0; /* a link to nowhere is there, too */
    return there;
}

static status_t read_index(const struct weights_source *source, const char *name,
                           struct hf_index *index)
{
    AUTO_FREE char *path = file_path_join(source->dir, name);
    AUTO(buf_deinit) struct buf text = {0};
    TRY(beneath_read(source->root, path, HF_INDEX_MAX, &text));
    return hf_index_read(buf_text(&text), text.length, path, index);
}

/* Weights that transformers would read and we do not must not be passed over in silence. */
static status_t refuse_others(const char *dir)
{
    static const char *const names[] = {"pytorch_model.bin", "pytorch_model.bin.index.json",
                                        "tf_model.h5", "flax_model.msgpack"};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (has_file(dir, names[i]))
            return status_new(
                STATUS_UNIMPLEMENTED,
                "%s: the weights are in %s; expected model.safetensors (transformers' "
                "save_pretrained() writes it)",
                dir, names[i]);
    return NULL;
}

static void add_file(struct weights *weights, const char *name, bool adapter)
{
    const struct weights_source *source = weights->source;
    weights->files =
        mem_resize_array(weights->files, (size_t)weights->file_count + 1, sizeof *weights->files);
    weights->files[weights->file_count++] =
        (struct weights_file){.dir = adapter ? source->adapter_dir : source->dir,
                              .root = adapter ? source->adapter_root : source->root,
                              .name = mem_strdup(name),
                              .adapter = adapter};
}

/* The model's own files, if it has any. */
static status_t match_own(struct weights *weights, const struct model *model)
{
    static const char many[] = "model.safetensors.index.json";
    const struct weights_source *source = weights->source;
    const char *one = source->file != NULL ? source->file : "model.safetensors";
    if (source->dir == NULL) return NULL;
    bool single = source->file != NULL || has_file(source->dir, one);
    if (!single && !has_file(source->dir, many)) return refuse_others(source->dir);
    struct hf_index index = {0};
    if (!single) TRY(read_index(source, many, &index));
    for (int i = 0; i < (single ? 1 : index.file_count); i++)
        add_file(weights, single ? one : index.files[i], false);
    status_t status = weights_match_files(weights, model, weights->file_count, single ? NULL : &index);
    hf_index_deinit(&index);
    return status;
}

static status_t match_adapted(struct weights *weights, const struct model *model)
{
    const char *dir = weights->source->adapter_dir;
    if (dir == NULL) return NULL;
    if (!has_file(dir, PEFT_WEIGHTS) && has_file(dir, "adapter_model.bin"))
        return status_new(STATUS_UNIMPLEMENTED,
                          "%s: the adapter is in adapter_model.bin; expected %s (peft's "
                          "save_pretrained() writes it)",
                          dir, PEFT_WEIGHTS);
    add_file(weights, PEFT_WEIGHTS, true);
    return weights_match_adapter(weights, model, weights->file_count - 1);
}

/* A reference begins with the values of its original. */
static void share_with_copies(struct weights *weights, const struct model *model)
{
    for (int i = 0; i < model->parameter_count; i++) {
        const struct parameter *parameter = &model->parameters[i];
        if (!parameter->reference || parameter->tied_to >= 0 || parameter->of < 0) continue;
        weights->slots[i] = weights->slots[parameter->of];
        const char *tensor = weights->slots[i].tensor;
        if (tensor != NULL) weights->slots[i].tensor = mem_strdup(tensor);
    }
}

status_t weights_open(const struct weights_source *source, const struct model *model,
                      struct weights **result)
{
    struct weights *weights = mem_alloc(sizeof *weights);
    weights->source = source;
    weights->fd = weights->open_file = -1;
    weights->parameter_count = model->parameter_count;
    weights->slots = mem_alloc_array((size_t)model->parameter_count + 1, sizeof *weights->slots);
    status_t status = match_own(weights, model);
    if (status == NULL) status = match_adapted(weights, model);
    share_with_copies(weights, model);
    for (int i = 0; i < model->parameter_count; i++)
        weights->is_partial |= model->parameters[i].tied_to < 0 && weights->slots[i].tensor == NULL;
    if (status != NULL || weights->file_count == 0) {
        weights_free(weights);
        return status;
    }
    *result = weights;
    return NULL;
}

static status_t need_file(struct weights *weights, int number)
{
    const struct weights_file *file = &weights->files[number];
    struct stat info;
    int fd = -1;
    if (weights->open_file == number) return NULL;
    TRY(weights_open_file(file, &fd, &info));
    if (info.st_dev != file->device || info.st_ino != file->inode || info.st_size != file->size ||
        info.st_mtim.tv_sec != file->changed.tv_sec ||
        info.st_mtim.tv_nsec != file->changed.tv_nsec) {
        close(fd);
        return status_new(STATUS_FAILED_PRECONDITION, "%s/%s changed while it was read", file->dir,
                          file->name);
    }
    if (weights->fd >= 0) close(weights->fd);
    weights->fd = fd;
    weights->open_file = number;
    return NULL;
}

static float float_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Exact, as every half is a float. */
static float float_from_half(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 0x1f;
    uint32_t fraction = half & 0x3ff;
    if (exponent == 0x1f) return float_from_bits(sign | 0x7f800000 | fraction << 13);
    if (exponent != 0) return float_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    float small = (float)fraction * 0x1p-24F;
    return sign != 0 ? -small : small;
}

static uint16_t half_at(const unsigned char *bytes, size_t i)
{
    uint16_t half;
    memcpy(&half, bytes + 2 * i, sizeof half);
    return half;
}

/* A constant number of elements becomes vectors. */
enum { BLOCK = 16 };

static void convert_block(const unsigned char *bytes, float *values)
{
    uint16_t halves[BLOCK];
    memcpy(halves, bytes, sizeof halves);
    for (int i = 0; i < BLOCK; i++) values[i] = float_from_bits((uint32_t)halves[i] << 16);
}

static void convert_bf16(const unsigned char *bytes, size_t count, float *values)
{
    size_t i = 0;
    for (; i + BLOCK <= count; i += BLOCK) convert_block(bytes + 2 * i, values + i);
    for (; i < count; i++) values[i] = float_from_bits((uint32_t)half_at(bytes, i) << 16);
}

/* Little-endian, as all that this runs on is. */
static void convert(const unsigned char *bytes, enum weights_dtype dtype, size_t count,
                    float *values)
{
    if (dtype == WEIGHTS_BF16) convert_bf16(bytes, count, values);
    else
        for (size_t i = 0; i < count; i++) values[i] = float_from_half(half_at(bytes, i));
}

uint64_t weights_hash(const struct weights *weights)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a, of words */
    for (int i = 0; i < weights->parameter_count; i++) {
        const struct slot *slot = &weights->slots[i];
        const uint64_t words[] = {slot->tensor != NULL, slot->dtype, slot->offset,
                                  slot->tensor != NULL ? (uint64_t)weights->files[slot->file].size
                                                       : 0};
        for (size_t w = 0; w < COUNT_OF(words); w++)
            hash = (hash ^ words[w]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

/* Whether an element of a block is infinite or NaN: its exponent's bits are all 1. */
static bool has_other_than_finite(const float *values)
{
    uint32_t bits[CHECKED], found = 0;
    memcpy(bits, values, sizeof bits);
    for (int i = 0; i < CHECKED; i++) found |= (bits[i] & 0x7fffffff) + 0x00800000;
    return found >> 31 != 0;
}

/* Elements of a tensor from `offset` on. */
static status_t check_finite(const struct weights *weights, const struct slot *slot, int64_t offset,
                             size_t count, const float *values)
{
    size_t i = 0;
    while (i + CHECKED <= count && !has_other_than_finite(values + i)) i += CHECKED;
    while (i < count && isfinite(values[i])) i++;
    if (i == count) return NULL;
    AUTO(buf_deinit) struct buf name = {0};
    weights_add_name(&name, slot->tensor);
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s/%s: element %" PRId64 " of tensor %s is %s: a model with it cannot train",
                      weights->files[slot->file].dir, weights->files[slot->file].name,
                      offset + (int64_t)i, buf_text(&name), isnan(values[i]) ? "NaN" : "infinite");
}

/* Elements of a tensor as its file has them. */
static status_t read_values(struct weights *weights, const struct slot *slot, int64_t offset,
                            size_t count, float *values)
{
    const char *name = weights->files[slot->file].name;
    if (slot->dtype == WEIGHTS_F32 || slot->dtype == WEIGHTS_OTHER) {
        TRY(file_read_at(weights->fd, name, values, count * sizeof *values,
                         slot->offset + (uint64_t)offset * sizeof *values,
                         STATUS_FAILED_PRECONDITION));
        return slot->dtype == WEIGHTS_F32 ? check_finite(weights, slot, offset, count, values)
                                          : NULL;
    }
    if (weights->piece == NULL) weights->piece = mem_alloc(PIECE_BYTES);
    uint64_t at = slot->offset + (uint64_t)offset * 2;
    while (count > 0) {
        size_t part = count < PIECE_BYTES / 2 ? count : PIECE_BYTES / 2;
        TRY(file_read_at(weights->fd, name, weights->piece, part * 2, at,
                         STATUS_FAILED_PRECONDITION));
        convert(weights->piece, slot->dtype, part, values);
        TRY(check_finite(weights, slot, offset, part, values));
        at += part * 2;
        offset += (int64_t)part;
        values += part;
        count -= part;
    }
    return NULL;
}

/*
 * Bicubic interpolation along one dimension, as PyTorch's F.interpolate(mode="bicubic",
 * align_corners=False) without antialiasing: element `at` of `to` elements is the sum of four of
 * `from` elements, with Keys' kernel (a = -0.75) and the border repeated.
 */
struct bicubic {
    int64_t index[4];
    double weight[4];
};

/* Keys' kernel at a distance of 0 to 2. */
static double bicubic_kernel(double distance)
{
    static const double a = -0.75;
    double d = distance;
    if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
    return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
}

static struct bicubic bicubic_at(int64_t from, int64_t to, int64_t at)
{
    double place = ((double)at + 0.5) * ((double)from / (double)to) - 0.5;
    double before = floor(place), part = place - before;
    const double distances[] = {1 + part, part, 1 - part, 2 - part};
    struct bicubic made;
    for (int i = 0; i < 4; i++) {
        int64_t index = (int64_t)before - 1 + i;
        made.index[i] = index < 0 ? 0 : index >= from ? from - 1 : index;
        made.weight[i] = bicubic_kernel(distances[i]);
    }
    return made;
}

/* Part of a row of the new grid: `count` columns from `column` on of place `place`. */
static status_t interpolate(struct weights *weights, const struct slot *slot, int64_t place,
                            int64_t column, size_t count, float *values)
{
    const struct grid *grid = &slot->grid;
    struct bicubic down = bicubic_at(grid->from, grid->to, place / grid->to);
    struct bicubic across = bicubic_at(grid->from, grid->to, place % grid->to);
    double sums[GRID_COLUMNS] = {0};
    float row[GRID_COLUMNS];
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 4; k++) {
            int64_t at = grid->first + down.index[i] * grid->from + across.index[k];
            TRY(read_values(weights, slot, at * grid->columns + column, count, row));
            for (size_t c = 0; c < count; c++)
                sums[c] += down.weight[i] * across.weight[k] * (double)row[c];
        }
    for (size_t c = 0; c < count; c++) values[c] = (float)sums[c];
    return NULL;
}

static status_t read_resized(struct weights *weights, const struct slot *slot, int64_t offset,
                             size_t count, float *values)
{
    const struct grid *grid = &slot->grid;
    while (count > 0) {
        int64_t row = offset / grid->columns, column = offset % grid->columns;
        int64_t left = grid->columns - column;
        size_t part = left < GRID_COLUMNS ? (size_t)left : GRID_COLUMNS;
        if (part > count) part = count;
        if (row < grid->first) TRY(read_values(weights, slot, offset, part, values));
        else TRY(interpolate(weights, slot, row - grid->first, column, part, values));
        offset += (int64_t)part;
        values += part;
        count -= part;
    }
    return NULL;
}

/* Of each row of the tensor, which is a column of the parameter, what is between its elements
 * `offset` and `offset + count`. */
static status_t read_flipped(struct weights *weights, const struct slot *slot, int64_t offset,
                             size_t count, float *values)
{
    int64_t width = slot->rows, end = offset + (int64_t)count, part;
    float piece[GRID_COLUMNS];
    for (int64_t row = 0; row < width; row++) {
        int64_t at = (offset + width - 1 - row) / width, after = (end + width - 1 - row) / width;
        for (; at < after; at += part) {
            part = after - at < GRID_COLUMNS ? after - at : GRID_COLUMNS;
            TRY(read_values(weights, slot, row * slot->columns + at, (size_t)part, piece));
            for (int64_t i = 0; i < part; i++) values[(at + i) * width + row - offset] = piece[i];
        }
    }
    return NULL;
}

status_t weights_read(struct weights *weights, int parameter, int64_t offset, size_t count,
                      float *values)
{
    const struct slot *slot = &weights->slots[parameter];
    if (slot->tensor == NULL)
        return status_new(STATUS_INTERNAL, "parameter %d is not in the weights", parameter);
    TRY(need_file(weights, slot->file));
    if (slot->grid.from > 0) return read_resized(weights, slot, offset, count, values);
    if (slot->rows > 0) return read_flipped(weights, slot, offset, count, values);
    return read_values(weights, slot, offset, count, values);
}

status_t weights_find_untied(struct weights *weights, const struct model *model, int *parameter)
{
    enum { PART = 1 << 16 };
    AUTO_FREE float *values = mem_alloc_array(2 * (size_t)PART, sizeof *values);
    *parameter = -1;
    for (int p = 0; p < model->parameter_count; p++) {
        int owner = p;
        while (model->parameters[owner].tied_to >= 0) owner = model->parameters[owner].tied_to;
        if (owner == p || !weights_has(weights, owner) || !weights_has(weights, p)) continue;
        int64_t count = tensor_element_count(&model->parameters[p].type);
        for (int64_t at = 0; at < count; at += PART) {
            size_t part = count - at < PART ? (size_t)(count - at) : PART;
            TRY(weights_read(weights, owner, at, part, values));
            TRY(weights_read(weights, p, at, part, values + PART));
            if (memcmp(values, values + PART, part * sizeof *values) == 0) continue;
            *parameter = p;
            return NULL;
        }
    }
    return NULL;
}
