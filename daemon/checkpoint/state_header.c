/* The header of a state_dict's file; see state_header.h. */
#include "checkpoint/state_header.h"

#include <inttypes.h>
#include <stdio.h>

void state_header_write(struct buf *out, struct safetensors_entry *entries, int count,
                        uint64_t step, const char *job)
{
    static char dtype[] = "F32";
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, step);
    const struct safetensors_metadata metadata[] = {{"format", "pt"}, {"step", text}, {"job", job}};
    for (int i = 0; i < count; i++) entries[i].dtype = dtype;
    safetensors_write_header(out, entries, count, metadata, 3);
}
