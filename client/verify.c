/*
 * verify: proves what fsdpd keeps of a job, or a file or directory that was pulled from it. fsdpd
 * compares all that it sends with its sums; a pulled file is compared with a new pull byte by
 * byte as it arrives.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "client.h"
#include "exit.h"
#include "hf/index.h"
#include "hf/peft.h"
#include "hf/safetensors.h"
#include "lists.h"
#include "proto/message.h"
#include "pull.h"
#include "rewrite.h"

enum { HEADER_LOOKED_AT = 1 << 16, TEXT_MAX = 64 << 20 };

struct verify {
    struct client *client;
    struct session *session;
    const char *path; /* NULL: of what is kept */
    bool directory;
    struct rewrite_options options;
    struct rewrite_sink sink;
    struct rewrite *rewrite;
    struct pulled pulled;
    char *name; /* of the file that is compared */
    int fd;
    uint64_t at, bytes, step; /* bytes: of all files */
    struct buf head;          /* what the file should begin with, up to its tensors */
    bool damaged;             /* something that is kept */
};

/* The tensor at this byte of the file that should be there. */
static char *name_part(const struct verify *verify, uint64_t at)
{
    AUTO(safetensors_header_deinit) struct safetensors_header header = {0};
    uint64_t needed = 0;
    struct stat info = {0};
    fstat(verify->fd, &info);
    status_free(safetensors_read_header(verify->head.data, verify->head.length,
                                        (uint64_t)info.st_size, &header, &needed));
    for (int i = 0; i < header.count; i++)
        if (at >= header.data_offset + header.entries[i].begin &&
            at < header.data_offset + header.entries[i].end)
            return mem_printf("the tensor \"%s\"", header.entries[i].name);
    return mem_strdup("its header");
}

static status_t differs(const struct verify *verify, uint64_t at)
{
    AUTO_FREE char *part = name_part(verify, at);
    return status_new(STATUS_DATA_LOSS, "%s: not the weights of %s after step %llu: byte %llu, in %s, differs",
                      verify->name, verify->client->options.arguments[0],
                      (unsigned long long)rewrite_step(verify->rewrite), (unsigned long long)at, part);
}

static status_t open_part(struct verify *verify, const char *name)
{
    free(verify->name);
    verify->name = name != NULL ? file_path_join(verify->path, name) : mem_strdup(verify->path);
    verify->at = 0;
    buf_clear(&verify->head);
    verify->fd = open(verify->name, O_RDONLY | O_CLOEXEC);
    return verify->fd >= 0 ? NULL : status_from_errno(errno, "cannot read %s", verify->name);
}

static status_t begin(void *user, int number, int count)
{
    struct verify *verify = user;
    AUTO_FREE char *name = verify->directory ? hf_shard_name(number, count) : NULL;
    return open_part(verify, name);
}

static status_t compare(void *user, const void *bytes, size_t size)
{
    struct verify *verify = user;
    AUTO_FREE char *found = mem_alloc(size + 1);
    size_t count;
    if (verify->at == 0 || verify->head.length < HEADER_LOOKED_AT)
        buf_add(&verify->head, bytes, size);
    TRY(file_read_part(verify->fd, verify->name, found, size, verify->at, &count));
    for (size_t i = 0; i < count; i++)
        if (found[i] != ((const char *)bytes)[i]) return differs(verify, verify->at + i);
    if (count < size)
        return status_new(STATUS_DATA_LOSS, "%s ends after %llu bytes: it was cut", verify->name,
                          (unsigned long long)(verify->at + count));
    verify->at += size;
    verify->bytes += size;
    return NULL;
}

static status_t end(void *user)
{
    struct verify *verify = user;
    char more;
    ssize_t count = pread(verify->fd, &more, 1, (off_t)verify->at);
    close(verify->fd);
    verify->fd = -1;
    if (count == 0) return NULL;
    return status_new(STATUS_DATA_LOSS, "%s has more than its %llu bytes", verify->name,
                      (unsigned long long)verify->at);
}

static status_t compare_text(struct verify *verify, const char *name, const struct buf *text)
{
    AUTO_FREE char *path = file_path_join(verify->path, name);
    AUTO(buf_deinit) struct buf found = {0};
    TRY(file_read(path, TEXT_MAX, &found));
    verify->bytes += found.length;
    if (found.length == text->length && memcmp(found.data, text->data, text->length) == 0)
        return NULL;
    return status_new(STATUS_DATA_LOSS, "%s: not what a pull of %s writes", path,
                      verify->client->options.arguments[0]);
}

/* The files beside the weights. */
static status_t compare_texts(struct verify *verify)
{
    AUTO(buf_deinit) struct buf index = {0}, config = {0};
    if (rewrite_file_count(verify->rewrite) > 1) {
        rewrite_index(verify->rewrite, &index);
        TRY(compare_text(verify, "model.safetensors.index.json", &index));
    }
    const char *dtype = verify->options.bf16 ? "bfloat16" : "float32";
    const char *own = verify->pulled.config;
    TRY(hf_config_export(verify->pulled.family, own, strlen(own), dtype, &config));
    return compare_text(verify, "config.json", &config);
}

static status_t take(const ProtobufCMessage *message, void *user)
{
    struct verify *verify = user;
    const Fsdpd__V1__PullStateDictResponse *chunk = (const void *)message;
    if (verify->rewrite != NULL)
        return rewrite_add(verify->rewrite, chunk->data.data, chunk->data.len, chunk->total_size,
                           chunk->step);
    if (chunk->total_size > 0) verify->step = chunk->step;
    verify->bytes += chunk->data.len;
    return NULL;
}

static status_t stream(struct verify *verify, bool checkpoint, uint64_t step, bool best)
{
    Fsdpd__V1__PullStateDictRequest request = FSDPD__V1__PULL_STATE_DICT_REQUEST__INIT;
    request.id = (char *)verify->client->options.arguments[0];
    request.from_checkpoint = checkpoint;
    request.checkpoint_step = step;
    request.best = best;
    verify->bytes = 0;
    return session_stream(verify->session, &control_pull_state_dict, &request.base,
                          verify->client->options.timeout_ms, take, verify);
}

static void print(uint64_t bytes, const char *what, uint64_t step, const char *result)
{
    struct buf text = {0};
    char size[32];
    buf_printf(&text, "%s after step %llu: %s, %s\n", what, (unsigned long long)step,
               text_format_bytes(bytes, size), result);
    output_print(&text);
}

/* ---- what was pulled ---- */

/* bf16 if a tensor of the first file is. */
static status_t find_dtype(struct verify *verify, const char *path)
{
    AUTO_FREE char *head = mem_alloc(HEADER_LOOKED_AT + 1);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return status_from_errno(errno, "cannot read %s", path);
    ssize_t count = pread(fd, head, HEADER_LOOKED_AT, 0);
    close(fd);
    verify->options.bf16 = count > 0 && memmem(head, (size_t)count, "\"BF16\"", 6) != NULL;
    return NULL;
}

static status_t find_pulled(struct verify *verify)
{
    struct stat info;
    if (stat(verify->path, &info) != 0)
        return status_from_errno(errno, "cannot read %s", verify->path);
    verify->directory = S_ISDIR(info.st_mode);
    if (!verify->directory) return find_dtype(verify, verify->path);
    uint64_t most = verify->client->options.max_shard_bytes;
    verify->options.max_shard_bytes = most > 0 ? most : HF_SHARD_BYTES;
    AUTO_FREE char *config = file_path_join(verify->path, "config.json");
    AUTO_FREE char *adapter = file_path_join(verify->path, PEFT_CONFIG);
    if (access(adapter, F_OK) == 0)
        return status_new(STATUS_UNIMPLEMENTED,
                          "%s: a directory of adapters cannot be verified, yet", verify->path);
    AUTO(buf_deinit) struct buf text = {0};
    TRY(file_read(config, TEXT_MAX, &text));
    verify->options.bf16 = memmem(text.data, text.length, "bfloat16", 8) != NULL;
    TRY(pull_find_job(verify->client, verify->session, false, &verify->pulled, &verify->options));
    if (verify->pulled.family == NULL || hf_family_inside(verify->pulled.family) == NULL)
        return NULL;
    return status_new(STATUS_UNIMPLEMENTED,
                      "%s also has weights that a pull copied (--original), which cannot be "
                      "compared yet",
                      verify->path);
}

static status_t verify_pulled(struct verify *verify)
{
    const struct verb_options *options = &verify->client->options;
    TRY(find_pulled(verify));
    verify->sink = (struct rewrite_sink){begin, compare, end, verify};
    verify->rewrite = rewrite_new(&verify->options, &verify->sink);
    TRY(stream(verify, options->checkpoint, options->checkpoint_step, options->best));
    TRY(rewrite_finish(verify->rewrite));
    if (verify->directory) TRY(compare_texts(verify));
    AUTO_FREE char *what = mem_printf("%s: the weights of %s", verify->path, options->arguments[0]);
    print(verify->bytes, what, rewrite_step(verify->rewrite), "proved");
    return NULL;
}

/* ---- what is kept ---- */

/* DATA_LOSS is noted, and what else is kept comes next. */
static status_t note(struct verify *verify, status_t status, const char *what, uint64_t step)
{
    if (status == NULL) print(verify->bytes, what, step, "whole");
    if (status_code(status) != STATUS_DATA_LOSS) return status;
    output_error(status);
    verify->damaged = true;
    return NULL;
}

static status_t take_logs(const ProtobufCMessage *message, void *user)
{
    struct verify *verify = user;
    const Fsdpd__V1__GetLogsResponse *chunk = (const void *)message;
    for (size_t i = 0; i < chunk->n_lines; i++)
        if (chunk->lines[i]->rank < 0 && strncmp(chunk->lines[i]->text, "damaged line: ", 14) == 0)
            verify->step++;
    return NULL;
}

static status_t verify_logs(struct verify *verify)
{
    Fsdpd__V1__GetLogsRequest request = FSDPD__V1__GET_LOGS_REQUEST__INIT;
    request.id = (char *)verify->client->options.arguments[0];
    verify->step = 0;
    TRY(session_stream(verify->session, &control_get_logs, &request.base,
                       verify->client->options.timeout_ms, take_logs, verify));
    if (verify->step > 0)
        output_note("the log of %s has %llu damaged lines", request.id,
                    (unsigned long long)verify->step);
    verify->damaged |= verify->step > 0;
    return NULL;
}

static status_t verify_kept(struct verify *verify)
{
    char *id = (char *)verify->client->options.arguments[0];
    Fsdpd__V1__Job *job;
    TRY(client_get_job(verify->session, id, &job));
    bool weights = job->has_state_dict && job->state != FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING;
    fsdpd__v1__job__free_unpacked(job, NULL);
    if (weights) {
        status_t status = stream(verify, false, 0, false);
        TRY(note(verify, status, "final weights", verify->step));
    }
    Fsdpd__V1__ListCheckpointsRequest request = FSDPD__V1__LIST_CHECKPOINTS_REQUEST__INIT;
    ProtobufCMessage *response;
    request.id = id;
    TRY(lists_read(verify->session, &control_list_checkpoints, &request.base, LIST_FROM_FIRST,
                   &response));
    const Fsdpd__V1__ListCheckpointsResponse *list = (const void *)response;
    status_t status = NULL;
    for (size_t i = 0; i < list->n_checkpoints && status == NULL; i++) {
        uint64_t step = list->checkpoints[i]->step;
        status = note(verify, stream(verify, true, step, false), "checkpoint", step);
    }
    protobuf_c_message_free_unpacked(response, NULL);
    return status != NULL ? status : verify_logs(verify);
}

const struct verb_option verify_options[] = {
    {"checkpoint", 0, "STEP", "FILE has the weights of this checkpoint, or of the latest one",
     pull_set_checkpoint},
    {"max-shard-size", 0, "BYTES", "with which the directory was pulled (default 5GB)",
     pull_set_max_shard_size},
    {0},
};

int verb_verify(struct client *client)
{
    struct verify verify = {.client = client, .fd = -1};
    int code = EXIT_DONE;
    if (client->options.argument_count > 1) verify.path = client->options.arguments[1];
    if (!client_open(client, &verify.session, &code)) return code;
    status_t status = verify.path != NULL ? verify_pulled(&verify) : verify_kept(&verify);
    if (status != NULL) code = output_error(status);
    else if (verify.damaged) code = EXIT_FAILED;
    if (verify.fd >= 0) close(verify.fd);
    rewrite_free(verify.rewrite);
    pulled_deinit(&verify.pulled);
    free(verify.name);
    buf_deinit(&verify.head);
    session_free(verify.session);
    return code;
}
