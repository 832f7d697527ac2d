/*
 * Writes a run's state to a checkpoint and restores it; see run_state.h. Parameters and slots change
 * only after all ranks know that the checkpoint is complete; the rest of the state changes only
 * after all ranks have read theirs.
 */
#include "train/run_state.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "checkpoint/folder.h"
#include "checkpoint/saved.h"
#include "data/batch_share.h"
#include "redundancy/recover.h"
#include "train/evaluate.h"
#include "train/schedule.h"

enum { PIECE = 1 << 18 };

/* ---- capturing ---- */

struct saved_progress run_progress(const struct run *run)
{
    return (struct saved_progress){
        .step = run->step,
        .rows = run->rows,
        .epochs = run->epochs,
        .updates = run->optimizer.taken,
        .skipped_steps = run->skipped_steps,
        .epoch_rate = run->epoch_rate,
        .gradient_norm = run->gradient_norm,
        .interval = run->interval,
        .epoch = run->epoch,
        .evaluation_ns = run->evaluation_ns,
        .validated = run->validated && isfinite(run->validation_loss),
        .validation_loss = run->validation_loss,
        .validation_step = run->validation_step,
        .evaluated = run->evaluated_step == run->step ? run->evaluated : 0,
        .evaluated_of = evaluation_sets_hash(run->session),
        .early_stop = run->early_stop,
        .best = run->best,
        .base = run->base,
    };
}

struct capture *train_session_capture(struct train_session *session)
{
    struct run *run = session->run;
    const struct checkpoint_settings *settings = &run->job->checkpoints;
    const struct saved_progress progress = run_progress(run);
    const struct capture_job job = {.run = settings->run != NULL ? settings->run : run->job->id,
                                    .job = run->job->id,
                                    .attempt = settings->attempt};
    run->captured_step = run->step;
    run->captured_best = run->best.step;
    return capture_take(run->executor, &job, &progress);
}

/* ---- finding the checkpoint ---- */

struct search {
    struct run *run;
    const char *of; /* the name of the run that the checkpoints belong to */
    struct folder folder;
    struct folder_entry *entries; /* rank 0's */
    int count, next;
    struct buf note;          /* problems of newer checkpoints */
    bool damaged;             /* at least one checkpoint is damaged; otherwise they do not fit */
    struct recovery recovery; /* what the ranks have in memory */
    bool spoiled; /* the executor has values of a checkpoint that changed during the read */
};

/* What a run continues from instead of the name of a checkpoint. */
#define MEMORY "memory"

/* Whether the ranks' memory comes next: it is as new as the next checkpoint, and faster. */
static bool memory_is_next(const struct search *search)
{
    const struct recovery *recovery = &search->recovery;
    if (!recovery->found) return false;
    return search->next == search->count ||
           search->entries[search->next].step <= recovery->manifest.progress.step;
}

/* The name of the next candidate, "" after the last; rank 0 decides. */
static status_t next_name(struct search *search, char name[FOLDER_NAME_MAX])
{
    memset(name, 0, FOLDER_NAME_MAX);
    if (memory_is_next(search)) strcpy(name, MEMORY);
    else if (search->next < search->count) strcpy(name, search->entries[search->next++].name);
    TRY(agreement_share(&search->run->ranks, name, FOLDER_NAME_MAX, 0));
    name[FOLDER_NAME_MAX - 1] = '\0';
    return NULL;
}

static status_t check_optimizer(const struct run *run, const struct saved *saved)
{
    const struct plan *plan = run->session->plan;
    const char *found = saved_manifest(saved)->optimizer;
    AUTO_FREE char *expected = plan_optimizers_text(plan);
    if (strcmp(found, expected) != 0)
        return status_new(STATUS_FAILED_PRECONDITION,
                          "it was taken with the optimizer %s, but the job has %s", found,
                          expected);
    enum state_dtype state = saved_manifest(saved)->state;
    if (state != plan->options.state)
        return status_new(STATUS_FAILED_PRECONDITION,
                          "it was taken with the optimizer's state in %s, but the job has %s",
                          state_dtype_name(state), state_dtype_name(plan->options.state));
    for (int p = 0; p < plan->model->parameter_count; p++) {
        if (plan->model->parameters[p].tied_to >= 0) continue;
        int unit = plan->units->unit_of_parameter[p], slots = saved_slots(saved, p), needed = 0;
        while (needed < plan->options.optimizer_slots &&
               executor_unit_state(run->executor, unit, needed) != NULL)
            needed++;
        if (needed > 0) slots += plan->options.averages - saved_manifest(saved)->averages;
        bool rounded = saved_is_rounded(saved, p),
             keeps = plan->units->units[unit].flat.slots.rounded;
        if (rounded != keeps)
            return status_new(STATUS_FAILED_PRECONDITION,
                              "it has %s in %s, but the job keeps that in %s",
                              plan->model->parameters[p].name, rounded ? "bf16" : "f32",
                              keeps ? "bf16" : "f32");
        if (slots != needed)
            return status_new(STATUS_FAILED_PRECONDITION,
                              "it has %d optimizer slots of %s, the job has %d", slots,
                              plan->model->parameters[p].name, needed);
    }
    return NULL;
}

/* ---- restoring ---- */

static uint64_t divide_up(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

/*
 * Sets the run's position in the data, counted in this group's steps: `place` steps since the
 * beginning, and `left` remaining. With a different number of workers or batch size, the run ends
 * after a different number of steps.
 */
static void set_end(struct run *run, double place, uint64_t left)
{
    struct train_session *session = run->session;
    uint64_t most = run->job->max_steps;
    run->shift = place - (double)run->step;
    if (run->shift == 0) return;
    session->steps = run->step + left;
    if (most > 0 && session->steps > most) session->steps = most > run->step ? most : run->step;
}

static void find_place_in_images(struct run *run)
{
    const struct train_session *session = run->session;
    uint64_t world = (uint64_t)run->job->world, batch = run->job->batch_size;
    uint64_t count = (uint64_t)run->train.count, global = run->job->global_batch;
    uint64_t first = (uint64_t)batch_share_position(run->job, run->rows);
    if (first > count) first = count;
    if (global > 0) run->rows = run->rows / global * global; /* of another batch: some again */
    else if (first * world != run->rows) run->rows = first * world; /* some rows are repeated */
    /* An epoch's last batch and step may be short, so count the remaining rows, not those used. */
    uint64_t left = divide_up(divide_up(count - first, batch), session->micro_steps);
    double place = (run->epochs + 1.0) * session->epoch_steps - (double)left;
    uint64_t epochs = run->epochs < run->job->epochs ? run->job->epochs - run->epochs - 1 : 0;
    if (run->epochs >= run->job->epochs) left = 0;
    set_end(run, place, left + epochs * (uint64_t)session->epoch_steps);
}

static void find_place_in_tokens(struct run *run)
{
    const struct train_session *session = run->session;
    uint64_t global = run->job->global_batch;
    uint64_t batch =
        global > 0 ? global : (uint64_t)run->job->batch_size * (uint64_t)run->job->world;
    uint64_t step = global > 0 ? global : batch * session->micro_steps;
    if (run->rows == run->step * step) return;
    run->rows = run->rows / batch * batch;           /* some windows are repeated */
    uint64_t left = session->steps - run->step, all; /* max_steps */
    if (run->job->epochs > 0 &&
        !__builtin_mul_overflow((uint64_t)session->tokens.train.rows, run->job->epochs, &all))
        left = all > run->rows ? divide_up(all - run->rows, step) : 0;
    set_end(run, (double)run->rows / (double)step, left);
}

static void load_progress(struct run *run, const struct saved_progress *saved)
{
    run->step = run->captured_step = saved->step;
    run->rows = saved->rows;
    run->epochs = (uint32_t)saved->epochs;
    run->optimizer.taken = saved->updates;
    run->skipped_steps = saved->skipped_steps;
    /* Uses the current settings, which may differ from those of the checkpoint. */
    for (uint32_t epoch = 1; epoch <= run->epochs; epoch++)
        run->epoch_rate = schedule_next_rate(&run->job->schedule, epoch, run->epoch_rate);
    run->gradient_norm = (float)saved->gradient_norm;
    run->interval = saved->interval;
    run->epoch = saved->epoch;
    run->evaluation_ns = saved->evaluation_ns;
    run->validated = saved->validated;
    run->validation_loss = saved->validation_loss;
    run->validation_step = saved->validation_step;
    run->early_stop = saved->early_stop;
    run->best = saved->best;
    run->base = saved->base;
    run->captured_best = saved->best.step;
    run->evaluated_step = run->step;
    run->evaluated = saved->validated && saved->validation_step == run->step;
    if (saved->evaluated_of == evaluation_sets_hash(run->session))
        run->evaluated |= saved->evaluated;
    if (run->step > run->session->steps) run->session->steps = run->step;
    if (run->job->only_evaluate) run->session->steps = run->step;
    else if (run->job->data_format == DATA_IMAGES) find_place_in_images(run);
    else find_place_in_tokens(run);
    atomic_store(&run->session->step, run->step);
    run->resumed = true;
}

static status_t load_array(struct run *run, struct saved *saved, int parameter, int slot,
                           float *piece)
{
    const struct parameter_part part = executor_state_part(run->executor, parameter, slot);
    for (int64_t at = 0; at < part.count; at += PIECE) {
        struct parameter_part now = {.offset = part.offset + at, .count = part.count - at};
        if (now.count > PIECE) now.count = PIECE;
        TRY(session_check_abort(run->session));
        TRY(saved_read(saved, parameter, slot, now.offset, now.count, piece));
        TRY(executor_set_state_part(run->executor, parameter, slot, now, piece));
    }
    return NULL;
}

/* How many of the saved slots the job has: not an average that it does not keep. */
static int slots_to_load(const struct run *run, const struct saved *saved, int parameter)
{
    int slots = saved_slots(saved, parameter);
    bool drops = saved_manifest(saved)->averages && !run->session->plan->options.averages;
    return slots > 0 && drops ? slots - 1 : slots;
}

/* An average that the checkpoint lacks begins with its parameters. */
static status_t load_arrays(struct run *run, struct saved *saved)
{
    const struct model *model = run->session->model;
    AUTO_FREE float *piece = mem_alloc_array(PIECE, sizeof *piece);
    status_t status = NULL;
    for (int p = 0; p < model->parameter_count && status == NULL; p++) {
        if (model->parameters[p].tied_to >= 0 || !saved_has(saved, p)) continue;
        for (int slot = -1; slot < slots_to_load(run, saved, p) && status == NULL; slot++)
            status = load_array(run, saved, p, slot, piece);
    }
    if (status != NULL || saved_manifest(saved)->averages) return status;
    return executor_start_average(run->executor);
}

/* ---- finding and restoring ---- */

/* Gives all ranks rank 0's manifest, so that they resume from the same checkpoint. */
static status_t share_manifest(const struct search *search, const struct saved *saved,
                               status_t *mine)
{
    struct digest sum = {{0}};
    if (saved != NULL) sum = saved_manifest(saved)->sum;
    TRY(agreement_share(&search->run->ranks, &sum, sizeof sum, 0));
    if (*mine == NULL && !digest_equal(&sum, &saved_manifest(saved)->sum))
        *mine = status_new(STATUS_DATA_LOSS, "rank 0 reads another " MANIFEST_FILE " than rank %d",
                           search->run->session->rank);
    return NULL;
}

/* Checks that it belongs to the run and fits, and that this rank's share of the files is intact. */
static status_t examine(const struct search *search, struct saved *saved)
{
    const struct run *run = search->run;
    TRY(saved_check_run(saved, search->of));
    TRY(saved_match(saved, run->session->model, run->session->units));
    TRY(check_optimizer(run, saved));
    for (int f = run->session->rank; f < saved_manifest(saved)->world; f += run->job->world) {
        TRY(session_check_abort(run->session));
        TRY(saved_verify(saved, f));
    }
    return NULL;
}

/* Shares the checksums that the ranks computed for their files, so that every rank can verify what
 * it reads. */
static status_t share_blocks(const struct search *search, struct saved *saved)
{
    for (int f = 0; f < saved_manifest(saved)->world; f++) {
        size_t count;
        struct digest *blocks = saved_blocks(saved, f, &count);
        TRY(agreement_share(&search->run->ranks, blocks, count * sizeof *blocks,
                            f % search->run->job->world));
    }
    return NULL;
}

/* Checks one checkpoint on all ranks, and loads it if it is good. *mine becomes its problem, on all
 * ranks; a returned status is that of a collective. */
static status_t try_one(struct search *search, const char *name, struct saved **saved,
                        status_t *mine)
{
    struct run *run = search->run;
    *mine = saved_open(&search->folder, name, MANIFEST_MAX, saved);
    TRY(share_manifest(search, *saved, mine));
    if (*mine == NULL) *mine = examine(search, *saved);
    status_of_disk(*mine);
    TRY(agreement_reach(&run->ranks, mine));
    if (*mine != NULL) return NULL;
    TRY(share_blocks(search, *saved));
    *mine = status_of_disk(load_arrays(run, *saved));
    TRY(agreement_reach(&run->ranks, mine));
    search->spoiled = *mine != NULL;
    return NULL;
}

/* After a damaged or unfitting checkpoint, an older one may be good. One that the disk does not
 * give now may be good later; it is skipped only if the state is in memory. */
static bool may_skip(const struct search *search, status_t status)
{
    enum status_code code = status_code(status);
    if (status_lacks(status)) return search->recovery.found;
    return code == STATUS_DATA_LOSS || code == STATUS_FAILED_PRECONDITION ||
           code == STATUS_INTERNAL || code == STATUS_UNKNOWN;
}

/* Takes ownership of the candidate's problem. */
static void pass_over(struct search *search, const char *name, status_t status)
{
    bool fits = status_code(status) != STATUS_FAILED_PRECONDITION;
    search->damaged |= fits;
    buf_printf(&search->note, "%s%s %s (%s)", search->note.length > 0 ? "; " : "", name,
               fits ? "cannot be read" : "does not fit", status_message(status));
    status_free(status);
}

/* Finds the newest checkpoint that all ranks can read; *saved stays NULL if there is none. */
static status_t find(struct search *search, char name[FOLDER_NAME_MAX], struct saved **saved)
{
    struct run *run = search->run;
    for (;;) {
        status_t mine = NULL;
        TRY(next_name(search, name));
        if (name[0] == '\0') return NULL;
        if (strcmp(name, MEMORY) == 0) return recover_load(run, &search->recovery);
        status_t status = try_one(search, name, saved, &mine);
        if (status == NULL && mine == NULL) return NULL;
        saved_free(*saved);
        *saved = NULL;
        if (status != NULL || !may_skip(search, mine)) {
            run->agreed = status == NULL;
            return status_first(mine, status);
        }
        pass_over(search, name, mine);
    }
}

static status_t refuse_to_restart_training(const struct search *search)
{
    const char *folder = search->run->job->checkpoints.folder;
    search->run->agreed = true;
    if (search->note.length == 0)
        return status_new(STATUS_DATA_LOSS, "there is no checkpoint in %s any more", folder);
    return status_new(search->damaged ? STATUS_DATA_LOSS : STATUS_FAILED_PRECONDITION,
                      "no checkpoint in %s is usable: %s", folder, buf_text(&search->note));
}

/* Omits damaged reports; the job's reason states that. */
static void take_reports(struct search *search, const struct saved *saved)
{
    const struct train_hooks *hooks = search->run->hooks;
    if (search->run->session->rank != 0 || hooks->reports == NULL) return;
    AUTO(buf_deinit) struct buf bytes = {0};
    status_t status = saved_read_reports(saved, &bytes);
    if (status == NULL && bytes.length > 0) hooks->reports(hooks->user, bytes.data, bytes.length);
    if (status != NULL)
        buf_printf(&search->note, "%smetrics that were not recorded cannot be read (%s)",
                   search->note.length > 0 ? "; " : "", status_message(status));
    status_free(status);
}

/* Gives rank 0 the reports that the lost ranks may not have sent. */
static status_t take_kept_reports(struct search *search)
{
    struct run *run = search->run;
    const struct train_hooks *hooks = run->hooks;
    const struct recovery *recovery = &search->recovery;
    AUTO(buf_deinit) struct buf packed = {0};
    if (run->session->rank == recovery->root && hooks->pack_reports != NULL)
        hooks->pack_reports(hooks->user, recovery->manifest.progress.step, &packed);
    uint64_t size = packed.length;
    status_t status = agreement_share(&run->ranks, &size, sizeof size, recovery->root);
    if (status == NULL && size > MANIFEST_REPORTS_MAX)
        status = status_new(STATUS_INTERNAL, "%" PRIu64 " bytes of reports", size);
    if (status == NULL && size > 0) {
        AUTO_FREE char *bytes = mem_alloc(size);
        if (packed.length > 0) memcpy(bytes, packed.data, size);
        status = agreement_share(&run->ranks, bytes, size, recovery->root);
        if (status == NULL && run->session->rank == 0 && hooks->reports != NULL)
            hooks->reports(hooks->user, bytes, size);
    }
    return status;
}

static void note_average(struct search *search, const struct saved *saved)
{
    bool had = saved_manifest(saved)->averages, has = search->run->session->plan->options.averages;
    if (had == has) return;
    buf_printf(&search->note, "%s%s", search->note.length > 0 ? "; " : "",
               has ? "it has no average of the weights, which begins with its weights (train.ema)"
                   : "its average of the weights was left out: the job keeps none any more "
                     "(train.ema)");
}

static status_t resume(struct search *search)
{
    struct run *run = search->run;
    char name[FOLDER_NAME_MAX];
    struct saved *saved = NULL;
    TRY(find(search, name, &saved));
    bool memory = strcmp(name, MEMORY) == 0;
    if (saved == NULL && !memory && (run->job->checkpoints.must_resume || search->spoiled))
        return refuse_to_restart_training(search);
    if (saved != NULL) {
        load_progress(run, &saved_manifest(saved)->progress);
        note_average(search, saved);
        take_reports(search, saved);
    }
    if (memory) {
        load_progress(run, &search->recovery.manifest.progress);
        run->captured_step = UINT64_MAX; /* it is on no disk */
        TRY(take_kept_reports(search));
    }
    const char *note = search->note.length > 0 ? buf_text(&search->note) : NULL;
    if (run->hooks->resumed != NULL && (run->resumed || note != NULL))
        run->hooks->resumed(run->hooks->user, run->step, run->resumed ? name : NULL, note);
    saved_free(saved);
    return NULL;
}

/* Rank 0 lists the checkpoints. *mine becomes the problem of a rank that cannot, on all ranks. */
static status_t list_checkpoints(struct search *search, status_t *mine)
{
    const struct checkpoint_settings *settings = &search->run->job->checkpoints;
    if (!settings->resume) return NULL; /* there are none */
    *mine = status_of_disk(
        folder_open(settings->root, settings->folder, false, &search->folder));
    if (*mine == NULL && search->run->session->rank == 0)
        *mine = status_of_disk(folder_list(&search->folder, &search->entries, &search->count));
    return agreement_reach(&search->run->ranks, mine);
}

/* What is in memory; a note says why it cannot be used. It does without the disk, whose problem,
 * `mine`, becomes a note then. */
static status_t look_into_memory(struct search *search, status_t *mine)
{
    struct recovery *recovery = &search->recovery;
    TRY(recover_find(search->run, recovery));
    if (*mine != NULL && recovery->found) {
        pass_over(search, "what is on the disk", *mine);
        *mine = NULL;
        search->count = 0;
    }
    if (recovery->problem != NULL)
        buf_printf(&search->note, "%s", status_message(recovery->problem));
    return NULL;
}

status_t run_resume(struct run *run)
{
    struct search search = {.run = run, .of = run->job->checkpoints.run, .folder.fd = -1};
    status_t mine = NULL, status = list_checkpoints(&search, &mine);
    if (status == NULL) status = look_into_memory(&search, &mine);
    if (status == NULL) {
        status = mine;
        run->agreed = mine != NULL;
    }
    if (status == NULL) status = resume(&search);
    recover_deinit(&search.recovery);
    buf_deinit(&search.note);
    free(search.entries);
    folder_close(&search.folder);
    return status;
}

/* ---- another job's checkpoint ---- */

static status_t load_source(struct search *search)
{
    struct run *run = search->run;
    const struct train_source *source = &run->job->source;
    struct saved *saved = NULL;
    status_t mine =
        status_of_disk(folder_open(source->root, source->folder, false, &search->folder));
    TRY(agreement_reach(&run->ranks, &mine));
    status_t status = mine == NULL ? try_one(search, source->name, &saved, &mine) : NULL;
    if (status == NULL && mine == NULL) {
        const struct saved_progress *progress = &saved_manifest(saved)->progress;
        run->step = run->session->steps = progress->step;
        run->epochs = (uint32_t)progress->epochs;
        run->base = progress->base;
        atomic_store(&run->session->step, run->step);
    }
    saved_free(saved);
    run->agreed = status == NULL;
    return status_first(status_wrap(mine, "model.job"), status);
}

status_t run_load_source(struct run *run)
{
    struct search search = {.run = run, .of = run->job->source.run, .folder.fd = -1};
    status_t status = load_source(&search);
    run->agreed = status != NULL && run->agreed;
    folder_close(&search.folder);
    return status;
}
