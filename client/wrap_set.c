/* wrap set: changes the FSDP units of a running job. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "client.h"
#include "exit.h"
#include "print/json.h"

/* The options that set keys of the policy, in the order of `wrap_options`. */
static const struct {
    const char *option, *key;
    bool list; /* comma-separated names */
} settings[OPTIONS_WRAP_COUNT] = {
    [OPTIONS_WRAP_POLICY] = {"--policy", "fsdp.wrap.policy", false},
    [OPTIONS_WRAP_MIN_NUM_PARAMS] = {"--min-num-params", "fsdp.wrap.min_num_params", false},
    [OPTIONS_WRAP_FORCE_LEAF] = {"--force-leaf", "fsdp.wrap.force_leaf", true},
    [OPTIONS_WRAP_EXCLUDE] = {"--exclude", "fsdp.wrap.exclude", true},
    [OPTIONS_WRAP_TYPES] = {"--types", "fsdp.wrap.types", true},
    [OPTIONS_WRAP_MODULES] = {"--modules", "fsdp.wrap.modules", true},
    [OPTIONS_WRAP_UNITS] = {"--units", "fsdp.wrap.units", false},
};

#define WRAP_OPTION(name, number)                                                                  \
    static status_t set_##name(struct verb_options *options, const char *value)                    \
    {                                                                                              \
        options->wrap[number] = value;                                                             \
        return NULL;                                                                               \
    }
WRAP_OPTION(policy, OPTIONS_WRAP_POLICY)
WRAP_OPTION(min_num_params, OPTIONS_WRAP_MIN_NUM_PARAMS)
WRAP_OPTION(force_leaf, OPTIONS_WRAP_FORCE_LEAF)
WRAP_OPTION(exclude, OPTIONS_WRAP_EXCLUDE)
WRAP_OPTION(types, OPTIONS_WRAP_TYPES)
WRAP_OPTION(modules, OPTIONS_WRAP_MODULES)
WRAP_OPTION(units, OPTIONS_WRAP_UNITS)

const struct verb_option wrap_options[] = {
    {"policy", 0, "POLICY", "set: auto, none, size, type, match or units", set_policy},
    {"min-num-params", 0, "N", "set, size: parameters from which a module is a unit",
     set_min_num_params},
    {"force-leaf", 0, "TYPES", "set, size: types that never are split, separated by commas",
     set_force_leaf},
    {"exclude", 0, "TYPES", "set, size: types that never are units themselves, separated by commas",
     set_exclude},
    {"types", 0, "TYPES", "set, type: module types, separated by commas", set_types},
    {"modules", 0, "PATTERNS", "set, match: patterns of modules, separated by commas", set_modules},
    {"units", 0, "LIST", "set, units: as in a job file, \"[fc1, [conv1, conv2]]\"", set_units},
    {0},
};

/* Converts "a,b*" to ["a", "b*"]; the reader checks the names themselves. */
static char *quote_list(const char *names)
{
    struct buf list = {0};
    buf_add_char(&list, '[');
    while (names[0] != '\0') {
        size_t length = strcspn(names, ",");
        buf_add_char(&list, '"');
        for (size_t i = 0; i < length; i++) {
            if (names[i] == '"' || names[i] == '\\') buf_add_char(&list, '\\');
            buf_add_char(&list, names[i]);
        }
        buf_add_text(&list, "\", ");
        names += length + (names[length] == ',');
    }
    buf_add_char(&list, ']');
    return buf_take(&list);
}

static status_t read_policy(const struct verb_options *options, Fsdpd__V1__WrapSpec **wrap)
{
    struct spec_setting given[OPTIONS_WRAP_COUNT];
    char *made[OPTIONS_WRAP_COUNT] = {NULL};
    int count = 0;
    if (options->wrap[OPTIONS_WRAP_POLICY] == NULL)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "wrap set: expected --policy auto, none, size, type, match or units");
    for (int i = 0; i < OPTIONS_WRAP_COUNT; i++) {
        const char *value = options->wrap[i];
        if (value == NULL) continue;
        if (settings[i].list) value = made[i] = quote_list(value);
        given[count++] = (struct spec_setting){settings[i].key, value, settings[i].option};
    }
    status_t status = spec_read_wrap("wrap set", given, count, wrap);
    for (int i = 0; i < OPTIONS_WRAP_COUNT; i++) free(made[i]);
    return status;
}

static void print_job(const struct client *client, const Fsdpd__V1__Job *job)
{
    struct buf text = {0};
    if (client->options.format == FORMAT_JSON) {
        json_add_document(&text, &job->base);
    } else {
        if (job->plan != NULL) report_tree(job->plan, &text);
        buf_add_char(&text, '\n');
        report_units(job->units, job->n_units, client_view(client).width, &text);
    }
    output_print(&text);
}

int verb_wrap_set(struct client *client)
{
    Fsdpd__V1__SetWrapPolicyRequest request = FSDPD__V1__SET_WRAP_POLICY_REQUEST__INIT;
    ProtobufCMessage *response;
    int code = EXIT_DONE;
    status_t status = read_policy(&client->options, &request.wrap);
    if (status != NULL) return output_usage_error(status);
    request.id = (char *)client->options.arguments[1];
    if (client_call(client, &control_set_wrap_policy, &request.base, &response, &code)) {
        print_job(client, (const Fsdpd__V1__Job *)(const void *)response);
        protobuf_c_message_free_unpacked(response, NULL);
    }
    fsdpd__v1__wrap_spec__free_unpacked(request.wrap, NULL);
    return code;
}
