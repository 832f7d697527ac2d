/* Constant expressions: Python's values for them, and one message for each mistake. */
#include <stdlib.h>
#include <string.h>

#include "expression/constant.h"
#include "tests/testing.h"

static const struct constant kinds[] = {{.kind = CONSTANT_TEXT, .text = "full"},
                                        {.kind = CONSTANT_TEXT, .text = "sliding"},
                                        {.kind = CONSTANT_INTEGER, .integer = 7}};
static const char *const outer_names[] = {"kinds", "width", "wide"};
static const struct constant outer_values[] = {{.kind = CONSTANT_LIST,
                                                .integer = 3,
                                                .items = kinds},
                                               {.kind = CONSTANT_INTEGER, .integer = 10},
                                               {.kind = CONSTANT_BOOLEAN, .integer = true}};
static const struct environment outer = {outer_names, outer_values, 3, NULL};
static const char *const names[] = {"width", "none", "p"};
static const struct constant values[] = {{.kind = CONSTANT_INTEGER, .integer = 24},
                                         {.kind = CONSTANT_NONE},
                                         {.kind = CONSTANT_REAL, .real = 0.25}};
static const struct environment environment = {names, values, 3, &outer};

static status_t evaluate(const char *text, char found[static 64])
{
    struct expression *expression = NULL;
    struct constant constant;
    TRY(expression_parse(text, &expression));
    status_t status = constant_evaluate(expression, &environment, &constant);
    if (!status) constant_format(&constant, found);
    expression_free(expression);
    return status;
}

static const struct {
    const char *text, *value;
} right[] = {
    {"width", "24"}, /* the inner one */
    {"4 * width + 1", "97"},
    {"-7 // 2", "-4"},
    {"-7 % 3", "2"},
    {"7 % -3", "-2"},
    {"7.5 % 2", "1.5"},
    {"1 + 2 == 3", "True"},
    {"3 == 3.0", "True"},
    {"3 != 3.0", "False"},
    {"2 < 3", "True"},
    {"3 <= 2", "False"},
    {"3 > 2.5", "True"},
    {"3 >= 3", "True"},
    {"none == None", "True"},
    {"none == 0", "False"},
    {"wide == True", "True"},
    {"(1, 2) == (1, 2)", "True"},
    {"kinds[0] == 'full'", "True"},
    {"kinds[width - 23]", "'sliding'"},
    {"kinds[-1] + 1", "8"},
    {"kinds == kinds", "True"},
    {"len(kinds)", "3"},
    {"'full' in kinds", "True"},
    {"'none' in kinds", "False"},
    {"width in [1, 24]", "True"},
    {"width in []", "False"},
    {"not wide or width == 24 and p < 1", "True"},
    {"not (wide or width == 24) and p < 1", "False"},
    {"not not wide", "True"},
    {"1 if wide else 2", "1"},
    {"1 if not wide else 2 if p == 0.25 else 3", "2"},
    {"none == None or none > 3", "True"}, /* the rest is not evaluated */
    {"1 if wide else 1 // 0", "1"},       /* nor here */
    {"width // 8 if width % 8 == 0 else 0", "3"},
    {"sqrt(2 * 8)", "4.0"},
    {"exp(0.5)", "1.6487212707001282"},
    {"0.1 * log(1) + 1", "1.0"},
    {"log(2)", "0.693147180559945"},
    {"0.02 / sqrt(2 * 12)", "0.00408248290463863"},
    {"min(width, 3) + max(2.5, 2)", "5.5"},
    {"int(width * p)", "6"},
    {"int(-2.5)", "-2"},
};

LOOP_TEST(expressions_evaluate_as_in_python, 0, COUNT_OF(right))
{
    char found[64];
    status_t status = evaluate(right[_i].text, found);
    ck_assert_msg(!status, "%s: %s", right[_i].text, status_message(status));
    ck_assert_msg(strncmp(found, right[_i].value, strlen(right[_i].value)) == 0, "%s is %s",
                  right[_i].text, found);
}

static const struct {
    const char *text, *message;
} wrong[] = {
    {"widht", "unknown name 'widht'; did you mean 'width'?"},
    {"kinds[3]", "a list of 3 has no element 3"},
    {"kinds[-4]", "a list of 3 has no element -4"},
    {"kinds[p]", "the number of an element is an integer"},
    {"width[0]", "only a list has elements"},
    {"width[wide]", "the number of an element is an integer"},
    {"kinds[p].x", "only constants have computed places in a list; a module's is a number, as in "
                   "layers[0]"},
    {"1 if width else 2", "a condition is True or False, found 24"},
    {"not none", "a condition is True or False, found None"},
    {"none < 1", "only numbers are less or more"},
    {"1 in 2", "'in' needs a list behind it"},
    {"7 % 0", "division by zero"},
    {"7.0 % 0", "division by zero"},
    {"sqrt(-1)", "sqrt() of a number below 0"},
    {"exp(701)", "exp() of a number above 700"},
    {"log(0)", "log() of a number that is not above 0"},
    {"sqrt()", "sqrt() takes 1 value"},
    {"min(1)", "min() takes 2 values"},
    {"min(a=1, 2)", "min(): a positional argument follows a keyword argument"},
    {"max(1, b=2)", "max() takes 2 values"},
    {"len(3)", "len() takes a list"},
    {"int('3')", "int() takes numbers"},
    {"int(1e30)", "an integer passes 64 bits"},
    {"open('x')", "expected a constant, found the call 'open()'"},
    {"[1, 2]", "a list cannot stand here"},
    {"[i for i in range(3)]", "a list cannot stand here"},
    {"1 if wide", "expected 'else' at the end of '1 if wide'"},
    {"1 if else 2", "expected a value, found 'else' at column 6 of '1 if else 2'"},
    {"1 < 2 < 3", "expected the end of the line, found '<' at column 7 of '1 < 2 < 3'"},
    {"a or", "expected a value at the end of 'a or'"},
    {"[1 2]", "expected ',' or ']', found '2' at column 4 of '[1 2]'"},
    {"[1, 2 for i in range(3)]", "expected ',' or ']', found 'for' at column 7 of '[1, 2 for i in "
                                 "range(3)]'"},
    {"[i for i range(3)]", "expected 'in', found 'range' at column 10 of '[i for i range(3)]'"},
    {"[i for in in range(3)]", "expected a name after 'for', found 'in' at column 8 of '[i for in "
                               "in range(3)]'"},
    {"1 ! 2", "unexpected '!' at column 3"},
};

LOOP_TEST(mistakes_are_named, 0, COUNT_OF(wrong))
{
    char found[64];
    status_t status = evaluate(wrong[_i].text, found);
    ck_assert_msg(status != NULL, "%s", wrong[_i].text);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    ck_assert_str_eq(status_message(status), wrong[_i].message);
    status_free(status);
}

/* The depth limit of chains is that of parentheses. */
TEST(depth_is_limited)
{
    static const struct {
        const char *part, *end, *message;
        int count;
    } chains[] = {
        {"1 if True else ", "2", "nested deeper than 32 levels", 40},
        {"not ", "True", "nested deeper than 32 levels", 40},
        {"[", "]", "nested deeper than 32 levels", 40},
        {"True or ", "True", "more than 32 operators in a row", 40},
        {"True and ", "True", "more than 32 operators in a row", 40},
    };
    for (size_t i = 0; i < COUNT_OF(chains); i++) {
        char text[1024] = "", found[64];
        for (int k = 0; k < chains[i].count; k++) strcat(text, chains[i].part);
        strcat(text, chains[i].end);
        status_t status = evaluate(text, found);
        ck_assert_str_eq(status_message(status), chains[i].message);
        status_free(status);
    }
}
