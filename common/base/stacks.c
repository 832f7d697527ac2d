/* Stacks; see stacks.h. */
#include "base/stacks.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/signals.h"

enum { NAME_MAX_BYTES = 160, HANDLER_FRAMES = 8 };

/* The one request at a time. Its state is the thread that is asked, or one of these, so that a
 * thread that answers too late never writes into another's. */
enum { IDLE = 0, WRITING = -1, WRITTEN = -2 };
static struct {
    atomic_int state;
    sem_t written;
    void *frames[STACK_FRAMES_MAX + HANDLER_FRAMES];
    int count;
    void *at; /* the instruction that was interrupted */
} request;

static void *interrupted_at(const void *context)
{
    const ucontext_t *user = context;
#if defined(__x86_64__)
    return (void *)user->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    return (void *)user->uc_mcontext.pc;
#else
    (void)user;
    return NULL;
#endif
}

/* Async-signal-safe: atomics, gettid, backtrace() as stacks.h explains, sem_post. */
static void on_signal(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)info;
    int saved = errno;
    int asked = (int)syscall(SYS_gettid);
    if (atomic_compare_exchange_strong(&request.state, &asked, WRITING)) {
        request.at = interrupted_at(context);
        request.count = backtrace(request.frames, STACK_FRAMES_MAX + HANDLER_FRAMES);
        atomic_store(&request.state, WRITTEN);
        sem_post(&request.written);
    }
    errno = saved;
}

void stacks_open(void)
{
    sem_init(&request.written, 0, 0);
    void *frame;
    backtrace(&frame, 1);
    struct sigaction action = {.sa_sigaction = on_signal,
                               .sa_flags = SA_RESTART | SA_SIGINFO | SA_ONSTACK};
    sigfillset(&action.sa_mask);
    sigaction(SIGNAL_STACK, &action, NULL);
}

/* ---- stacks for signals ---- */

enum { SIGNAL_STACK_BYTES = 1 << 16 };

static pthread_key_t signal_stack;
static pthread_once_t signal_stack_once = PTHREAD_ONCE_INIT;

static void drop_signal_stack(void *stack)
{
    sigaltstack(&(stack_t){.ss_flags = SS_DISABLE}, NULL);
    munmap(stack, SIGNAL_STACK_BYTES);
}

static void make_key(void)
{
    pthread_key_create(&signal_stack, drop_signal_stack);
}

void stack_for_signals(void)
{
    stack_t before, stack = {.ss_size = SIGNAL_STACK_BYTES};
    if (sigaltstack(NULL, &before) == 0 && !(before.ss_flags & SS_DISABLE)) return;
    pthread_once(&signal_stack_once, make_key);
    stack.ss_sp = mmap(NULL, stack.ss_size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (stack.ss_sp != MAP_FAILED && sigaltstack(&stack, NULL) == 0) {
        pthread_setspecific(signal_stack, stack.ss_sp);
        return;
    }
    if (stack.ss_sp != MAP_FAILED) munmap(stack.ss_sp, stack.ss_size);
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGNAL_STACK);
    pthread_sigmask(SIG_BLOCK, &blocked, NULL);
}

/* ---- requests ---- */

static void await(int64_t timeout_ns)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t ns = until.tv_nsec + timeout_ns;
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    while (sem_clockwait(&request.written, CLOCK_MONOTONIC, &until) != 0 && errno == EINTR)
        continue;
}

/* Without the frames of the handler itself. */
static int copy_frames(void *frames[STACK_FRAMES_MAX])
{
    int first = 0;
    for (int i = 0; i < request.count && i < HANDLER_FRAMES && first == 0; i++)
        if (request.frames[i] == request.at) first = i;
    int count = request.count - first;
    if (count > STACK_FRAMES_MAX) count = STACK_FRAMES_MAX;
    memcpy(frames, request.frames + first, (size_t)count * sizeof *frames);
    return count;
}

int stack_capture(int thread, void *frames[STACK_FRAMES_MAX], int64_t timeout_ns)
{
    while (sem_trywait(&request.written) == 0) continue;
    atomic_store(&request.state, thread);
    if (syscall(SYS_tgkill, getpid(), thread, SIGNAL_STACK) != 0) {
        atomic_store(&request.state, IDLE);
        return 0;
    }
    await(timeout_ns);
    int asked = thread;
    if (atomic_compare_exchange_strong(&request.state, &asked, IDLE)) return 0;
    /* It has begun to write: it ends soon, and the frames are its own until then. */
    while (atomic_load(&request.state) != WRITTEN) await(1000000);
    atomic_store(&request.state, IDLE);
    return copy_frames(frames);
}

/* ---- names ---- */

/* The program's file: most of its functions are in no dynamic symbol table. */
struct program_file {
    const char *bytes; /* NULL: cannot be read */
    size_t size;
};

static struct program_file open_program(void)
{
    struct program_file file = {0};
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct stat about;
    if (fd < 0) return file;
    if (fstat(fd, &about) == 0 && (size_t)about.st_size > sizeof(ElfW(Ehdr))) {
        void *bytes = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes != MAP_FAILED) file = (struct program_file){bytes, (size_t)about.st_size};
    }
    close(fd);
    return file;
}

static bool has_section(const struct program_file *file, const ElfW(Shdr) * section)
{
    return section->sh_offset <= file->size && section->sh_size <= file->size - section->sh_offset;
}

/* The function at `offset` from where the program begins; NULL: the file has no such symbol. */
static const char *find_in(const struct program_file *file, uintptr_t offset, uintptr_t *start)
{
    const ElfW(Ehdr) *header = (const void *)file->bytes;
    const ElfW(Shdr) *sections = (const void *)(file->bytes + header->e_shoff);
    if (header->e_shoff > file->size ||
        (file->size - header->e_shoff) / sizeof *sections < header->e_shnum)
        return NULL;
    for (int s = 0; s < header->e_shnum; s++) {
        const ElfW(Shdr) *table = &sections[s];
        if (table->sh_type != SHT_SYMTAB || table->sh_link >= header->e_shnum) continue;
        const ElfW(Shdr) *names = &sections[table->sh_link];
        if (!has_section(file, table) || !has_section(file, names)) return NULL;
        const ElfW(Sym) *symbols = (const void *)(file->bytes + table->sh_offset);
        for (size_t i = 0; i < table->sh_size / sizeof *symbols; i++) {
            const ElfW(Sym) *symbol = &symbols[i];
            if ((symbol->st_info & 0xf) != STT_FUNC || symbol->st_name >= names->sh_size) continue;
            if (offset < symbol->st_value || offset - symbol->st_value >= symbol->st_size) continue;
            *start = symbol->st_value;
            return file->bytes + names->sh_offset + symbol->st_name;
        }
    }
    return NULL;
}

/* Of the C++ library, in programs that have it. */
extern char *__cxa_demangle(const char *name, char *buffer, size_t *length, int *status)
    __attribute__((weak));

/* A function's name without its arguments. The caller frees it. */
static char *readable(const char *name)
{
    int failed = 1;
    char *text = __cxa_demangle != NULL && strncmp(name, "_Z", 2) == 0
                     ? __cxa_demangle(name, NULL, NULL, &failed)
                     : NULL;
    if (text == NULL) text = mem_strdup(name);
    if (strlen(text) > NAME_MAX_BYTES) text[NAME_MAX_BYTES] = '\0';
    char *arguments = failed == 0 ? strchr(text, '(') : NULL;
    if (arguments != NULL && arguments != text) *arguments = '\0';
    return text;
}

static char *name_with_offset(const char *name, uintptr_t offset)
{
    AUTO_FREE char *text = readable(name);
    return mem_printf("%s+0x%llx", text, (unsigned long long)offset);
}

static char *name_in_program(uintptr_t offset)
{
    struct program_file file = open_program();
    uintptr_t start = 0;
    const char *name = file.bytes != NULL ? find_in(&file, offset, &start) : NULL;
    char *text = name != NULL ? name_with_offset(name, offset - start) : NULL;
    if (file.bytes != NULL) munmap((void *)file.bytes, file.size);
    return text;
}

char *stack_frame_name(void *const *frames, int index)
{
    /* A return address may be that of the next function; the interrupted instruction's is not. */
    uintptr_t address = (uintptr_t)frames[index] - (index > 0 ? 1 : 0);
    Dl_info about, own;
    if (dladdr((void *)address, &about) == 0)
        return mem_printf("0x%llx", (unsigned long long)address);
    uintptr_t offset = address - (uintptr_t)about.dli_fbase;
    char *text = NULL;
    if (dladdr((void *)(uintptr_t)stacks_open, &own) != 0 && own.dli_fbase == about.dli_fbase)
        text = name_in_program(offset);
    if (text == NULL && about.dli_sname != NULL)
        text = name_with_offset(about.dli_sname, address - (uintptr_t)about.dli_saddr);
    if (text != NULL) return text;
    const char *slash = about.dli_fname != NULL ? strrchr(about.dli_fname, '/') : NULL;
    return name_with_offset(slash != NULL ? slash + 1 : "?", offset);
}
