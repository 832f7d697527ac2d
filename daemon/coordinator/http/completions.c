/*
 * /v1/completions and /v1/models: OpenAI's API over what evaluations.h does for gRPC. A model is a
 * running job that the token's user may sample. Neither prompts nor answers are logged.
 */
#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "coordinator/calls/access.h"
#include "coordinator/calls/evaluations.h"
#include "coordinator/http/completion_text.h"
#include "coordinator/http/routes.h"
#include "coordinator/jobs/attempt.h"

struct waiting {
    struct http_request *request;
    struct completion completion;
    struct job_call *call;
};

static void waiting_free(void *user)
{
    struct waiting *waiting = user;
    if (waiting->call != NULL) job_call_leave(waiting->call);
    completion_deinit(&waiting->completion);
    free(waiting);
}

static void on_done(void *user, status_t status, const ProtobufCMessage *reply)
{
    struct waiting *waiting = user;
    const Fsdpd__V1__SampleJobResponse *response = (const void *)reply;
    struct buf text = {0};
    if (status == NULL)
        status = completion_write(&waiting->completion, response->sampled,
                                  ++http_coordinator(waiting->request)->last_number,
                                  clock_wall_ms() / 1000, &text);
    if (status == NULL) {
        http_answer(waiting->request, MHD_HTTP_OK, "application/json", &text);
        return;
    }
    buf_deinit(&text);
    http_refuse(waiting->request, status);
}

static status_t begin(struct waiting *waiting)
{
    struct http_request *request = waiting->request;
    struct completion *completion = &waiting->completion;
    const struct buf *body = http_body(request);
    Fsdpd__V1__SampleJobRequest wanted = FSDPD__V1__SAMPLE_JOB_REQUEST__INIT;
    TRY(completion_read(buf_text(body), body->length, completion));
    if (!completion->has_seed &&
        getrandom(&completion->sample->seed, sizeof completion->sample->seed, 0) < 0)
        completion->sample->seed = (uint64_t)clock_monotonic_ns();
    wanted.id = completion->model;
    wanted.sample = completion->sample;
    return evaluations_sample_for(http_coordinator(request), http_peer(request), &wanted,
                                  &(struct job_caller){.done = on_done, .user = waiting},
                                  &waiting->call);
}

void completions_complete(struct http_request *request)
{
    struct waiting *waiting = mem_alloc(sizeof *waiting);
    waiting->request = request;
    status_t status = begin(waiting);
    if (status == NULL) {
        http_hold(request, waiting_free, waiting);
        return;
    }
    http_refuse(request, status);
    waiting_free(waiting);
}

void completions_models(struct http_request *request)
{
    const struct coordinator *c = http_coordinator(request);
    struct buf text = {0};
    bool first = true;
    buf_add_text(&text, "{\"object\": \"list\", \"data\": [");
    for (int i = 0; i < c->job_count; i++) {
        const struct job *job = c->jobs[i];
        const job_message *message = job->message;
        status_t refused = access_check(http_peer(request), message, "sample");
        bool shown = refused == NULL && attempt_is_active(job) &&
                     message->state == FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING;
        status_free(refused);
        if (!shown) continue;
        buf_printf(&text,
                   "%s{\"id\": \"%s\", \"object\": \"model\", \"created\": %lld, "
                   "\"owned_by\": \"%s\"}",
                   first ? "" : ", ", message->id,
                   (long long)(message_time_ms(message->submit_time) / 1000), message->owner);
        first = false;
    }
    buf_add_text(&text, "]}\n");
    http_answer(request, MHD_HTTP_OK, "application/json", &text);
}
