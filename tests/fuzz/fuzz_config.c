/* fsdpd.yaml: what is taken can be applied to the limits, and what is refused says where. */
#include <string.h>

#include "base/mem.h"
#include "fuzz.h"
#include "option_table.h"

static void check_values(struct options *options)
{
    for (int i = 0; i < option_row_count; i++) {
        const struct option_row *row = &option_rows[i];
        struct option_value *value = &options->values[i];
        for (int k = 0; k < value->count; k++) {
            status_t status = option_check(row, value->texts[k]);
            FUZZ_CHECK(status == NULL, "%s: %s", row->key, status_message(status));
            if (row->apply != NULL) continue; /* these look at the disk */
            status = option_apply(options, row, value->texts[k]);
            FUZZ_CHECK(status == NULL, "%s: %s", row->key, status_message(status));
        }
        struct buf text = {0};
        option_describe_value(options, row, &text);
        FUZZ_CHECK(row->key == NULL || text.length > 0, "%s has no value", row->key);
        buf_deinit(&text);
        for (int k = 0; k < value->count; k++) free(value->texts[k]);
        free(value->texts);
        free(value->where);
        free(value->place);
    }
    for (int i = 0; i < options->text_count; i++) free(options->texts[i]);
    free(options->texts);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct options options = {.role = ROLE_BOTH};
    char *text = mem_strndup((const char *)data, size);
    status_t status = config_file_parse(&options, text, strlen(text), "fsdpd.yaml");
    FUZZ_CHECK(status == NULL || strncmp(status_message(status), "fsdpd.yaml", 10) == 0, "%s",
               status_message(status));
    status_free(status);
    check_values(&options);
    free(text);
    return 0;
}
