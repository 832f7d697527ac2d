/* ListFamilies; see handlers.h. The files are read again for each call, so it also shows what
 * has changed; they are few and small. */
#include "coordinator/api/handlers.h"

#include <stdlib.h>

#include "base/mem.h"
#include "hf/hf.h"

struct family_rows {
    Fsdpd__V1__Family **rows;
    int count, capacity;
};

static char **copy_list(const struct hf_family *family, enum hf_family_list list, size_t *count)
{
    for (*count = 0; hf_family_item(family, list, (int)*count) != NULL;) ++*count;
    char **texts = mem_alloc_array(*count + 1, sizeof *texts);
    for (size_t i = 0; i < *count; i++) texts[i] = mem_strdup(hf_family_item(family, list, (int)i));
    return texts;
}

static status_t add_row(void *user, const struct hf_family_file *file, status_t error, bool *done)
{
    struct family_rows *list = user;
    const struct hf_family *family = file->family;
    Fsdpd__V1__Family *row = mem_alloc(sizeof *row);
    (void)done;
    fsdpd__v1__family__init(row);
    MEM_GROW(list->rows, list->count, list->capacity);
    list->rows[list->count++] = row;
    row->path = mem_strdup(file->path);
    if (error != NULL) {
        row->error = mem_strdup(status_message(error));
        status_free(error);
        return NULL;
    }
    row->name = mem_strdup(hf_family_name(family));
    row->model_types = copy_list(family, HF_FAMILY_MODEL_TYPES, &row->n_model_types);
    row->architectures = copy_list(family, HF_FAMILY_ARCHITECTURES, &row->n_architectures);
    row->keys = copy_list(family, HF_FAMILY_KEYS, &row->n_keys);
    return NULL;
}

void api_list_families(struct rpc_call *call, const ProtobufCMessage *request, void *service)
{
    const struct coordinator *c = service;
    struct family_rows list = {0};
    (void)request;
    status_t status =
        hf_families_each(c->options.families, c->options.family_count, add_row, &list);
    Fsdpd__V1__ListFamiliesResponse response = FSDPD__V1__LIST_FAMILIES_RESPONSE__INIT;
    response.n_families = (size_t)list.count;
    response.families = list.rows;
    if (status != NULL) rpc_call_finish(call, status);
    else rpc_call_reply(call, &response.base);
    for (int i = 0; i < list.count; i++) fsdpd__v1__family__free_unpacked(list.rows[i], NULL);
    free(list.rows);
}
