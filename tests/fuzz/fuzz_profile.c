/* Profiles of devices: the bytes as a file and, where they could be one, as a name. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "fuzz.h"
#include "planning/profile.h"

static void check_rate(double rate)
{
    FUZZ_CHECK(isfinite(rate) && rate > 0, "%g", rate);
}

static void check_link(const struct plan_link *link)
{
    check_rate(link->bandwidth);
    FUZZ_CHECK(link->latency >= 0 && link->latency <= 10, "%g", link->latency);
}

static void check(status_t status, struct profile *profile)
{
    if (status != NULL) {
        fuzz_expect_user_error(status);
        return;
    }
    check_rate(profile->rates.flops_f32);
    check_rate(profile->rates.flops_bf16);
    check_rate(profile->rates.memory_bandwidth);
    check_link(&profile->rates.batch);
    check_link(&profile->rates.inside);
    check_link(&profile->rates.between);
    FUZZ_CHECK(profile->rates.op_seconds >= 0, "%g", profile->rates.op_seconds);
    FUZZ_CHECK(profile->rates.devices_per_host >= 1, "%d", profile->rates.devices_per_host);
    FUZZ_CHECK(profile->world >= 0 && profile->world <= PROFILE_WORLD_MAX, "%d", profile->world);
    FUZZ_CHECK(profile->here || profile->memory_bytes > 0, "%s", profile->name);
    FUZZ_CHECK(memchr(profile->name, '\0', sizeof profile->name) != NULL, "no end");
    if (profile->tables != NULL) {
        struct plan_work work = {.ranks = 1, .amount = 1e6, .bytes = 1e6, .seconds = 1e-3};
        double seconds = plan_tables_seconds(profile->tables, &work);
        FUZZ_CHECK(seconds > 0 && seconds < INFINITY, "%g", seconds);
    }
    profile_deinit(profile);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct profile profile;
    char *text = mem_strndup((const char *)data, size);
    check(profile_parse((const char *)data, size, "profile.yaml", &profile), &profile);
    if (strpbrk(text, "/.") == NULL) check(profile_find(text, &profile), &profile);
    free(text);
    return 0;
}
