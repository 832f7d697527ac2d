/* How tokens are chosen from logits: greedily, by settings that leave some out, and by place. */
#include "base/array.h"
#include "tests/testing.h"
#include "train/draw.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "draw_numbers.h"

enum { COUNT = 5, DRAWS = 4000 };

static const float given[COUNT] = {0.5f, 2, -1, 2, 1}; /* probabilities 0.08, 0.37, 0.02, .. 0.14 */
static const struct train_draw plain = {.temperature = 1,
                                        .top_p = 1,
                                        .repetition_penalty = 1,
                                        .seed = 11};

static int32_t draw_at(const struct train_draw *settings, int sequence, int64_t position)
{
    float logits[COUNT];
    memcpy(logits, given, sizeof logits);
    return draw_token(settings, logits, COUNT, NULL, 0, sequence, position);
}

/* How often each token is drawn. */
static void count_draws(const struct train_draw *settings, int counts[COUNT])
{
    memset(counts, 0, COUNT * sizeof *counts);
    for (int i = 0; i < DRAWS; i++) counts[draw_at(settings, i % 3, i)]++;
}

TEST(temperature_0_takes_the_first_of_the_largest)
{
    struct train_draw settings = plain;
    settings.temperature = 0;
    for (int i = 0; i < 20; i++) ck_assert_int_eq(draw_at(&settings, i, i), 1);
    float odd[COUNT] = {NAN, -3, NAN, -2, NAN};
    ck_assert_int_eq(draw_token(&settings, odd, COUNT, NULL, 0, 0, 0), 3);
    settings.temperature = 1;
    for (int i = 0; i < 50; i++) {
        float again[COUNT] = {NAN, -3, NAN, -2, NAN};
        int32_t token = draw_token(&settings, again, COUNT, NULL, 0, 0, i);
        ck_assert(token == 1 || token == 3);
    }
}

TEST(draws_have_the_probabilities_of_the_logits)
{
    double total = 0;
    int counts[COUNT];
    for (int hot = 0; hot < 2; hot++) {
        struct train_draw settings = plain;
        settings.temperature = hot ? 2 : 1;
        total = 0;
        for (int i = 0; i < COUNT; i++) total += exp((double)given[i] / settings.temperature);
        count_draws(&settings, counts);
        for (int i = 0; i < COUNT; i++) {
            double p = exp((double)given[i] / settings.temperature) / total;
            ck_assert_double_eq_tol(counts[i], DRAWS * p, 5 * sqrt(DRAWS * p * (1 - p)));
        }
    }
}

TEST(settings_leave_tokens_out)
{
    int counts[COUNT];
    struct train_draw settings = plain;
    settings.top_k = 3;
    count_draws(&settings, counts);
    ck_assert(counts[0] == 0 && counts[2] == 0 && counts[4] > 0);
    settings = plain;
    settings.top_p = 0.7; /* the first two have 0.75 */
    count_draws(&settings, counts);
    ck_assert(counts[0] == 0 && counts[2] == 0 && counts[4] == 0 && counts[3] > 0);
    settings = plain;
    settings.min_p = 0.3; /* token 4 has 0.37 of the largest, token 0 0.22 */
    count_draws(&settings, counts);
    ck_assert(counts[0] == 0 && counts[2] == 0 && counts[4] > 0);
    settings.top_p = 0.001; /* at least one is left */
    count_draws(&settings, counts);
    ck_assert_int_eq(counts[1], DRAWS);
}

TEST(what_was_seen_is_penalised_once)
{
    const int32_t seen[] = {1, 2, 1, 1};
    struct train_draw settings = plain;
    float logits[COUNT];
    settings.repetition_penalty = 4;
    settings.temperature = 0;
    memcpy(logits, given, sizeof logits);
    ck_assert_int_eq(draw_token(&settings, logits, COUNT, seen, 4, 0, 4), 3);
    ck_assert(logits[1] == 0.5f && logits[2] == -4 && logits[3] == 2);
}

/* Alone and together, of a sequence that has tokens: those that transformers leaves out are never
 * drawn, and the others as often as it would. */
TEST(draws_have_the_probabilities_of_transformers)
{
    enum { TIMES = 20000 };
    for (size_t n = 0; n < COUNT_OF(numbers); n++) {
        struct train_draw settings = numbers[n].settings;
        int counts[NUMBERS] = {0};
        settings.seed = 5;
        ck_assert_ptr_null(draw_check(&settings));
        for (int i = 0; i < TIMES; i++) {
            float logits[NUMBERS];
            for (int t = 0; t < NUMBERS; t++) logits[t] = (float)numbers_logits[t];
            counts[draw_token(&settings, logits, NUMBERS, numbers_seen, NUMBERS_SEEN, 0, i)]++;
        }
        for (int t = 0; t < NUMBERS; t++) {
            double p = numbers[n].probabilities[t], bound = 5 * sqrt(TIMES * p * (1 - p));
            ck_assert_msg(fabs(counts[t] - TIMES * p) <= bound,
                          "settings %zu: token %d was drawn %d times of %d, not %.0f", n, t,
                          counts[t], TIMES, TIMES * p);
        }
    }
}

TEST(draws_are_keyed_by_seed_sequence_and_position)
{
    struct train_draw other = plain;
    int by_seed = 0, by_sequence = 0, by_position = 0;
    other.seed = 12;
    for (int i = 0; i < 200; i++) {
        ck_assert_int_eq(draw_at(&plain, 2, i), draw_at(&plain, 2, i));
        by_seed += draw_at(&plain, 2, i) != draw_at(&other, 2, i);
        by_sequence += draw_at(&plain, 2, i) != draw_at(&plain, 3, i);
        by_position += draw_at(&plain, 2, i) != draw_at(&plain, 2, i + 1);
    }
    ck_assert(by_seed > 50 && by_sequence > 50 && by_position > 50);
}

TEST(scores_are_logarithms_of_the_probabilities)
{
    double total = 0;
    int32_t top[COUNT + 1];
    float found[COUNT + 1], none[2] = {NAN, -INFINITY};
    for (int i = 0; i < COUNT; i++) total += exp((double)given[i]);
    for (int32_t token = 0; token < COUNT; token++) {
        float score = draw_score(given, COUNT, token, 3, top, found);
        ck_assert_double_eq_tol(score, (double)given[token] - log(total), 1e-6);
        ck_assert(top[0] == 1 && top[1] == 3 && top[2] == 4); /* the first of equals first */
        ck_assert(token != 1 || score == found[0]);           /* the same number */
        ck_assert_double_eq_tol(found[2], (double)given[4] - log(total), 1e-6);
    }
    draw_score(given, COUNT, 0, COUNT + 1, top, found);
    ck_assert(top[COUNT - 1] == 2 && top[COUNT] == -1 && isinf(found[COUNT]));
    draw_score(given, COUNT, 0, 0, NULL, NULL);
    ck_assert(isnan(draw_score(none, 2, 0, 1, top, found)) && top[0] == 1);
}

static void refuses(struct train_draw settings, const char *message)
{
    status_t status = draw_check(&settings);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    ck_assert_msg(strstr(status_message(status), message) != NULL, "%s", status_message(status));
    status_free(status);
}

TEST(settings_out_of_their_range_are_refused)
{
    struct train_draw settings = plain;
    ck_assert_ptr_null(draw_check(&settings));
    settings.temperature = -1;
    refuses(settings, "temperature: -1");
    settings.temperature = NAN;
    refuses(settings, "temperature: nan");
    settings = plain;
    settings.top_p = 0;
    refuses(settings, "top_p: 0");
    settings = plain;
    settings.min_p = 1.5;
    refuses(settings, "min_p: 1.5");
    settings = plain;
    settings.repetition_penalty = 0;
    refuses(settings, "repetition_penalty: 0");
}
