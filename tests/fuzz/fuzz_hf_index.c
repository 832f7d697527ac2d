/* The index of sharded weights: its files are files of its directory, and it reads as written. */
#include <string.h>

#include "base/mem.h"
#include "fuzz.h"
#include "hf/index.h"

static void check_index(const struct hf_index *index)
{
    for (int f = 0; f < index->file_count; f++) {
        const char *name = index->files[f];
        FUZZ_CHECK(strchr(name, '/') == NULL && name[0] != '.' && strlen(name) < 256, "%s", name);
        for (int other = 0; other < f; other++)
            FUZZ_CHECK(strcmp(index->files[other], name) != 0, "%s", name);
    }
    int files = 0; /* of the entries so far, which number them in this order */
    for (int e = 0; e < index->entry_count; e++) {
        int file = index->entries[e].file;
        FUZZ_CHECK(file >= 0 && file <= files, "%s", index->entries[e].name);
        if (file == files) files++;
    }
    FUZZ_CHECK(files == index->file_count, "%d files of %d", files, index->file_count);
    struct buf out = {0};
    struct hf_index again;
    hf_index_write(index, 12, &out);
    status_t status = hf_index_read(out.data, out.length, "index", &again);
    FUZZ_CHECK(status == NULL, "%s", status_message(status));
    FUZZ_CHECK(again.entry_count == index->entry_count && again.file_count == index->file_count,
               "%s", buf_text(&out));
    for (int e = 0; e < index->entry_count; e++)
        FUZZ_CHECK(strcmp(index->entries[e].name, again.entries[e].name) == 0 &&
                       index->entries[e].file == again.entries[e].file,
                   "%s", index->entries[e].name);
    hf_index_deinit(&again);
    buf_deinit(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hf_index index;
    char *json = mem_dup(data, size);
    status_t status = hf_index_read(json, size, "index", &index);
    free(json);
    if (status != NULL) {
        fuzz_expect_user_error(status);
        return 0;
    }
    check_index(&index);
    hf_index_deinit(&index);
    return 0;
}
