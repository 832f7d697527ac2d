/* Maps the job file's choices to training's enums. */
#ifndef FSDPD_WORKER_JOB_CHOICES_H
#define FSDPD_WORKER_JOB_CHOICES_H

/* One word of a key of common/spec/keys.c with more than two choices. */
struct job_choice {
    const char *key, *word;
    int value; /* of the enum that belongs to the key */
};

/* All of them; the last one has no key. */
extern const struct job_choice job_choices[];

/* The word's value. Only for a word that common/spec has checked. */
int job_choice(const char *key, const char *word);

#endif
