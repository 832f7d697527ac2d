/* families: lists the families of models that the daemon can train. */
#include "client.h"
#include "exit.h"
#include "lists.h"
#include "print/json.h"
#include "print/table.h"

/* The texts with commas between them. */
static void add_texts(struct table *table, char *const *texts, size_t count)
{
    AUTO(buf_deinit) struct buf text = {0};
    for (size_t i = 0; i < count; i++) buf_printf(&text, "%s%s", i > 0 ? ", " : "", texts[i]);
    table_add(table, buf_text(&text));
}

static void add_families(const Fsdpd__V1__ListFamiliesResponse *list, int width, struct buf *out)
{
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
    table_print(&table, width, 0, out);
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
    ProtobufCMessage *response;
    int code;
    if (!lists_call(client, &control_list_families, &request.base, LIST_FROM_FIRST, &response,
                    &code))
        return code;
    const Fsdpd__V1__ListFamiliesResponse *list = (const void *)response;
    struct buf text = {0};
    if (client->options.format == FORMAT_JSON)
        json_add_list(&text, list->families, list->n_families);
    else add_families(list, client->terminal.out ? client->terminal.width : 0, &text);
    output_print(&text);
    protobuf_c_message_free_unpacked(response, NULL);
    return EXIT_DONE;
}
