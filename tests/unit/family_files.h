/* The family files of the source tree, for tests; $srcdir is its place. */
#ifndef FSDPD_TESTS_FAMILY_FILES_H
#define FSDPD_TESTS_FAMILY_FILES_H

#include "hf/hf.h"

/* families/NAME.yaml, parsed once and kept; ends the program if the file is unreadable. */
struct hf_family *family_file(const char *name);

/* The family of a config.json's model_type, likewise kept; hf_config_to_model's errors. */
status_t family_for(const char *json, size_t length, const char *file,
                    struct hf_family **family) FSDPD_MUST_USE;

#endif
