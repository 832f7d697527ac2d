/* Shared by the tests of common/spec; see spec_fixture.h. */
#include "spec_fixture.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

static char directory[64];

void spec_set_up(void)
{
    strcpy(directory, "/tmp/test_spec.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    ck_assert_int_eq(chdir(directory), 0);
    status_t status = file_write_atomic("net.yaml", "modules: {}\n", 12, 0644);
    ck_assert_msg(status == NULL, "%s", status_message(status));
}

void spec_tear_down(void)
{
    ck_assert_int_eq(chdir("/"), 0);
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", directory);
    ck_assert_int_eq(system(command), 0);
}

status_t read_with(const char *text, const char *const *sets, int count, Fsdpd__V1__JobSpec **spec)
{
    struct spec_override overrides[8] = {{NULL}};
    for (int i = 0; i < count; i++) overrides[i].text = sets[i];
    return spec_read_text(text, strlen(text), "job.yaml", overrides, count, spec);
}

Fsdpd__V1__JobSpec *must_read(const char *text, const char *set)
{
    Fsdpd__V1__JobSpec *spec = NULL;
    status_t status = read_with(text, &set, set != NULL, &spec);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    status = spec_validate(spec);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    return spec;
}

void expect_invalid(const Fsdpd__V1__JobSpec *spec, const char *message)
{
    status_t status = spec_validate(spec);
    ck_assert_str_eq(status_message(status), message);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(status_about(status).field);
    status_free(status);
}
