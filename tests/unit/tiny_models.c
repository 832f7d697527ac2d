/* See tiny_models.h. */
#include "tiny_models.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

const char *const tiny_names[TINY_COUNT] = {"gpt2", "llama", "bert"};

/* Text of the examples, and its replacement. */
static const struct {
    const char *old, *new;
} changes[TINY_COUNT][4] = {
    {{"vocabulary: 256", "vocabulary: 13"},
     {"context: 64", "context: 9"},
     {"GPT2Model(256, 64, 128, 4, 4)", "GPT2Model(13, 9, 6, 2, 3)"},
     {"lm_head: Linear(128, 256,", "lm_head: Linear(6, 13,"}},
    {{"vocabulary: 256", "vocabulary: 13"},
     {"context: 128", "context: 9"},
     {"LlamaModel(256, 128, 352, 4, 8, 2, 16)", "LlamaModel(13, 10, 7, 2, 6, 2, 4)"},
     {"lm_head: Linear(128, 256,", "lm_head: Linear(10, 13,"}},
    {{"vocabulary: 260", "vocabulary: 13"},
     {"context: 128", "context: 9"},
     {"BertModel(260, 128, 128, 512, 4, 4)", "BertModel(13, 9, 6, 11, 2, 2)"},
     {"BertOnlyMLMHead(260, 128)", "BertOnlyMLMHead(13, 6)"}},
};

static char *replace(char *text, const char *old, const char *new)
{
    const char *at = strstr(text, old);
    ck_assert_msg(at != NULL, "no '%s' in the example", old);
    char *made = mem_printf("%.*s%s%s", (int)(at - text), text, new, at + strlen(old));
    free(text);
    return made;
}

const char *tiny_model_text(int which)
{
    static char *texts[TINY_COUNT];
    if (texts[which] != NULL) return texts[which];
    const char *root = getenv("srcdir");
    char *path = mem_printf("%s/examples/%s/model.yaml", root ? root : ".", tiny_names[which]);
    struct buf bytes = {0};
    status_t status = file_read(path, 1 << 20, &bytes);
    ck_assert_msg(!status, "%s", status_message(status));
    free(path);
    char *text = buf_take(&bytes);
    for (int i = 0; i < 4; i++) text = replace(text, changes[which][i].old, changes[which][i].new);
    return texts[which] = text;
}

struct model *tiny_model(int which)
{
    struct model *model = NULL;
    const char *text = tiny_model_text(which);
    status_t status = model_parse(text, strlen(text), "model.yaml", &model);
    ck_assert_msg(!status, "%s", status_message(status));
    return model;
}

int32_t tiny_token(uint64_t i)
{
    uint64_t x = i * 0x9e3779b97f4a7c15u + 0x7f4a7c15u;
    x = (x ^ (x >> 31)) * 0xbf58476d1ce4e5b9u;
    return (int32_t)((x >> 33) % TINY_VOCABULARY);
}
