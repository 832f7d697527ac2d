/* Reloading the options; see reload.h. */
#include "reload.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "coordinator/notify.h"

enum { RELOAD_MS = 10 * 1000 };

/* The loop's until the thread begins, and again when it has ended; between the two, the thread's,
 * but for what the lock guards. */
struct reload_reading {
    pthread_mutex_t lock;
    bool left, read; /* guarded: the loop has ended; the thread has. The later one frees this */
    uv_async_t *done;
    int argc;
    char **argv;
    bool late; /* the loop's: it has been refused */
    struct options options;
    struct coordinator_files files;
    status_t status;
};

static void reading_free(struct reload_reading *reading)
{
    options_deinit(&reading->options);
    coordinator_files_deinit(&reading->files);
    status_free(reading->status);
    pthread_mutex_destroy(&reading->lock);
    free(reading);
}

static void *read_options(void *argument)
{
    struct reload_reading *reading = argument;
    reading->status = options_parse(&reading->options, reading->argc, reading->argv);
    if (reading->status == NULL)
        reading->status = coordinator_files_read(&reading->options.coordinator, &reading->files);
    pthread_mutex_lock(&reading->lock);
    bool left = reading->left;
    reading->read = true;
    if (!left) uv_async_send(reading->done);
    pthread_mutex_unlock(&reading->lock);
    if (left) reading_free(reading);
    return NULL;
}

/* Logs a message of one or more lines, one event per line. */
static void refuse(const char *message)
{
    AUTO_FREE char *text = mem_strdup(message);
    char *rest = text;
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        AUTO_FREE char *quoted = log_quote(line);
        log_event(LOG_ERROR, "reload_refused", "message=%s", quoted);
    }
    notify_send("READY=1");
}

static void apply(struct reload *reload, struct reload_reading *reading)
{
    struct options *fresh = &reading->options;
    status_t status = reading->status;
    reading->status = NULL;
    if (status == NULL)
        status = coordinator_reload(reload->coordinator, &fresh->coordinator, &reading->files);
    if (status != NULL) {
        refuse(status_message(status));
        status_free(status);
        return;
    }
    const struct options *before = reload->reloaded ? &reload->loaded : reload->started;
    AUTO(buf_deinit) struct buf applied = {0}, waiting = {0};
    options_differences(before, fresh, true, &applied);
    options_differences(reload->started, fresh, false, &waiting);
    log_set_level(fresh->log_level);
    AUTO_FREE char *changed = log_quote(buf_text(&applied)),
                   *restart = log_quote(buf_text(&waiting));
    log_event(LOG_INFO, "reloaded", "file=%s%s%s%s%s",
              fresh->config_file != NULL ? fresh->config_file : "none",
              applied.length > 0 ? " changed=" : "", applied.length > 0 ? changed : "",
              waiting.length > 0 ? " needs_restart=" : "", waiting.length > 0 ? restart : "");
    options_deinit(&reload->loaded);
    reload->loaded = *fresh;
    *fresh = (struct options){0};
    reload->reloaded = true;
    notify_send("READY=1");
}

static void on_late(uv_timer_t *timer)
{
    struct reload *reload = timer->data;
    AUTO_FREE char *text =
        mem_printf("the configuration was not read within %d s: does a disk hang?",
                   RELOAD_MS / 1000);
    reload->reading->late = true;
    refuse(text);
}

static void on_read(uv_async_t *handle)
{
    struct reload *reload = handle->data;
    struct reload_reading *reading = reload->reading;
    uv_timer_stop(&reload->patience);
    reload->reading = NULL;
    if (!reading->late && !reload->ending) apply(reload, reading);
    pthread_mutex_lock(&reading->lock); /* the thread may still hold it */
    pthread_mutex_unlock(&reading->lock);
    reading_free(reading);
    if (reload->again && !reload->ending) reload_begin(reload);
}

void reload_open(struct reload *reload, uv_loop_t *loop, struct coordinator *coordinator,
                 const struct options *started, int argc, char **argv)
{
    *reload = (struct reload){
        .argc = argc, .argv = argv, .coordinator = coordinator, .started = started};
    uv_timer_init(loop, &reload->patience);
    uv_async_init(loop, &reload->read, on_read);
    reload->patience.data = reload->read.data = reload;
}

void reload_begin(struct reload *reload)
{
    notify_reloading();
    if (reload->reading != NULL && reload->reading->late)
        refuse("the configuration is still being read: does a disk hang?");
    reload->again = reload->reading != NULL && !reload->reading->late;
    if (reload->reading != NULL) return;
    struct reload_reading *reading = mem_alloc(sizeof *reading);
    *reading =
        (struct reload_reading){.done = &reload->read, .argc = reload->argc, .argv = reload->argv};
    pthread_mutex_init(&reading->lock, NULL);
    pthread_t thread;
    int error = pthread_create(&thread, NULL, read_options, reading);
    if (error != 0) {
        refuse(strerror(error));
        reading_free(reading);
        return;
    }
    pthread_detach(thread);
    reload->reading = reading;
    uv_timer_start(&reload->patience, on_late, RELOAD_MS, 0);
}

void reload_close(struct reload *reload)
{
    if (reload->coordinator == NULL) return;
    struct reload_reading *reading = reload->reading;
    if (reading != NULL) {
        pthread_mutex_lock(&reading->lock);
        bool read = reading->read;
        reading->left = true;
        pthread_mutex_unlock(&reading->lock);
        if (read) reading_free(reading);
    }
    uv_close((uv_handle_t *)&reload->patience, NULL);
    uv_close((uv_handle_t *)&reload->read, NULL);
}
