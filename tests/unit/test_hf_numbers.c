/*
 * Losses of many configurations, as transformers has them: tests/parity/configs.txt, made by
 * tests/parity/make_config_numbers.py. What is refused is refused with a message.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "config_loss.h"
#include "tests/testing.h"

/* A line is a loss, or "refused", and a config.json; or a comment. */
static void check_line(char *line, int number)
{
    struct buf notes = {0};
    double loss = NAN;
    char *json = strchr(line, ' '), *end = NULL;
    ck_assert_msg(json != NULL, "line %d", number);
    *json++ = '\0';
    double expected = strtod(line, &end);
    status_t status = config_loss(json, &notes, &loss);
    if (strcmp(line, "refused") == 0) {
        ck_assert_msg(status != NULL, "line %d: not refused: %s", number, json);
    } else {
        ck_assert_msg(*end == '\0', "line %d: no loss", number);
        ck_assert_msg(status == NULL, "line %d: %s: %s", number, status_message(status), json);
        ck_assert_msg(fabs(loss - expected) <= 2e-5 * fmax(1, fabs(expected)),
                      "line %d: %.9g, expected %.9g: %s", number, loss, expected, json);
    }
    status_free(status);
    buf_deinit(&notes);
}

TEST(losses_are_those_of_transformers)
{
    const char *srcdir = getenv("srcdir");
    char *path = mem_printf("%s/tests/parity/configs.txt", srcdir != NULL ? srcdir : ".");
    FILE *file = fopen(path, "r");
    ck_assert_msg(file != NULL, "%s", path);
    char *line = NULL;
    size_t capacity = 0;
    int number = 0, checked = 0;
    while (getline(&line, &capacity, file) > 0) {
        number++;
        if (line[0] == '#') continue;
        check_line(line, number);
        checked++;
    }
    ck_assert_int_ge(checked, 300);
    free(line);
    fclose(file);
    free(path);
}
