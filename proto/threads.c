/* Threads as messages; see threads.h. */
#include "proto/threads.h"

#include "base/mem.h"
#include "base/text.h"

enum { TEXT_MAX_BYTES = 255 };

const char *thread_state_name(char state)
{
    switch (state) {
    case '\0': return "";
    case 'R': return "running";
    case 'D': return "asleep in the kernel";
    case 'T':
    case 't': return "stopped";
    case 'X':
    case 'Z': return "gone";
    default: return "asleep";
    }
}

/* A string of a message must be UTF-8, which a path or a thread's name need not be. */
static char *clean(const char *text)
{
    char *copy = mem_strndup(text != NULL ? text : "", TEXT_MAX_BYTES);
    copy[utf8_cut(copy, TEXT_MAX_BYTES)] = '\0';
    for (char *at = copy; *at != '\0';) {
        uint32_t character;
        int length = utf8_decode(at, &character);
        if (length == 0) *at = '?';
        at += length > 0 ? length : 1;
    }
    return copy;
}

static Fsdpd__V1__ThreadDiagnosis *to_message(const struct thread_state *thread)
{
    Fsdpd__V1__ThreadDiagnosis *message = mem_alloc(sizeof *message);
    fsdpd__v1__thread_diagnosis__init(message);
    message->id = thread->id;
    message->name = clean(thread->name);
    message->state = clean(thread_state_name(thread->state));
    message->call = clean(thread->call);
    message->file = clean(thread->file);
    message->frames = mem_alloc_array((size_t)thread->stack_count + 1, sizeof *message->frames);
    for (int f = 0; f < thread->stack_count; f++)
        message->frames[message->n_frames++] = clean(thread->stack[f]);
    return message;
}

void threads_to_message(struct thread_list *list, Fsdpd__V1__RankDiagnosis *rank)
{
    rank->threads = mem_alloc_array((size_t)list->count + 1, sizeof *rank->threads);
    for (int t = 0; t < list->count; t++)
        rank->threads[rank->n_threads++] = to_message(&list->threads[t]);
    threads_free(list);
}
