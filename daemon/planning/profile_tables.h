/* A profile's tables of measured durations, as YAML (docs/profiles.md). Internal to this room. */
#ifndef FSDPD_PLANNING_PROFILE_TABLES_H
#define FSDPD_PLANNING_PROFILE_TABLES_H

#include "base/buf.h"
#include "planning/plan_tables.h"
#include "yaml/yaml.h"

/* The caller prepares and frees *tables. Errors name file, line and key. */
status_t profile_tables_read(const struct yamldoc_node *node,
                             struct plan_tables **tables) FSDPD_MUST_USE;

/* The key `tables` with all that profile_tables_read reads. */
void profile_tables_print(const struct plan_tables *tables, struct buf *out);

#endif
