/* The index of sharded weights; see index.h. */
#include "hf/index.h"

#include <jansson.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/mem.h"
#include "hf/hf.h"

static status_t refuse(const char *file, const char *what)
{
    return status_new(STATUS_INVALID_ARGUMENT, "%s: %s", file, what);
}

/* `numbers` gets the number of each file. */
static status_t read_map(json_t *map, json_t *numbers, const char *file, struct hf_index *index)
{
    const char *name;
    json_t *value;
    if (!json_is_object(map)) return refuse(file, "expected an object \"weight_map\"");
    if (json_object_size(map) == 0) return refuse(file, "the \"weight_map\" is empty");
    index->files = mem_alloc_array(json_object_size(map), sizeof *index->files);
    index->entries = mem_alloc_array(json_object_size(map), sizeof *index->entries);
    json_object_foreach(map, name, value)
    {
        const char *found = json_string_value(value);
        if (found == NULL || !file_name_is_plain(found, ".safetensors"))
            return status_new(STATUS_INVALID_ARGUMENT,
                              "%s: \"%.100s\": expected the name of a .safetensors file of this "
                              "directory%s%.100s",
                              file, name, found != NULL ? ", found " : "",
                              found != NULL ? found : "");
        json_t *number = json_object_get(numbers, found);
        if (number == NULL) {
            number = json_integer(index->file_count);
            json_object_set_new(numbers, found, number);
            index->files[index->file_count++] = mem_strdup(found);
        }
        index->entries[index->entry_count++] =
            (struct hf_index_entry){mem_strdup(name), (int)json_integer_value(number)};
    }
    return index->file_count > HF_FILES_MAX ? refuse(file, "too many files") : NULL;
}

status_t hf_index_read(const char *json, size_t length, const char *file, struct hf_index *index)
{
    if (length > HF_INDEX_MAX) return refuse(file, "the index is too large");
    json_error_t error;
    json_t *root = json_loadb(json, length, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL)
        return status_new(STATUS_INVALID_ARGUMENT, "%s:%d: not JSON: %s", file, error.line,
                          error.text);
    struct hf_index read = {0};
    json_t *numbers = json_object();
    status_t status = read_map(json_object_get(root, "weight_map"), numbers, file, &read);
    json_decref(numbers);
    json_decref(root);
    if (status == NULL) *index = read;
    else hf_index_deinit(&read);
    return status;
}

void hf_index_deinit(struct hf_index *index)
{
    for (int i = 0; i < index->file_count; i++) free(index->files[i]);
    for (int i = 0; i < index->entry_count; i++) free(index->entries[i].name);
    free(index->files);
    free(index->entries);
    *index = (struct hf_index){0};
}

void hf_index_write(const struct hf_index *index, uint64_t total_size, struct buf *out)
{
    json_t *map = json_object();
    for (int i = 0; i < index->entry_count; i++)
        json_object_set_new(map, index->entries[i].name,
                            json_string(index->files[index->entries[i].file]));
    json_t *root = json_pack("{s: {s: I}, s: o}", "metadata", "total_size", (json_int_t)total_size,
                             "weight_map", map);
    char *text = json_dumps(root, JSON_INDENT(2));
    buf_printf(out, "%s\n", text);
    free(text);
    json_decref(root);
}

char *hf_shard_name(int number, int count)
{
    if (count == 1) return mem_strdup("model.safetensors");
    return mem_printf("model-%05d-of-%05d.safetensors", number, count);
}
