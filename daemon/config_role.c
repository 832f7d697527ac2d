/* `fsdpd config`; see config_role.h. */
#include "config_role.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "option_table.h"

static void describe_yaml(const struct options *options, struct buf *out)
{
    char section[64] = "";
    for (int i = 0; i < option_row_count; i++) {
        const struct option_row *row = &option_rows[i];
        const struct option_value *value = &options->values[i];
        if (row->key == NULL || option_is_repeated(row)) continue;
        const char *dot = strchr(row->key, '.');
        size_t length = dot != NULL ? (size_t)(dot - row->key) : 0;
        if (length > 0 && (strlen(section) != length || strncmp(section, row->key, length) != 0)) {
            snprintf(section, sizeof section, "%.*s", (int)length, row->key);
            buf_printf(out, "%s:\n", section);
        }
        struct buf line = {0};
        buf_printf(&line, "%s%s: ", dot != NULL ? "  " : "", dot != NULL ? dot + 1 : row->key);
        option_describe_value(options, row, &line);
        buf_printf(out, "%-39s # %s\n", buf_text(&line),
                   value->source == SOURCE_DEFAULT ? "default" : value->place);
        buf_deinit(&line);
    }
}

static void describe_json(const struct options *options, struct buf *out)
{
    json_t *list = json_array();
    for (int i = 0; i < option_row_count; i++) {
        const struct option_row *row = &option_rows[i];
        const struct option_value *value = &options->values[i];
        if (row->key == NULL || option_is_repeated(row)) continue;
        struct buf text = {0};
        option_describe_value(options, row, &text);
        json_t *entry = json_object();
        json_object_set_new(entry, "key", json_string(row->key));
        json_object_set_new(entry, "value", json_string(buf_text(&text)));
        json_object_set_new(entry, "source",
                            json_string(value->source == SOURCE_DEFAULT ? "default"
                                                                        : value->place));
        json_object_set_new(entry, "reload", json_boolean(row->reload));
        json_array_append_new(list, entry);
        buf_deinit(&text);
    }
    char *text = json_dumps(list, JSON_INDENT(2));
    buf_printf(out, "%s\n", text != NULL ? text : "[]");
    free(text);
    json_decref(list);
}

void config_describe(const struct options *options, bool json, struct buf *out)
{
    if (json) describe_json(options, out);
    else describe_yaml(options, out);
}

int config_role_main(const struct options *options)
{
    if (!options->dump) {
        if (options->config_file != NULL) printf("%s: ok\n", options->config_file);
        else printf("no configuration file; everything is as it is by default\n");
        return 0;
    }
    struct buf text = {0};
    config_describe(options, options->json, &text);
    fputs(buf_text(&text), stdout);
    buf_deinit(&text);
    return 0;
}
