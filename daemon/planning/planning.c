/* Planning a job for a profile; see planning.h. No state; any thread. */
#include "planning/planning.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/host.h"
#include "base/mem.h"
#include "base/text.h"
#include "data/batch_share.h"
#include "fsdp/factors.h"
#include "planning/advice.h"
#include "planning/message.h"
#include "runtime/comm.h"
#include "setup/groups.h"
#include "setup/outside.h"

/* The first unit with its own setting, or NULL. */
static const char *find_offload(const struct train_job *job)
{
    if (job->plan.cpu_offload) return "fsdp.cpu_offload";
    for (int u = 0; job->wrap.kind == WRAP_UNITS && u < job->wrap.unit_count; u++)
        if (job->wrap.units[u].cpu_offload) return "cpu_offload of a unit";
    return NULL;
}

/* Notes what a reference of dpo adds, or a teacher. */
static void add_reference(Fsdpd__V1__Plan *message, const struct train_job *job,
                          const struct model *model)
{
    uint64_t elements = 0;
    for (int p = 0; p < model->parameter_count; p++)
        if (model->parameters[p].reference && model->parameters[p].tied_to < 0)
            elements += (uint64_t)tensor_element_count(&model->parameters[p].type);
    if (model->precomputed)
        plan_message_add_note(message,
                              "what the reference of dpo makes of every pair is computed before "
                              "the first step and kept by every worker, 8 bytes a pair");
    if (job->teacher != NULL)
        plan_message_add_note(message, "model.teacher has %" PRIu64 " elements, all frozen",
                              elements);
    else if (elements > 0)
        plan_message_add_note(message,
                              "the reference of dpo has %" PRIu64 " elements of its own: a frozen "
                              "copy of those that are trained",
                              elements);
}

/* Notes what frozen parameters save. */
static void add_frozen(Fsdpd__V1__Plan *message, const struct train_job *job,
                       const struct model *model)
{
    uint64_t frozen = 0, all = 0, words = 0; /* of each optimizer slot */
    char gradients[32], state[32];
    for (int p = 0; p < model->parameter_count; p++) {
        const struct parameter *parameter = &model->parameters[p];
        if (parameter->tied_to >= 0 || parameter->buffer != MODEL_BUFFER_NONE ||
            parameter->reference)
            continue;
        uint64_t elements = (uint64_t)tensor_element_count(&parameter->type);
        all += elements;
        frozen += parameter->trainable ? 0 : elements;
        bool packed = job->optimizer.state == STATE_INT8 && slot_packs((int64_t)elements);
        if (!parameter->trainable)
            words += packed                               ? elements / SLOT_BLOCK * SLOT_BLOCK_WORDS
                     : job->optimizer.state == STATE_BF16 ? elements / 2
                                                          : elements;
    }
    if (frozen == 0) return;
    AUTO(buf_deinit) struct buf adapters = {0};
    if (model_describe_adapters(model, &adapters))
        plan_message_add_note(message,
                              "LoRA adapts %s; %" PRIu64 " elements are trained, %.2f %% of the "
                              "model's",
                              buf_text(&adapters), all - frozen,
                              100 * (double)(all - frozen) / (double)all);
    plan_message_add_note(
        message,
        "%" PRIu64 " of %" PRIu64
        " elements are frozen: %s of gradients and %s of optimizer state, over "
        "all ranks, are not kept",
        frozen, all, text_format_bytes(4 * frozen, gradients),
        text_format_bytes(4 * words * (uint64_t)optimizer_step_slots(&job->optimizer), state));
}

/* Notes what weight decay leaves alone. */
static void add_excluded(Fsdpd__V1__Plan *message, const struct train_job *job,
                         const struct train_session *session)
{
    int parameters;
    int64_t elements;
    if (!optimizer_excludes(&job->optimizer)) return;
    const int *groups = train_session_plan(session)->options.group_of_parameter;
    optimizer_count_excluded(&job->optimizer, train_session_model(session), groups, &parameters,
                             &elements);
    plan_message_add_note(message,
                          "optimizer.weight_decay_exclude: %d norms, biases and embeddings, of "
                          "%" PRId64 " elements, have no weight decay",
                          parameters, elements);
}

/* Notes what parameters in 16 bits, and state in 8 or 16 bits, save, over all ranks. */
static void add_state(Fsdpd__V1__Plan *message, const struct train_job *job,
                      const struct train_session *session)
{
    char bytes[32], whole[32];
    const struct plan *plan = train_session_plan(session);
    const struct unit_set *units = plan->units;
    uint64_t elements = 0;
    uint64_t rounded = 0;
    for (int u = 0; u < units->unit_count; u++)
        if (units->units[u].flat.slots.rounded) rounded += (uint64_t)units->units[u].flat.padded;
    if (job->plan.rounded)
        plan_message_add_note(
            message,
            "precision.master_dtype: parameters of units in bf16 take %s over all "
            "shards, instead of %s with f32 masters",
            text_format_bytes(2 * rounded, bytes), text_format_bytes(4 * rounded, whole));
    if (job->optimizer.state == STATE_F32) return;
    for (int u = 0; u < units->unit_count; u++)
        if (!units->units[u].frozen) elements += (uint64_t)units->units[u].flat.padded;
    uint64_t f32 = 4 * elements * (uint64_t)plan->options.optimizer_slots;
    AUTO(buf_deinit) struct buf exception = {0};
    if (job->optimizer.state == STATE_INT8)
        buf_printf(&exception, "; of parameters below %d elements it is f32", SLOT_PACKED_LEAST);
    plan_message_add_note(message,
                          "optimizer.state_dtype: the optimizer's state takes %s over all ranks, "
                          "instead of %s in f32%s",
                          text_format_bytes(plan_optimizer_bytes(plan), bytes),
                          text_format_bytes(f32, whole), buf_text(&exception));
}

/* Notes what of the schedule the job's steps do not reach. */
static void add_schedule(Fsdpd__V1__Plan *message, const struct train_schedule *schedule,
                         uint64_t steps)
{
    uint64_t total = schedule->total_steps > 0 ? schedule->total_steps : steps, begin = 0;
    if (schedule->warmup_steps >= steps)
        plan_message_add_note(message,
                              "schedule.warmup_steps: all %" PRIu64
                              " steps are warm-up, so the rate stays below optimizer.lr",
                              steps);
    else if (schedule->kind == SCHEDULE_WSD &&
             schedule->decay_steps > total - schedule->warmup_steps)
        plan_message_add_note(message,
                              "schedule.decay_steps: only %" PRIu64
                              " steps follow the warm-up, so the rate drops to the decay's value",
                              total - schedule->warmup_steps);
    for (int p = 0; p < schedule->phase_count; p++) {
        if (begin >= steps) {
            plan_message_add_note(message,
                                  "schedule.phases: phase %d begins after %" PRIu64
                                  " steps, and the job has %" PRIu64,
                                  p + 1, begin, steps);
            break;
        }
        begin += schedule->phases[p].steps;
    }
}

/* Notes which parameters an optimizer of matrices has, what moving these sends, and what making
 * them orthogonal takes. */
static void add_matrices(Fsdpd__V1__Plan *message, const struct plan *plan)
{
    const struct model *model = plan->model;
    const bool *is_matrix = plan->options.matrix_of_parameter;
    int64_t elements = 0, rest = 0;
    uint64_t sent = 0, memory = 0;
    int others = 0;
    char moved[32], scratch[32];
    if (is_matrix == NULL) return;
    for (int m = 0; m < plan->matrix_count; m++)
        elements += plan_matrix_elements(&plan->matrices[m]);
    for (int p = 0; p < model->parameter_count; p++) {
        const struct parameter *it = &model->parameters[p];
        if (!it->trainable || it->tied_to >= 0 || is_matrix[p]) continue;
        others++;
        rest += tensor_element_count(&it->type);
    }
    for (int i = 0; i < plan->train.instruction_count; i++) {
        const struct plan_instruction *it = &plan->train.instructions[i];
        if (it->kind == INSTRUCTION_COLLECT || it->kind == INSTRUCTION_DISTRIBUTE)
            sent += it->communicated;
    }
    for (int u = 0; u < plan->units->unit_count; u++) {
        uint64_t bytes = plan_matrix_scratch(plan, u);
        if (plan->units->units[u].shard_world > 1) bytes += plan_matrix_bytes(plan, u);
        if (bytes > memory) memory = bytes;
    }
    plan_message_add_note(message,
                          "optimizer.type: %s updates %d %s of %" PRId64
                          " elements, %s the other %d parameters "
                          "of %" PRId64
                          ": embeddings, the head, norms and vectors, unless optimizer.groups say "
                          "otherwise",
                          plan_optimizer_name(plan->options.optimizer), plan->matrix_count,
                          plan->matrix_count == 1 ? "matrix" : "matrices", elements,
                          plan_optimizer_name(plan->options.others), others, rest);
    plan_message_add_note(
        message,
        "whole matrices: a step sends %s more per rank, and takes %s of work memory and at most "
        "%.3g GFLOP of a rank to make its own orthogonal",
        text_format_bytes(sent, moved), text_format_bytes(memory, scratch),
        plan_most_matrix_flops(plan) / 1e9);
}

/* Notes what sums over rows and columns keep and send. */
static void add_factors(Fsdpd__V1__Plan *message, const struct plan *plan)
{
    uint64_t sent = 0, words = 0, elements = 0;
    char kept[32], moved[32];
    int matrices = 0;
    if (!optimizer_factors(plan->options.optimizer)) return;
    for (int p = 0; p < plan->model->parameter_count; p++) {
        const struct parameter *it = &plan->model->parameters[p];
        if (!it->trainable || it->tied_to >= 0 || it->type.dim_count < 2) continue;
        matrices++;
        words += (uint64_t)factor_words(&it->type);
        elements += (uint64_t)tensor_element_count(&it->type);
    }
    for (int i = 0; i < plan->train.instruction_count; i++) {
        const struct plan_instruction *it = &plan->train.instructions[i];
        if (it->kind == INSTRUCTION_COLLECT || it->kind == INSTRUCTION_DISTRIBUTE ||
            it->kind == INSTRUCTION_GATHER_SUMS)
            sent += it->communicated;
    }
    plan_message_add_note(message,
                          "optimizer.type: %s keeps %s of rows and columns, over all ranks, of the "
                          "%" PRIu64 " elements of %d %s; a step sends %s more per rank",
                          plan_optimizer_name(plan->options.optimizer),
                          text_format_bytes(sizeof(float) * words, kept), elements, matrices,
                          matrices == 1 ? "matrix" : "matrices", text_format_bytes(sent, moved));
}

static void add_notes(Fsdpd__V1__Plan *message, const struct train_job *job,
                      const struct weights *weights, const struct profile *profile, bool own)
{
    if (!profile->here && !own)
        plan_message_add_note(message,
                              "the scratch memory of ops on %s is not known here and counts as 0",
                              profile->name);
    const struct hf_family *family = job->weights != NULL ? job->weights->family : NULL;
    const char *note;
    for (int i = 0; family && (note = hf_family_item(family, HF_FAMILY_NOTES, i)) != NULL; i++)
        plan_message_add_note(message, "model.hf: %s", note);
    if (weights != NULL && weights_note(weights) != NULL)
        plan_message_add_note(message, "%s", weights_note(weights));
    if (job->weights != NULL && weights == NULL)
        plan_message_add_note(message,
                              "there are no weights in model.hf: initial values are drawn");
    if (!train_job_has_data(job) && message->steps == 0)
        plan_message_add_note(message, "the number of steps is not known without the data");
    const uint64_t steps = message->steps > 0 ? message->steps : job->max_steps;
    if (steps > 0) add_schedule(message, &job->schedule, steps);
    if (job->batch_tokens > 0)
        plan_message_add_note(message,
                              "train.batch_tokens: a step of %" PRIu64
                              " tokens is %u batch%s of %u windows on every rank",
                              job->batch_tokens, message->micro_steps,
                              message->micro_steps > 1 ? "es" : "", job->batch_size);
    const char *offload = find_offload(job);
    char bytes[32];
    if (message->host_bytes > 0)
        plan_message_add_note(message,
                              "offloaded units have %s of pinned host memory per rank; their "
                              "optimizer runs on the host",
                              text_format_bytes(message->host_bytes, bytes));
    else if (offload != NULL)
        plan_message_add_note(message,
                              "%s has no effect on a CPU: parameters, gradients and optimizer "
                              "state are in host memory anyway",
                              offload);
    if (job->plan.gathered_dtype == DTYPE_BF16)
        plan_message_add_note(message,
                              "computes in bf16; %sgradients%s and the loss are f32",
                              job->plan.rounded ? "" : "shards, ",
                              job->optimizer.state == STATE_F32 ? ", optimizer state" : "");
    if (job->plan.reduce_dtype == DTYPE_BF16 && job->world > 1)
        plan_message_add_note(message,
                              "gradients are rounded to bf16 on their way and added in f32");
}

/* Notes the size of an epoch of a dataset. */
static status_t add_dataset(Fsdpd__V1__Plan *message, const struct train_job *job,
                            const struct train_session *session)
{
    struct token_measure measure;
    bool known = false;
    char rows[32], tokens[32], counted[32], cut[32], packed[32];
    TRY(train_session_measure(session, &measure, &known));
    if (!known) return NULL;
    const struct model *model = train_session_model(session);
    double room = (double)(measure.rows * model->texts) * (double)train_session_context(session);
    double targets = measure.filled > 0 ? (double)measure.filled : 1;
    bool documents = job->windows == WINDOWS_DOCUMENT;
    bool pairs = model->target == TARGET_PREFERENCE ||
                 (model->target == TARGET_REWARD && measure.packed > 0);
    int64_t samples = pairs && measure.packed > 0 ? measure.packed / 2 : measure.rows;
    if (pairs)
        plan_message_add_note(message,
                              "an epoch of the dataset is %s pairs, of which %s count; windows are "
                              "%.1f %% full",
                              text_format_count((uint64_t)samples, rows),
                              text_format_count((uint64_t)measure.counted, counted),
                              100.0 * (double)measure.filled / room);
    else if (!model_has_token_targets(model))
        plan_message_add_note(message, "an epoch of the dataset is %s %s; windows are %.1f %% full",
                              text_format_count((uint64_t)measure.rows, rows),
                              model->texts > 1 ? "pairs of texts" : "labelled documents",
                              100.0 * (double)measure.filled / room);
    else
        plan_message_add_note(message,
                              "an epoch of the dataset is %s %s with %s targets, of which %s count "
                              "(%.1f %%); windows are %.1f %% full",
                              text_format_count((uint64_t)measure.rows, rows),
                              documents ? "documents" : "windows",
                              text_format_count((uint64_t)measure.filled, tokens),
                              text_format_count((uint64_t)measure.counted, counted),
                              100.0 * (double)measure.counted / targets,
                              100.0 * (double)measure.filled / room);
    if (measure.packed > 0)
        plan_message_add_note(message, "%s documents are packed into %s windows, %.1f in each",
                              text_format_count((uint64_t)measure.packed, packed),
                              text_format_count((uint64_t)measure.rows, rows),
                              (double)measure.packed / (double)measure.rows);
    if (measure.cut > 0)
        plan_message_add_note(message, "%s documents are longer than a window, and are cut",
                              text_format_count((uint64_t)measure.cut, cut));
    return NULL;
}

/* How ranks communicate, and how much host memory is pinned, including by copies. Without workers
 * to look at, the profile says how many ranks a host has. */
static void add_communicator(Fsdpd__V1__Plan *message, const struct advisor *advisor,
                             const struct train_session *session,
                             const struct planning_options *options)
{
    const bool on_cpu = device_is_host(advisor->device);
    const int host_ranks = options->host_workers > 0 ? options->host_workers
                                                     : advisor->profile->rates.devices_per_host;
    const bool together = advisor->job->world <= host_ranks;
    bool staged = options->staged;
    char bytes[32];
    message->staging_bytes = train_session_staging_bytes(session);
    if (message->world < 2) return;
    staged = staged && !on_cpu;
    message->communicator = mem_strdup(staged    ? "gloo through host memory"
                                       : !on_cpu ? "nccl"
                                       : together && !advisor->job->gloo ? "shared memory"
                                                                         : "gloo");
    if (!staged) return;
    plan_message_add_note(message,
                          "workers share a device, which NCCL refuses: collectives go through Gloo "
                          "and %s of pinned host memory per worker, far slower than estimated here",
                          text_format_bytes(comm_staging_bytes((int)message->world), bytes));
}

/* Notes how often the units are gathered for the samples that the plan has memory for. */
static void add_samples(Fsdpd__V1__Plan *message, const struct train_session *session)
{
    struct train_outside outside;
    char bytes[32];
    train_session_outside(session, &outside);
    if (outside.bytes[OUTSIDE_HELD] > 0)
        plan_message_add_note(message, "samples gather all units once for a call, and hold them");
    if (outside.not_held > 0)
        plan_message_add_note(message,
                              "samples gather units one by one, for every token: to hold all of "
                              "them for a call, %s more would have to fit",
                              text_format_bytes(outside.not_held, bytes));
}

static bool registers(const struct train_job *job, const struct planning_options *options,
                      const struct device *device)
{
    return job->plan.register_buffers && job->world > 1 && !device_is_host(device) &&
           !options->staged;
}

static void add_registration(Fsdpd__V1__Plan *message, const struct train_job *job,
                             const struct planning_options *options, const struct device *device)
{
    if (!job->plan.register_buffers) return;
    if (registers(job, options, device))
        plan_message_add_note(message,
                              "NCCL uses registered buffers; memory that it allocates beyond them, "
                              "because of its granularity, is not in this plan");
    else
        plan_message_add_note(message, "fsdp.register_buffers has no effect %s",
                              device_is_host(device) ? "on a CPU: it is NCCL's"
                              : job->world < 2
                                  ? "with one worker, which has no peers"
                                  : "where workers share a device, as NCCL is not used");
}

static status_t does_not_fit(struct advisor *advisor, status_t status)
{
    struct buf text = {0};
    buf_add_text(&text, status_message(status));
    advice_what_fits(advisor, &text);
    status_free(status);
    status = status_new(STATUS_RESOURCE_EXHAUSTED, "%s", buf_text(&text));
    buf_deinit(&text);
    return status;
}

static status_t make(struct advisor *advisor, const struct planning_options *options,
                     Fsdpd__V1__Plan **plan)
{
    struct train_session *session = NULL;
    if (options->device != NULL && registers(advisor->job, options, advisor->device))
        TRY(status_wrap(device_check_registrable(advisor->device), "fsdp.register_buffers"));
    status_t status = train_session_new(advisor->job, advisor->device, 0, true, &session);
    if (status == NULL) status = advisor_check_fits(advisor, advisor->job, session);
    bool fits = status_code(status) != STATUS_RESOURCE_EXHAUSTED;
    if (status != NULL) {
        train_session_free(session);
        return fits ? status : does_not_fit(advisor, status);
    }
    const struct plan_message_options message = {.profile = advisor->profile,
                                                 .memory_bytes = advisor->memory_bytes,
                                                 .schedule = options->details,
                                                 .dump = options->dump};
    *plan = plan_message_new(session, &message);
    add_notes(*plan, advisor->job, train_session_weights(session), advisor->profile,
              options->device != NULL);
    add_frozen(*plan, advisor->job, train_session_model(session));
    add_reference(*plan, advisor->job, train_session_model(session));
    add_excluded(*plan, advisor->job, session);
    add_state(*plan, advisor->job, session);
    add_matrices(*plan, train_session_plan(session));
    add_factors(*plan, train_session_plan(session));
    add_samples(*plan, session);
    add_communicator(*plan, advisor, session, options);
    (*plan)->host_memory_bytes = advisor->host_memory_bytes;
    if (advisor->host_memory_bytes > 0)
        (*plan)->host_ranks = (uint32_t)advisor_host_ranks(advisor, advisor->job);
    add_registration(*plan, advisor->job, options, advisor->device);
    for (int i = 0; device_note(advisor->device, i) != NULL; i++)
        plan_message_add_note(*plan, "%s", device_note(advisor->device, i));
    status = add_dataset(*plan, advisor->job, session);
    if (status == NULL && options->tune) status = trials_add(advisor, *plan);
    if (status != NULL) {
        fsdpd__v1__plan__free_unpacked(*plan, NULL);
        *plan = NULL;
        train_session_free(session);
        return status;
    }
    if (options->details && !options->choose) {
        advisor->tries = advice_tries(train_session_plan(session)->train.instruction_count);
        advice_add(advisor, session, *plan);
    }
    train_session_free(session);
    return NULL;
}

static status_t make_chosen(struct advisor *advisor, const struct planning_options *options,
                            Fsdpd__V1__Plan **plan)
{
    struct chosen *chosen = NULL;
    TRY(choose(advisor, &chosen));
    advisor->job = chosen_job(chosen);
    status_t status = make(advisor, options, plan);
    if (status == NULL) chosen_add(chosen, *plan);
    chosen_free(chosen);
    return status;
}

/* The profile of a device of this process includes its memory. `note` says where its rates are from
 * if they are not the built-in profile's. */
static status_t find_profile(const struct planning_options *options, const struct device *device,
                             struct profile *profile, char *note, size_t size)
{
    char model[128];
    if (options->profile != NULL) {
        *profile = *options->profile;
        return NULL;
    }
    status_t status = profile_of_device(device, profile, model, sizeof model);
    if (status_code(status) == STATUS_NOT_FOUND) {
        snprintf(note, size, "times are those of an a100: %s", status_message(status));
        status_free(status);
        status = profile_find("a100", profile);
    }
    TRY(status);
    profile->memory_bytes = options->memory_bytes;
    if (options->measured == NULL) return NULL;
    profile->rates = options->measured->rates;
    profile->tables = options->measured->tables;
    snprintf(note, size, "times are from the profile that was measured on this kind of device");
    return NULL;
}

/* A profile describes no host; for a cpu the device's memory is the host's. */
static uint64_t find_host_memory(const struct planning_options *options,
                                 const struct device *device)
{
    if (options->device == NULL || device_is_host(device)) return 0;
    uint64_t now = device_host_memory_bytes(device), most = host_memory_most();
    if (now < options->host_memory_bytes) now = options->host_memory_bytes;
    return now < most ? now : most;
}

status_t planning_make(const struct train_job *job, const struct planning_options *options,
                       Fsdpd__V1__Plan **plan)
{
    const char *own = options->device;
    struct device *device = NULL;
    struct profile profile;
    char note[192] = "";
    int threads = options->threads > 0 ? options->threads : 1;
    if (own == NULL) own = options->profile->here ? "cpu" : "null";
    TRY(device_open(own, threads, &device));
    status_t found = find_profile(options, device, &profile, note, sizeof note);
    if (found != NULL) {
        device_close(device);
        return found;
    }
    if (profile.here && profile.tables == NULL) { /* tables are for their own number of threads */
        profile.rates.flops_f32 *= threads;
        profile.rates.flops_bf16 *= threads;
    }
    struct train_job settings = *job;
    settings.staged = options->staged;
    settings.memory_bytes =
        profile.memory_bytes > 0 ? profile.memory_bytes : device_memory_bytes(device);
    if (settings.global_batch > 0) {
        const struct batch_share share = batch_share_of(job, 0);
        settings.batch_size = (uint32_t)share.batch;
        settings.accumulation_steps = share.micro_steps;
    }
    struct advisor advisor = {.job = &settings,
                              .device = device,
                              .profile = &profile,
                              .memory_bytes = settings.memory_bytes,
                              .host_memory_bytes = find_host_memory(options, device),
                              .host_workers = options->host_workers > 0 ? options->host_workers : 1,
                              .tries = advice_tries(0)};
    status_t status =
        options->choose ? make_chosen(&advisor, options, plan) : make(&advisor, options, plan);
    if (status == NULL && note[0] != '\0') plan_message_add_note(*plan, "%s", note);
    device_close(device);
    return status;
}
