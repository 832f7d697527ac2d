/*
 * Draws tokens with the parameters of a run, between two of its steps, on the thread of
 * train_session_run. All ranks compute all sequences; rank 0 draws, so that ranks whose processors
 * round differently still continue the same sequences. Orders wait until the call has ended, as a
 * change of units would free what the decoder borrows; rank 0 looks whether it is to end before.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "setup/decoder.h"
#include "train/draw.h"
#include "train/evaluate.h"
#include "train/run_state.h"

struct sampling {
    struct run *run;
    const struct train_sample *wanted;
    struct train_sampled *sampled;
    struct decoder *decoder;
    int64_t vocabulary;
    float *logits;                  /* (sequences, vocabulary) */
    float *kept;                    /* (vocabulary): those of a sequence, before a draw */
    int32_t *seen;                  /* (sequences, context): prompts and what was drawn */
    int64_t context;                /* of the longest prompt, and all that follows */
    struct drawn {
        int32_t stopped;
        int32_t next[TRAIN_SAMPLE_MAX]; /* by sequence; -1: it is over */
    } drawn;                            /* which rank 0 shares */
};

/* Adds the score of the next token of a sequence; on rank 0, which alone reports. */
static void add_score(struct sampling *sampling, int sequence, int32_t token, const float *logits)
{
    struct train_scored *scored = &sampling->sampled->scored[sequence];
    int alternatives = sampling->wanted->alternatives;
    size_t top = scored->count * (size_t)alternatives;
    scored->logprobs[scored->count++] =
        draw_score(logits, sampling->vocabulary, token, alternatives, scored->top_tokens + top,
                   scored->top_logprobs + top);
}

/* Rank 0 shares what it has drawn, and whether the call is to end. */
static status_t share(struct sampling *sampling)
{
    const struct train_sample *wanted = sampling->wanted;
    struct run *run = sampling->run;
    TRY(session_check_abort(run->session));
    if (run->session->rank == 0 && wanted->stopped != NULL)
        sampling->drawn.stopped = wanted->stopped(wanted->user);
    TRY(agreement_share(&run->ranks, &sampling->drawn, sizeof sampling->drawn, 0));
    atomic_fetch_add(&run->session->evaluated_batch, 1);
    if (run->hooks->progress != NULL) run->hooks->progress(run->hooks->user, run->step);
    return NULL;
}

/* A long prompt is read in pieces. */
static status_t share_between(void *user, bool *end)
{
    struct sampling *sampling = user;
    TRY(share(sampling));
    *end = sampling->drawn.stopped != 0;
    return NULL;
}

/* The decoder has the logits after a token of a prompt. */
static void score_prompt(void *user, int sequence, int64_t position, const float *logits)
{
    struct sampling *sampling = user;
    if (sampling->run->session->rank != 0) return;
    add_score(sampling, sequence, sampling->wanted->prompts[sequence].tokens[position + 1], logits);
}

static int64_t longest_prompt(const struct train_sample *wanted)
{
    int64_t longest = 0;
    for (int s = 0; s < wanted->count; s++)
        if (wanted->prompts[s].count > longest) longest = wanted->prompts[s].count;
    return longest;
}

/* A decoder has room for one after a prompt in any case. */
static int64_t new_tokens(const struct train_sample *wanted)
{
    return wanted->max_tokens > 0 ? wanted->max_tokens : 1;
}

static status_t check(const struct run *run, const struct train_sample *wanted)
{
    int64_t context = run->session->model->context, longest = longest_prompt(wanted);
    if (wanted->count < 1 || wanted->count > TRAIN_SAMPLE_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "%d prompts; expected 1 to %d", wanted->count,
                          TRAIN_SAMPLE_MAX);
    if (!run->session->model->tokens)
        return status_new(STATUS_UNIMPLEMENTED, "the model's input are images, not tokens");
    if (longest > context || new_tokens(wanted) > context - longest)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "a prompt of %" PRId64 " tokens and %" PRId64
                          " more: the model takes %" PRId64 " in all",
                          longest, new_tokens(wanted), context);
    if (wanted->max_tokens < 1 && !wanted->score_prompts)
        return status_new(STATUS_INVALID_ARGUMENT, "max_tokens: expected at least 1");
    if (wanted->alternatives < 0 || wanted->alternatives > TRAIN_SCORED_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "logprobs: expected 0 to %d, found %d",
                          TRAIN_SCORED_MAX, wanted->alternatives);
    if (wanted->score_prompts && !wanted->scored)
        return status_new(STATUS_INVALID_ARGUMENT, "score_prompts: expected logprobs beside it");
    return draw_check(&wanted->draw);
}

static status_t open_decoder(struct sampling *sampling, bool holds)
{
    struct train_session *session = sampling->run->session;
    const struct decoder_settings settings = {
        .lender = sampling->run->executor,
        .compute_dtype = session->job->plan.gathered_dtype,
        .parameter_dtypes = session->parameter_dtypes,
        .module_dtypes = session->module_dtypes,
        .sequences = sampling->wanted->count,
        .context = sampling->context,
        .holds = holds,
        .reserved = session->samples.all,
        .each = sampling->wanted->score_prompts ? score_prompt : NULL,
        .between = share_between,
        .user = sampling,
    };
    TRY(decoder_new(&settings, &sampling->decoder));
    return decoder_check_prompts(sampling->decoder, sampling->wanted->prompts);
}

/* Units are gathered once for the call where that fits on every rank, otherwise for each token. */
static status_t open_together(struct sampling *sampling, status_t *refused)
{
    for (int holds = 1; holds >= 0; holds--) {
        *refused = open_decoder(sampling, holds);
        TRY(agreement_reach(&sampling->run->ranks, refused));
        if (holds == 0 || status_code(*refused) != STATUS_RESOURCE_EXHAUSTED) break;
        status_free(*refused);
        decoder_free(sampling->decoder);
        sampling->decoder = NULL;
    }
    return NULL;
}

static bool is_stop(const struct train_sample *wanted, int32_t token)
{
    for (int i = 0; i < wanted->stop_count; i++)
        if (wanted->stops[i] == token) return true;
    return false;
}

/* Chooses the tokens after `made` others. */
static void draw_all(struct sampling *sampling, uint32_t made)
{
    const struct train_sample *wanted = sampling->wanted;
    int32_t *next = sampling->drawn.next;
    for (int s = 0; s < wanted->count; s++) {
        int64_t length = wanted->prompts[s].count + made;
        float *logits = sampling->logits + s * sampling->vocabulary;
        if (made > 0 && next[s] < 0) continue;
        if (wanted->scored)
            memcpy(sampling->kept, logits, (size_t)sampling->vocabulary * sizeof *logits);
        next[s] = draw_token(&wanted->draw, logits, sampling->vocabulary,
                             sampling->seen + s * sampling->context, length, s, length);
        if (is_stop(wanted, next[s])) next[s] = -1;
        else if (wanted->scored) add_score(sampling, s, next[s], sampling->kept);
    }
}

/* Whether any sequence continues. */
static bool keep_all(struct sampling *sampling, uint32_t made)
{
    const struct train_sample *wanted = sampling->wanted;
    bool more = false;
    for (int s = 0; s < wanted->count; s++) {
        int32_t next = sampling->drawn.next[s];
        if (next < 0) continue;
        sampling->seen[s * sampling->context + wanted->prompts[s].count + made] = next;
        sampling->sampled->tokens[s][made] = next;
        sampling->sampled->counts[s] = made + 1;
        more = true;
    }
    return more;
}

static status_t read_prompts(struct sampling *sampling)
{
    const struct train_sample *wanted = sampling->wanted;
    struct sample_sums *sums = &sampling->run->samples;
    int64_t began = clock_monotonic_ns();
    TRY(decoder_prefill(sampling->decoder, wanted->prompts, sampling->logits));
    sums->prefill_ns += clock_monotonic_ns() - began;
    for (int s = 0; s < wanted->count; s++) sums->prompt_tokens += wanted->prompts[s].count;
    return NULL;
}

static status_t draw(struct sampling *sampling, status_t *refused)
{
    const struct train_sample *wanted = sampling->wanted;
    struct run *run = sampling->run;
    bool first = run->session->rank == 0, more = true;
    TRY(read_prompts(sampling));
    int64_t read = clock_monotonic_ns();
    for (uint32_t made = 0; made < wanted->max_tokens && more && !sampling->drawn.stopped; made++) {
        if (made > 0) TRY(decoder_next(sampling->decoder, sampling->drawn.next, sampling->logits));
        if (first) draw_all(sampling, made);
        TRY(share(sampling));
        if (sampling->drawn.stopped != 0) break;
        more = keep_all(sampling, made);
        for (int s = 0; made > 0 && s < wanted->count; s++)
            run->samples.tokens += sampling->drawn.next[s] >= 0;
        run->samples.decode_ns += clock_monotonic_ns() - read;
        read = clock_monotonic_ns();
        if (first && more && wanted->drawn != NULL)
            wanted->drawn(wanted->user, sampling->drawn.next, wanted->count);
    }
    if (sampling->drawn.stopped != 0)
        *refused = status_new(STATUS_CANCELLED, "the client is gone, or the job ends");
    return NULL;
}

static void make_room_for_scores(struct sampling *sampling, int sequence)
{
    const struct train_sample *wanted = sampling->wanted;
    struct train_scored *scored = &sampling->sampled->scored[sequence];
    size_t most = wanted->max_tokens + (size_t)wanted->prompts[sequence].count;
    size_t alternatives = most * (size_t)wanted->alternatives + 1;
    scored->logprobs = mem_alloc_array(most, sizeof *scored->logprobs);
    scored->top_tokens = mem_alloc_array(alternatives, sizeof *scored->top_tokens);
    scored->top_logprobs = mem_alloc_array(alternatives, sizeof *scored->top_logprobs);
}

/* What the ranks of a decoder need besides it. */
static void make_room(struct sampling *sampling)
{
    const struct train_sample *wanted = sampling->wanted;
    size_t count = (size_t)wanted->count;
    sampling->vocabulary = sampling->run->session->model->vocabulary;
    sampling->logits = mem_alloc_array(count * (size_t)sampling->vocabulary, sizeof(float));
    sampling->kept = mem_alloc_array((size_t)sampling->vocabulary, sizeof(float));
    sampling->seen = mem_alloc_array(count * (size_t)sampling->context, sizeof(int32_t));
    for (int s = 0; s < wanted->count; s++) {
        memcpy(sampling->seen + s * sampling->context, wanted->prompts[s].tokens,
               (size_t)wanted->prompts[s].count * sizeof(int32_t));
        sampling->sampled->tokens[s] = mem_alloc_array(wanted->max_tokens + 1, sizeof(int32_t));
        if (wanted->scored) make_room_for_scores(sampling, s);
    }
}

void train_sampled_deinit(struct train_sampled *sampled)
{
    for (int s = 0; s < TRAIN_SAMPLE_MAX; s++) {
        free(sampled->tokens[s]);
        free(sampled->scored[s].logprobs);
        free(sampled->scored[s].top_tokens);
        free(sampled->scored[s].top_logprobs);
    }
}

status_t train_session_sample(struct train_session *session, const struct train_sample *wanted,
                              struct train_sampled *sampled, status_t *refused)
{
    struct run *run = session->run;
    struct sampling sampling = {.run = run, .wanted = wanted, .sampled = sampled};
    bool within = atomic_exchange(&session->evaluates, true);
    int64_t began = clock_monotonic_ns();
    session_at(session, "draws tokens");
    atomic_fetch_add(&session->evaluated_batch, 1);
    *sampled = (struct train_sampled){.step = run->step};
    *refused = check(run, wanted);
    sampling.context = longest_prompt(wanted) + new_tokens(wanted);
    status_t status = executor_settle(run->executor);
    if (status == NULL) status = agreement_reach(&run->ranks, refused);
    if (status == NULL && *refused == NULL) status = open_together(&sampling, refused);
    if (status == NULL && *refused == NULL) {
        sampled->bytes = decoder_bytes(sampling.decoder);
        make_room(&sampling);
        status = evaluation_place_average(run, true);
        if (status == NULL) status = draw(&sampling, refused);
        status = status_first(status, evaluation_place_average(run, false));
    }
    int64_t ns = clock_monotonic_ns() - began;
    sampled->seconds = (double)ns * 1e-9;
    run->samples.calls++;
    run->samples.ns += ns;
    run->samples.waited_seconds += wanted->waited_seconds;
    decoder_free(sampling.decoder);
    free(sampling.logits);
    free(sampling.kept);
    free(sampling.seen);
    atomic_store(&session->evaluates, within);
    session_at(session, "is between two steps");
    return status;
}

status_t run_samples(struct run *run, bool last)
{
    const struct train_prompts *own = &run->job->prompts;
    bool due = own->every_steps > 0 && run->step % own->every_steps == 0;
    if (own->count == 0 || !(due || last)) return NULL;
    const struct train_sample wanted = {
        .prompts = own->prompts,
        .count = own->count,
        .max_tokens = own->max_tokens,
        .stops = own->stops,
        .stop_count = own->stop_count,
        .draw = {.temperature = own->temperature,
                 .top_k = own->top_k,
                 .top_p = own->top_p,
                 .min_p = own->min_p,
                 .repetition_penalty = own->repetition_penalty,
                 .seed = own->seed},
    };
    struct train_sampled sampled;
    status_t refused = NULL;
    status_t status = train_session_sample(run->session, &wanted, &sampled, &refused);
    if (status == NULL && run->hooks->sampled != NULL)
        run->hooks->sampled(run->hooks->user, &wanted, &sampled, refused);
    status_free(refused);
    train_sampled_deinit(&sampled);
    return status;
}
