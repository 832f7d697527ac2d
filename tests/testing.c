/* The main of every Check program. */
#include "tests/testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"

enum { SKIPPED = 77 }; /* Automake's exit status of a test that could not run */

static struct test_entry *entries; /* in the order of the file: constructors may run in any */

void test_register(struct test_entry *entry)
{
    struct test_entry **at = &entries;
    for (; *at != NULL; at = &(*at)->next) {
        int order = strcmp((*at)->test.file, entry->test.file);
        if (order > 0 || (order == 0 && (*at)->test.line > entry->test.line)) break;
    }
    entry->next = *at;
    *at = entry;
}

static bool is_test(const struct test_entry *entry)
{
    return entry->test.fn != NULL && !entry->unless;
}

static int list_tests(void)
{
    for (const struct test_entry *it = entries; it != NULL; it = it->next)
        if (is_test(it)) printf("%s %d\n", it->test.name, it->to - it->from);
    return 0;
}

/* Returns the program's own function for argv[1], or NULL. */
static const struct test_entry *find_program(const char *word)
{
    const struct test_entry *it = entries;
    while (it != NULL && (it->program == NULL || strcmp(it->test.name, word) != 0)) it = it->next;
    return it;
}

static const struct test_entry *find_test(const char *name)
{
    const struct test_entry *it = entries;
    while (it != NULL && (!is_test(it) || strcmp(it->test.name, name) != 0)) it = it->next;
    return it;
}

/* Without names every test is wanted. */
static bool is_wanted(const struct test_entry *entry, char **names)
{
    if (!is_test(entry)) return false;
    char **name = names;
    while (*name != NULL && strcmp(*name, entry->test.name) != 0) name++;
    return *names == NULL || *name != NULL;
}

static TCase *add_case(Suite *suite, const char *name, const struct test_setting *setting)
{
    TCase *made = tcase_create(name);
    if (setting->timeout > 0) tcase_set_timeout(made, setting->timeout);
    tcase_add_unchecked_fixture(made, setting->set_up_once, setting->tear_down_once);
    tcase_add_checked_fixture(made, setting->set_up, setting->tear_down);
    suite_add_tcase(suite, made);
    return made;
}

static int step_of(const struct test_entry *entry)
{
#ifdef FSDPD_SANITIZERS
    if (entry->sanitized_every > 1) return entry->sanitized_every;
#endif
    (void)entry;
    return 1;
}

/* Adds the wanted tests that can run here; says why others cannot. */
static void add_tests(Suite *suite, const char *title, char **names, int *added, int *skipped)
{
    static const struct test_setting none;
    const struct test_setting *setting = &none;
    const char *reason = NULL;
    TCase *tests = NULL;
    for (const struct test_entry *it = entries; it != NULL; it = it->next) {
        if (it->test.fn == NULL && it->program == NULL) {
            tests = NULL;
            setting = &it->setting;
            reason = setting->skip != NULL ? setting->skip() : NULL;
            if (reason != NULL) printf("SKIP: %s\n", reason);
            if (reason != NULL && *names == NULL) ++*skipped;
        }
        if (!is_wanted(it, names)) continue;
        ++*(reason != NULL ? skipped : added);
        if (reason != NULL) continue;
        if (tests == NULL) tests = add_case(suite, title, setting);
        for (int i = it->from; i < it->to; i += step_of(it))
            tcase_add_loop_test_raise_signal(tests, &it->test, it->signal, i, i + 1);
    }
}

static int run_tests(const char *title, char **names)
{
    Suite *suite = suite_create(title);
    int added = 0, skipped = 0;
    add_tests(suite, title, names, &added, &skipped);
    SRunner *runner = srunner_create(suite);
    if (added > 0) srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    if (added == 0 && skipped == 0) fprintf(stderr, "%s: there are no tests\n", title);
    if (failed > 0 || added + skipped == 0) return 1;
    return skipped > 0 ? SKIPPED : 0;
}

/* Tests may change the directory. */
static void make_srcdir_absolute(void)
{
    char *path = realpath(getenv("srcdir") != NULL ? getenv("srcdir") : ".", NULL);
    if (path != NULL) setenv("srcdir", path, 1);
    free(path);
}

int main(int argc, char **argv)
{
    const char *slash = strrchr(argv[0], '/'), *title = slash != NULL ? slash + 1 : argv[0];
    if (argc > 1 && strcmp(argv[1], "--list") == 0) return list_tests();
    const struct test_entry *other = argc > 1 ? find_program(argv[1]) : NULL;
    if (other != NULL) return other->program(argc, argv);
    for (int i = 1; i < argc; i++) {
        if (find_test(argv[i]) != NULL) continue;
        fprintf(stderr, "%s: no test is called %s; --list lists them\n", title, argv[i]);
        return 2;
    }
    make_srcdir_absolute();
    return run_tests(title, argv + 1);
}
