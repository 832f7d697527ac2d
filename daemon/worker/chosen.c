/* Chosen settings in a job's message; see chosen.h. The job file is written out and read again with
 * the settings as overrides, so that they are checked as a user's. */
#include "worker/chosen.h"

#include "base/mem.h"

/* Borrows from `spec` and `text`. */
static status_t read_again(const Fsdpd__V1__JobSpec *spec, const char *text, char **overrides,
                           size_t count, Fsdpd__V1__JobSpec **result)
{
    Fsdpd__V1__JobFile sent = FSDPD__V1__JOB_FILE__INIT;
    Fsdpd__V1__JobFile__FilesEntry model = FSDPD__V1__JOB_FILE__FILES_ENTRY__INIT;
    Fsdpd__V1__JobFile__FilesEntry *files = &model;
    model.key = spec->model->file_name[0] != '\0' ? spec->model->file_name : (char *)"model.yaml";
    model.value = spec->model->text;
    sent.text = (char *)text;
    sent.name = (char *)"the chosen settings";
    sent.n_overrides = count;
    sent.overrides = overrides;
    if (spec->model->hf[0] == '\0') {
        sent.n_files = 1;
        sent.files = &files;
    }
    return spec_read_sent(&sent, result);
}

status_t chosen_spec(const Fsdpd__V1__JobSpec *spec, const Fsdpd__V1__PlanChoice *choice,
                     Fsdpd__V1__JobSpec **chosen)
{
    AUTO(buf_deinit) struct buf yaml = {0};
    Fsdpd__V1__JobSpec *read = NULL;
    size_t count = choice->n_settings;
    AUTO_FREE char **overrides = mem_alloc_array(count + 1, sizeof *overrides);
    for (size_t i = 0; i < count; i++) overrides[i] = choice->settings[i];
    overrides[count++] = (char *)"fsdp.auto=false";
    spec_to_yaml(spec, &yaml);
    TRY(read_again(spec, buf_text(&yaml), overrides, count, &read));
    /* Everything that cannot be chosen stays as it was sent. */
    Fsdpd__V1__JobSpec *copy = spec_copy(spec);
    Fsdpd__V1__FsdpSpec *fsdp = copy->fsdp;
    Fsdpd__V1__TrainSpec *train = copy->train;
    copy->fsdp = read->fsdp;
    copy->train = read->train;
    read->fsdp = fsdp;
    read->train = train;
    spec_free(read);
    *chosen = copy;
    return NULL;
}

status_t chosen_set_wrap(const Fsdpd__V1__JobSpec *spec, Fsdpd__V1__PlanChoice *choice)
{
    if (choice->n_settings == 0) return NULL;
    Fsdpd__V1__JobSpec *with = NULL;
    TRY(chosen_spec(spec, choice, &with));
    choice->wrap = with->fsdp->wrap;
    with->fsdp->wrap = NULL;
    spec_free(with);
    return NULL;
}
