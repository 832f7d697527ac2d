/*
 * The tests of a Check program register themselves. tests/testing.c has the one main; it runs the
 * tests in the order of the file, or only those whose names are arguments, and lists them for
 * --list.
 *
 *     TESTS_BELOW(.timeout = 60, .set_up = open_store, .tear_down = close_store);
 *
 *     TEST(a_job_is_found_again)
 *     {
 *         ...
 *     }
 *
 *     LOOP_TEST(every_damage_is_found, 0, DAMAGES) // once for each _i from 0 to DAMAGES - 1
 *     {
 *         ...
 *     }
 *
 * In a debugger the first is the function test_a_job_is_found_again.
 */
#ifndef FSDPD_TESTS_TESTING_H
#define FSDPD_TESTS_TESTING_H

#include <check.h>
#include <stdbool.h>

#include "base/array.h"

/* What TESTS_BELOW sets for the tests up to the next TESTS_BELOW. */
struct test_setting {
    double timeout;                                     /* in seconds; 0: Check's own */
    void (*set_up)(void), (*tear_down)(void);           /* around each test, in its process */
    void (*set_up_once)(void), (*tear_down_once)(void); /* around them all, in the program's */
    const char *(*skip)(void); /* returns why these tests cannot run here, or NULL */
};

/* A test, if test.fn is set; a program of its own, if `program` is; otherwise a TESTS_BELOW. */
struct test_entry {
    TTest test;
    int from, to; /* of _i; `to` is excluded */
    int signal;   /* that must end the test, or 0 */
    bool unless;  /* true: the program lacks this test, as built */
    /* N > 1: with sanitizers a loop takes only every Nth _i. They look for mistakes in memory,
     * which are in the same code for every case; the build without them checks all. */
    int sanitized_every;
    struct test_setting setting;
    int (*program)(int argc, char **argv);
    struct test_entry *next;
};

void test_register(struct test_entry *entry);

/* Further fields may follow: .signal = SIGSEGV, .unless = ON_CUDA. Any expression may bound _i: it
 * is evaluated before main. */
#define TEST(name, ...) TEST_ENTRY(name, .to = 1, __VA_ARGS__)
#define LOOP_TEST(name, first, end, ...) TEST_ENTRY(name, .from = first, .to = end, __VA_ARGS__)
#define TEST_ENTRY(name, ...)                                                                      \
    static void test_##name(int);                                                                  \
    TEST_REGISTER(name, {#name, test_##name, __FILE__, __LINE__}, __VA_ARGS__)                     \
    static void test_##name(int _i __attribute__((unused)))

#define TESTS_BELOW(...) TESTS_BELOW_(__LINE__, __VA_ARGS__)
#define TESTS_BELOW_(line, ...) TESTS_BELOW_LINE(line, __VA_ARGS__)
#define TESTS_BELOW_LINE(line, ...)                                                                \
    TEST_REGISTER(setting_##line, {NULL, NULL, __FILE__, line}, .setting = {__VA_ARGS__})          \
    void test_register(struct test_entry *entry)

/* For a test that needs another process: with `word` as its first argument the program runs
 * `function` instead of tests. */
#define TEST_PROGRAM(word, function)                                                               \
    TEST_REGISTER(function, {word, NULL, __FILE__, __LINE__}, .program = function)                 \
    void test_register(struct test_entry *entry)

#define TEST_REGISTER(name, ...)                                                                   \
    __attribute__((constructor)) static void register_##name(void)                                 \
    {                                                                                              \
        static struct test_entry entry;                                                            \
        entry = (struct test_entry){__VA_ARGS__};                                                  \
        test_register(&entry);                                                                     \
    }

#endif
