/* Every variable of the environment is a row, and the manual and the measurements have them. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/switches.h"
#include "tests/testing.h"

static struct buf text;

static void read_source(const char *name)
{
    AUTO_FREE char *path = file_path_join(getenv("srcdir"), name);
    buf_clear(&text);
    status_t status = file_read(path, 1 << 20, &text);
    ck_assert_msg(status == NULL, "%s", status_message(status));
}

static void forget(void)
{
    buf_deinit(&text);
}

TESTS_BELOW(.tear_down = forget);

/* FSDPD_UPDATE_GOLDEN=1 prints the table. */
TEST(manual_has_every_row)
{
    AUTO(buf_deinit) struct buf rows = {0};
    for (size_t i = 0; i < switch_row_count; i++) {
        const struct switch_row *row = &switch_rows[i];
        buf_printf(&rows, "| `%s=%s` | %s%s%s | %s |\n", row->name, row->value,
                   switch_kind_name(row->kind), row->decided != NULL ? ": " : "",
                   row->decided != NULL ? row->decided : "", row->help);
    }
    if (getenv("FSDPD_UPDATE_GOLDEN") != NULL) fputs(buf_text(&rows), stdout);
    read_source("docs/fsdpd.md");
    ck_assert_msg(strstr(buf_text(&text), buf_text(&rows)) != NULL,
                  "docs/fsdpd.md lacks this table:\n%s", buf_text(&rows));
}

TEST(every_experiment_has_a_measurement)
{
    read_source("scripts/gpu-check.sh");
    for (size_t i = 0; i < switch_row_count; i++) {
        const struct switch_row *row = &switch_rows[i];
        ck_assert_int_eq(row->decided != NULL, row->kind == SWITCH_EXPERIMENT);
        AUTO_FREE char *given = mem_printf("%s=", row->name);
        if (row->kind == SWITCH_EXPERIMENT)
            ck_assert_msg(strstr(buf_text(&text), given) != NULL, "no row of gpu-check.sh sets %s",
                          row->name);
    }
}

TEST(values)
{
    unsetenv("FSDPD_CUDA_LOGITS");
    ck_assert(switch_get("FSDPD_CUDA_LOGITS") == NULL);
    ck_assert_int_eq(switch_number("FSDPD_CUDA_LOGITS"), 0);
    static const struct {
        const char *text;
        long long number;
    } cases[] = {{"4096", 4096}, {"0", 0}, {"-1", 0}, {"many", 0}, {"", 0}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        setenv("FSDPD_CUDA_LOGITS", cases[i].text, 1);
        ck_assert_int_eq(switch_number("FSDPD_CUDA_LOGITS"), cases[i].number);
        ck_assert(switch_is("FSDPD_CUDA_LOGITS", cases[i].text));
    }
    ck_assert(!switch_is("FSDPD_CUDA_LOGITS", "own"));
}

TEST(other_names_abort, .signal = SIGABRT)
{
    ck_assert_ptr_null(switch_find("FSDPD_CUDA_LOGIT"));
    switch_get("FSDPD_CUDA_LOGIT");
}
