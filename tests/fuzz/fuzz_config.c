/*
 * fsdpd.yaml: what is taken can be applied to the limits, and what is refused says where. Values
 * that were taken, printed and read again, are the same.
 */
#include <string.h>

#include "base/mem.h"
#include "fuzz.h"
#include "option_table.h"

static void check_value(struct options *options, const struct option_row *row,
                        const struct option_value *value)
{
    for (int k = 0; k < value->count; k++) {
        status_t status = option_check(row, value->texts[k]);
        FUZZ_CHECK(status == NULL, "%s: %s", row->key, status_message(status));
        if (row->apply != NULL) continue; /* these look at the disk */
        status = option_apply(options, row, value->texts[k]);
        FUZZ_CHECK(status == NULL, "%s: %s", row->key, status_message(status));
    }
}

/* Prints every value, and in `taken` those of the file, as a file that has the same. */
static void check_values(struct options *options, struct buf *taken)
{
    for (int i = 0; i < option_row_count; i++) {
        const struct option_row *row = &option_rows[i];
        check_value(options, row, &options->values[i]);
        struct buf text = {0};
        option_describe_value(options, row, &text);
        FUZZ_CHECK(row->key == NULL || text.length > 0, "%s has no value", row->key);
        if (options->values[i].source == SOURCE_FILE)
            buf_printf(taken, "%s: %s\n", row->key, buf_text(&text));
        buf_deinit(&text);
    }
}

static void free_values(struct options *options)
{
    for (int i = 0; i < option_row_count; i++) {
        struct option_value *value = &options->values[i];
        for (int k = 0; k < value->count; k++) free(value->texts[k]);
        free(value->texts);
        free(value->where);
        free(value->place);
    }
    for (int i = 0; i < options->text_count; i++) free(options->texts[i]);
    free(options->texts);
}

static void check_round_trip(const struct options *first, const struct buf *text)
{
    struct options again = {.role = ROLE_BOTH};
    status_t status = config_file_parse(&again, buf_text(text), text->length, "again.yaml");
    FUZZ_CHECK(status == NULL, "%s, reading\n%s", status_message(status), buf_text(text));
    for (int i = 0; i < option_row_count; i++) {
        const struct option_value *a = &first->values[i], *b = &again.values[i];
        FUZZ_CHECK(a->source == b->source && a->count == b->count, "%s has %d values, then %d",
                   option_rows[i].key, a->count, b->count);
        for (int k = 0; k < a->count; k++)
            FUZZ_CHECK(strcmp(a->texts[k], b->texts[k]) == 0, "%s: '%s', then '%s'",
                       option_rows[i].key, a->texts[k], b->texts[k]);
    }
    free_values(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct options options = {.role = ROLE_BOTH};
    char *text = mem_strndup((const char *)data, size);
    status_t status = config_file_parse(&options, text, strlen(text), "fsdpd.yaml");
    FUZZ_CHECK(status == NULL || strncmp(status_message(status), "fsdpd.yaml", 10) == 0, "%s",
               status_message(status));
    status_free(status);
    struct buf taken = {0};
    check_values(&options, &taken);
    check_round_trip(&options, &taken);
    buf_deinit(&taken);
    free_values(&options);
    free(text);
    return 0;
}
