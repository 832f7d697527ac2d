/*
 * `notify` of fsdpd.yaml: the commands and webhooks to which notices of jobs go, by name. The value
 * of this option is one text, the mapping in YAML's flow notation.
 */
#ifndef FSDPD_NOTIFY_OPTION_H
#define FSDPD_NOTIFY_OPTION_H

#include "options.h"
#include "yaml/yaml.h"

/* INVALID_ARGUMENT names the place and the key. */
status_t notify_option_check_node(const struct yamldoc_node *node) FSDPD_MUST_USE;
/* Appends the mapping as a text; it must have passed the check. */
void notify_option_print(const struct yamldoc_node *node, struct buf *out);

/* The same check of a text, for the environment. */
status_t notify_option_check(const char *text) FSDPD_MUST_USE;
/* Adds the targets of a text that has passed it to the coordinator's options. */
status_t notify_option_apply(struct options *options, const char *text) FSDPD_MUST_USE;

#endif
