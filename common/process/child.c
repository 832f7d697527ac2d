/* Child processes whose output is collected; see child.h. One is freed when the loop has closed its
 * handles. */
#include "process/child.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

enum { PIECE = 64 << 10, HANDLES = 3 };

struct child_process {
    uv_process_t process;
    uv_pipe_t in, out;
    uv_write_t write;
    char *what;
    uint8_t *input;
    char piece[PIECE];
    struct buf output;
    size_t output_max;
    child_done *done; /* NULL: called, or cancelled */
    void *user;
    child_closed *closed;
    void *closed_user;
    int open;       /* handles */
    int64_t status; /* how the process ended */
    int signal;
    bool ended, read; /* the process, its output */
};

static void on_closed(uv_handle_t *handle)
{
    struct child_process *child = handle->data;
    if (--child->open > 0) return;
    child_closed *closed = child->closed;
    void *user = child->closed_user;
    free(child->what);
    free(child->input);
    buf_deinit(&child->output);
    free(child);
    if (closed != NULL) closed(user);
}

static void close_handle(void *handle)
{
    if (!uv_is_closing(handle)) uv_close(handle, on_closed);
}

static void close_all(struct child_process *child)
{
    close_handle(&child->process);
    close_handle(&child->in);
    close_handle(&child->out);
}

static status_t describe_end(const struct child_process *child)
{
    if (child->signal != 0)
        return status_new(STATUS_INTERNAL, "%s was killed by signal %d", child->what,
                          child->signal);
    if (child->status != 0)
        return status_new(STATUS_INTERNAL, "%s exited with status %" PRId64, child->what,
                          child->status);
    return NULL;
}

static void finish_if_over(struct child_process *child)
{
    if (!child->ended || !child->read) return;
    child_done *done = child->done;
    child->done = NULL;
    if (done != NULL) done(child->user, describe_end(child), &child->output);
    close_all(child);
}

static void on_exit_of_process(uv_process_t *process, int64_t status, int signal_number)
{
    struct child_process *child = process->data;
    child->ended = true;
    child->status = status;
    child->signal = signal_number;
    finish_if_over(child);
}

static void on_piece(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer)
{
    struct child_process *child = handle->data;
    (void)suggested;
    *buffer = uv_buf_init(child->piece, sizeof child->piece);
}

static void on_read(uv_stream_t *stream, ssize_t count, const uv_buf_t *buffer)
{
    struct child_process *child = stream->data;
    if (count > 0) {
        buf_add(&child->output, buffer->base, (size_t)count);
        if (child->output.length <= child->output_max) return;
        buf_clear(&child->output);
        uv_process_kill(&child->process, SIGKILL);
    }
    if (count == 0) return;
    uv_read_stop(stream);
    child->read = true;
    finish_if_over(child);
}

/* Closing its end of the pipe ends the input. Whether it was read shows in the output. */
static void on_written(uv_write_t *write, int status)
{
    (void)status;
    close_handle(write->handle);
}

static int spawn(struct child_process *child, uv_loop_t *loop, const struct child_options *options)
{
    uv_stdio_container_t stdio[3] = {
        {.flags = UV_CREATE_PIPE | UV_READABLE_PIPE, .data.stream = (uv_stream_t *)&child->in},
        {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t *)&child->out},
        {.flags = UV_INHERIT_FD, .data.fd = STDERR_FILENO},
    };
    const uv_process_options_t process = {
        .file = options->program,
        .args = (char **)options->arguments,
        .stdio = stdio,
        .stdio_count = 3,
        .exit_cb = on_exit_of_process,
    };
    return uv_spawn(loop, &child->process, &process);
}

static void send_input(struct child_process *child, const struct child_options *options)
{
    child->input = mem_alloc(options->input_size + 1);
    if (options->input_size > 0) memcpy(child->input, options->input, options->input_size);
    uv_buf_t bytes = uv_buf_init((char *)child->input, (unsigned)options->input_size);
    if (uv_write(&child->write, (uv_stream_t *)&child->in, &bytes, 1, on_written) != 0)
        close_handle(&child->in);
}

status_t child_start(uv_loop_t *loop, const struct child_options *options, child_done *done,
                     void *user, child_closed *closed, void *closed_user,
                     struct child_process **result)
{
    struct child_process *child = mem_alloc(sizeof *child);
    *child = (struct child_process){.what = mem_strdup(options->what),
                                    .output_max = options->output_max,
                                    .done = done,
                                    .user = user,
                                    .closed = closed,
                                    .closed_user = closed_user,
                                    .open = HANDLES};
    child->process.data = child->in.data = child->out.data = child;
    uv_pipe_init(loop, &child->in, 0);
    uv_pipe_init(loop, &child->out, 0);
    int error = spawn(child, loop, options);
    if (error != 0) {
        close_all(child);
        return status_new(STATUS_UNAVAILABLE, "cannot start %s: %s", options->program,
                          uv_strerror(error));
    }
    uv_read_start((uv_stream_t *)&child->out, on_piece, on_read);
    send_input(child, options);
    *result = child;
    return NULL;
}

void child_kill(struct child_process *child)
{
    if (!child->ended) uv_process_kill(&child->process, SIGKILL);
    /* A process that it started could keep the pipe open. */
    child->read = true;
    close_handle(&child->in);
    close_handle(&child->out);
    finish_if_over(child);
}

void child_cancel(struct child_process *child)
{
    child->done = NULL;
    child_kill(child);
}
