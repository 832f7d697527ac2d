/* Messages between ranks; see agreement.h. */
#include "checkpoint/agreement.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

struct outcome {
    uint32_t code, lacks;
    char text[1024];
};

status_t agreement_wait(const struct agreement *agreement, status_t enqueued)
{
    status_t status = enqueued;
    if (status == NULL) status = lane_wait(*agreement->lane, 2 * agreement->timeout_ms + 1000);
    if (status == NULL) return NULL;
    lane_close(*agreement->lane);
    *agreement->lane = NULL;
    return status;
}

status_t agreement_share(const struct agreement *agreement, void *bytes, size_t size, int root)
{
    if (agreement->comm == NULL) return NULL;
    AUTO_FREE void *copy = mem_dup(bytes, size);
    status_t status = agreement_wait(agreement, comm_broadcast(agreement->comm, *agreement->lane,
                                                               copy, size, root));
    if (status == NULL) memcpy(bytes, copy, size);
    return status;
}

status_t agreement_share_outcome(const struct agreement *agreement, status_t *outcome, int root)
{
    struct outcome shared = {.code = (uint32_t)status_code(*outcome),
                             .lacks = status_lacks(*outcome)};
    snprintf(shared.text, sizeof shared.text, "%s", status_message(*outcome));
    TRY(agreement_share(agreement, &shared, sizeof shared, root));
    if (agreement->comm == NULL) return NULL;
    shared.text[sizeof shared.text - 1] = '\0';
    status_free(*outcome);
    *outcome = NULL;
    if (shared.code != STATUS_OK)
        *outcome = status_new((enum status_code)shared.code, "%s", shared.text);
    status_set_lacks(*outcome, shared.lacks != 0);
    return NULL;
}

status_t agreement_reach(const struct agreement *agreement, status_t *outcome)
{
    if (agreement->comm == NULL) return NULL;
    int world = comm_world(agreement->comm), culprit = -1;
    AUTO_FREE float *code = mem_alloc(sizeof *code);
    AUTO_FREE float *codes = mem_alloc_array((size_t)world, sizeof *codes);
    *code = (float)status_code(*outcome);
    status_t status = agreement_wait(agreement, comm_all_gather(agreement->comm, *agreement->lane,
                                                                code, codes, 1));
    for (int r = 0; r < world && status == NULL && culprit < 0; r++)
        if (codes[r] != 0) culprit = r;
    if (status != NULL || culprit < 0) return status;
    return agreement_share_outcome(agreement, outcome, culprit);
}

void agreement_pack(uint64_t value, int count, float *packed)
{
    for (int i = 0; i < count; i++) packed[i] = (float)(value >> 16 * i & 0xffff);
}

uint64_t agreement_unpack(const float *packed, int count)
{
    uint64_t value = 0;
    for (int i = 0; i < count; i++) value |= (uint64_t)packed[i] << 16 * i;
    return value;
}
