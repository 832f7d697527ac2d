/* families: lists the families of models that the daemon can train. */
#include "lists.h"
#include "print/table.h"

/* The texts with commas between them. */
static void add_texts(struct table *table, char *const *texts, size_t count)
{
    AUTO(buf_deinit) struct buf text = {0};
    for (size_t i = 0; i < count; i++) buf_printf(&text, "%s%s", i > 0 ? ", " : "", texts[i]);
    table_add(table, buf_text(&text));
}

static void add_families(const ProtobufCMessage *response, const struct view *view, struct buf *out)
{
    const Fsdpd__V1__ListFamiliesResponse *list = (const void *)response;
    static const struct table_column columns[] = {{.title = "FAMILY"},
                                                  {.title = "MODEL TYPES"},
                                                  {.title = "ARCHITECTURES"},
                                                  {.title = "FILE"}};
    AUTO(table_deinit) struct table table = {.columns = columns, .column_count = 4};
    for (size_t i = 0; i < list->n_families; i++) {
        const Fsdpd__V1__Family *family = list->families[i];
        if (family->error[0] != '\0') continue;
        table_add(&table, family->name);
        add_texts(&table, family->model_types, family->n_model_types);
        add_texts(&table, family->architectures, family->n_architectures);
        table_add(&table, family->path);
    }
    table_print(&table, view->width, 0, out);
    for (size_t i = 0; i < list->n_families; i++) {
        if (list->families[i]->error[0] == '\0') continue;
        buf_add_text(out, "cannot be used: ");
        output_clean(out, list->families[i]->error, false);
        buf_add_char(out, '\n');
    }
}

int verb_families(struct client *client)
{
    Fsdpd__V1__ListFamiliesRequest request = FSDPD__V1__LIST_FAMILIES_REQUEST__INIT;
    return lists_print(client, &control_list_families, &request.base, LIST_FROM_FIRST,
                       add_families);
}
