/* `notify` of fsdpd.yaml; see notify_option.h. Pure. */
#include "notify_option.h"

#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "option_table.h"

enum { NAME_MAX_BYTES = 40 }; /* as notify.to of a job allows */

static const char *const keys[] = {"command", "url", "secret_file", "ca_file"};

static status_t check_name(const struct yamldoc_node *target)
{
    size_t length = strlen(target->key);
    if (length >= 1 && length <= NAME_MAX_BYTES && target->key[0] != '-' &&
        strspn(target->key, "abcdefghijklmnopqrstuvwxyz0123456789-") == length)
        return NULL;
    char shown[72];
    return yamldoc_error(target,
                         "notify: expected a name of 1 to %d letters a-z, digits and dashes that "
                         "starts with a letter or digit, found '%s'",
                         NAME_MAX_BYTES, yamldoc_excerpt(target->key, shown));
}

static status_t check_command(const struct yamldoc_node *command)
{
    const char *text = NULL;
    TRY(yamldoc_expect_sequence(command,
                                "the program and its arguments, such as [/usr/bin/x, -v]"));
    for (int i = 0; i < command->item_count; i++)
        TRY(yamldoc_read_text(command->items[i], NULL, &text));
    if (command->item_count > 0 && command->items[0]->text[0] == '/') return NULL;
    return yamldoc_key_error(command, "expected the program's absolute path first");
}

static status_t check_path(const struct yamldoc_node *node)
{
    const char *text = NULL;
    TRY(yamldoc_read_text(node, "a path", &text));
    return text == NULL || text[0] == '/' ? NULL
                                          : yamldoc_key_error(node, "expected an absolute path");
}

static status_t check_webhook(const struct yamldoc_node *target)
{
    static const char scheme[] = "https://";
    const char *url = NULL;
    struct yamldoc_node *node;
    TRY(yamldoc_require(target, "url", &node));
    TRY(yamldoc_read_text(node, "an address", &url));
    if (strncmp(url, scheme, strlen(scheme)) != 0 || strpbrk(url, " \n\r\t") != NULL)
        return yamldoc_key_error(node, "expected an address that begins with %s", scheme);
    TRY(yamldoc_require(target, "secret_file", &node));
    TRY(check_path(node));
    return check_path(yamldoc_get(target, "ca_file"));
}

static status_t check_target(const struct yamldoc_node *target)
{
    TRY(check_name(target));
    TRY(yamldoc_expect_mapping(target, "command, or url and secret_file"));
    TRY(yamldoc_check_keys(target, keys, COUNT_OF(keys)));
    const struct yamldoc_node *command = yamldoc_get(target, "command");
    if (command == NULL) return check_webhook(target);
    if (target->item_count > 1)
        return yamldoc_key_error(target, "expected command, or url and secret_file, found both");
    return check_command(command);
}

status_t notify_option_check_node(const struct yamldoc_node *node)
{
    TRY(yamldoc_expect_mapping(node, "names with a command or a url"));
    if (node->item_count > COORDINATOR_NOTIFY_MAX)
        return yamldoc_key_error(node, "expected at most %d names, found %d",
                                 COORDINATOR_NOTIFY_MAX, node->item_count);
    for (int i = 0; i < node->item_count; i++) TRY(check_target(node->items[i]));
    return NULL;
}

static void print_text(const char *text, struct buf *out)
{
    buf_add_char(out, '"');
    for (const char *c = text; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\') buf_add_char(out, '\\');
        if ((unsigned char)*c < ' ') buf_printf(out, "\\x%02x", (unsigned char)*c);
        else buf_add_char(out, *c);
    }
    buf_add_char(out, '"');
}

void notify_option_print(const struct yamldoc_node *node, struct buf *out)
{
    bool mapping = node->kind == YAMLDOC_MAPPING;
    if (node->kind == YAMLDOC_SCALAR) {
        print_text(node->text, out);
        return;
    }
    buf_add_char(out, mapping ? '{' : '[');
    for (int i = 0; i < node->item_count; i++) {
        if (i > 0) buf_add_text(out, ", ");
        if (mapping) buf_printf(out, "%s: ", node->items[i]->key);
        notify_option_print(node->items[i], out);
    }
    buf_add_char(out, mapping ? '}' : ']');
}

status_t notify_option_check(const char *text)
{
    struct yamldoc *document = NULL;
    TRY(yamldoc_parse(text, strlen(text), "notify", &document));
    status_t status = notify_option_check_node(document->root);
    yamldoc_free(document);
    return status;
}

static const char *keep(struct options *options, const struct yamldoc_node *node)
{
    return node != NULL ? option_keep(options, mem_strdup(node->text)) : NULL;
}

static void add_target(struct options *options, const struct yamldoc_node *target)
{
    struct coordinator_options *coordinator = &options->coordinator;
    struct notice_setting *setting = &coordinator->notify[coordinator->notify_count++];
    const struct yamldoc_node *command = yamldoc_get(target, "command");
    *setting =
        (struct notice_setting){.name = option_keep(options, mem_strdup(target->key)),
                                .url = keep(options, yamldoc_get(target, "url")),
                                .secret_file = keep(options, yamldoc_get(target, "secret_file")),
                                .ca_file = keep(options, yamldoc_get(target, "ca_file"))};
    if (command == NULL) return;
    const char **words = mem_alloc_array((size_t)command->item_count + 1, sizeof *words);
    option_keep(options, (char *)words);
    for (int i = 0; i < command->item_count; i++) words[i] = keep(options, command->items[i]);
    setting->command = words;
}

status_t notify_option_apply(struct options *options, const char *text)
{
    struct yamldoc *document = NULL;
    TRY(yamldoc_parse(text, strlen(text), "notify", &document));
    for (int i = 0; i < document->root->item_count; i++)
        add_target(options, document->root->items[i]);
    yamldoc_free(document);
    return NULL;
}
