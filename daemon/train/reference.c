/* The log-probabilities of the reference; see run_state.h. */
#include "train/run_state.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "checkpoint/derived.h"

static const char file_name[] = "reference.bin";

/* The job's own data, then its held-out sets. */
static struct token_data *data_of(struct train_session *session, int number)
{
    if (number == 0) return &session->tokens;
    return number < session->set_count ? &session->sets[number].own : NULL;
}

/* Documents of the rows that the data give. */
static size_t count_documents(const struct token_data *data)
{
    size_t count = 0;
    bool more = true;
    for (int i = 0; more; i++) {
        const struct token_split *split = token_data_split(data, i, &more);
        if (split != NULL) count += (size_t)split->documents->count - 1;
    }
    return count;
}

/* What the sums depend on: the job, whose weights do not change, and its data. */
static void digest_origin(struct run *run, struct digest *origin)
{
    struct train_session *session = run->session;
    struct digester *digester = digester_new();
    const char *name = run->job->checkpoints.run != NULL ? run->job->checkpoints.run : "";
    digester_add(digester, name, strlen(name));
    digester_add(digester, &run->job->seed, sizeof run->job->seed);
    for (int i = 0; data_of(session, i) != NULL; i++) {
        struct digest sum;
        token_data_digest(data_of(session, i), &sum);
        digester_add(digester, &sum, sizeof sum);
    }
    digester_take(digester, origin);
    digester_free(digester);
}

/* ---- computing ---- */

/* Every rank gets the sums of all ranks' rows. */
static status_t compute_rows(struct run *run, struct loader *loader,
                             const struct token_split *split, int64_t references, float *values)
{
    int64_t each = run->session->evaluate_batch, all = each * run->job->world;
    int64_t count = split->windows.count, steps = (count + all - 1) / all;
    loader_start(loader, 0, steps * each);
    for (int64_t step = 0; step < steps; step++) {
        struct batch batch;
        bool more;
        TRY(session_check_abort(run->session));
        TRY(loader_next(loader, &batch, &more));
        if (!more) return status_new(STATUS_INTERNAL, "there are fewer rows than were counted");
        struct step_input input = run_make_input(run, &batch);
        struct step_result result;
        input.step = (uint64_t)step;
        TRY(executor_evaluate_step(run->executor, &input, &result));
        for (int64_t row = 0; row < all && step * all + row < count; row++)
            TRY(token_split_put_reference(split, step * all + row, result.sums + row * references,
                                          values));
        if (run->hooks->progress != NULL) run->hooks->progress(run->hooks->user, run->step);
    }
    return NULL;
}

/* A stream of this split alone, in which every row occurs once. */
static status_t compute_split(struct run *run, const struct token_data *data, int number,
                              const struct token_split *split, float *values)
{
    const int64_t weight = 1;
    struct mixture alone;
    mixture_init(&alone, &weight, 1, false, 0);
    struct token_rows rows = token_data_rows(data, run->job, run->session->rank, number % 2 == 1);
    rows.splits = &split;
    rows.mixture = &alone;
    rows.batch = run->session->evaluate_batch;
    rows.limit = 0;
    rows.share = (struct batch_share){0};
    const struct rows source = token_rows_source(&rows);
    struct loader *loader = NULL;
    status_t status = loader_new(&source, rows.batch, &loader);
    if (status == NULL) status = compute_rows(run, loader, split, rows.references, values);
    loader_free(loader);
    mixture_deinit(&alone);
    return status;
}

static status_t compute(struct run *run, float *values)
{
    struct train_session *session = run->session;
    session_at(session, "computes what the reference makes of the pairs");
    for (int d = 0; data_of(session, d) != NULL; d++) {
        const struct token_data *data = data_of(session, d);
        bool more = true;
        for (int i = 0; more; i++) {
            const struct token_split *split = token_data_split(data, i, &more);
            if (split == NULL) continue;
            TRY(compute_split(run, data, i, split, values));
            values += split->documents->count - 1;
        }
    }
    return NULL;
}

/* ---- keeping ---- */

/* Rank 0 reads; *found on all ranks. A job that continues from a checkpoint may be without its
 * first weights, with which others compute what is missing again. */
static status_t read_kept(struct run *run, const struct digest *origin, float *values, size_t count,
                          bool *found)
{
    const struct checkpoint_settings *settings = &run->job->checkpoints;
    struct folder folder = {.fd = -1};
    status_t status = NULL;
    *found = false;
    if (!settings->resume) return NULL;
    if (run->session->rank == 0) {
        status = folder_open(settings->root, settings->folder, false, &folder);
        if (status == NULL && folder.fd >= 0)
            status = derived_read(&folder, file_name, origin, values, count);
        *found = status == NULL && folder.fd >= 0;
        folder_close(&folder);
        if (!settings->must_resume) status_free(status);
        status = settings->must_resume
                     ? status_wrap(status, "the job cannot continue without its reference")
                     : NULL;
    }
    TRY(agreement_share_outcome(&run->ranks, &status, 0));
    run->agreed = status != NULL;
    TRY(status);
    TRY(agreement_share(&run->ranks, found, sizeof *found, 0));
    return *found ? agreement_share(&run->ranks, values, count * sizeof *values, 0) : NULL;
}

/* A job that cannot keep them computes them again when it continues. */
static void keep(const struct run *run, const struct digest *origin, const float *values,
                 size_t count)
{
    const struct checkpoint_settings *settings = &run->job->checkpoints;
    struct folder folder = {.fd = -1};
    if (settings->folder == NULL || run->session->rank != 0) return;
    status_t status = folder_open(settings->root, settings->folder, true, &folder);
    if (status == NULL) status = derived_write(&folder, file_name, origin, values, count);
    folder_close(&folder);
    status_free(status);
}

static void hand_out(struct train_session *session, const float *values)
{
    for (int d = 0; data_of(session, d) != NULL; d++) {
        size_t count = count_documents(data_of(session, d));
        float *own = mem_alloc_array(count + 1, sizeof *own);
        memcpy(own, values, count * sizeof *own);
        token_data_set_reference(data_of(session, d), own);
        values += count;
    }
}

static status_t load_first(struct run *run)
{
    session_at(run->session, "sets its parameters");
    TRY(run_load_parameters(run));
    return run_load_trained(run);
}

status_t run_find_reference(struct run *run, bool *loaded)
{
    struct train_session *session = run->session;
    struct digest origin;
    size_t count = 0;
    bool found = false;
    for (int d = 0; data_of(session, d) != NULL; d++) count += count_documents(data_of(session, d));
    AUTO_FREE float *values = mem_alloc_array(count + 1, sizeof *values);
    digest_origin(run, &origin);
    TRY(read_kept(run, &origin, values, count, &found));
    if (!found) {
        TRY(load_first(run));
        TRY(compute(run, values));
        keep(run, &origin, values, count);
    }
    *loaded = !found;
    hand_out(session, values);
    session_at(session, "sets its parameters");
    return NULL;
}
