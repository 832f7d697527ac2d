/* The manifest of a checkpoint: what is read is consistent, and reads as it is written. The input
 * gets its sum here, or nothing behind that would ever be reached. */
#include <string.h>

#include "checkpoint/manifest.h"
#include "fuzz.h"

static void check_unit(const struct manifest *manifest, const struct saved_unit *unit)
{
    FUZZ_CHECK(unit->shard >= 0 && unit->shard <= MANIFEST_ELEMENTS_MAX, "%s", unit->name);
    FUZZ_CHECK(unit->first_rank >= 0 && unit->shard_world >= 1 &&
                   unit->first_rank + unit->shard_world <= manifest->world,
               "%s", unit->name);
    FUZZ_CHECK(unit->slots >= 0 && unit->slots <= MANIFEST_SLOTS_MAX, "%s", unit->name);
    int64_t end = 0;
    for (int p = 0; p < unit->parameter_count; p++) {
        const struct saved_parameter *parameter = &unit->parameters[p];
        FUZZ_CHECK(parameter->offset >= end && parameter->elements >= 0, "%s", parameter->name);
        end = parameter->offset + parameter->elements;
        FUZZ_CHECK(end <= unit->shard * unit->shard_world, "%s", parameter->name);
    }
}

static void check_entry(const struct manifest *manifest, const struct state_entry *entry)
{
    FUZZ_CHECK(entry->dim_count >= 0 && entry->dim_count <= TENSOR_MAX_DIMS, "%s", entry->name);
    FUZZ_CHECK(entry->unit >= 0 && entry->unit < manifest->unit_count, "%s", entry->name);
    const struct saved_unit *unit = &manifest->units[entry->unit];
    int64_t elements = state_entry_elements(entry);
    FUZZ_CHECK(elements >= 0 && entry->offset >= 0 &&
                   entry->offset + elements <= unit->shard * unit->shard_world,
               "%s", entry->name);
}

static void check_manifest(const struct manifest *manifest)
{
    FUZZ_CHECK(manifest->world >= 1 && manifest->world <= MANIFEST_WORLD_MAX, "%d",
               manifest->world);
    for (int u = 0; u < manifest->unit_count; u++) check_unit(manifest, &manifest->units[u]);
    for (int e = 0; e < manifest->entry_count; e++) check_entry(manifest, &manifest->entries[e]);
    struct buf out = {0}, twice = {0};
    struct manifest again;
    manifest_write(manifest, &out);
    status_t status = manifest_read(buf_text(&out), out.length, "manifest", &again);
    FUZZ_CHECK(status == NULL, "%s", status_message(status));
    FUZZ_CHECK(again.unit_count == manifest->unit_count && again.world == manifest->world &&
                   again.progress.step == manifest->progress.step &&
                   again.progress.epoch_rate == manifest->progress.epoch_rate &&
                   manifest_bytes(&again) == manifest_bytes(manifest),
               "%s", buf_text(&out));
    manifest_write(&again, &twice);
    FUZZ_CHECK(strcmp(buf_text(&out), buf_text(&twice)) == 0, "%s", buf_text(&twice));
    manifest_deinit(&again);
    buf_deinit(&twice);
    buf_deinit(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct manifest manifest;
    struct buf text = {0};
    while (size > 0 && data[size - 1] != '}') size--;
    if (size > 0) buf_add(&text, data, size - 1);
    manifest_seal(&text);
    status_t status = manifest_read(buf_text(&text), text.length, "manifest", &manifest);
    buf_deinit(&text);
    if (status != NULL) {
        fuzz_expect_user_error(status);
        return 0;
    }
    check_manifest(&manifest);
    manifest_deinit(&manifest);
    return 0;
}
