/* Patterns of token files; see token_file.h. */
#include "data/token_file.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/beneath.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

bool token_path_is_pattern(const char *path)
{
    return strpbrk(last_part(path), "*?[") != NULL;
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static status_t collect(DIR *stream, const char *directory, const char *pattern,
                        struct token_paths *paths)
{
    int capacity = 0;
    const struct dirent *entry;
    while (errno = 0, (entry = readdir(stream)) != NULL) {
        if (entry->d_name[0] == '.' || !text_glob_match(pattern, entry->d_name)) continue;
        if (paths->count == TOKEN_PATHS_MAX)
            return status_new(STATUS_INVALID_ARGUMENT, "%s/%s matches more than %d files",
                              directory, pattern, TOKEN_PATHS_MAX);
        MEM_GROW(paths->paths, paths->count, capacity);
        paths->paths[paths->count++] = file_path_join(directory, entry->d_name);
    }
    if (errno != 0) return status_from_errno(errno, "cannot read %s", directory);
    if (paths->count == 0)
        return status_new(STATUS_NOT_FOUND, "%s has no file that matches %s", directory, pattern);
    qsort(paths->paths, (size_t)paths->count, sizeof *paths->paths, compare);
    return NULL;
}

static status_t find_matches(const char *root, const char *directory, const char *pattern,
                             struct token_paths *paths)
{
    int fd = -1;
    TRY(beneath_open(root, directory, true, &fd));
    DIR *stream = fdopendir(fd);
    if (stream == NULL) {
        status_t status = status_from_errno(errno, "cannot read %s", directory);
        close(fd);
        return status;
    }
    status_t status = collect(stream, directory, pattern, paths);
    closedir(stream);
    return status;
}

status_t token_paths_find(const char *root, const char *path, struct token_paths *result)
{
    struct token_paths paths = {0};
    if (!token_path_is_pattern(path)) {
        paths.paths = mem_alloc(sizeof *paths.paths);
        paths.paths[paths.count++] = mem_strdup(path);
        *result = paths;
        return NULL;
    }
    AUTO_FREE char *directory = file_path_directory(path);
    status_t status = find_matches(root, directory, last_part(path), &paths);
    if (status != NULL) {
        token_paths_deinit(&paths);
        return status;
    }
    *result = paths;
    return NULL;
}

void token_paths_deinit(struct token_paths *paths)
{
    for (int i = 0; i < paths->count; i++) free(paths->paths[i]);
    free(paths->paths);
    *paths = (struct token_paths){0};
}
