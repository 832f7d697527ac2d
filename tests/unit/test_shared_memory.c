/* Memory that processes share: found by its place, kept when its maker dies, and nothing else
 * found. */
#include "base/shared_memory.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/testing.h"

enum { BYTES = 3 * 4096 + 8 };

static struct shared_place make(struct shared_memory *made)
{
    ck_assert_ptr_null(shared_memory_make(BYTES, made));
    return shared_memory_place(made);
}

static void expect_nothing(struct shared_place place)
{
    struct shared_memory mapped;
    status_t status = shared_memory_map(&place, &mapped);
    ck_assert_int_eq(status_code(status), STATUS_NOT_FOUND);
    status_free(status);
}

TEST(what_is_mapped_follows_its_maker)
{
    struct shared_memory made, mapped;
    const struct shared_place place = make(&made);
    char *bytes = made.memory;
    ck_assert_int_eq(bytes[0] | bytes[BYTES - 1], 0);
    ck_assert_uint_eq(atomic_load(made.mark), 0);
    ck_assert_ptr_null(shared_memory_map(&place, &mapped));
    ck_assert_uint_eq(mapped.bytes, BYTES);
    memset(bytes, 7, BYTES);
    atomic_store(made.mark, 5);
    ck_assert_mem_eq(mapped.memory, bytes, BYTES);
    ck_assert_uint_eq(atomic_load(mapped.mark), 5);
    shared_memory_free(&made);
    ck_assert_ptr_null(made.memory);
    ck_assert_int_eq(((char *)mapped.memory)[BYTES - 1], 7);
    shared_memory_free(&mapped);
    shared_memory_free(&mapped);
}

/* The maker is another process, which is killed while this one has its memory mapped. */
TEST(it_outlives_its_maker)
{
    int pipes[2];
    ck_assert_int_eq(pipe(pipes), 0);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        struct shared_memory made;
        struct shared_place place = make(&made);
        memset(made.memory, 9, BYTES);
        if (write(pipes[1], &place, sizeof place) != sizeof place) _exit(1);
        for (;;) pause();
    }
    struct shared_place place;
    struct shared_memory mapped;
    ck_assert_int_eq(read(pipes[0], &place, sizeof place), sizeof place);
    ck_assert_ptr_null(shared_memory_map(&place, &mapped));
    ck_assert_int_eq(kill(child, SIGKILL), 0);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    ck_assert_int_eq(((char *)mapped.memory)[0], 9);
    ck_assert_int_eq(((char *)mapped.memory)[BYTES - 1], 9);
    expect_nothing(place);
    shared_memory_free(&mapped);
    close(pipes[0]);
    close(pipes[1]);
}

/* Another number, size, descriptor or process: of another host, or of one that has ended. */
TEST(other_places_lead_nowhere)
{
    struct shared_memory made;
    const struct shared_place place = make(&made);
    struct shared_place wrong = place;
    wrong.number++;
    expect_nothing(wrong);
    wrong = place;
    wrong.bytes--;
    expect_nothing(wrong);
    wrong = place;
    wrong.fd = 1000000;
    expect_nothing(wrong);
    wrong = place;
    wrong.process = UINT64_MAX;
    expect_nothing(wrong);
    int pipes[2]; /* opening one would block */
    ck_assert_int_eq(pipe(pipes), 0);
    wrong = place;
    wrong.fd = (uint64_t)pipes[0];
    expect_nothing(wrong);
    close(pipes[0]);
    close(pipes[1]);
    shared_memory_free(&made);
    expect_nothing(place);
}

/* A reader never finds it shorter than it was. */
TEST(it_is_sealed)
{
    struct shared_memory made;
    make(&made);
    ck_assert_int_ne(ftruncate(made.fd, 0), 0);
    ck_assert_int_eq(errno, EPERM);
    shared_memory_free(&made);
}
