/* Chooses tokens; see draw.h. */
#include "train/draw.h"

#include <math.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/mem.h"

status_t draw_check(const struct train_draw *settings)
{
    const struct {
        const char *name;
        double value;
        bool valid;
    } rows[] = {
        {"temperature", settings->temperature,
         settings->temperature >= 0 && settings->temperature <= 1e6},
        {"top_p", settings->top_p, settings->top_p > 0 && settings->top_p <= 1},
        {"min_p", settings->min_p, settings->min_p >= 0 && settings->min_p <= 1},
        {"repetition_penalty", settings->repetition_penalty,
         settings->repetition_penalty > 0 && settings->repetition_penalty <= 1e6},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (!rows[i].valid)
            return status_new(STATUS_INVALID_ARGUMENT, "%s: %g is not possible", rows[i].name,
                              rows[i].value);
    return NULL;
}

/* Each token once, however often it was seen. */
static void penalise(float *logits, int64_t count, const int32_t *seen, int64_t seen_count,
                     double penalty)
{
    AUTO_FREE bool *done = mem_alloc_array((size_t)count, sizeof *done);
    for (int64_t i = 0; i < seen_count; i++) {
        int32_t token = seen[i];
        if (token < 0 || token >= count || done[token]) continue;
        done[token] = true;
        logits[token] =
            (float)(logits[token] > 0 ? logits[token] / penalty : logits[token] * penalty);
    }
}

static int32_t first_largest(const float *logits, int64_t count)
{
    int32_t best = 0;
    for (int64_t i = 1; i < count; i++)
        if (logits[i] > logits[best] || isnan(logits[best])) best = (int32_t)i;
    return best;
}

struct draw_choice {
    int32_t token;
    double weight;
};

/* The most probable first; of equals that with the smaller number. */
static int compare_choices(const void *a, const void *b)
{
    const struct draw_choice *x = a, *y = b;
    if (x->weight != y->weight) return x->weight < y->weight ? 1 : -1;
    return (x->token > y->token) - (x->token < y->token);
}

/* The number of choices, in their order, that the settings leave; at least 1. */
static int64_t cut(const struct train_draw *settings, const struct draw_choice *choices,
                   int64_t count)
{
    double total = 0, sum = 0;
    if (settings->top_k > 0 && settings->top_k < count) count = settings->top_k;
    for (int64_t i = 0; i < count; i++) total += choices[i].weight;
    for (int64_t i = 0; i < count; i++) {
        if (i > 0 && (sum >= settings->top_p * total ||
                      choices[i].weight < settings->min_p * choices[0].weight))
            return i;
        sum += choices[i].weight;
    }
    return count;
}

static uint64_t mix(uint64_t z) /* SplitMix64's */
{
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* From 0 to below 1, by seed and place. */
static double uniform(uint64_t seed, int sequence, int64_t position)
{
    const uint64_t golden = UINT64_C(0x9e3779b97f4a7c15);
    uint64_t bits = mix(seed + golden);
    bits = mix(bits + golden * ((uint64_t)sequence + 1));
    bits = mix(bits + golden * ((uint64_t)position + 1));
    return (double)(bits >> 11) * 0x1p-53;
}

int32_t draw_token(const struct train_draw *settings, float *logits, int64_t count,
                   const int32_t *seen, int64_t seen_count, int sequence, int64_t position)
{
    if (settings->repetition_penalty != 1)
        penalise(logits, count, seen, seen_count, settings->repetition_penalty);
    int32_t best = first_largest(logits, count);
    if (settings->temperature == 0 || !isfinite(logits[best])) return best;
    AUTO_FREE struct draw_choice *choices = mem_alloc_array((size_t)count, sizeof *choices);
    for (int64_t i = 0; i < count; i++) {
        double weight = exp(((double)logits[i] - logits[best]) / settings->temperature);
        choices[i] = (struct draw_choice){(int32_t)i, isnan(weight) ? 0 : weight};
    }
    qsort(choices, (size_t)count, sizeof *choices, compare_choices);
    int64_t left = cut(settings, choices, count);
    double total = 0, sum = 0;
    for (int64_t i = 0; i < left; i++) total += choices[i].weight;
    double wanted = uniform(settings->seed, sequence, position) * total;
    for (int64_t i = 0; i < left; i++) {
        sum += choices[i].weight;
        if (wanted < sum) return choices[i].token;
    }
    return choices[0].token;
}

static void keep_best(const float *logits, int64_t count, int alternatives, int32_t *top)
{
    int kept = 0;
    for (int64_t i = 0; i < count && alternatives > 0; i++) {
        if (isnan(logits[i])) continue;
        if (kept == alternatives && !(logits[i] > logits[top[kept - 1]])) continue;
        int at = kept < alternatives ? kept++ : kept - 1;
        for (; at > 0 && logits[i] > logits[top[at - 1]]; at--) top[at] = top[at - 1];
        top[at] = (int32_t)i;
    }
    for (int k = kept; k < alternatives; k++) top[k] = -1;
}

float draw_score(const float *logits, int64_t count, int32_t token, int alternatives,
                 int32_t *top_tokens, float *top_logprobs)
{
    double largest = -INFINITY, sum = 0;
    for (int64_t i = 0; i < count; i++)
        if (logits[i] > largest) largest = logits[i];
    for (int64_t i = 0; i < count; i++) sum += exp(logits[i] - largest);
    double all = largest + log(sum);
    keep_best(logits, count, alternatives, top_tokens);
    for (int k = 0; k < alternatives; k++)
        top_logprobs[k] = top_tokens[k] < 0 ? -INFINITY : (float)(logits[top_tokens[k]] - all);
    return (float)(logits[token] - all);
}
