/*
 * What clients over HTTP send, by the first byte modulo 3: the body of a completion, which an
 * accepted request answers as JSON with its tokens; headers, one per line: Host, Origin,
 * Authorization; a path with parameters, and what the API answers (http_reads.h).
 */
#include <jansson.h>
#include <string.h>

#include "base/mem.h"
#include "coordinator/http/completion_text.h"
#include "coordinator/http/http_checks.h"
#include "fuzz.h"
#include "http_reads.h"

enum { MADE = 3 };

/* Answers as a worker would: three tokens for each prompt, and all scores that were asked for. */
static void answer(const struct completion *completion)
{
    const Fsdpd__V1__Sample *sample = completion->sample;
    static uint32_t made[MADE] = {1, 2, INT32_MAX};
    size_t count = sample->n_prompts;
    Fsdpd__V1__Sampled sampled = FSDPD__V1__SAMPLED__INIT;
    Fsdpd__V1__Tokens tokens = FSDPD__V1__TOKENS__INIT;
    AUTO_FREE Fsdpd__V1__Tokens **sequences = mem_alloc_array(count, sizeof(Fsdpd__V1__Tokens *));
    AUTO_FREE Fsdpd__V1__Scored **scored = mem_alloc_array(count, sizeof(Fsdpd__V1__Scored *));
    AUTO_FREE Fsdpd__V1__Scored *scores = mem_alloc_array(count, sizeof(Fsdpd__V1__Scored));
    size_t most = MADE;
    for (size_t i = 0; i < count; i++)
        if (sample->prompts[i]->n_tokens + MADE > most) most = sample->prompts[i]->n_tokens + MADE;
    AUTO_FREE float *values = mem_alloc_array(most * (sample->logprobs + 1), sizeof(float));
    AUTO_FREE uint32_t *tops = mem_alloc_array(most * (sample->logprobs + 1), sizeof(uint32_t));
    tokens.tokens = made;
    tokens.n_tokens = MADE;
    for (size_t i = 0; i < count; i++) {
        fsdpd__v1__scored__init(&scores[i]);
        scores[i].n_logprobs = MADE + (completion->echo ? sample->prompts[i]->n_tokens - 1 : 0);
        scores[i].n_top_tokens = scores[i].n_top_logprobs = scores[i].n_logprobs * sample->logprobs;
        scores[i].logprobs = scores[i].top_logprobs = values;
        scores[i].top_tokens = tops;
        sequences[i] = &tokens;
        scored[i] = &scores[i];
    }
    sampled.n_sequences = sampled.n_scored = count;
    sampled.sequences = sequences;
    sampled.scored = scored;
    AUTO(buf_deinit) struct buf text = {0};
    status_t status = completion_write(completion, &sampled, 1, 2, &text);
    FUZZ_CHECK(status == NULL, "%s", status_message(status));
    json_error_t error;
    json_t *root = json_loads(buf_text(&text), 0, &error);
    FUZZ_CHECK(root != NULL, "%s: %s", error.text, buf_text(&text));
    FUZZ_CHECK(json_array_size(json_object_get(root, "choices")) == count, "%s", buf_text(&text));
    json_decref(root);
}

static void read_body(const char *text, size_t size)
{
    struct completion completion;
    status_t status = completion_read(text, size, &completion);
    if (status != NULL) fuzz_expect_user_error(status);
    else answer(&completion);
    completion_deinit(&completion);
}

static void read_headers(char *text)
{
    char *origin = strchr(text, '\n');
    if (origin == NULL) return;
    *origin++ = '\0';
    char *authorization = strchr(origin, '\n');
    if (authorization == NULL) return;
    *authorization++ = '\0';
    for (int tls = 0; tls < 2; tls++) {
        bool ours = http_host_is_ours(text, tls, 8000);
        bool same = http_origin_is_ours(origin, text, tls);
        bool clean = strpbrk(text, "/ @#?\\%,") == NULL;
        FUZZ_CHECK(!ours || clean, "%s", text);
        FUZZ_CHECK(!same || strlen(origin) == strlen(text) + strlen(tls ? "https://" : "http://"),
                   "%s is the origin of %s", origin, text);
    }
    AUTO_FREE char *part = NULL;
    bool matches = http_path_matches("/v1/jobs/*/why", authorization, &part);
    FUZZ_CHECK(matches == (part != NULL), "%s", authorization);
    FUZZ_CHECK(part == NULL || (part[0] != '\0' && strchr(part, '/') == NULL), "%s", part);
    const char *secret = http_bearer(authorization);
    FUZZ_CHECK(secret == NULL || (secret > authorization && strchr(secret, ' ') == NULL), "%s",
               authorization);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    AUTO_FREE char *text = mem_alloc(size);
    memcpy(text, data + 1, size - 1); /* and a NUL */
    if (data[0] % 3 == 0) read_body(text, size - 1);
    else if (data[0] % 3 == 1) read_headers(text);
    else fuzz_http_read(text, size - 1);
    return 0;
}
