/* Shared by the tests of the store; see store_fixture.h. */
#include "store_fixture.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/file.h"
#include "base/mem.h"

char *store_path;
char store_directory[64];

void store_set_up(void)
{
    strcpy(store_directory, "/tmp/fsdpd-store-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(store_directory));
    store_path = file_path_join(store_directory, "store.db");
}

void store_tear_down(void)
{
    char *command = mem_printf("rm -r %s", store_directory);
    ck_assert_int_eq(system(command), 0);
    free(command);
    free(store_path);
}

void store_remove(void)
{
    static const char *const suffixes[] = {"", "-wal", "-shm", "-mark"};
    for (size_t i = 0; i < COUNT_OF(suffixes); i++) {
        char *name = mem_printf("%s%s", store_path, suffixes[i]);
        unlink(name);
        free(name);
    }
}

void expect_ok(status_t status)
{
    ck_assert_msg(status == NULL, "%s", status_message(status));
}

void expect_error(status_t status, enum status_code code, const char *words)
{
    ck_assert_str_eq(status_code_name(status_code(status)), status_code_name(code));
    ck_assert_msg(strstr(status_message(status), words) != NULL, "\"%s\" lacks \"%s\"",
                  status_message(status), words);
    status_free(status);
}
