/*
 * The threads of a process, as the kernel and they themselves describe them: for a thread that
 * hangs, the system call that it sleeps in, with its file, and its stack.
 */
#ifndef FSDPD_BASE_THREADS_H
#define FSDPD_BASE_THREADS_H

#include <stdbool.h>

struct thread_state {
    int id;
    char name[32];
    char state;   /* of proc(5): R runs, S sleeps, D sleeps in the kernel and cannot be woken */
    char *call;   /* "read": the system call that it sleeps in; NULL: none, or unknown */
    char *file;   /* of that call: a path, "socket:[123]"; NULL: none, or unknown */
    char **stack; /* innermost first, "fill_batches+0x45" */
    int stack_count;
};

struct thread_list {
    struct thread_state *threads;
    int count, capacity;
};

/* The threads of this process with their stacks; needs stacks_open. Takes a second at most, however
 * many threads hang. The caller's own stack is left out. */
void threads_look(struct thread_list *list);
/* The threads of a process of this host, without stacks: only what the kernel says, which disturbs
 * no thread. Of another user's process, and of one that may not be traced, it says little. */
void threads_look_at(struct thread_list *list, int pid);
void threads_free(struct thread_list *list);

/* The state of any process of this host, as above; '\0': there is none, or it is hidden. */
char process_state(long long pid);

#endif
