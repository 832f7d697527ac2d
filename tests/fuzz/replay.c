/*
 * Stands in for libFuzzer where the compiler has none: runs the target over the files of its corpus
 * ($srcdir/tests/fuzz/corpus/NAME, NAME from the program's own), or over those that are named.
 */
#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "fuzz.h"

enum { INPUT_MAX = 16 << 20 };

static void replay(const char *path)
{
    struct buf bytes = {0};
    /* Not by file_read, which some targets replace. */
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    FUZZ_CHECK(fd >= 0, "%s cannot be opened", path);
    status_t status = file_read_descriptor(fd, path, INPUT_MAX, &bytes);
    FUZZ_CHECK(status == NULL, "%s", status_message(status));
    close(fd);
    printf("%s\n", path);
    fflush(stdout);
    /* A copy of just the right size, so that AddressSanitizer sees a read past its end. */
    uint8_t *input = mem_dup(buf_text(&bytes), bytes.length);
    LLVMFuzzerTestOneInput(input, bytes.length);
    free(input);
    buf_deinit(&bytes);
}

static int replay_corpus(const char *program)
{
    const char *root = getenv("srcdir"), *slash = strrchr(program, '/');
    const char *name = slash ? slash + 1 : program;
    if (strncmp(name, "fuzz_", 5) == 0) name += 5;
    char *corpus = mem_printf("%s/tests/fuzz/corpus/%s", root ? root : ".", name);
    DIR *directory = opendir(corpus);
    FUZZ_CHECK(directory != NULL, "%s cannot be opened", corpus);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        if (entry->d_name[0] == '.') continue;
        char *path = file_path_join(corpus, entry->d_name);
        replay(path);
        free(path);
        count++;
    }
    closedir(directory);
    FUZZ_CHECK(count > 0, "%s is empty", corpus);
    free(corpus);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 1) return replay_corpus(argv[0]);
    for (int i = 1; i < argc; i++) replay(argv[i]);
    return 0;
}
