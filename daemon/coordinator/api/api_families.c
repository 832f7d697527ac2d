/* ListFamilies; see handlers.h. The files are read again for each call, so it also shows what
 * has changed; they are few and small. */
#include "coordinator/api/api.h"
#include "coordinator/api/handlers.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "coordinator/core/list_page.h"
#include "hf/hf.h"

struct family_rows {
    Fsdpd__V1__Family **rows;
    size_t count, capacity;
};

static char **copy_list(const struct hf_family *family, enum hf_family_list list, size_t *count)
{
    for (*count = 0; hf_family_item(family, list, (int)*count) != NULL;) ++*count;
    char **texts = mem_alloc_array(*count + 1, sizeof *texts);
    for (size_t i = 0; i < *count; i++) texts[i] = mem_strdup(hf_family_item(family, list, (int)i));
    return texts;
}

static void add_row(struct family_rows *list, const struct hf_family_file *file)
{
    const struct hf_family *family = file->family;
    Fsdpd__V1__Family *row = mem_alloc(sizeof *row);
    fsdpd__v1__family__init(row);
    MEM_GROW(list->rows, list->count, list->capacity);
    list->rows[list->count++] = row;
    row->path = mem_strdup(file->path);
    if (file->error != NULL) {
        row->error = mem_strdup(status_message(file->error));
        return;
    }
    row->name = mem_strdup(hf_family_name(family));
    row->model_types = copy_list(family, HF_FAMILY_MODEL_TYPES, &row->n_model_types);
    row->architectures = copy_list(family, HF_FAMILY_ARCHITECTURES, &row->n_architectures);
    row->keys = copy_list(family, HF_FAMILY_KEYS, &row->n_keys);
}

void api_report_families(const struct coordinator *c)
{
    hf_families_report(c->options.families, c->options.family_count);
}

/* The first row of the page: the one after the file that its token names. */
static status_t find_first(const struct family_rows *list, const struct list_page *page,
                           size_t *first)
{
    *first = 0;
    if (page->after == NULL) return NULL;
    while (*first < list->count && strcmp(list->rows[*first]->path, page->after) != 0) ++*first;
    if (*first == list->count) return list_page_token_error(); /* the file has gone */
    ++*first;
    return NULL;
}

static void reply(struct rpc_call *call, struct list_page *page, Fsdpd__V1__Family **rows,
                  size_t count)
{
    Fsdpd__V1__ListFamiliesResponse response = FSDPD__V1__LIST_FAMILIES_RESPONSE__INIT;
    for (size_t i = 0; i < count; i++) list_page_take(page, &rows[i]->base);
    response.families = rows;
    response.n_families = page->count;
    response.next_page_token =
        list_page_next(page, 0, page->count > 0 ? rows[page->count - 1]->path : "");
    rpc_call_reply(call, &response.base);
    free(response.next_page_token);
}

void api_list_families(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    const struct coordinator *c = service;
    const Fsdpd__V1__ListFamiliesRequest *request = (const void *)message;
    struct family_rows list = {0};
    const struct hf_families *families = NULL;
    struct list_page page;
    size_t first = 0;
    status_t status = list_page_begin(&page, request->page_size, request->page_token, true);
    if (status == NULL)
        status = hf_families_open(c->options.families, c->options.family_count, &families);
    for (int i = 0; families != NULL && i < families->count; i++)
        add_row(&list, &families->files[i]);
    if (families != NULL) hf_families_close(families);
    if (status == NULL) status = find_first(&list, &page, &first);
    if (status != NULL) rpc_call_finish(call, status);
    else reply(call, &page, list.rows + first, list.count - first);
    for (size_t i = 0; i < list.count; i++) fsdpd__v1__family__free_unpacked(list.rows[i], NULL);
    free(list.rows);
}
