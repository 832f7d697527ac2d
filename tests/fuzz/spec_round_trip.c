/*
 * See spec_round_trip.h. The targets are linked with --wrap=file_read: an input may name any file,
 * and what a target does may not depend on this machine's.
 */
#include "spec_round_trip.h"

#include <string.h>

#include "base/file.h"

static const char *model_text = "name: Net\n";

status_t __wrap_file_read(const char *path, size_t limit, struct buf *out);

status_t __wrap_file_read(const char *path, size_t limit, struct buf *out)
{
    (void)limit;
    if (strstr(path, "missing") != NULL)
        return status_new(STATUS_NOT_FOUND, "%s: No such file or directory", path);
    buf_clear(out);
    buf_add_text(out, model_text);
    return NULL;
}

void fuzz_check_round_trip(const Fsdpd__V1__JobSpec *spec)
{
    /* "~/" is the reader's home directory: a message that still has one reads as another. */
    if (spec->data->dir[0] == '~' || spec->model->hf[0] == '~' ||
        strstr(spec->model->file_name, "missing") != NULL)
        return;
    struct buf text = {0};
    spec_to_yaml(spec, &text);
    Fsdpd__V1__JobSpec *again;
    model_text = spec->model->text;
    status_t status = spec_read_text(buf_text(&text), text.length, "job.yaml", NULL, 0, &again);
    model_text = "name: Net\n";
    FUZZ_CHECK(status == NULL, "%s, reading\n%s", status_message(status), buf_text(&text));
    /* Every key is in the text; fields that this version does not know are not. */
    struct buf text_again = {0};
    spec_to_yaml(again, &text_again);
    FUZZ_CHECK(strcmp(buf_text(&text), buf_text(&text_again)) == 0, "first\n%s\nthen\n%s",
               buf_text(&text), buf_text(&text_again));
    FUZZ_CHECK(spec->model->hf[0] != '\0' || strcmp(spec->model->text, again->model->text) == 0,
               "another model");
    buf_deinit(&text_again);
    spec_free(again);
    buf_deinit(&text);
}
