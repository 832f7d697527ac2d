/* See group.h. The test itself forks the processes, before it creates any thread. */
#include "group.h"
#include "comm_local.h"

#include <check.h>
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"

struct rank_run {
    struct comm *comm;
    group_body body;
    void *argument;
    struct group_result *result;
};

void *group_shared(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    return memory;
}

void group_wait_flag(const atomic_bool *flag)
{
    for (int i = 0; i < 30000 && !atomic_load(flag); i++) clock_sleep_ms(1);
}

/* Turns keys into file names; gloo's have no slash except the prefix's. */
static char *path_of(const char *directory, const char *key)
{
    char *path = mem_printf("%s/%s", directory, key);
    for (char *c = path + strlen(directory) + 1; *c != '\0'; c++)
        if (*c == '/') *c = '_';
    return path;
}

static status_t store_set(void *user, const char *key, const void *value, size_t size)
{
    char *path = path_of(user, key);
    status_t status = file_write_atomic(path, value, size, 0600);
    free(path);
    return status;
}

static status_t store_get(void *user, const char *key, int64_t timeout_ms, void **value,
                          size_t *size)
{
    char *path = path_of(user, key);
    int64_t deadline = clock_monotonic_ns() + timeout_ms * 1000000;
    status_t status;
    for (;;) {
        struct buf bytes = {0};
        status = file_read(path, 1 << 20, &bytes);
        if (status == NULL) {
            *size = bytes.length;
            *value = buf_take(&bytes);
            break;
        }
        if (status_code(status) != STATUS_NOT_FOUND) break;
        status_free(status);
        status = status_new(STATUS_DEADLINE_EXCEEDED, "key %s was not set in time", key);
        if (clock_monotonic_ns() >= deadline) break;
        status_free(status);
        clock_sleep_ms(1);
    }
    free(path);
    return status;
}

struct rendezvous group_file_store(char *directory)
{
    return (struct rendezvous){.set = store_set, .get = store_get, .user = directory};
}

char *group_make_directory(void)
{
    char *directory = mem_strdup("/tmp/fsdpd-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    return directory;
}

void group_remove_directory(const char *directory)
{
    DIR *handle = opendir(directory);
    ck_assert_ptr_nonnull(handle);
    for (struct dirent *entry; (entry = readdir(handle)) != NULL;) {
        if (entry->d_name[0] == '.') continue;
        char *path = file_path_join(directory, entry->d_name);
        unlink(path);
        free(path);
    }
    closedir(handle);
    rmdir(directory);
}

static void set_result(struct group_result *result, status_t status)
{
    result->code = status_code(status);
    snprintf(result->message, sizeof result->message, "%s", status_message(status));
    status_free(status);
}

static void *run_rank(void *argument)
{
    struct rank_run *run = argument;
    int64_t start = clock_monotonic_ns();
    set_result(run->result, run->body(run->comm, run->argument));
    run->result->seconds = (double)(clock_monotonic_ns() - start) / 1e9;
    comm_free(run->comm);
    return NULL;
}

static void run_threads(int world, int64_t timeout_ms, group_body body, void *argument,
                        struct group_result *results)
{
    struct comm *comms[GROUP_MAX];
    struct rank_run runs[GROUP_MAX];
    pthread_t threads[GROUP_MAX];
    ck_assert_ptr_null(comm_local_new(world, timeout_ms, comms));
    for (int r = 0; r < world; r++) {
        runs[r] = (struct rank_run){comms[r], body, argument, &results[r]};
        ck_assert_int_eq(pthread_create(&threads[r], NULL, run_rank, &runs[r]), 0);
    }
    for (int r = 0; r < world; r++) pthread_join(threads[r], NULL);
}

static void run_process(enum group_kind kind, int rank, int world, int64_t timeout_ms,
                        char *directory, group_body body, void *argument,
                        struct group_result *result)
{
    struct rendezvous store = group_file_store(directory);
    struct rank_run run = {.body = body, .argument = argument, .result = result};
    bool shared = kind == GROUP_SHARED;
    status_t status = comm_host_new(rank, world, "127.0.0.1", "group", &store, timeout_ms,
                                    timeout_ms, shared, &run.comm);
    if (status == NULL && shared && world > 1)
        ck_assert_str_eq(comm_transport(run.comm), "shared memory");
    if (status != NULL) set_result(result, status);
    else run_rank(&run);
}

static void run_processes(enum group_kind kind, int world, int64_t timeout_ms, group_body body,
                          void *argument, struct group_result *results)
{
    struct group_result *shared = group_shared(sizeof *shared * GROUP_MAX);
    char *directory = group_make_directory();
    pid_t processes[GROUP_MAX];
    for (int r = 0; r < world; r++) {
        processes[r] = fork();
        ck_assert_int_ge(processes[r], 0);
        if (processes[r] == 0) {
            run_process(kind, r, world, timeout_ms, directory, body, argument, &shared[r]);
            free(directory); /* and end by exit, so that the leak checker runs */
            exit(0);
        }
    }
    for (int r = 0; r < world; r++) {
        int state;
        ck_assert_int_eq(waitpid(processes[r], &state, 0), processes[r]);
        results[r] = shared[r];
        results[r].killed = WIFSIGNALED(state);
        if (WIFEXITED(state) && WEXITSTATUS(state) != 0 && results[r].code == STATUS_OK) {
            results[r].code = STATUS_UNKNOWN;
            snprintf(results[r].message, sizeof results[r].message, "the process left with %d",
                     WEXITSTATUS(state));
        }
    }
    group_remove_directory(directory);
    free(directory);
    munmap(shared, sizeof *shared * GROUP_MAX);
}

void group_run(enum group_kind kind, int world, int64_t timeout_ms, group_body body, void *argument,
               struct group_result results[static GROUP_MAX])
{
    ck_assert_int_le(world, GROUP_MAX);
    memset(results, 0, sizeof *results * GROUP_MAX);
    if (kind == GROUP_LOCAL) run_threads(world, timeout_ms, body, argument, results);
    else run_processes(kind, world, timeout_ms, body, argument, results);
}

void group_check(enum group_kind kind, int world, group_body body, void *argument)
{
    struct group_result results[GROUP_MAX];
    group_run(kind, world, 30000, body, argument, results);
    char failed[GROUP_MAX * (sizeof results->message + 64)] = "";
    for (int r = 0; r < world; r++) {
        size_t used = strlen(failed);
        if (results[r].killed || results[r].code != STATUS_OK)
            snprintf(failed + used, sizeof failed - used, "%srank %d of %d: %s: %s",
                     used > 0 ? "\n" : "", r, world,
                     results[r].killed ? "killed" : status_code_name(results[r].code),
                     results[r].message);
    }
    ck_assert_msg(failed[0] == '\0', "%s", failed);
}
