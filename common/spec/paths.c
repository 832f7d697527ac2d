/* The files that a job file names: on this machine, or sent along by a client. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/mem.h"
#include "spec/internal.h"

char *spec_expand_home(const Fsdpd__V1__JobFile *sent, const char *path)
{
    if (sent == NULL) return file_path_expand_home(path);
    bool own = path[0] == '~' && (path[1] == '/' || path[1] == '\0') && sent->home[0] == '/';
    return own ? mem_printf("%s%s", sent->home, path + 1) : mem_strdup(path);
}

/* Where the model file is: relative to the job file; one from the command line may also be relative
 * to the shell. */
static char *find_model(const char *file, const struct yamldoc_node *node)
{
    char *path = file_path_expand_home(node->text);
    struct stat info;
    if (node->line == 0 && stat(path, &info) == 0) return path;
    AUTO_FREE char *directory = file_path_directory(file);
    char *joined = strcmp(directory, ".") == 0 ? mem_strdup(path) : file_path_join(directory, path);
    free(path);
    return joined;
}

static void set_model_text(Fsdpd__V1__ModelSpec *model, char *text)
{
    if (model->text != (char *)protobuf_c_empty_string) free(model->text);
    model->text = text;
}

static status_t read_sent_model(const Fsdpd__V1__JobFile *sent, const struct yamldoc_node *node,
                                Fsdpd__V1__ModelSpec *model)
{
    const char *text = spec_sent_text(sent, node->text);
    size_t length = text != NULL ? strlen(text) : 0;
    if (text == NULL)
        return status_new(
            STATUS_INVALID_ARGUMENT,
            "expected the text of %s among the files sent with the job file, found none",
            node->text);
    if (length == 0 || length > SPEC_MODEL_MAX)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "expected 1 to %d bytes in the file %s, found %zu", SPEC_MODEL_MAX,
                          node->text, length);
    set_model_text(model, mem_strdup(text));
    return NULL;
}

status_t spec_read_model(const char *file, const Fsdpd__V1__JobFile *sent,
                         const struct yamldoc_node *node, Fsdpd__V1__ModelSpec *model)
{
    if (sent != NULL) return read_sent_model(sent, node, model);
    AUTO_FREE char *path = find_model(file, node);
    AUTO(buf_deinit) struct buf text = {0};
    status_t status = file_read(path, SPEC_MODEL_MAX, &text);
    if (status == NULL && text.length == 0)
        status = status_new(STATUS_INVALID_ARGUMENT, "%s is empty", path);
    if (status == NULL && strlen(buf_text(&text)) != text.length)
        status = status_new(STATUS_INVALID_ARGUMENT, "%s is not a text file", path);
    if (status == NULL) set_model_text(model, buf_take(&text));
    return status;
}
