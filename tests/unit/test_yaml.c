/* YAML documents: the tree with its places, typed values, and one message for each refusal. */
#include "tests/testing.h"
#include "yaml/yaml.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

static struct yamldoc *parse(const char *text)
{
    struct yamldoc *document = NULL;
    status_t status = yamldoc_parse(text, strlen(text), "job.yaml", &document);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    return document;
}

static void assert_error(status_t status, const char *message)
{
    ck_assert_str_eq(status_message(status), message);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    status_free(status);
}

static void assert_okay(status_t status)
{
    ck_assert_msg(status == NULL, "%s", status_message(status));
}

TESTS_BELOW(.timeout = 60);

TEST(tree_keeps_order_and_places)
{
    struct yamldoc *document = parse("name: mnist\n"
                                     "train:\n"
                                     "  epochs: 10   # comment\n"
                                     "  seed: '1'\n"
                                     "list: [a, {b: c}]\n"
                                     "block: |\n"
                                     "  two\n"
                                     "  lines\n");
    struct yamldoc_node *root = document->root;
    ck_assert_int_eq(root->kind, YAMLDOC_MAPPING);
    ck_assert_int_eq(root->item_count, 4);
    ck_assert_ptr_null(root->parent);
    ck_assert_str_eq(root->items[0]->key, "name");
    ck_assert_str_eq(root->items[0]->text, "mnist");
    ck_assert_int_eq(root->items[0]->line, 1);
    ck_assert_int_eq(root->items[0]->column, 7);
    ck_assert_str_eq(root->items[0]->file, "job.yaml");
    struct yamldoc_node *train = yamldoc_get(root, "train");
    ck_assert_int_eq(train->key_line, 2);
    ck_assert_int_eq(train->line, 3);
    ck_assert_str_eq(train->items[0]->text, "10");
    ck_assert(!train->items[0]->quoted);
    ck_assert(train->items[1]->quoted);
    ck_assert_int_eq(train->items[1]->key_line, 4);
    struct yamldoc_node *list = yamldoc_get(root, "list");
    ck_assert_int_eq(list->kind, YAMLDOC_SEQUENCE);
    ck_assert_int_eq(list->items[1]->index, 1);
    char *path = yamldoc_path(yamldoc_get(list->items[1], "b"));
    ck_assert_str_eq(path, "list[1].b");
    free(path);
    ck_assert_str_eq(yamldoc_get(root, "block")->text, "two\nlines\n");
    ck_assert_ptr_null(yamldoc_get(root, "absent"));
    ck_assert_ptr_null(yamldoc_get(list, "absent"));
    ck_assert_ptr_null(yamldoc_get(NULL, "absent"));
    yamldoc_free(document);
    yamldoc_free(NULL);
}

static const struct {
    const char *text, *message;
} refused[] = {
    {"", "job.yaml:1: the file is empty"},
    {"# only this\n", "job.yaml:1: the file is empty"},
    {"a: 1\nb: 2\na: 3\n", "job.yaml:3: key 'a' is given twice; the first is on line 1"},
    {"x:\n  a: 1\n  'a': 3\n", "job.yaml:3: key 'a' is given twice; the first is on line 2"},
    {"a: &one 1\n", "job.yaml:1: anchors (&one) are not supported here"},
    {"a: &one [1]\n", "job.yaml:1: anchors (&one) are not supported here"},
    {"a: &one {b: 1}\n", "job.yaml:1: anchors (&one) are not supported here"},
    {"&k a: 1\n", "job.yaml:1: anchors (&k) are not supported here"},
    {"b: 1\na: *one\n", "job.yaml:2: aliases (*one) are not supported here"},
    {"*one : 1\n", "job.yaml:1: aliases (*one) are not supported here"},
    {"a: !!int 1\n", "job.yaml:1: tags (tag:yaml.org,2002:int) are not supported here"},
    {"a: !mine [1]\n", "job.yaml:1: tags (!mine) are not supported here"},
    {"a: ! x\n", "job.yaml:1: tags (!) are not supported here"},
    {"a: 1\n---\nb: 2\n", "job.yaml:2: a second document; only one is supported"},
    {"? [a, b]\n: 1\n", "job.yaml:1: a key must be a plain word, not a list"},
    {"? {a: b}\n: 1\n", "job.yaml:1: a key must be a plain word, not a mapping"},
    {"a: \"x\\0y\"\n", "job.yaml:1: a text may not contain the character NUL"},
    {"a: 1\nb: [1, 2\n", "job.yaml:3: not valid YAML: while parsing a flow sequence, "
                         "did not find expected ',' or ']'"},
    {"a: 1\n\tb: 2\n", "job.yaml:2: not valid YAML: while scanning a plain scalar, "
                       "found a tab character that violates indentation"},
    {"a: 1\nb: \x01\n", "job.yaml:2: not valid YAML: control characters are not allowed"},
    {"a: 1\nb: \xff\n", "job.yaml:2: not valid YAML: invalid leading UTF-8 octet"},
    {"a: 'x\n", "job.yaml:2: not valid YAML: while scanning a quoted scalar, "
                "found unexpected end of stream"},
};

/* Places are those of the text after it. */
TEST(byte_order_mark_is_skipped)
{
    struct yamldoc *document = parse("\xef\xbb\xbfname: mnist\n");
    struct yamldoc_node *name = yamldoc_get(document->root, "name");
    ck_assert_ptr_nonnull(name);
    ck_assert_str_eq(name->text, "mnist");
    ck_assert_int_eq(name->key_line, 1);
    ck_assert_int_eq(name->column, 7);
    yamldoc_free(document);
    assert_error(yamldoc_parse("\xef\xbb\xbf", 3, "job.yaml", &document),
                 "job.yaml:1: the file is empty");
    /* Of UTF-16: only UTF-8 is read. */
    assert_error(yamldoc_parse("\xff\xfe"
                               "a\0:\0 \0b\0\n\0",
                               12, "job.yaml", &document),
                 "job.yaml:1: not valid YAML: invalid leading UTF-8 octet");
}

LOOP_TEST(bad_text_is_refused, 0, COUNT_OF(refused))
{
    struct yamldoc *document = NULL;
    status_t status =
        yamldoc_parse(refused[_i].text, strlen(refused[_i].text), "job.yaml", &document);
    assert_error(status, refused[_i].message);
    ck_assert_ptr_null(document);
}

static void add_many(struct buf *text, const char *part, int count)
{
    for (int i = 0; i < count; i++) buf_add_text(text, part);
}

TEST(depth_is_limited)
{
    static const struct {
        const char *part;
        int count;
    } bombs[] = {{"[", 65}, {"[", 500000}, {"{a: ", 200000}, {"- ", 200000}};
    struct yamldoc *document = NULL;
    struct buf text = {0};
    add_many(&text, "[", 64);
    add_many(&text, "]", 64);
    assert_okay(yamldoc_parse(text.data, text.length, "f", &document));
    yamldoc_free(document);
    for (size_t i = 0; i < COUNT_OF(bombs); i++) {
        buf_clear(&text);
        add_many(&text, bombs[i].part, bombs[i].count);
        assert_error(yamldoc_parse(text.data, text.length, "f", &document),
                     "f:1: nested deeper than 64 levels");
    }
    buf_deinit(&text);
}

TEST(size_is_limited)
{
    struct yamldoc *document = NULL;
    struct buf text = {0};
    add_many(&text, "- 1\n", 210000);
    assert_error(yamldoc_parse(text.data, text.length, "f", &document),
                 "f:200000: more than 200000 values");
    add_many(&text, "- 1\n", 90000);
    assert_error(yamldoc_parse(text.data, text.length, "f", &document),
                 "f: 1200000 bytes; at most 1048576 are supported");
    buf_clear(&text); /* many keys: duplicates are found without comparing every pair */
    for (int i = 0; i < 90000; i++) buf_printf(&text, "k%d: 1\n", i);
    buf_add_text(&text, "k4: 1\n");
    assert_error(yamldoc_parse(text.data, text.length, "f", &document),
                 "f:90001: key 'k4' is given twice; the first is on line 5");
    buf_deinit(&text);
}

static const char typed[] = "whole: 12\n"
                            "negative: -3\n"
                            "real: 1e-6\n"
                            "yes: true\n"
                            "no: false\n"
                            "word: abc\n"
                            "quoted: '12'\n"
                            "nothing:\n"
                            "tilde: ~\n"
                            "empty: ''\n"
                            "list: [1, x]\n"
                            "map: {inner: 0.5}\n"
                            "huge: 99999999999999999999\n"
                            "nan: .nan\n";

TEST(typed_values_are_read)
{
    struct yamldoc *document = parse(typed);
    struct yamldoc_node *root = document->root;
    int64_t whole = 7;
    assert_okay(yamldoc_read_i64(NULL, 1, INT64_MAX, &whole));
    ck_assert_int_eq(whole, 7);
    assert_okay(yamldoc_read_i64(yamldoc_get(root, "whole"), 1, 12, &whole));
    ck_assert_int_eq(whole, 12);
    assert_okay(yamldoc_read_i64(yamldoc_get(root, "negative"), INT64_MIN, 0, &whole));
    ck_assert_int_eq(whole, -3);
    double real = 0;
    assert_okay(yamldoc_read_f64(yamldoc_get(root, "real"), 0, INFINITY, &real));
    ck_assert(real == 1e-6);
    assert_okay(yamldoc_read_f64(yamldoc_get(root, "whole"), 0, 20, &real));
    ck_assert(real == 12);
    bool flag = false;
    assert_okay(yamldoc_read_bool(yamldoc_get(root, "yes"), &flag));
    ck_assert(flag);
    assert_okay(yamldoc_read_bool(yamldoc_get(root, "no"), &flag));
    ck_assert(!flag);
    const char *text = NULL;
    assert_okay(yamldoc_read_text(yamldoc_get(root, "quoted"), NULL, &text));
    ck_assert_str_eq(text, "12");
    int index = -1;
    const char *const words[] = {"xyz", "abc"};
    assert_okay(yamldoc_read_choice(yamldoc_get(root, "word"), words, 2, &index));
    ck_assert_int_eq(index, 1);
    struct yamldoc_node *node = NULL;
    assert_okay(yamldoc_require(root, "map", &node));
    ck_assert_ptr_eq(node, yamldoc_get(root, "map"));
    ck_assert(yamldoc_is_null(yamldoc_get(root, "nothing")));
    ck_assert(yamldoc_is_null(yamldoc_get(root, "tilde")));
    ck_assert(!yamldoc_is_null(yamldoc_get(root, "empty")));
    yamldoc_free(document);
}

static struct yamldoc *typed_document;

static struct yamldoc_node *get(const char *key)
{
    return yamldoc_get(typed_document->root, key);
}

TEST(numbers_are_checked)
{
    typed_document = parse(typed);
    int64_t whole = 7;
    assert_error(yamldoc_read_i64(get("word"), 1, INT64_MAX, &whole),
                 "job.yaml:6: key 'word': expected a positive integer, found 'abc'");
    assert_error(yamldoc_read_i64(get("negative"), 0, INT64_MAX, &whole),
                 "job.yaml:2: key 'negative': expected an integer of at least 0, found '-3'");
    assert_error(yamldoc_read_i64(get("whole"), 1, 11, &whole),
                 "job.yaml:1: key 'whole': expected an integer from 1 to 11, found '12'");
    assert_error(yamldoc_read_i64(get("whole"), INT64_MIN, 11, &whole),
                 "job.yaml:1: key 'whole': expected an integer of at most 11, found '12'");
    assert_error(yamldoc_read_i64(get("real"), INT64_MIN, INT64_MAX, &whole),
                 "job.yaml:3: key 'real': expected an integer, found '1e-6'");
    assert_error(yamldoc_read_i64(get("huge"), INT64_MIN, INT64_MAX, &whole),
                 "job.yaml:13: key 'huge': expected an integer, found '99999999999999999999'");
    assert_error(yamldoc_read_i64(get("quoted"), 1, INT64_MAX, &whole),
                 "job.yaml:7: key 'quoted': expected a positive integer, found the text '12'");
    assert_error(yamldoc_read_i64(get("nothing"), 1, INT64_MAX, &whole),
                 "job.yaml:8: key 'nothing': expected a positive integer, found nothing");
    assert_error(yamldoc_read_i64(get("list"), 1, INT64_MAX, &whole),
                 "job.yaml:11: key 'list': expected a positive integer, found a list");
    assert_error(yamldoc_read_i64(get("list")->items[1], 1, INT64_MAX, &whole),
                 "job.yaml:11: key 'list[1]': expected a positive integer, found 'x'");
    ck_assert_int_eq(whole, 7);
    double real = 7;
    assert_error(yamldoc_read_f64(get("nan"), -INFINITY, INFINITY, &real),
                 "job.yaml:14: key 'nan': expected a number, found '.nan'");
    assert_error(yamldoc_read_f64(yamldoc_get(get("map"), "inner"), 0, 0.25, &real),
                 "job.yaml:12: key 'map.inner': expected a number from 0 to 0.25, found '0.5'");
    assert_error(yamldoc_read_f64(get("negative"), 0, INFINITY, &real),
                 "job.yaml:2: key 'negative': expected a number of at least 0, found '-3'");
    assert_error(yamldoc_read_f64(get("whole"), -INFINITY, 1, &real),
                 "job.yaml:1: key 'whole': expected a number of at most 1, found '12'");
    ck_assert(real == 7);
    yamldoc_free(typed_document);
}

TEST(other_values_are_checked)
{
    typed_document = parse(typed);
    bool flag = true;
    assert_error(yamldoc_read_bool(get("whole"), &flag),
                 "job.yaml:1: key 'whole': expected true or false, found '12'");
    ck_assert(flag);
    const char *text = NULL;
    assert_error(yamldoc_read_text(get("empty"), "a path", &text),
                 "job.yaml:10: key 'empty': expected a path, found the text ''");
    assert_error(yamldoc_read_text(get("map"), NULL, &text),
                 "job.yaml:12: key 'map': expected a text, found a mapping");
    ck_assert_ptr_null(text);
    const char *const words[] = {"size", "none", "modules"};
    int index = 7;
    assert_error(yamldoc_read_choice(get("word"), words, 3, &index),
                 "job.yaml:6: key 'word': expected 'size', 'none' or 'modules', found 'abc'");
    ck_assert_int_eq(index, 7);
    struct yamldoc_node *node = NULL, *root = typed_document->root;
    assert_error(yamldoc_require(root, "workers", &node), "job.yaml:1: key 'workers' is missing");
    assert_error(yamldoc_require(get("map"), "x", &node), "job.yaml:12: key 'map.x' is missing");
    assert_error(yamldoc_require(root, "nothing", &node),
                 "job.yaml:8: key 'nothing': a value is missing");
    ck_assert_ptr_null(node);
    assert_error(yamldoc_expect_mapping(get("list"), NULL),
                 "job.yaml:11: key 'list': expected a mapping, found a list");
    assert_error(yamldoc_expect_sequence(get("map"), "a list of names"),
                 "job.yaml:12: key 'map': expected a list of names, found a mapping");
    assert_error(yamldoc_error(get("map"), "odd %d", 1), "job.yaml:12: odd 1");
    assert_error(yamldoc_key_error(root, "odd %d", 1), "job.yaml:1: odd 1");
    yamldoc_free(typed_document);
}

TEST(unknown_keys_are_named)
{
    struct yamldoc *document = parse("train:\n  epochs: 1\n  sede: 1\n");
    const char *const keys[] = {"epochs", "seed"};
    assert_error(yamldoc_check_keys(yamldoc_get(document->root, "train"), keys, 2),
                 "job.yaml:3: unknown key 'train.sede'; did you mean 'seed'?");
    const char *const other[] = {"workers", "device"};
    assert_error(yamldoc_check_keys(document->root, other, 2),
                 "job.yaml:1: unknown key 'train'; the keys here are workers, device");
    const char *const all[] = {"train"};
    assert_okay(yamldoc_check_keys(document->root, all, 1));
    assert_error(yamldoc_check_keys(document->root->items[0]->items[0], all, 1),
                 "job.yaml:2: key 'train.epochs': expected a mapping, found '1'");
    yamldoc_free(document);
}

TEST(values_are_set_by_path)
{
    struct yamldoc *document = parse("train: {epochs: 1}\nfsdp:\nname: x\n");
    struct yamldoc_node *root = document->root;
    assert_okay(yamldoc_set(document, "train.epochs", "5", "--set train.epochs=5"));
    assert_okay(yamldoc_set(document, "train.seed", "abc", "--set train.seed=abc"));
    assert_okay(yamldoc_set(document, "fsdp.wrap.modules", "[a, b]", "--set"));
    assert_okay(yamldoc_set(document, "name", "", "--set name="));
    int64_t whole = 0;
    assert_okay(yamldoc_read_i64(yamldoc_get(root->items[0], "epochs"), 1, 9, &whole));
    ck_assert_int_eq(whole, 5);
    ck_assert_int_eq(root->items[0]->item_count, 2);
    assert_error(
        yamldoc_read_i64(yamldoc_get(root->items[0], "seed"), 0, INT64_MAX, &whole),
        "--set train.seed=abc: key 'train.seed': expected an integer of at least 0, found 'abc'");
    char *path = yamldoc_path(root->items[1]->items[0]->items[0]->items[1]);
    ck_assert_str_eq(path, "fsdp.wrap.modules[1]");
    free(path);
    ck_assert(yamldoc_is_null(yamldoc_get(root, "name")));
    const char *const keys[] = {"train", "fsdp"};
    assert_error(yamldoc_check_keys(root, keys, 2),
                 "--set name=: unknown key 'name'; the keys here are train, fsdp");

    assert_error(yamldoc_set(document, "train.epochs.x", "5", "--set a"),
                 "--set a: 'train.epochs' is not a mapping; it has no key 'x'");
    assert_error(yamldoc_set(document, "train..x", "5", "--set a"),
                 "--set a: a key is empty; expected KEY.KEY=VALUE");
    assert_error(yamldoc_set(document, "", "5", "--set a"),
                 "--set a: a key is empty; expected KEY.KEY=VALUE");
    assert_error(yamldoc_set(document, "train", "[5", "--set a"),
                 "--set a: not valid YAML: while parsing a flow sequence, "
                 "did not find expected ',' or ']'");
    struct buf deep = {0};
    add_many(&deep, "a.", 100);
    buf_add_char(&deep, 'a');
    assert_error(yamldoc_set(document, buf_text(&deep), "5", "--set a"),
                 "--set a: nested deeper than 64 levels");
    buf_deinit(&deep);
    ck_assert_int_eq(yamldoc_get(root, "train")->item_count, 2);
    yamldoc_free(document);

    document = parse("[1]");
    assert_error(yamldoc_set(document, "a", "5", "--set a=5"),
                 "--set a=5: the document is not a mapping; it has no key 'a'");
    yamldoc_free(document);
}

TEST(excerpts_are_short_whole_characters)
{
    char out[72];
    ck_assert_str_eq(yamldoc_excerpt("a\nb", out), "a b");
    char text[80];
    memset(text, 'x', 60);
    text[60] = 0;
    ck_assert_str_eq(yamldoc_excerpt(text, out), text);
    strcpy(text + 59, "\xc3\xa9"); /* the 60th byte begins a character of two */
    yamldoc_excerpt(text, out);
    ck_assert_uint_eq(strlen(out), 62);
    ck_assert_str_eq(out + 58, "x...");
}

static void encode(uint32_t c, char out[static 5])
{
    int length = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = length - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)(length == 1 ? c : (0xF00u >> length & 0xF0) | c);
}

static void check_printed(const char *text)
{
    struct buf line = {0};
    buf_add_text(&line, "a: [b, {c: ");
    yamldoc_print_text(&line, text);
    buf_add_text(&line, "}]\nd: ");
    yamldoc_print_quoted(&line, text);
    struct yamldoc *document = parse(buf_text(&line));
    const struct yamldoc_node *list = yamldoc_get(document->root, "a");
    const struct yamldoc_node *inner = yamldoc_get(list->items[1], "c");
    ck_assert_str_eq(inner->text, text);
    ck_assert(!yamldoc_is_null(inner));
    ck_assert_str_eq(yamldoc_get(document->root, "d")->text, text);
    yamldoc_free(document);
    buf_deinit(&line);
}

/* Each alone, and at the ends and in the middle of a text. */
TEST(every_character_is_read_back)
{
    for (uint32_t c = 1; c < 0x110000; c += c < 0x10000 || (c & 0xFFFF) >= 0xFFF0 ? 1 : 0xFFF0) {
        if (c >= 0xD800 && c < 0xE000) continue;
        char one[5] = {0}, text[16];
        encode(c, one);
        check_printed(one);
        snprintf(text, sizeof text, "%sa%sb%s", one, one, one);
        check_printed(text);
    }
}

TEST(texts_that_mean_something_in_yaml_are_quoted)
{
    static const char *const texts[] = {"",      "null",  "~",   "true", "a:", "/a:", "a: b",
                                        "a #b",  "a - b", "- a", "#a",   "[a", "a,b", "a}",
                                        "*a",    "&a",    "!a",  "|",    ">",  "'a'", "\"",
                                        "\\x41", "%a",    "@a",  "`a`",  " a", "a ",  "a\n\nb",
                                        "---",   "...",   "12",  "? a"};
    struct buf out = {0};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        buf_clear(&out);
        yamldoc_print_text(&out, texts[i]);
        ck_assert_msg(buf_text(&out)[0] == '"', "%s", buf_text(&out));
        check_printed(texts[i]);
    }
    buf_clear(&out);
    yamldoc_print_text(&out, "unix:/srv/data_1.x-y+z");
    ck_assert_str_eq(buf_text(&out), "unix:/srv/data_1.x-y+z");
    check_printed(buf_text(&out));
    buf_deinit(&out);
}

TEST(a_part_becomes_the_document_and_keeps_its_lines)
{
    struct yamldoc *document = parse("other: 1\nlist:\n  - {train: {epochs: x}}\nlast: 2\n");
    yamldoc_reroot(document, document->root->items[1]->items[0]);
    int64_t epochs = 0;
    struct yamldoc_node *train = yamldoc_get(document->root, "train");
    assert_error(yamldoc_read_i64(yamldoc_get(train, "epochs"), 1, 9, &epochs),
                 "job.yaml:3: key 'train.epochs': expected an integer from 1 to 9, found 'x'");
    assert_okay(yamldoc_set(document, "train.epochs", "4", "--set"));
    assert_okay(yamldoc_read_i64(yamldoc_get(train, "epochs"), 1, 9, &epochs));
    ck_assert_int_eq(epochs, 4);
    yamldoc_reroot(document, document->root); /* which it is */
    ck_assert_int_eq(document->root->item_count, 1);
    yamldoc_free(document);
}

/* Changed bytes anywhere: an error or a tree, never a crash or a leak (run under sanitizers too).
 */
TEST(random_changes_do_no_harm)
{
    static const char base[] = "name: mnist\ntrain: {epochs: 10, list: [1, 'two', \"three\"]}\n"
                               "block: |\n  a\n  b\nlist:\n- x\n";
    static const char bytes[] = "{}[]:,-#&*!|>'\"%@`? \n\tab1\\\xff\x01";
    unsigned state = 1;
    int good = 0;
    for (int round = 0; round < 20000; round++) {
        char text[sizeof base];
        memcpy(text, base, sizeof base);
        for (int change = 0; change < 1 + round % 4; change++) {
            state = state * 1664525u + 1013904223u;
            unsigned at = (state >> 8) % (sizeof base - 1);
            state = state * 1664525u + 1013904223u;
            text[at] = bytes[(state >> 8) % (sizeof bytes - 1)];
        }
        struct yamldoc *document = NULL;
        status_t status = yamldoc_parse(text, sizeof base - 1, "f", &document);
        ck_assert((status == NULL) == (document != NULL));
        if (status) ck_assert(strncmp(status_message(status), "f:", 2) == 0);
        good += status == NULL;
        status_free(status);
        yamldoc_free(document);
    }
    ck_assert_int_gt(good, 1000);
    ck_assert_int_lt(good, 19000);
}
