/* help and completion: print the tables of the command line. */

#include "client.h"
#include "exit.h"

int verb_help(struct client *client)
{
    const char *name = client->options.argument_count > 0 ? client->options.arguments[0] : NULL;
    const struct verb *verb = name ? verb_find(name) : NULL;
    if (name != NULL && verb == NULL)
        return output_usage_error(status_new(STATUS_INVALID_ARGUMENT,
                                             "unknown verb '%s'; fsdpctl --help lists them", name));
    struct buf text = {0};
    options_help(verb, &text);
    output_print(&text);
    return EXIT_DONE;
}

int verb_completion(struct client *client)
{
    struct buf text = {0};
    if (!options_completion(client->options.arguments[0], &text))
        return output_usage_error(status_new(STATUS_INVALID_ARGUMENT,
                                             "completion: expected bash, zsh or fish, found '%s'",
                                             client->options.arguments[0]));
    output_print(&text);
    return EXIT_DONE;
}
