/* The values that a run's parameters begin with; see run_state.h. */
#include "base/mem.h"
#include "setup/init.h"
#include "train/run_state.h"

enum { LOAD_PIECE = 1 << 20 }; /* elements of a parameter that are read at a time */

static struct parameter_part find_part(void *user, int parameter)
{
    return executor_parameter_part(((struct run *)user)->executor, parameter);
}

/* Whether its values are to be set: of a run that continues only those that are not saved. */
static bool is_wanted(const struct run *run, int parameter)
{
    return !run->continues || executor_is_unsaved(run->executor, parameter);
}

/* What the files lack. */
static struct parameter_part find_new_part(void *user, int parameter)
{
    struct run *run = user;
    const struct weights *weights = run->session->weights;
    bool found = weights != NULL && weights_has(weights, parameter);
    if (found || !is_wanted(run, parameter)) return (struct parameter_part){0};
    return find_part(user, parameter);
}

static status_t set_part(void *user, int parameter, struct parameter_part piece,
                         const float *values)
{
    struct run *run = user;
    TRY(session_check_abort(run->session));
    return executor_set_parameter_part(run->executor, parameter, piece, values);
}

/* Each rank reads the part that it keeps, in pieces; `of`: the parameter's number in the weights.
 */
static status_t load_parameter(struct run *run, struct weights *weights, int of, int parameter,
                               float *piece)
{
    const struct parameter_part part = executor_parameter_part(run->executor, parameter);
    for (int64_t at = 0; at < part.count; at += LOAD_PIECE) {
        struct parameter_part now = {.offset = part.offset + at, .count = part.count - at};
        if (now.count > LOAD_PIECE) now.count = LOAD_PIECE;
        TRY(session_check_abort(run->session));
        TRY(weights_read(weights, of, now.offset, (size_t)now.count, piece));
        TRY(executor_set_parameter_part(run->executor, parameter, now, piece));
    }
    return NULL;
}

static status_t load_teacher(struct run *run, float *piece)
{
    const struct train_session *session = run->session;
    int first = session->teacher_first;
    for (int p = first; p < session->model->parameter_count; p++)
        if (session->model->parameters[p].tied_to < 0 && is_wanted(run, p))
            TRY(load_parameter(run, session->teacher_weights, p - first, p, piece));
    return NULL;
}

status_t run_load_parameters(struct run *run)
{
    const struct model *model = run->session->model;
    const struct init_target lacking = {find_new_part, set_part, run};
    AUTO_FREE float *piece = mem_alloc_array(LOAD_PIECE, sizeof *piece);
    if (run->session->teacher_weights != NULL)
        TRY(status_wrap(load_teacher(run, piece), "model.teacher"));
    if (run->session->weights == NULL) return init_draw(model, run->job->seed, &lacking);
    status_t status = NULL;
    for (int p = 0; p < model->parameter_count && status == NULL; p++)
        if (model->parameters[p].tied_to < 0 && weights_has(run->session->weights, p) &&
            is_wanted(run, p))
            status = load_parameter(run, run->session->weights, p, p, piece);
    TRY(status_wrap(status, "weights"));
    if (!weights_is_partial(run->session->weights)) return NULL;
    return init_draw(model, run->job->seed, &lacking);
}

status_t run_load_trained(struct run *run)
{
    const struct model *model = run->session->model;
    const struct weights_source *source = run->job->trained;
    struct weights *weights = NULL;
    if (source == NULL || run->continues) return NULL;
    AUTO_FREE float *piece = mem_alloc_array(LOAD_PIECE, sizeof *piece);
    status_t status = weights_open(source, model, &weights);
    for (int p = 0; p < model->parameter_count && status == NULL; p++)
        if ((model->parameters[p].trainable || model->parameters[p].reference) &&
            weights_has(weights, p))
            status = load_parameter(run, weights, p, p, piece);
        else if (model->parameters[p].adapter)
            status =
                status_new(STATUS_INVALID_ARGUMENT, "there is no %s", model->parameters[p].name);
    weights_free(weights);
    return status_wrap(status, "model.adapter.job");
}
