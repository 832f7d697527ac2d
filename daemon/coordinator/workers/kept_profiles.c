/*
 * Measured profiles; see kept_profiles.h. They are read at the first use. A file starts with what
 * it was measured on and a checksum, in comments; one that was damaged is removed, with a warning,
 * so that the profile is measured again.
 */
#include "coordinator/workers/kept_profiles.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "digest/digest.h"

enum { KEPT_MAX = 32, HEAD_MAX = 2048, NAME_DIGITS = 16 };

struct kept_entry {
    struct kept_profile profile; /* its strings are owned */
    struct timespec written;
};

struct kept_profiles {
    char *directory;
    struct kept_entry *entries; /* oldest first */
    int count, capacity;
};

static void entry_deinit(struct kept_entry *entry)
{
    free((char *)entry->profile.kind);
    free((char *)entry->profile.make);
    free((char *)entry->profile.path);
    free((char *)entry->profile.text);
}

/* ---- files ---- */

static void sum_of(const char *head, const char *body, char digits[static DIGEST_DIGITS + 1])
{
    struct digest digest;
    struct digester *digester = digester_new();
    digester_add(digester, head, strlen(head));
    digester_add(digester, body, strlen(body));
    digester_take(digester, &digest);
    digester_free(digester);
    digest_format(&digest, digits);
}

static char *make_head(const char *kind, const char *make, int workers)
{
    return mem_printf("# Measured by fsdpd.\n# kind: %s\n# workers: %d\n# make: %s\n", kind,
                      workers, make);
}

static char *make_file(const char *kind, const char *make, int workers, const char *body)
{
    char digits[DIGEST_DIGITS + 1], *head = make_head(kind, make, workers);
    sum_of(head, body, digits);
    char *text = mem_printf("%s# sha256: %s\n%s", head, digits, body);
    free(head);
    return text;
}

/* The rest of the line that starts with `key`, copied; moves *text to the next line. NULL: it does
 * not start so. */
static char *take_line(const char **text, const char *key)
{
    size_t length = strlen(key);
    if (strncmp(*text, key, length) != 0) return NULL;
    const char *value = *text + length;
    size_t end = strcspn(value, "\n");
    if (value[end] != '\n') return NULL;
    *text = value + end + 1;
    return mem_strndup(value, end);
}

/* Takes ownership of the text, also if it is damaged. */
static bool parse(char *text, struct kept_profile *profile)
{
    const char *rest = text;
    int64_t workers = 0;
    char *title = take_line(&rest, "# Measured by fsdpd."), *kind = take_line(&rest, "# kind: ");
    char *number = take_line(&rest, "# workers: "), *make = take_line(&rest, "# make: ");
    bool right = title != NULL && kind != NULL && number != NULL && make != NULL &&
                 text_parse_i64(number, &workers) && workers > 0 && workers < 1 << 20;
    if (right) {
        AUTO_FREE char *sum = take_line(&rest, "# sha256: ");
        AUTO_FREE char *whole = sum != NULL ? make_file(kind, make, (int)workers, rest) : NULL;
        right = whole != NULL && strcmp(whole, text) == 0;
    }
    free(title);
    free(number);
    *profile =
        (struct kept_profile){.kind = kind, .make = make, .workers = (int)workers, .text = text};
    return right;
}

/* ---- the list ---- */

static bool is_older(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec != b->tv_sec ? a->tv_sec < b->tv_sec : a->tv_nsec < b->tv_nsec;
}

static void add(struct kept_profiles *kept, const struct kept_entry *entry)
{
    MEM_GROW(kept->entries, kept->count, kept->capacity);
    int at = kept->count++;
    for (; at > 0 && is_older(&entry->written, &kept->entries[at - 1].written); at--)
        kept->entries[at] = kept->entries[at - 1];
    kept->entries[at] = *entry;
}

static void drop(struct kept_profiles *kept, int i, bool file)
{
    if (file) unlink(kept->entries[i].profile.path);
    entry_deinit(&kept->entries[i]);
    kept->count--;
    memmove(&kept->entries[i], &kept->entries[i + 1],
            (size_t)(kept->count - i) * sizeof kept->entries[0]);
}

static void read_one(struct kept_profiles *kept, const char *name)
{
    struct kept_entry entry = {0};
    struct stat stat_of;
    AUTO(buf_deinit) struct buf text = {0};
    char *path = file_path_join(kept->directory, name);
    status_t status = file_read(path, KEPT_PROFILE_MAX + HEAD_MAX, &text);
    bool whole = status == NULL && stat(path, &stat_of) == 0 &&
                 parse(mem_strdup(buf_text(&text)), &entry.profile);
    entry.profile.path = path;
    if (whole) {
        entry.written = stat_of.st_mtim;
        add(kept, &entry);
        return;
    }
    AUTO_FREE char *quoted = log_quote(path);
    log_event(LOG_WARNING, "profile_damaged", "file=%s", quoted);
    unlink(path);
    entry_deinit(&entry);
    status_free(status);
}

static struct kept_profiles *get(struct coordinator *c)
{
    if (c->kept_profiles != NULL) return c->kept_profiles;
    struct kept_profiles *kept = c->kept_profiles = mem_alloc(sizeof *kept);
    *kept = (struct kept_profiles){.directory = file_path_join(c->options.state_dir, "profiles")};
    DIR *directory = opendir(kept->directory);
    if (directory == NULL) return kept; /* none was measured yet */
    const struct dirent *file;
    while ((file = readdir(directory)) != NULL) {
        const char *end = strrchr(file->d_name, '.');
        if (end != NULL && strcmp(end, ".yaml") == 0) read_one(kept, file->d_name);
    }
    closedir(directory);
    return kept;
}

const struct kept_profile *kept_profiles_find(struct coordinator *c, const char *make, int workers)
{
    const struct kept_profiles *kept = get(c);
    const struct kept_profile *best = NULL;
    for (int i = 0; i < kept->count; i++) {
        const struct kept_profile *profile = &kept->entries[i].profile;
        if (strcmp(profile->make, make) != 0 || profile->workers < workers) continue;
        if (best == NULL || profile->workers < best->workers) best = profile;
    }
    return best;
}

const struct kept_profile *kept_profiles_newest(struct coordinator *c, const char *kind)
{
    const struct kept_profiles *kept = get(c);
    for (int i = kept->count - 1; i >= 0; i--) {
        const struct kept_profile *profile = &kept->entries[i].profile;
        if (kind[0] == '\0' || strcmp(profile->kind, kind) == 0) return profile;
    }
    return NULL;
}

static char *make_path(const struct kept_profiles *kept, const char *make, int workers)
{
    struct digest digest;
    char digits[DIGEST_DIGITS + 1];
    AUTO_FREE char *key = mem_printf("%s, %d", make, workers);
    digest_of(key, strlen(key), &digest);
    return mem_printf("%s/%.*s.yaml", kept->directory, NAME_DIGITS, digest_format(&digest, digits));
}

status_t kept_profiles_put(struct coordinator *c, const char *kind, const char *make, int workers,
                           const char *text)
{
    struct kept_profiles *kept = get(c);
    TRY(file_make_directory(kept->directory, 0750));
    char *path = make_path(kept, make, workers), *whole = make_file(kind, make, workers, text);
    status_t status = file_write_atomic(path, whole, strlen(whole), 0640);
    if (status != NULL) {
        free(path);
        free(whole);
        return status;
    }
    for (int i = kept->count - 1; i >= 0; i--) {
        const struct kept_profile *old = &kept->entries[i].profile;
        if (strcmp(old->make, make) == 0 && old->workers <= workers)
            drop(kept, i, old->workers != workers);
    }
    struct kept_entry entry = {.profile = {.kind = mem_strdup(kind),
                                           .make = mem_strdup(make),
                                           .workers = workers,
                                           .path = path,
                                           .text = whole}};
    clock_gettime(CLOCK_REALTIME, &entry.written);
    add(kept, &entry);
    while (kept->count > KEPT_MAX) drop(kept, 0, true);
    return NULL;
}

void kept_profiles_free(struct coordinator *c)
{
    struct kept_profiles *kept = c->kept_profiles;
    if (kept == NULL) return;
    for (int i = 0; i < kept->count; i++) entry_deinit(&kept->entries[i]);
    free(kept->entries);
    free(kept->directory);
    free(kept);
    c->kept_profiles = NULL;
}
