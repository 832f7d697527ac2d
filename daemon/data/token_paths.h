/* Finds the files that a path of tokens names: itself, or those that its last part matches
 * (shards-*.bin). */
#ifndef FSDPD_DATA_TOKEN_PATHS_H
#define FSDPD_DATA_TOKEN_PATHS_H

#include <stdbool.h>

#include "base/status.h"

/* All of them stay open while a job runs. */
enum { TOKEN_PATHS_MAX = 512 };

struct token_paths {
    char **paths;
    int count; /* at least 1 */
};

/* Whether the last part contains *, ? or [. */
bool token_path_is_pattern(const char *path);

/* Sorted by name. Links must not lead out of `root` (NULL: no root). NOT_FOUND if no file
 * matches. */
status_t token_paths_find(const char *root, const char *path,
                          struct token_paths *paths) FSDPD_MUST_USE;
void token_paths_deinit(struct token_paths *paths); /* accepts a zeroed one */

#endif
