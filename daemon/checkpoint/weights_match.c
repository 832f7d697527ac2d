/*
 * Which tensor of which file has a parameter's values: the headers of files of weights, compared
 * with the model; see weights_internal.h.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "checkpoint/weights_internal.h"
#include "hf/peft.h"
#include "hf/safetensors.h"

enum {
    HEADER_GUESS = 1 << 16, /* bytes that are read of a file at first */
    LISTED = 10             /* maximum number of tensors named in a message, per kind of error */
};

/* One kind of error, with its tensors. */
struct complaint {
    struct buf names;
    int count;
};

static void complain(struct complaint *complaint, const char *name, const char *format, ...)
    FSDPD_PRINTF(3, 4);

static void complain(struct complaint *complaint, const char *name, const char *format, ...)
{
    if (++complaint->count > LISTED) return;
    if (complaint->count > 1) buf_add_text(&complaint->names, ", ");
    weights_add_name(&complaint->names, name);
    va_list args;
    va_start(args, format);
    char more[512];
    vsnprintf(more, sizeof more, format, args);
    va_end(args);
    buf_add_text(&complaint->names, more);
}

/* Everything that is wrong with the tensors of a directory. */
struct complaints {
    struct complaint missing, extra, shape, dtype, twice;
};

static void add_complaint(struct buf *text, const struct complaint *complaint, const char *what)
{
    if (complaint->count == 0) return;
    buf_printf(text, "%s%d %s (%s", text->length > 0 ? "; " : "", complaint->count, what,
               buf_text(&complaint->names));
    if (complaint->count > LISTED) buf_printf(text, ", and %d more", complaint->count - LISTED);
    buf_add_char(text, ')');
}

static status_t complaints_status(const struct complaints *all, const char *dir, const char *hint)
{
    AUTO(buf_deinit) struct buf text = {0};
    add_complaint(&text, &all->missing, "missing");
    add_complaint(&text, &all->extra, "that the model does not have");
    add_complaint(&text, &all->shape, "of another shape");
    add_complaint(&text, &all->dtype, "of a type that is not supported");
    add_complaint(&text, &all->twice, "twice");
    if (all->extra.count > 0) buf_add_text(&text, hint);
    if (text.length > 0)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: tensors of the weights: %s", dir,
                          buf_text(&text));
    return NULL;
}

static void complaints_deinit(struct complaints *all)
{
    buf_deinit(&all->missing.names);
    buf_deinit(&all->extra.names);
    buf_deinit(&all->shape.names);
    buf_deinit(&all->dtype.names);
    buf_deinit(&all->twice.names);
}

/* Parameters by name. */
struct name_entry {
    const char *name;
    int parameter;
};

static int compare_names(const void *a, const void *b)
{
    const struct name_entry *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* State while the headers are read. */
struct matching {
    struct weights *weights;
    const struct model *model;
    struct name_entry *names;
    const struct hf_index *index;   /* or NULL */
    struct name_entry *places;      /* its entries by name, with the number of their file */
    struct complaints complaints;
    struct complaint unused, fresh, resized, ignored, stale, promised;
    bool *matched; /* by pattern of the source's `ignore` */
};

static int find_parameter(const struct matching *matching, const char *name)
{
    const struct name_entry wanted = {.name = name};
    const struct name_entry *found =
        bsearch(&wanted, matching->names, (size_t)matching->model->parameter_count,
                sizeof *matching->names, compare_names);
    bool own = found != NULL && !matching->model->parameters[found->parameter].reference;
    return own ? found->parameter : -1;
}

static status_t read_header(int fd, const char *name, uint64_t size,
                            struct safetensors_header *header)
{
    size_t guess = size < HEADER_GUESS ? (size_t)size : HEADER_GUESS;
    uint64_t needed = guess;
    status_t status = NULL;
    do {
        /* the need is bounded by the file's size and by the format */
        status_free(status);
        size_t have = (size_t)needed;
        AUTO_FREE void *bytes = malloc(have + 1);
        if (bytes == NULL)
            return status_new(STATUS_RESOURCE_EXHAUSTED, "no memory for a header of %zu bytes",
                              have);
        needed = 0;
        status = file_read_at(fd, name, bytes, have, 0, STATUS_FAILED_PRECONDITION);
        if (status == NULL) status = safetensors_read_header(bytes, have, size, header, &needed);
    } while (status_code(status) == STATUS_OUT_OF_RANGE && needed > guess);
    return status;
}

static enum weights_dtype dtype_of(const char *name)
{
    if (strcmp(name, "F32") == 0) return WEIGHTS_F32;
    if (strcmp(name, "F16") == 0) return WEIGHTS_F16;
    return strcmp(name, "BF16") == 0 ? WEIGHTS_BF16 : WEIGHTS_OTHER;
}

/* A parameter has a dimension, so one of one element is also a scalar of PyTorch's. */
static bool has_shape(const struct safetensors_entry *entry, const struct tensor_type *type)
{
    if (entry->dim_count == 0) return type->dim_count == 1 && type->dims[0] == 1;
    return entry->dim_count == type->dim_count &&
           memcmp(entry->dims, type->dims, (size_t)entry->dim_count * sizeof *entry->dims) == 0;
}

/* The side of a square of `places` elements; 0 if they make none. */
static int64_t side_of(int64_t places)
{
    if (places < 1) return 0;
    int64_t side = (int64_t)sqrt((double)places);
    return side * side == places ? side : 0;
}

/* Whether the tensor is a table of positions that only its grid tells from the parameter. */
static bool find_grid(const struct matching *matching, const struct safetensors_entry *entry,
                      const struct parameter *parameter, struct grid *grid)
{
    const struct weights_source *source = matching->weights->source;
    const struct tensor_type *type = &parameter->type;
    if (source->own_names || entry->dim_count != 3 || type->dim_count != 3) return false;
    int64_t first = hf_parameter_grid(source->family, parameter->name);
    if (first < 0 || entry->dims[0] != 1 || type->dims[0] != 1 || entry->dims[2] != type->dims[2])
        return false;
    int64_t from = side_of(entry->dims[1] - first), to = side_of(type->dims[1] - first);
    if (from == 0 || to == 0) return false;
    *grid = (struct grid){.first = first, .from = from, .to = to, .columns = type->dims[2]};
    return true;
}

static void check_tensor(struct matching *matching, const struct safetensors_entry *entry,
                         const struct tensor_type *type)
{
    if (!has_shape(entry, type)) {
        struct tensor_type found = tensor_type_make(DTYPE_F32, entry->dim_count, entry->dims);
        char is[128], wanted[128];
        complain(&matching->complaints.shape, entry->name, ": %s, expected %s",
                 tensor_format_shape(&found, is), tensor_format_shape(type, wanted));
    } else if (dtype_of(entry->dtype) == WEIGHTS_OTHER) {
        complain(&matching->complaints.dtype, entry->name, ": %s", entry->dtype);
    }
}

/* A count is a scalar in files, and the same bytes here. */
static void check_count(struct matching *matching, const struct safetensors_entry *entry)
{
    struct tensor_type found = tensor_type_make(DTYPE_F32, entry->dim_count, entry->dims);
    char is[128];
    if (entry->dim_count != 0)
        complain(&matching->complaints.shape, entry->name, ": %s, expected ()",
                 tensor_format_shape(&found, is));
    else if (strcmp(entry->dtype, "I64") != 0)
        complain(&matching->complaints.dtype, entry->name, ": %s, expected I64", entry->dtype);
}

static void match_parameter(struct matching *matching, const struct safetensors_entry *entry,
                            int parameter, bool copy, const struct slot *place)
{
    struct slot *slot = &matching->weights->slots[parameter];
    const struct parameter *to = &matching->model->parameters[parameter];
    bool count = to->buffer == MODEL_BUFFER_COUNT;
    bool flipped = to->flipped && matching->weights->files[place->file].adapter;
    struct tensor_type type = to->type;
    struct grid grid = {0};
    for (int d = 0; flipped && d < 2; d++) type.dims[d] = to->type.dims[1 - d];
    if (count) check_count(matching, entry);
    else if (!has_shape(entry, &type) && dtype_of(entry->dtype) != WEIGHTS_OTHER &&
             find_grid(matching, entry, to, &grid))
        complain(&matching->resized, entry->name,
                 " from %" PRIi64 " x %" PRIi64 " to %" PRIi64 " x %" PRIi64, grid.from, grid.from,
                 grid.to, grid.to);
    else check_tensor(matching, entry, &type);
    if (slot->tensor != NULL && copy != slot->copy) {
        if (copy) return;
        free(slot->tensor);
        slot->tensor = NULL;
    }
    if (slot->tensor != NULL) {
        AUTO(buf_deinit) struct buf other = {0};
        weights_add_name(&other, slot->tensor);
        complain(&matching->complaints.twice, entry->name, " and %s", buf_text(&other));
        return;
    }
    *slot = *place;
    slot->tensor = mem_strdup(entry->name);
    slot->dtype = dtype_of(entry->dtype);
    slot->copy = copy;
    slot->grid = grid;
    if (flipped) slot->rows = type.dims[0];
    if (flipped) slot->columns = type.dims[1];
}

/* The parameter that a tensor is, or -1. */
static int parameter_of(const struct matching *matching, const char *tensor, enum hf_tensor *kind)
{
    const struct weights_source *source = matching->weights->source;
    *kind = HF_TENSOR_PARAMETER;
    if (source->own_names) return find_parameter(matching, tensor);
    char *name = hf_parameter_name(source->family, tensor, kind);
    int parameter = name != NULL ? find_parameter(matching, name) : -1;
    free(name);
    return parameter;
}

/* Whether a module of the parameter's own has an adapter. */
static bool is_adapted(const struct model *model, const struct parameter *parameter)
{
    const struct module *module = &model->modules[parameter->module];
    const struct module *child = module->child_count > 0 ? &model->modules[module->children[0]] : module;
    return child->parameter_count > 0 && model->parameters[child->parameters[0]].adapter &&
           parameter->tied_to < 0;
}

/* The parameter that a tensor of an adapter's file is, or -1: a trained one, or an adapted module's
 * own. */
static int adapted_parameter_of(const struct matching *matching, const char *tensor)
{
    enum hf_tensor kind;
    size_t prefix = strlen(PEFT_PREFIX);
    if (strncmp(tensor, PEFT_PREFIX, prefix) != 0) return -1;
    const char *own = strstr(tensor + prefix, PEFT_OWN ".");
    AUTO_FREE char *name = own == NULL ? mem_strdup(tensor + prefix)
                                       : mem_printf("%.*s%s", (int)(own - (tensor + prefix)),
                                                    tensor + prefix, own + strlen(PEFT_OWN));
    int parameter = find_parameter(matching, name);
    if (parameter < 0) parameter = parameter_of(matching, name, &kind);
    if (parameter < 0) return -1;
    const struct parameter *of = &matching->model->parameters[parameter];
    return (own == NULL ? of->trainable : is_adapted(matching->model, of)) ? parameter : -1;
}

/* What an adapter has goes before what the model's files have. */
static void match_adapter(struct matching *matching, const struct safetensors_entry *entry,
                          const struct slot *place)
{
    int parameter = adapted_parameter_of(matching, entry->name);
    if (parameter < 0) {
        complain(&matching->complaints.extra, entry->name, "%s", "");
        return;
    }
    struct slot *slot = &matching->weights->slots[parameter];
    if (slot->tensor != NULL && slot->file != place->file) {
        free(slot->tensor);
        *slot = (struct slot){0};
    }
    match_parameter(matching, entry, parameter, false, place);
}

/* Whether the job leaves out a tensor that the model does not have. */
static bool is_ignored(struct matching *matching, const char *tensor)
{
    const struct weights_source *source = matching->weights->source;
    bool ignored = false;
    for (int i = 0; i < source->ignore_count; i++) {
        if (!text_glob_match(source->ignore[i], tensor)) continue;
        ignored = matching->matched[i] = true;
    }
    return ignored;
}

/* Whether the index has the tensor in another file than this one. */
static bool is_stale(const struct matching *matching, const char *tensor, int file)
{
    if (matching->index == NULL) return false;
    const struct name_entry wanted = {.name = tensor};
    const struct name_entry *found =
        bsearch(&wanted, matching->places, (size_t)matching->index->entry_count,
                sizeof *matching->places, compare_names);
    return found != NULL && found->parameter != file;
}

static void match_entry(struct matching *matching, const struct safetensors_entry *entry, int file,
                        uint64_t data_offset)
{
    enum hf_tensor kind;
    int parameter = parameter_of(matching, entry->name, &kind);
    const struct slot place = {.file = file, .offset = data_offset + entry->begin};
    if (matching->weights->files[file].adapter) {
        match_adapter(matching, entry, &place);
        return;
    }
    if (kind == HF_TENSOR_BUFFER) return;
    if (is_stale(matching, entry->name, file)) {
        complain(&matching->stale, entry->name, "%s", "");
        return;
    }
    if (parameter < 0 && is_ignored(matching, entry->name)) {
        complain(&matching->ignored, entry->name, "%s", "");
        return;
    }
    if (kind == HF_TENSOR_OTHER_HEAD) complain(&matching->unused, entry->name, "%s", "");
    else if (parameter < 0) complain(&matching->complaints.extra, entry->name, "%s", "");
    else match_parameter(matching, entry, parameter, kind == HF_TENSOR_COPY, &place);
}

/* Whether a tensor that is nowhere may be missed: another head's, or one of several that are tied. */
static bool is_dispensable(const struct matching *matching, const char *tensor)
{
    enum hf_tensor kind;
    int parameter = parameter_of(matching, tensor, &kind);
    if (parameter < 0) return kind != HF_TENSOR_PARAMETER;
    bool tied = matching->model->parameters[parameter].tied_to >= 0;
    for (int i = 0; i < matching->model->parameter_count; i++)
        tied = tied || matching->model->parameters[i].tied_to == parameter;
    return tied;
}

/* Also whether the file has what the index promises of it. */
static status_t check_promises(struct matching *matching, int file,
                               const struct safetensors_header *header)
{
    const struct hf_index *index = matching->index;
    AUTO_FREE struct name_entry *sorted =
        mem_alloc_array((size_t)header->count + 1, sizeof *sorted);
    for (int i = 0; i < header->count; i++)
        sorted[i] = (struct name_entry){.name = header->entries[i].name};
    qsort(sorted, (size_t)header->count, sizeof *sorted, compare_names);
    status_t status = NULL;
    for (int i = 0; i < index->entry_count && status == NULL; i++) {
        if (index->entries[i].file != file) continue;
        const struct name_entry wanted = {.name = index->entries[i].name};
        if (bsearch(&wanted, sorted, (size_t)header->count, sizeof *sorted, compare_names) != NULL)
            continue;
        if (is_dispensable(matching, wanted.name)) {
            complain(&matching->promised, wanted.name, "%s", "");
            continue;
        }
        AUTO(buf_deinit) struct buf name = {0};
        weights_add_name(&name, wanted.name);
        status = status_new(STATUS_INVALID_ARGUMENT, "it has no tensor %s, which the index says",
                            buf_text(&name));
    }
    return status;
}

static status_t read_file(struct matching *matching, int number)
{
    struct weights *weights = matching->weights;
    struct weights_file *file = &weights->files[number];
    struct stat info;
    int fd = -1;
    TRY(weights_open_file(file, &fd, &info));
    AUTO(safetensors_header_deinit) struct safetensors_header header = {0};
    status_t status = read_header(fd, file->name, (uint64_t)info.st_size, &header);
    close(fd);
    if (status == NULL && matching->index != NULL)
        status = check_promises(matching, number, &header);
    if (status != NULL) return status_wrap(status, "%s/%s", file->dir, file->name);
    file->device = info.st_dev;
    file->inode = info.st_ino;
    file->size = info.st_size;
    file->changed = info.st_mtim;
    for (int i = 0; i < header.count; i++)
        match_entry(matching, &header.entries[i], number, header.data_offset);
    return NULL;
}

static bool is_new(const struct matching *matching, const char *parameter)
{
    const struct weights_source *source = matching->weights->source;
    return !source->own_names && hf_parameter_is_new(source->family, parameter);
}

/* Tied parameters have one tensor, under any of their names. */
static void share_tied_tensors(struct matching *matching)
{
    struct slot *slots = matching->weights->slots;
    for (int i = 0; i < matching->model->parameter_count; i++) {
        int owner = i;
        while (matching->model->parameters[owner].tied_to >= 0)
            owner = matching->model->parameters[owner].tied_to;
        if (owner == i || slots[owner].tensor != NULL || slots[i].tensor == NULL) continue;
        slots[owner] = slots[i];
        slots[i] = (struct slot){0};
    }
    for (int i = 0; i < matching->model->parameter_count; i++) {
        const struct parameter *parameter = &matching->model->parameters[i];
        if (parameter->tied_to >= 0 || slots[i].tensor != NULL) continue;
        if (parameter->adapter || parameter->reference) continue;
        if (matching->weights->source->only_trained && !parameter->trainable) continue;
        complain(is_new(matching, parameter->name) ? &matching->fresh
                                                   : &matching->complaints.missing,
                 parameter->name, "%s", "");
    }
}

static void add_note(struct buf *text, const struct complaint *tensors, const char *before,
                     const char *after)
{
    if (tensors->count == 0) return;
    buf_printf(text, "%sthe weights %s %d tensor%s %s: %s", text->length > 0 ? "; " : "", before,
               tensors->count, tensors->count == 1 ? "" : "s", after, buf_text(&tensors->names));
    if (tensors->count > LISTED) buf_printf(text, ", and %d more", tensors->count - LISTED);
}

static void make_note(struct matching *matching)
{
    AUTO(buf_deinit) struct buf text = {0};
    add_note(&text, &matching->unused, "have", "of another head, which are left out");
    add_note(&text, &matching->fresh, "lack", "of the head, which get new initial values");
    add_note(&text, &matching->resized, "have", "of another image size, which are interpolated");
    add_note(&text, &matching->ignored, "have", "that model.ignore leaves out");
    add_note(&text, &matching->stale, "have", "in a file that the index does not name for it");
    add_note(&text, &matching->promised, "lack",
             "that the index names, and which nothing here needs");
    const struct weights_source *source = matching->weights->source;
    for (int i = 0; i < source->ignore_count; i++)
        if (!matching->matched[i])
            buf_printf(&text, "%smodel.ignore: no tensor that the model does not have matches '%s'",
                       text.length > 0 ? "; " : "", source->ignore[i]);
    if (text.length > 0) matching->weights->note = buf_take(&text);
}

static void sort_names(struct matching *matching)
{
    const struct model *model = matching->model;
    matching->names = mem_alloc_array((size_t)model->parameter_count + 1, sizeof *matching->names);
    for (int i = 0; i < model->parameter_count; i++)
        matching->names[i] = (struct name_entry){model->parameters[i].name, i};
    qsort(matching->names, (size_t)model->parameter_count, sizeof *matching->names, compare_names);
}

/* What the adapter's file lacks: a matrix, or a module that is trained whole. */
static void find_lacking(struct matching *matching, int file)
{
    const struct weights *weights = matching->weights;
    for (int i = 0; i < matching->model->parameter_count; i++) {
        const struct parameter *parameter = &matching->model->parameters[i];
        const struct slot *slot = &weights->slots[i];
        bool there = slot->tensor != NULL && slot->file == file;
        if (!parameter->trainable || parameter->tied_to >= 0 || there) continue;
        bool needed = parameter->adapter || weights->source->adapter_saves;
        AUTO_FREE char *name = mem_printf("%s%s", PEFT_PREFIX, parameter->name);
        complain(needed ? &matching->complaints.missing : &matching->fresh, name, "%s", "");
    }
}

static void note_adapter(struct weights *weights, const struct matching *matching)
{
    const char *parts[] = {weights->note, weights->source->adapter_note};
    struct buf text = {0};
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        if (parts[i] != NULL) buf_printf(&text, "%s%s", text.length > 0 ? "; " : "", parts[i]);
    if (weights->file_count == 1)
        buf_printf(&text, "%sthe adapter continues on weights that are drawn from train.seed",
                   text.length > 0 ? "; " : "");
    if (matching->fresh.count > 0)
        buf_printf(&text, "%sthe adapter lacks %d tensors of modules that are trained whole: %s",
                   text.length > 0 ? "; " : "", matching->fresh.count,
                   buf_text(&matching->fresh.names));
    free(weights->note);
    weights->note = text.length > 0 ? buf_take(&text) : NULL;
}

status_t weights_match_adapter(struct weights *weights, const struct model *model, int file)
{
    struct matching matching = {.weights = weights, .model = model};
    AUTO_FREE char *where = file_path_join(weights->files[file].dir, weights->files[file].name);
    sort_names(&matching);
    status_t status = read_file(&matching, file);
    if (status == NULL) {
        find_lacking(&matching, file);
        note_adapter(weights, &matching);
        status = complaints_status(&matching.complaints, where, "");
    }
    complaints_deinit(&matching.complaints);
    buf_deinit(&matching.fresh.names);
    free(matching.names);
    return status;
}

status_t weights_match_files(struct weights *weights, const struct model *model, int count,
                            const struct hf_index *index)
{
    struct matching matching = {.weights = weights, .model = model, .index = index};
    int entries = index != NULL ? index->entry_count : 0;
    AUTO_FREE struct name_entry *places = mem_alloc_array((size_t)entries + 1, sizeof *places);
    for (int i = 0; i < entries; i++)
        places[i] = (struct name_entry){index->entries[i].name, index->entries[i].file};
    qsort(places, (size_t)entries, sizeof *places, compare_names);
    AUTO_FREE bool *matched =
        mem_alloc_array((size_t)weights->source->ignore_count + 1, sizeof *matched);
    matching.places = places;
    matching.matched = matched;
    sort_names(&matching);
    status_t status = NULL;
    for (int i = 0; i < count && status == NULL; i++) status = read_file(&matching, i);
    if (status == NULL) {
        share_tied_tensors(&matching);
        make_note(&matching);
        AUTO_FREE char *where = weights->source->file != NULL
                                    ? file_path_join(weights->source->dir, weights->source->file)
                                    : mem_strdup(weights->source->dir);
        status =
            complaints_status(&matching.complaints, where,
                              "; model.ignore: [PATTERN] leaves out what the model does not have");
    }
    complaints_deinit(&matching.complaints);
    buf_deinit(&matching.unused.names);
    buf_deinit(&matching.fresh.names);
    buf_deinit(&matching.resized.names);
    buf_deinit(&matching.ignored.names);
    buf_deinit(&matching.stale.names);
    buf_deinit(&matching.promised.names);
    free(matching.names);
    return status;
}
