/* Memory outside of the arenas; see outside.h. */
#include "setup/outside.h"

#include <inttypes.h>

#include "checkpoint/state_dict.h"
#include "data/loader.h"
#include "setup/session_state.h"

/* The most that bench/memory.sh measured, on processors with and without AVX-512: pages of files,
 * and what gRPC, oneDNN with its panels of f32, and the plan itself allocate. */
static const uint64_t code_bytes = 27000000, library_bytes = 8000000;

/* Every rank has a board in shared memory that the others read (runtime/shm_segment.h). */
static const uint64_t board_bytes = UINT64_C(1) << 20;

const char *outside_name(enum outside_kind kind)
{
    switch (kind) {
    case OUTSIDE_CODE: return "code";
    case OUTSIDE_LIBRARIES: return "libraries";
    case OUTSIDE_DATA: return "order of samples";
    case OUTSIDE_LOADER: return "batches ahead";
    case OUTSIDE_COMMUNICATOR: return "shared memory";
    case OUTSIDE_REDUNDANCY: return "redundancy";
    case OUTSIDE_SAMPLES: return "samples";
    case OUTSIDE_HELD: return "weights of samples";
    case OUTSIDE_FINAL: return "final weights";
    }
    return "";
}

/* The sampler's order of all samples, and this rank's part. */
static uint64_t order_bytes(const struct image_set *set, int world)
{
    uint64_t count = (uint64_t)set->count, ranks = (uint64_t)world;
    return (count + (count + ranks - 1) / ranks) * sizeof(uint32_t);
}

static uint64_t batch_bytes(const struct train_session *session, uint32_t batch_size)
{
    const struct model *model = session->model;
    uint64_t targets = 1, inputs = (uint64_t)tensor_element_count(&model->input);
    if (model->tokens) inputs = (uint64_t)(session->job->context * model->texts);
    if (model_has_token_targets(model)) targets = inputs;
    else if (model->target == TARGET_REWARD) targets = (uint64_t)model->texts;
    if (model->target == TARGET_NUMBERS) targets = (uint64_t)tensor_element_count(&model->targets);
    return LOADER_RING * (uint64_t)batch_size * (inputs + targets) * sizeof(float);
}

static status_t measure_samples(const struct train_session *session, bool holds,
                                struct decoder_bytes *bytes)
{
    const struct train_job *job = session->job;
    const struct decoder_settings settings = {.compute_dtype = job->plan.gathered_dtype,
                                              .parameter_dtypes = session->parameter_dtypes,
                                              .module_dtypes = session->module_dtypes,
                                              .sequences = job->reserve.sequences,
                                              .context = job->reserve.context,
                                              .holds = holds};
    return status_wrap(decoder_measure(&settings, session->device, session->plan, bytes),
                       "sample.reserve");
}

status_t session_measure_samples(struct train_session *session, uint64_t memory_bytes)
{
    const struct train_job *job = session->job;
    int64_t most = session->model->tokens ? session->model->context : 0;
    if (job->reserve.context == 0) return NULL;
    if (job->reserve.context > most)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "sample.reserve.context: expected at most the model's %" PRId64
                          " tokens, found %" PRId64,
                          most, job->reserve.context);
    struct decoder_bytes held, each;
    session->samples = (struct decoder_bytes){0};
    session->samples_not_held = 0;
    TRY(measure_samples(session, true, &held));
    uint64_t planned = session->plan->peak_bytes + train_session_outside_bytes(session);
    bool fits = planned <= memory_bytes && held.all <= memory_bytes - planned;
    if (held.held > 0 && !fits) {
        TRY(measure_samples(session, false, &each));
        session->samples_not_held = held.all > each.all ? held.all - each.all : 0;
        held = each;
    }
    session->samples = held;
    return NULL;
}

/* The work arena is freed before. A search for a plan has none yet. */
static uint64_t final_bytes(const struct plan *plan)
{
    if (plan == NULL) return 0;
    const uint64_t bytes = state_dict_stream_bytes(plan);
    return bytes > plan->work_bytes ? bytes - plan->work_bytes : 0;
}

void train_session_outside(const struct train_session *session, struct train_outside *outside)
{
    const struct train_job *job = session->job;
    *outside = (struct train_outside){.not_held = session->samples_not_held};
    /* Of the device's memory, as arenas. */
    outside->bytes[OUTSIDE_SAMPLES] = session->samples.all - session->samples.held;
    outside->bytes[OUTSIDE_HELD] = session->samples.held;
    if (!device_is_host(session->device)) return;
    outside->bytes[OUTSIDE_CODE] = code_bytes;
    outside->bytes[OUTSIDE_LIBRARIES] = library_bytes;
    outside->bytes[OUTSIDE_DATA] =
        order_bytes(&session->train_set, job->world) + order_bytes(&session->test_set, job->world);
    outside->bytes[OUTSIDE_LOADER] = batch_bytes(session, job->batch_size);
    if (job->evaluate)
        outside->bytes[OUTSIDE_LOADER] += batch_bytes(session, session->evaluate_batch);
    if (job->world > 1 && !job->gloo)
        outside->bytes[OUTSIDE_COMMUNICATOR] = (uint64_t)job->world * board_bytes;
    outside->bytes[OUTSIDE_REDUNDANCY] = train_session_kept_bytes(session);
    outside->bytes[OUTSIDE_FINAL] = final_bytes(session->plan);
}

uint64_t train_session_outside_bytes(const struct train_session *session)
{
    struct train_outside outside;
    uint64_t bytes = 0;
    train_session_outside(session, &outside);
    for (int kind = 0; kind < OUTSIDE_KINDS; kind++) bytes += outside.bytes[kind];
    return bytes;
}
