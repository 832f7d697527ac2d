/* `fsdpd config`; see roles.h. */
#include "roles.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/switches.h"
#include "base/text.h"
#include "option_table.h"
#include "options.h"
#include "print/table.h"

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
        AUTO(buf_deinit) struct buf line = {0};
        buf_printf(&line, "%s%s: ", dot != NULL ? "  " : "", dot != NULL ? dot + 1 : row->key);
        option_describe_value(options, row, &line);
        /* fsdpd creates this default directory at its start; as an explicit value it would have to
         * exist. */
        AUTO(buf_deinit) struct buf place = {0};
        output_clean(&place, value->source == SOURCE_DEFAULT ? "default" : value->place, false);
        bool made = row->list && row->fallback == NULL && value->source == SOURCE_DEFAULT;
        buf_printf(out, "%s%-*s # %s\n", made ? "# " : "", made ? 37 : 39, buf_text(&line),
                   made ? "default, made when fsdpd starts" : buf_text(&place));
    }
}

static void describe_json(const struct options *options, struct buf *out)
{
    json_t *list = json_array();
    for (int i = 0; i < option_row_count; i++) {
        const struct option_row *row = &option_rows[i];
        const struct option_value *value = &options->values[i];
        if (row->key == NULL || option_is_repeated(row)) continue;
        AUTO(buf_deinit) struct buf text = {0};
        option_describe_value(options, row, &text);
        json_t *entry = json_object();
        json_object_set_new(entry, "key", json_string(row->key));
        json_object_set_new(entry, "value", json_string(buf_text(&text)));
        json_object_set_new(entry, "source",
                            json_string(value->source == SOURCE_DEFAULT ? "default"
                                                                        : value->place));
        json_object_set_new(entry, "reload", json_boolean(row->reload));
        json_array_append_new(list, entry);
    }
    AUTO_FREE char *text = json_dumps(list, JSON_INDENT(2));
    buf_printf(out, "%s\n", text != NULL ? text : "[]");
    json_decref(list);
}

void config_describe(const struct options *options, bool json, struct buf *out)
{
    if (json) describe_json(options, out);
    else describe_yaml(options, out);
}

/* Warns of misspelt variables. fsdpd does not refuse them, because other programs may use variables
 * with the same prefix. */
static void warn_of_variables(void)
{
    char *variables[OPTION_ROWS_MAX];
    size_t count = 0;
    for (int i = 0; i < option_row_count; i++)
        if (option_rows[i].key != NULL) variables[count++] = option_variable(&option_rows[i]);
    for (char **entry = environ; *entry != NULL; entry++) {
        size_t length = strcspn(*entry, "=");
        if (strncmp(*entry, "FSDPD_", strlen("FSDPD_")) != 0) continue;
        AUTO_FREE char *name = mem_strndup(*entry, length);
        bool known = switch_find(name) != NULL;
        for (size_t i = 0; i < count && !known; i++) known = strcmp(variables[i], name) == 0;
        const char *near = text_nearest(name, (const char *const *)variables, count);
        if (!known)
            fprintf(stderr,
                    "fsdpd: warning: the environment's %s is not a variable of fsdpd%s%s%s\n", name,
                    near != NULL ? "; did you mean " : "", near != NULL ? near : "",
                    near != NULL ? "?" : "");
    }
    for (size_t i = 0; i < count; i++) free(variables[i]);
}

/* Prints which values differ from the defaults although no file was read. */
static void print_without_file(const struct options *options)
{
    const char *between = "no configuration file; given: ";
    for (int i = 0; i < option_row_count; i++) {
        const struct option_value *value = &options->values[i];
        if (option_rows[i].key == NULL || value->source == SOURCE_DEFAULT) continue;
        printf("%s%s", between, value->place);
        between = ", ";
    }
    if (between[0] == ',') printf("; all other settings have their defaults\n");
    else printf("no configuration file; all settings have their defaults\n");
}

int config_role_main(const struct options *options)
{
    if (!options->dump) {
        warn_of_variables();
        if (options->config_file != NULL) printf("%s: ok\n", options->config_file);
        else print_without_file(options);
        return 0;
    }
    AUTO(buf_deinit) struct buf text = {0};
    config_describe(options, options->json, &text);
    fputs(buf_text(&text), stdout);
    return 0;
}
