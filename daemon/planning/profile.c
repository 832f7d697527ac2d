/* Built-in profiles, and profiles in files; see profile.h. Pure but for reading the file. */
#include "planning/profile.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/array.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "planning/plan_tables.h"
#include "yaml/yaml.h"

/* The file's values, before the efficiency is applied to the rates. */
struct description {
    struct profile profile;
    double efficiency;
};

/*
 * Vendors' data sheet values, one way where they add up both ways; plain f32 arithmetic, as
 * PyTorch's default for matmul. The efficiency is a rule of thumb. "cpu" is one thread of a current
 * server processor running our kernels, with ranks linked by loopback TCP; its peak assumes two
 * 512-bit FMA units (64 operations a clock in f32, 128 in bf16) at 4.4 GHz. A host's memory is that
 * of two sockets, divided by its devices.
 */
static const struct description built_in[] = {
    {.profile = {.name = "cpu",
                 .here = true,
                 .peak_flops_f32 = 280e9,
                 .peak_flops_bf16 = 560e9,
                 .rates = {.flops_f32 = 80e9,
                           .flops_bf16 = 80e9,
                           .memory_bandwidth = 12e9,
                           .host_bandwidth = 12e9,
                           .op_seconds = 5e-6,
                           .batch = {.bandwidth = 5e9, .latency = 2e-5},
                           .inside = {.bandwidth = 1.5e9, .latency = 4e-5},
                           .between = {.bandwidth = 1.25e9, .latency = 5e-5},
                           .devices_per_host = 64}},
     .efficiency = 1},
    {.profile = {.name = "t4",
                 .memory_bytes = UINT64_C(16000000000),
                 .rates = {.flops_f32 = 8.1e12,
                           .flops_bf16 = 8.1e12, /* no native bf16 */
                           .memory_bandwidth = 320e9,
                           .host_bandwidth = 30e9,
                           .op_seconds = 5e-6,
                           .batch = {.bandwidth = 12e9, .latency = 1e-5},
                           .inside = {.bandwidth = 12e9, .latency = 1e-5},
                           .between = {.bandwidth = 3e9, .latency = 2e-5},
                           .devices_per_host = 4}},
     .efficiency = 0.6},
    {.profile = {.name = "a100",
                 .memory_bytes = UINT64_C(80000000000),
                 .rates = {.flops_f32 = 19.5e12,
                           .flops_bf16 = 312e12,
                           .memory_bandwidth = 2.039e12,
                           .host_bandwidth = 50e9,
                           .op_seconds = 5e-6,
                           .batch = {.bandwidth = 25e9, .latency = 1e-5},
                           .inside = {.bandwidth = 300e9, .latency = 4e-6},
                           .between = {.bandwidth = 25e9, .latency = 1e-5},
                           .devices_per_host = 8}},
     .efficiency = 0.6},
    {.profile = {.name = "h100",
                 .memory_bytes = UINT64_C(80000000000),
                 .rates = {.flops_f32 = 67e12,
                           .flops_bf16 = 989e12,
                           .memory_bandwidth = 3.35e12,
                           .host_bandwidth = 75e9,
                           .op_seconds = 5e-6,
                           .batch = {.bandwidth = 50e9, .latency = 1e-5},
                           .inside = {.bandwidth = 450e9, .latency = 4e-6},
                           .between = {.bandwidth = 50e9, .latency = 1e-5},
                           .devices_per_host = 8}},
     .efficiency = 0.6},
    {.profile = {.name = "h200",
                 .memory_bytes = UINT64_C(141000000000),
                 .rates = {.flops_f32 = 67e12,
                           .flops_bf16 = 989e12,
                           .memory_bandwidth = 4.8e12,
                           .host_bandwidth = 75e9,
                           .op_seconds = 5e-6,
                           .batch = {.bandwidth = 50e9, .latency = 1e-5},
                           .inside = {.bandwidth = 450e9, .latency = 4e-6},
                           .between = {.bandwidth = 50e9, .latency = 1e-5},
                           .devices_per_host = 8}},
     .efficiency = 0.6},
};
enum { BUILT_IN_COUNT = COUNT_OF(built_in) };

const char *profile_name(int index)
{
    return index >= 0 && index < BUILT_IN_COUNT ? built_in[index].profile.name : NULL;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static void finish(const struct description *description, struct profile *profile)
{
    *profile = description->profile;
    profile->peak_flops_f32 = larger(profile->peak_flops_f32, profile->rates.flops_f32);
    profile->peak_flops_bf16 = larger(profile->peak_flops_bf16, profile->rates.flops_bf16);
    profile->rates.flops_f32 *= description->efficiency;
    profile->rates.flops_bf16 *= description->efficiency;
    profile->rates.memory_bandwidth *= description->efficiency;
}

/* ---- By name ---- */

/* `name` is not NUL-terminated. */
static const struct description *find_built_in(const char *name, size_t length)
{
    for (int i = 0; i < BUILT_IN_COUNT; i++)
        if (strlen(built_in[i].profile.name) == length &&
            strncmp(built_in[i].profile.name, name, length) == 0)
            return &built_in[i];
    return NULL;
}

static status_t unknown(const char *name, size_t length)
{
    const char *names[BUILT_IN_COUNT];
    struct buf known = {0};
    for (int i = 0; i < BUILT_IN_COUNT; i++) {
        names[i] = built_in[i].profile.name;
        buf_printf(&known, "%s%s", i > 0 ? ", " : "", names[i]);
    }
    char *word = mem_strndup(name, length < 64 ? length : 64);
    const char *near = text_nearest(word, names, BUILT_IN_COUNT);
    status_t status = near != NULL
                          ? status_new(STATUS_INVALID_ARGUMENT,
                                       "unknown profile %s; did you mean %s?", word, near)
                          : status_new(STATUS_INVALID_ARGUMENT,
                                       "unknown profile %s; expected one of %s, one of them "
                                       "with a number of ranks (h200x8), or a file (./my.yaml)",
                                       word, buf_text(&known));
    free(word);
    buf_deinit(&known);
    return status;
}

/* The position of "x8"; the text's length if it does not end in a number of ranks. */
static size_t find_world(const char *text)
{
    size_t length = strlen(text), at = length;
    while (at > 0 && text[at - 1] >= '0' && text[at - 1] <= '9') at--;
    return at < length && at > 1 && text[at - 1] == 'x' ? at - 1 : length;
}

static status_t find_by_name(const char *text, struct profile *profile)
{
    size_t length = find_world(text);
    int64_t world = 0;
    const struct description *found = find_built_in(text, length);
    if (found == NULL) return unknown(text, length);
    if (text[length] != '\0' &&
        (!text_parse_i64(text + length + 1, &world) || world < 1 || world > PROFILE_WORLD_MAX))
        return status_new(STATUS_INVALID_ARGUMENT, "the profile %.80s: expected 1 to %d ranks",
                          text, PROFILE_WORLD_MAX);
    finish(found, profile);
    profile->world = (int)world;
    return NULL;
}

/* The device's model must contain the name as a word: "T4" does not match "T400". */
bool profile_of_model(const char *model, struct profile *profile)
{
    for (int i = 0; i < BUILT_IN_COUNT; i++) {
        if (built_in[i].profile.here) continue;
        size_t length = strlen(built_in[i].profile.name);
        for (const char *at = model; *at != '\0'; at++) {
            if (strncasecmp(at, built_in[i].profile.name, length) != 0) continue;
            if (isalnum((unsigned char)at[length])) continue;
            if (at > model && isalnum((unsigned char)at[-1])) continue;
            finish(&built_in[i], profile);
            return true;
        }
    }
    return false;
}

/* ---- From a file ---- */

static const double RATE_MIN = 1e3, RATE_MAX = 1e18, SECONDS_MAX = 10;

static status_t read_required(const struct yamldoc_node *mapping, const char *key, bool given,
                              double minimum, double maximum, double *value)
{
    struct yamldoc_node *node = yamldoc_get(mapping, key);
    if (!given) TRY(yamldoc_require(mapping, key, &node));
    return yamldoc_read_f64(node, minimum, maximum, value);
}

/* Reads a link's mapping; keys that are missing keep their values. */
static status_t read_link(const struct yamldoc_node *node, bool given, struct plan_link *link)
{
    static const char *const keys[] = {"bandwidth", "latency"};
    if (node == NULL) return NULL;
    TRY(yamldoc_expect_mapping(node, "a link's bandwidth and latency"));
    TRY(yamldoc_check_keys(node, keys, 2));
    TRY(read_required(node, "bandwidth", given, RATE_MIN, RATE_MAX, &link->bandwidth));
    return yamldoc_read_f64(yamldoc_get(node, "latency"), 0, SECONDS_MAX, &link->latency);
}

static status_t read_flops(const struct yamldoc_node *node, bool given, struct plan_rates *rates)
{
    static const char *const keys[] = {"f32", "bf16"};
    TRY(yamldoc_expect_mapping(node, "floating-point operations per second by type"));
    TRY(yamldoc_check_keys(node, keys, 2));
    TRY(read_required(node, "f32", given, RATE_MIN, RATE_MAX, &rates->flops_f32));
    if (!given) rates->flops_bf16 = rates->flops_f32;
    return yamldoc_read_f64(yamldoc_get(node, "bf16"), RATE_MIN, RATE_MAX, &rates->flops_bf16);
}

static status_t read_name(const struct yamldoc_node *root, char name[static 48])
{
    const struct yamldoc_node *node = yamldoc_get(root, "name");
    const char *text = NULL;
    TRY(yamldoc_read_text(node, "a name", &text));
    if (text == NULL) return NULL;
    for (const char *c = text; *c != '\0'; c++)
        if ((unsigned char)*c < ' ' || (unsigned char)*c > '~' || strlen(text) > 40)
            return yamldoc_expected(node, "at most 40 printable characters");
    snprintf(name, 48, "%s", text);
    return NULL;
}

/* Without a built-in profile as the base (`given`), the rates are required. */
static status_t read_rates(const struct yamldoc_node *root, bool given, struct plan_rates *rates)
{
    struct yamldoc_node *flops = yamldoc_get(root, "flops"), *link = yamldoc_get(root, "link");
    if (!given) {
        TRY(yamldoc_require(root, "flops", &flops));
        TRY(yamldoc_require(root, "link", &link));
    }
    if (flops != NULL) TRY(read_flops(flops, given, rates));
    TRY(read_required(root, "memory_bandwidth", given, RATE_MIN, RATE_MAX,
                      &rates->memory_bandwidth));
    TRY(yamldoc_read_f64(yamldoc_get(root, "op_latency"), 0, SECONDS_MAX, &rates->op_seconds));
    TRY(read_link(link, given, &rates->inside));
    if (!given) {
        rates->between = rates->inside;
        rates->batch = (struct plan_link){.bandwidth = rates->memory_bandwidth};
        rates->host_bandwidth = rates->memory_bandwidth;
    }
    TRY(yamldoc_read_f64(yamldoc_get(root, "host_memory_bandwidth"), RATE_MIN, RATE_MAX,
                         &rates->host_bandwidth));
    TRY(read_link(yamldoc_get(root, "network"), true, &rates->between));
    return read_link(yamldoc_get(root, "host_link"), true, &rates->batch);
}

static status_t read_description(const struct yamldoc *document, struct description *description)
{
    static const char *const keys[] = {"name",
                                       "like",
                                       "world",
                                       "memory",
                                       "flops",
                                       "memory_bandwidth",
                                       "efficiency",
                                       "op_latency",
                                       "link",
                                       "network",
                                       "host_link",
                                       "devices_per_host",
                                       "host_memory_bandwidth",
                                       "tables"};
    const struct yamldoc_node *root = document->root;
    TRY(yamldoc_expect_mapping(root, "a profile's keys, as docs/profiles.md has them"));
    TRY(yamldoc_check_keys(root, keys, COUNT_OF(keys)));
    const struct yamldoc_node *like = yamldoc_get(root, "like");
    bool given = like != NULL;
    if (given) {
        const char *names[BUILT_IN_COUNT];
        int index = 0;
        for (int i = 0; i < BUILT_IN_COUNT; i++) names[i] = built_in[i].profile.name;
        TRY(yamldoc_read_choice(like, names, BUILT_IN_COUNT, &index));
        *description = built_in[index];
    }
    struct profile *profile = &description->profile;
    int64_t world = 0, devices = given ? profile->rates.devices_per_host : PROFILE_WORLD_MAX;
    double memory = (double)profile->memory_bytes;
    TRY(read_name(root, profile->name));
    TRY(yamldoc_read_i64(yamldoc_get(root, "world"), 1, PROFILE_WORLD_MAX, &world));
    TRY(read_required(root, "memory", given, 1e6, 1e16, &memory));
    TRY(read_rates(root, given, &profile->rates));
    TRY(yamldoc_read_f64(yamldoc_get(root, "efficiency"), 0.001, 1, &description->efficiency));
    TRY(yamldoc_read_i64(yamldoc_get(root, "devices_per_host"), 1, PROFILE_WORLD_MAX, &devices));
    profile->world = (int)world;
    profile->memory_bytes = (uint64_t)memory;
    profile->rates.devices_per_host = (int)devices;
    const struct yamldoc_node *tables = yamldoc_get(root, "tables");
    return tables != NULL ? profile_tables_read(tables, &profile->tables) : NULL;
}

void profile_deinit(struct profile *profile)
{
    plan_tables_free(profile->tables);
    profile->tables = NULL;
    profile->rates.tables = NULL;
}

status_t profile_parse(const char *text, size_t length, const char *file, struct profile *profile)
{
    struct yamldoc *document;
    TRY(yamldoc_parse(text, length, file, &document));
    struct description description = {.efficiency = 1};
    snprintf(description.profile.name, sizeof description.profile.name, "profile");
    status_t status = read_description(document, &description);
    yamldoc_free(document);
    if (status != NULL) return status;
    finish(&description, profile);
    profile->rates.tables = profile->tables;
    if (profile->tables != NULL) plan_tables_prepare(profile->tables, &profile->rates);
    return NULL;
}

static void print_link(const char *key, const struct plan_link *link, struct buf *out)
{
    buf_printf(out, "%s: {bandwidth: %.4g, latency: %.4g}\n", key, link->bandwidth, link->latency);
}

void profile_print(const struct profile *profile, struct buf *out)
{
    const struct plan_rates *rates = &profile->rates;
    buf_printf(out, "name: \"%s\"\n%s", profile->name, profile->here ? "like: cpu\n" : "");
    if (profile->memory_bytes > 0)
        buf_printf(out, "memory: %llu\n", (unsigned long long)profile->memory_bytes);
    buf_printf(out,
               "flops: {f32: %.4g, bf16: %.4g}\nmemory_bandwidth: %.4g\nop_latency: %.4g\n"
               "host_memory_bandwidth: %.4g\ndevices_per_host: %d\n",
               rates->flops_f32, rates->flops_bf16, rates->memory_bandwidth, rates->op_seconds,
               rates->host_bandwidth, rates->devices_per_host);
    print_link("link", &rates->inside, out);
    print_link("network", &rates->between, out);
    print_link("host_link", &rates->batch, out);
    if (profile->tables != NULL) profile_tables_print(profile->tables, out);
}

status_t profile_find(const char *text, struct profile *profile)
{
    if (strpbrk(text, "/.") == NULL) return find_by_name(text, profile);
    struct buf content = {0};
    status_t status = file_read(text, PROFILE_FILE_MAX, &content);
    if (status_code(status) == STATUS_RESOURCE_EXHAUSTED) {
        status_free(status);
        return status_new(STATUS_INVALID_ARGUMENT, "%s: larger than the %d bytes of a profile",
                          text, PROFILE_FILE_MAX);
    }
    TRY(status);
    status = profile_parse(buf_text(&content), content.length, text, profile);
    buf_deinit(&content);
    return status;
}
