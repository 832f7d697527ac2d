/*
 * A model's weights: four bytes that say how much data follows, then the start of
 * model.safetensors. What is accepted can be read to the last element. The file is written to a
 * directory of this process's own.
 */
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "checkpoint/weights.h"
#include "../unit/family_files.h"
#include "fuzz.h"

static const char model_text[] = "name: Small\n"
                                 "input: [4]\n"
                                 "classes: 3\n"
                                 "modules:\n"
                                 "  a: Linear(4, 3, bias=False)\n"
                                 "  b: Linear(3, 4)\n"
                                 "  lm_head: Linear(4, 3, bias=False)\n"
                                 "forward:\n"
                                 "  - output = lm_head(b(a(x)))\n"
                                 "loss: cross_entropy(output, target)\n"
                                 "tie: {lm_head.weight: a.weight}\n";
enum { DATA_MAX = 1 << 20 };

static char directory[PATH_MAX], file[PATH_MAX + 32];
static struct model *model;

static void clean_up(void)
{
    unlink(file);
    rmdir(directory);
    model_free(model);
}

static void set_up(void)
{
    struct stat info;
    const char *parent = getenv("TMPDIR");
    if (parent == NULL) parent = stat("/dev/shm", &info) == 0 ? "/dev/shm" : "/tmp";
    snprintf(directory, sizeof directory, "%s/fuzz-weights-XXXXXX", parent);
    FUZZ_CHECK(mkdtemp(directory) != NULL, "%s", directory);
    snprintf(file, sizeof file, "%s/model.safetensors", directory);
    status_t status = model_parse(model_text, sizeof model_text - 1, "small.yaml", &model);
    FUZZ_CHECK(status == NULL, "%s", status_message(status));
    atexit(clean_up);
}

static void write_file(const uint8_t *bytes, size_t size, uint32_t data)
{
    int fd = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    FUZZ_CHECK(fd >= 0 && write(fd, bytes, size) == (ssize_t)size, "%s", file);
    FUZZ_CHECK(ftruncate(fd, (off_t)(size + data)) == 0, "%s", file);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint32_t data_bytes;
    if (size < sizeof data_bytes) return 0;
    if (model == NULL) set_up();
    memcpy(&data_bytes, data, sizeof data_bytes);
    write_file(data + sizeof data_bytes, size - sizeof data_bytes, data_bytes % DATA_MAX);
    const struct weights_source source = {
        .dir = directory, .root = directory, .family = family_file("gpt2")};
    struct weights *weights = NULL;
    status_t status = weights_open(&source, model, &weights);
    if (status != NULL) {
        fuzz_expect_user_error(status);
        return 0;
    }
    for (int p = 0; p < model->parameter_count; p++) {
        float values[12];
        size_t count = (size_t)tensor_element_count(&model->parameters[p].type);
        if (model->parameters[p].tied_to >= 0) continue;
        status = weights_read(weights, p, 0, count, values);
        FUZZ_CHECK(status == NULL, "%s", status_message(status));
        status = weights_read(weights, p, (int64_t)count - 1, 1, values);
        FUZZ_CHECK(status == NULL, "%s", status_message(status));
    }
    weights_free(weights);
    return 0;
}
