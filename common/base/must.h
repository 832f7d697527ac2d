/*
 * Contracts: what holds unless the program itself is wrong, such as which thread may use an object
 * now. They are checked in every build. A broken one writes the condition and its place to standard
 * error and ends the process with SIGABRT; its supervisor starts it again. What files, peers
 * and users do wrong is never a contract: it is a status.
 */
#ifndef FSDPD_BASE_MUST_H
#define FSDPD_BASE_MUST_H

#ifdef __cplusplus
extern "C" {
#endif

#define MUST(condition)                                                                            \
    ((condition) ? (void)0 : must_fail(#condition, __FILE__, __LINE__, __func__))

__attribute__((noreturn)) void must_fail(const char *what, const char *file, int line,
                                         const char *function);

/* A member of an object of one thread: of the first one that uses it. Zero at first. */
struct must_owner {
    const void *thread;
};

#define MUST_OWN(owner) must_own(owner, __FILE__, __LINE__, __func__)
void must_own(struct must_owner *owner, const char *file, int line, const char *function);

/* A member of an object that one thread at a time uses. Zero at first. */
struct must_user {
    const void *thread;
    int depth; /* of that thread's uses within each other */
};

/* The calling thread uses the object until the end of the scope; no other one may meanwhile. */
#define MUST_ALONE(user)                                                                           \
    __attribute__((cleanup(must_leave), unused)) struct must_user *const must_be_alone =           \
        must_enter(user, __FILE__, __LINE__, __func__)
struct must_user *must_enter(struct must_user *user, const char *file, int line,
                             const char *function);
void must_leave(struct must_user *const *user);

#ifdef __cplusplus
}
#endif

#endif
