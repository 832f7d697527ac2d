/* Whether a job continues over the base that it trained over; see run_state.h. */
#include "train/run_state.h"

#include <inttypes.h>
#include <string.h>

#include "base/mem.h"

enum { PIECE = 1 << 18 };

static uint64_t mix_values(uint64_t hash, const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        hash = (hash ^ bits) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 29;
    }
    return hash;
}

/* Of the values in the files, before they are rounded. */
static status_t hash_base(struct run *run, struct weights *weights, int of_weights, int parameter,
                          float *piece, uint64_t *hash)
{
    const struct parameter *of = &run->session->model->parameters[parameter];
    int64_t count = tensor_element_count(&of->type);
    uint64_t own = (uint64_t)parameter + 1;
    for (int64_t at = 0; at < count; at += PIECE) {
        int64_t now = count - at < PIECE ? count - at : PIECE;
        TRY(session_check_abort(run->session));
        TRY(weights_read(weights, of_weights, at, (size_t)now, piece));
        own = mix_values(own, piece, (size_t)now);
    }
    *hash += own;
    return NULL;
}

/* Each rank reads whole parameters, whatever it keeps of them. */
static status_t hash_share(struct run *run, uint64_t *hash)
{
    const struct train_session *session = run->session;
    const struct model *model = session->model;
    AUTO_FREE float *piece = mem_alloc_array(PIECE, sizeof *piece);
    for (int p = session->rank; p < model->parameter_count; p += run->job->world) {
        bool teaches = session->teacher_weights != NULL && p >= session->teacher_first;
        struct weights *weights = teaches ? session->teacher_weights : session->weights;
        int of = teaches ? p - session->teacher_first : p;
        if (model->parameters[p].tied_to < 0 && weights != NULL && weights_has(weights, of) &&
            executor_is_unsaved(run->executor, p))
            TRY(hash_base(run, weights, of, p, piece, hash));
    }
    return NULL;
}

/* A checkpoint has no base, but a hash of it: a resumed job has the same one. */
status_t run_check_base(struct run *run)
{
    const struct weights_source *source = run->job->weights;
    uint64_t saved = run->base, mine = 0, all = 0;
    bool teaches = run->session->teacher_weights != NULL,
         has = run->session->weights != NULL || teaches;
    if (!session_has_base(run->session)) return NULL;
    status_t status = has ? hash_share(run, &mine) : NULL;
    TRY(agreement_reach(&run->ranks, &status));
    TRY(status);
    for (int r = 0; r < run->job->world; r++) {
        uint64_t theirs = mine;
        TRY(agreement_share(&run->ranks, &theirs, sizeof theirs, r));
        all += theirs;
    }
    run->base = all;
    if (!run->continues || saved == 0 || saved == all) return NULL;
    run->agreed = true;
    if (!has)
        return status_new(STATUS_FAILED_PRECONDITION,
                          "there are no weights any more over which the job trained until step "
                          "%" PRIu64 ": its checkpoints lack the parameters that it does not train "
                          "(model.base_dtype)",
                          run->step);
    return status_new(STATUS_FAILED_PRECONDITION,
                      "the weights in %s%s%s%s are not those over which the job trained until step "
                      "%" PRIu64 ": its checkpoints lack the parameters that it does not train "
                      "(model.base_dtype); expected the same values",
                      source != NULL ? source->dir : "",
                      source != NULL && source->file != NULL ? "/" : "",
                      source != NULL && source->file != NULL ? source->file : "",
                      teaches ? " or of model.teacher" : "", run->step);
}
