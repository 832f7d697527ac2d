/*
 * dump_init MODEL SEED: writes the initial parameters of a model file to stdout, as float32 in
 * state_dict order, for tests/parity/test_init.py.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "setup/init.h"

static status_t keep(void *user, int parameter, struct parameter_part piece, const float *values)
{
    struct {
        const struct model *model;
        float **kept;
    } *to = user;
    size_t elements = (size_t)tensor_element_count(&to->model->parameters[parameter].type);
    if (to->kept[parameter] == NULL)
        to->kept[parameter] = mem_alloc_array(elements, sizeof *values);
    memcpy(to->kept[parameter] + piece.offset, values, (size_t)piece.count * sizeof *values);
    return NULL;
}

static status_t dump(const char *path, int64_t seed)
{
    struct buf text = {0};
    struct model *model = NULL;
    TRY(file_read(path, 1 << 20, &text));
    status_t status = model_parse(text.data, text.length, path, &model);
    buf_deinit(&text);
    if (status != NULL) return status;
    float **kept = mem_alloc_array((size_t)model->parameter_count, sizeof *kept);
    struct {
        const struct model *model;
        float **kept;
    } to = {model, kept};
    status = init_draw(model, (uint64_t)seed, &(struct init_target){.set = keep, .user = &to});
    for (int i = 0; i < model->parameter_count; i++) {
        const struct parameter *parameter = &model->parameters[i];
        const float *values = kept[parameter->tied_to < 0 ? i : parameter->tied_to];
        if (status == NULL)
            fwrite(values, sizeof *values, (size_t)tensor_element_count(&parameter->type), stdout);
    }
    for (int i = 0; i < model->parameter_count; i++) free(kept[i]);
    free(kept);
    model_free(model);
    return status;
}

int main(int argc, char **argv)
{
    int64_t seed;
    if (argc != 3 || !text_parse_i64(argv[2], &seed)) {
        fprintf(stderr, "Usage: dump_init MODEL SEED\n");
        return 2;
    }
    status_t status = dump(argv[1], seed);
    if (status == NULL && fflush(stdout) == 0) return 0;
    fprintf(stderr, "dump_init: %s\n", status_message(status));
    status_free(status);
    return 1;
}
