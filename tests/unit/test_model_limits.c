/*
 * Model files beyond the limits: of lines, names, work, depth and size; and random changes. Run
 * from anywhere: $srcdir is the place of the examples.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model_files.h"
#include "tests/testing.h"
#include "tiny_models.h"

/* A file whose `forward` or modules are generated. */
static char *file_with(const char *blocks, const char *modules, const char *forward)
{
    return mem_printf("name: N\ninput: [8]\nclasses: 8\nblocks: {%s}\nmodules: {%s}\n"
                      "forward:\n%sloss: cross_entropy(output, target)\n",
                      blocks, modules, forward);
}

static char *repeated(const char *before, const char *part, int count, const char *after)
{
    struct buf text = {0};
    buf_add_text(&text, before);
    for (int i = 0; i < count; i++) buf_add_text(&text, part);
    buf_add_text(&text, after);
    return buf_take(&text);
}

/* Takes ownership of `line`. */
static void assert_line_refused(char *line, const char *message)
{
    char *text = file_with("", "a: 'ReLU()'", line);
    assert_refused(text, strlen(text), message);
    free(text);
    free(line);
}

TESTS_BELOW(.timeout = 120, .set_up = load_mnist, .tear_down = unload_mnist);

TEST(lines_are_limited)
{
    assert_line_refused(repeated("  - output = ", "relu(", 31, "x\n"),
                        "net.yaml:7: expected ',' or ')' at the end of 'output = "
                        "relu(relu(relu(relu(relu(relu(relu(relu(relu(relu(r...'");
    assert_line_refused(repeated("  - output = ", "relu(", 32, "x\n"),
                        "net.yaml:7: nested deeper than 32 levels");
    assert_line_refused(repeated("  - output = ", "(", 800, "x\n"),
                        "net.yaml:7: nested deeper than 32 levels");
    assert_line_refused(repeated("  - output = ", "-", 800, "x\n"),
                        "net.yaml:7: nested deeper than 32 levels");
    assert_line_refused(repeated("  - output = x", " + x", 32, "\n"),
                        "net.yaml:7: more than 32 operators in a row");
    assert_line_refused(repeated("  - output = x", " + x", 2000, "\n"),
                        "net.yaml:7: longer than 4096 bytes");
    assert_line_refused(repeated("  - 'output = x", "          ", 500, "'\n"),
                        "net.yaml:7: longer than 4096 bytes");
    assert_line_refused(repeated("  - ", "n", 65, " = x\n"),
                        "net.yaml:7: the name at column 1 is longer than 64 letters");
    assert_line_refused(repeated("  - output = ", "1", 65, "\n"),
                        "net.yaml:7: the number at column 10 is too long");
    assert_line_refused(repeated("  - '", "for a in a: ", 40, "x = x'\n"),
                        "net.yaml:7: nested deeper than 32 levels");
}

TEST(names_in_a_section_are_limited)
{
    struct buf lines = {0};
    for (int i = 0; i < 1000; i++) buf_printf(&lines, "  - v%d = x\n", i);
    assert_line_refused(buf_take(&lines), "net.yaml:1006: more than 1000 names");
}

/* Blocks that double: an exponential amount of work from a few lines. */
static char *doubling(const char *leaf_forward, int levels)
{
    struct buf blocks = {0}, modules = {0};
    buf_printf(&blocks, "B0: {modules: {a: ReLU()}, forward: [output = %s]}", leaf_forward);
    for (int i = 1; i < levels; i++)
        buf_printf(&blocks, ", B%d: {modules: {a: B%d()}, forward: [x = a(x), output = a(x)]}", i,
                   i - 1);
    buf_printf(&modules, "a: B%d()", levels - 1);
    char *text = file_with(buf_text(&blocks), buf_text(&modules), "  - output = a(x)\n");
    buf_deinit(&blocks);
    buf_deinit(&modules);
    return text;
}

TEST(work_is_limited)
{
    char *text = doubling("a(x)", 60);
    struct model *model = NULL;
    status_t status = model_parse(text, strlen(text), "net.yaml", &model);
    ck_assert_msg(strstr(status_message(status), "makes more than 20000 calls") != NULL, "%s",
                  status_message(status));
    status_free(status);
    free(text);
    text = doubling("x", 60); /* only names */
    status = model_parse(text, strlen(text), "net.yaml", &model);
    ck_assert_msg(strstr(status_message(status), "takes more than 1000000 steps") != NULL, "%s",
                  status_message(status));
    status_free(status);
    free(text);
}

TEST(depth_is_limited)
{
    struct buf blocks = {0}, modules = {0};
    buf_add_text(&blocks, "B0: {modules: {a: ReLU()}, forward: [output = a(x)]}");
    for (int i = 1; i < 300; i++)
        buf_printf(&blocks, ", B%d: {modules: {a: B%d()}, forward: [output = a(x)]}", i, i - 1);
    char *text = file_with(buf_text(&blocks), "a: B299()", "  - output = a(x)\n");
    assert_refused(text, strlen(text), "net.yaml:4: modules are nested deeper than 256 levels");
    free(text);
    text = file_with(buf_text(&blocks), "a: B254()", "  - output = a(x)\n");
    struct model *model = parse(text);
    ck_assert_int_eq(model->module_count, 257);
    model_free(model);
    free(text);

    /* Deep lines in deep blocks: the sum counts. */
    buf_clear(&blocks);
    buf_add_text(&blocks, "B0: {modules: {a: ReLU()}, forward: [output = a(x)]}");
    for (int i = 1; i < 200; i++)
        buf_printf(&blocks,
                   ", B%d: {modules: {a: B%d()}, forward: [output = "
                   "relu(relu(relu(relu(relu(relu(relu(a(x))))))))]}",
                   i, i - 1);
    text = file_with(buf_text(&blocks), "a: B199()", "  - output = a(x)\n");
    status_t status = model_parse(text, strlen(text), "net.yaml", &model);
    ck_assert_msg(strstr(status_message(status), "calls are nested deeper than 1000 levels"), "%s",
                  status_message(status));
    status_free(status);
    free(text);
    buf_deinit(&blocks);
    buf_deinit(&modules);
}

TEST(names_are_limited)
{
    /* 256 levels with names of 64 letters, many times: far more bytes than the file has. */
    struct buf blocks = {0};
    char *name = repeated("", "n", 64, "");
    buf_printf(&blocks, "B0: {modules: {a: 9000 * ReLU()}, forward: [output = x]}");
    for (int i = 1; i < 200; i++)
        buf_printf(&blocks, ", B%d: {modules: {%s: B%d()}, forward: [output = x]}", i, name, i - 1);
    char *text = file_with(buf_text(&blocks), "a: B199()", "  - output = x\n");
    assert_refused(text, strlen(text), "net.yaml:4: all names together are longer than 32 MiB");
    free(text);
    free(name);
    buf_deinit(&blocks);
}

TEST(patterns_are_limited)
{
    char *stars = repeated("", "*a", 120, "*b");
    char *text = mem_printf("%sfreeze: ['%s']\n", buf_text(&mnist), stars);
    struct model *model = NULL;
    status_t status = model_parse(text, strlen(text), "net.yaml", &model);
    ck_assert_msg(strstr(status_message(status), "no parameter matches") != NULL, "%s",
                  status_message(status));
    status_free(status);
    free(text);
    free(stars);
    stars = repeated("", "*a", 200, "*b");
    text = mem_printf("%sfreeze: ['%s']\n", buf_text(&mnist), stars);
    assert_refused(text, strlen(text), "net.yaml:28: key 'freeze[0]': longer than 256 letters");
    free(text);
    free(stars);
}

TEST(size_is_limited)
{
    char *text = repeated(buf_text(&mnist), "# padding\n", 110000, "");
    struct model *model = NULL;
    status_t status = model_parse(text, strlen(text), "net.yaml", &model);
    ck_assert_msg(strstr(status_message(status), "at most 1048576 are supported") != NULL, "%s",
                  status_message(status));
    status_free(status);
    free(text);
}

static unsigned random_state;

static unsigned next_random(unsigned below)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % below;
}

/* Bytes changed, dropped and doubled anywhere: a model or one error with its place, never a
 * crash. */
static int parse_mutations(const char *base, int rounds)
{
    static const char bytes[] = "()[]{},.=:+-*/'\"\n #xc0129e\\\xff";
    int good = 0;
    for (int round = 0; round < rounds; round++) {
        size_t length = strlen(base);
        char *text = mem_alloc(2 * length + 1);
        memcpy(text, base, length);
        for (unsigned change = 0; change < 1 + (unsigned)round % 3; change++) {
            unsigned at = next_random((unsigned)length), kind = next_random(4);
            unsigned run = 1 + next_random(12);
            if (at + run > length) run = (unsigned)length - at;
            if (kind == 0) { /* drop a run */
                memmove(text + at, text + at + run, length - at - run);
                length -= run;
            } else if (kind == 1 && length < strlen(base) + 40) { /* repeat a run */
                memmove(text + at + run, text + at, length - at);
                length += run;
            } else {
                text[at] = bytes[next_random(sizeof bytes - 1)];
            }
        }
        struct model *model = NULL;
        status_t status = model_parse(text, length, "net.yaml", &model);
        ck_assert((status == NULL) == (model != NULL));
        if (status) ck_assert(strncmp(status_message(status), "net.yaml:", 9) == 0);
        good += status == NULL;
        status_free(status);
        model_free(model);
        free(text);
    }
    return good;
}

TEST(random_changes_do_no_harm)
{
    random_state = 1;
    int good = parse_mutations(buf_text(&mnist), 6000);
    ck_assert_int_gt(good, 10);
    ck_assert_int_lt(good, 5700);
    good = parse_mutations(residual, 6000);
    ck_assert_int_gt(good, 10);
    ck_assert_int_lt(good, 5700);
    for (int which = 0; which < TINY_COUNT; which++) {
        good = parse_mutations(tiny_model_text(which), 3000);
        ck_assert_int_gt(good, 10);
        ck_assert_int_lt(good, 2850);
    }
}
