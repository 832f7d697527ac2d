/* The tensors beside a model; see rest.h. */
#include "rest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "hf/index.h"

enum { PIECE_BYTES = 1 << 20 };

struct rest_file {
    char *path;
    int fd;
    struct safetensors_header header;
};

struct rest {
    struct rest_file *files;
    int file_count;
    struct safetensors_entry *entries; /* texts are those of the headers */
    struct rest_place {
        int file;
        uint64_t at; /* of its first byte */
    } * places;
    int count, entry_capacity, place_capacity;
};

static status_t read_header(struct rest_file *file)
{
    struct stat info;
    uint64_t needed = sizeof needed, have = 0; /* first the header's size */
    status_t status = NULL;
    if ((file->fd = open(file->path, O_RDONLY | O_CLOEXEC)) < 0 || fstat(file->fd, &info) != 0)
        return status_from_errno(errno, "cannot read %s", file->path);
    do {
        status_free(status);
        have = needed < (uint64_t)info.st_size ? needed : (uint64_t)info.st_size;
        AUTO_FREE void *bytes = mem_alloc((size_t)have + 1);
        TRY(file_read_at(file->fd, file->path, bytes, (size_t)have, 0, STATUS_DATA_LOSS));
        status = safetensors_read_header(bytes, (size_t)have, (uint64_t)info.st_size, &file->header,
                                         &needed);
    } while (status_code(status) == STATUS_OUT_OF_RANGE && needed > have);
    return status_wrap(status, "%s", file->path);
}

/* Whether the index, if there is one, has the tensor in another file. */
static bool is_stale(const struct hf_index *index, const char *name, int file)
{
    for (int i = 0; i < index->entry_count; i++)
        if (strcmp(index->entries[i].name, name) == 0) return index->entries[i].file != file;
    return index->entry_count > 0;
}

static void add_tensors(struct rest *rest, int file, const struct hf_family *family,
                        const struct hf_index *index)
{
    const struct safetensors_header *header = &rest->files[file].header;
    for (int i = 0; i < header->count; i++) {
        const struct safetensors_entry *entry = &header->entries[i];
        enum hf_tensor kind;
        free(hf_parameter_name(family, entry->name, &kind));
        if (kind != HF_TENSOR_OTHER_HEAD || is_stale(index, entry->name, file)) continue;
        MEM_GROW(rest->entries, rest->count, rest->entry_capacity);
        MEM_GROW(rest->places, rest->count, rest->place_capacity);
        rest->entries[rest->count] = *entry;
        rest->places[rest->count++] = (struct rest_place){file, header->data_offset + entry->begin};
    }
}

/* The names of the directory's files: of one alone, or those of its index. */
static status_t read_index(const char *directory, struct hf_index *index)
{
    AUTO_FREE char *one = file_path_join(directory, "model.safetensors");
    AUTO_FREE char *many = file_path_join(directory, "model.safetensors.index.json");
    AUTO(buf_deinit) struct buf text = {0};
    if (access(many, R_OK) == 0 && access(one, R_OK) != 0) {
        TRY(file_read(many, HF_INDEX_MAX, &text));
        return hf_index_read(buf_text(&text), text.length, many, index);
    }
    index->files = mem_alloc_array(1, sizeof *index->files);
    index->files[index->file_count++] = mem_strdup("model.safetensors");
    return NULL;
}

static status_t read_files(struct rest *rest, const char *directory, const struct hf_family *family)
{
    AUTO(hf_index_deinit) struct hf_index index = {0};
    TRY(read_index(directory, &index));
    rest->files = mem_alloc_array((size_t)index.file_count, sizeof *rest->files);
    for (int i = 0; i < index.file_count; i++) {
        rest->files[i] = (struct rest_file){file_path_join(directory, index.files[i]), -1, {0}};
        rest->file_count++;
        TRY(read_header(&rest->files[i]));
        add_tensors(rest, i, family, &index);
    }
    if (rest->count > 0) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s has no tensors of another model than the language model, so there is "
                      "nothing to copy from it",
                      directory);
}

status_t rest_open(const char *directory, const struct hf_family *family, struct rest **rest)
{
    struct rest *made = mem_alloc(sizeof *made);
    status_t status = read_files(made, directory, family);
    if (status == NULL) *rest = made;
    else rest_free(made);
    return status;
}

void rest_free(struct rest *rest)
{
    if (rest == NULL) return;
    for (int i = 0; i < rest->file_count; i++) {
        if (rest->files[i].fd >= 0) close(rest->files[i].fd);
        safetensors_header_deinit(&rest->files[i].header);
        free(rest->files[i].path);
    }
    free(rest->files);
    free(rest->entries);
    free(rest->places);
    free(rest);
}

struct safetensors_entry *rest_entries(const struct rest *rest, int *count)
{
    *count = rest->count;
    return rest->entries;
}

static status_t copy(const struct rest *rest, int tensor, const struct rewrite_sink *sink)
{
    const struct safetensors_entry *entry = &rest->entries[tensor];
    const struct rest_place *place = &rest->places[tensor];
    const struct rest_file *from = &rest->files[place->file];
    uint64_t size = entry->end - entry->begin;
    AUTO_FREE void *piece = mem_alloc(PIECE_BYTES);
    for (uint64_t at = 0; at < size; at += PIECE_BYTES) {
        size_t count = size - at < PIECE_BYTES ? (size_t)(size - at) : PIECE_BYTES;
        TRY(file_read_at(from->fd, from->path, piece, count, place->at + at, STATUS_DATA_LOSS));
        TRY(sink->write(sink->user, piece, count));
    }
    return NULL;
}

status_t rest_write(const struct rest *rest, const struct rewrite_sink *sink, int number, int count)
{
    static const struct safetensors_metadata metadata[] = {{"format", "pt"}};
    AUTO(buf_deinit) struct buf header = {0};
    TRY(sink->begin(sink->user, number, count));
    safetensors_write_header(&header, rest->entries, rest->count, metadata, 1);
    TRY(sink->write(sink->user, header.data, header.length));
    for (int i = 0; i < rest->count; i++) TRY(copy(rest, i, sink));
    return sink->end(sink->user);
}
