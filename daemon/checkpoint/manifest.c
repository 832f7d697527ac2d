/* The manifest as JSON; see manifest.h. */
#include "checkpoint/manifest.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"

#define FORMAT "fsdpd-checkpoint"
#define SEAL_BEGIN ",\n \"sha256\": \""
#define SEAL_END "\"\n}\n"
enum {
    VERSION = 3,
    VERSION_STATE = 4, /* with the optimizer's state or parameters in another type than f32 */
    NAME_MAX_BYTES = 4096,
    SEAL_BEGIN_BYTES = sizeof SEAL_BEGIN - 1,
    SEAL_BYTES = SEAL_BEGIN_BYTES + DIGEST_DIGITS + sizeof SEAL_END - 1,
};
#define FILE_BYTES_MAX (INT64_C(1) << 44)

char *manifest_file_name(int rank, char name[static 32])
{
    snprintf(name, 32, "rank-%05d.safetensors", rank);
    return name;
}

char *manifest_tensor_name(int unit, int slot, char name[static 48])
{
    if (slot < 0) snprintf(name, 48, "unit.%d.parameters", unit);
    else snprintf(name, 48, "unit.%d.slot.%d", unit, slot);
    return name;
}

uint64_t manifest_bytes(const struct manifest *manifest)
{
    uint64_t bytes = 0;
    for (int i = 0; i < manifest->world; i++) bytes += manifest->files[i].bytes;
    return bytes;
}

void manifest_deinit(struct manifest *manifest)
{
    for (int u = 0; u < manifest->unit_count; u++) {
        struct saved_unit *unit = &manifest->units[u];
        for (int p = 0; p < unit->parameter_count; p++) free(unit->parameters[p].name);
        free(unit->parameters);
        slot_layout_deinit(&unit->layout);
        free(unit->name);
    }
    free(manifest->units);
    state_entries_free(manifest->entries, manifest->entry_count);
    free(manifest->files);
    free(manifest->run);
    free(manifest->job);
    free(manifest->optimizer);
    *manifest = (struct manifest){0};
}

void manifest_lay_out(struct saved_unit *unit, enum state_dtype state)
{
    unit->layout.shape = unit->shape;
    for (int p = 0; p < unit->parameter_count; p++)
        if (unit->parameters[p].words != unit->parameters[p].elements)
            slot_layout_add_shaped(&unit->layout, unit->parameters[p].offset,
                                   unit->parameters[p].elements, unit->parameters[p].words);
    for (int p = 0; p < unit->parameter_count && unit->slots > 0 && state == STATE_INT8; p++)
        if (slot_packs(unit->parameters[p].elements))
            slot_layout_add(&unit->layout, unit->parameters[p].offset,
                            unit->parameters[p].elements);
    unit->layout.rounded = unit->rounded;
    unit->layout.halves = unit->slots > 0 && state == STATE_BF16;
    slot_layout_end(&unit->layout, unit->shard, unit->shard_world);
}

/* Writing. Numbers of 64 bits that count are far below 2^63; hashes are texts. */

static void put(json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, value) != 0) abort(); /* memory is gone */
}

static void put_count(json_t *object, const char *key, uint64_t value)
{
    put(object, key, json_integer((json_int_t)value));
}

static void put_number(json_t *object, const char *key, double value)
{
    put(object, key, json_real(isfinite(value) ? value : 0));
}

static void put_hash(json_t *object, const char *key, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%016" PRIx64, value);
    put(object, key, json_string(text));
}

static const char *const preference_keys[PREFERENCE_SUMS] = {"logps_chosen", "logps_rejected",
                                                             "rewards_chosen", "rewards_rejected",
                                                             "rewards_accuracies"};

static json_t *write_tally(const struct tally *tally)
{
    json_t *object = json_object();
    put_number(object, "loss", tally->loss);
    put_number(object, "correct", tally->correct);
    put_number(object, "samples", tally->samples);
    put_number(object, "weight", tally->weight);
    put_number(object, "tokens", tally->tokens);
    for (int k = 0; k < PREFERENCE_SUMS; k++)
        if (tally->preference[k] != 0) put_number(object, preference_keys[k], tally->preference[k]);
    put_count(object, "steps", tally->steps);
    put_count(object, "ns", (uint64_t)tally->ns);
    put_count(object, "compute_ns", (uint64_t)tally->compute_ns);
    put_count(object, "comm_ns", (uint64_t)tally->comm_ns);
    put_count(object, "exposed_ns", (uint64_t)tally->exposed_ns);
    return object;
}

static json_t *write_progress(const struct saved_progress *progress)
{
    json_t *object = json_object();
    put_count(object, "step", progress->step);
    put_count(object, "rows", progress->rows);
    put_count(object, "epochs", progress->epochs);
    put_count(object, "updates", progress->updates);
    put_count(object, "skipped_steps", progress->skipped_steps);
    put_number(object, "epoch_rate", progress->epoch_rate);
    put_number(object, "gradient_norm", progress->gradient_norm);
    put(object, "interval", write_tally(&progress->interval));
    put(object, "epoch", write_tally(&progress->epoch));
    put_count(object, "evaluation_ns", (uint64_t)progress->evaluation_ns);
    if (progress->base != 0) put_hash(object, "base", progress->base);
    if (progress->best.known) {
        put_number(object, "best", progress->best.best);
        put_count(object, "best_step", progress->best.step);
    }
    if (progress->early_stop.known) {
        put_number(object, "early_stop_best", progress->early_stop.best);
        put_count(object, "early_stop_step", progress->early_stop.step);
        put_count(object, "early_stop_stale", progress->early_stop.stale);
    }
    if (progress->evaluated > 1) { /* more than the job's own data */
        put_count(object, "evaluated", progress->evaluated);
        put_hash(object, "evaluated_of", progress->evaluated_of);
    }
    if (progress->validated) {
        put_number(object, "validation_loss", progress->validation_loss);
        put_count(object, "validation_step", progress->validation_step);
    }
    return object;
}

static json_t *write_entries(const struct manifest *manifest)
{
    json_t *list = json_array();
    for (int e = 0; e < manifest->entry_count; e++) {
        const struct state_entry *entry = &manifest->entries[e];
        json_t *object = json_object(), *shape = json_array();
        put(object, "name", json_string(entry->name));
        for (int d = 0; d < entry->dim_count; d++)
            json_array_append_new(shape, json_integer((json_int_t)entry->dims[d]));
        put(object, "shape", shape);
        if (entry->count) put(object, "type", json_string("I64"));
        put_count(object, "unit", (uint64_t)entry->unit);
        put_count(object, "offset", (uint64_t)entry->offset);
        json_array_append_new(list, object);
    }
    return list;
}

static const char *const shape_words[] = {"", "factors", "others"};

static json_t *write_unit(const struct saved_unit *unit)
{
    json_t *object = json_object(), *list = json_array();
    put(object, "name", json_string(unit->name));
    put_count(object, "shard", (uint64_t)unit->shard);
    put_count(object, "shard_world", (uint64_t)unit->shard_world);
    put_count(object, "first_rank", (uint64_t)unit->first_rank);
    put_count(object, "slots", (uint64_t)unit->slots);
    if (unit->rounded) put(object, "rounded", json_true());
    if (unit->shape != SHAPE_PLAIN) put(object, "shape", json_string(shape_words[unit->shape]));
    for (int p = 0; p < unit->parameter_count; p++) {
        const struct saved_parameter *parameter = &unit->parameters[p];
        json_t *entry = json_object();
        put(entry, "name", json_string(parameter->name));
        put_count(entry, "elements", (uint64_t)parameter->elements);
        put_count(entry, "offset", (uint64_t)parameter->offset);
        if (parameter->words != parameter->elements)
            put_count(entry, "words", (uint64_t)parameter->words);
        json_array_append_new(list, entry);
    }
    put(object, "parameters", list);
    return object;
}

static json_t *write_file(const char *name, const struct saved_file *file)
{
    json_t *object = json_object();
    put(object, "name", json_string(name));
    put_count(object, "bytes", file->bytes);
    char sum[DIGEST_DIGITS + 1];
    put(object, "blocks_sha256", json_string(digest_format(&file->sum, sum)));
    return object;
}

static int add_text(const char *text, size_t size, void *user)
{
    buf_add(user, text, size);
    return 0;
}

/* What readers of the first version would take for an f32 per element. */
static bool is_plain(const struct manifest *manifest)
{
    for (int u = 0; u < manifest->unit_count; u++)
        if (manifest->units[u].rounded || manifest->units[u].shape != SHAPE_PLAIN) return false;
    return manifest->state == STATE_F32;
}

void manifest_write(const struct manifest *manifest, struct buf *out)
{
    json_t *root = json_object(), *units = json_array(), *files = json_array();
    char name[32];
    put(root, "format", json_string(FORMAT));
    put_count(root, "version", is_plain(manifest) ? VERSION : VERSION_STATE);
    put(root, "run", json_string(manifest->run));
    put(root, "job", json_string(manifest->job));
    put_count(root, "attempt", manifest->attempt);
    put_count(root, "time_ms", (uint64_t)manifest->time_ms);
    put_hash(root, "plan_hash", manifest->plan_hash);
    put(root, "optimizer", json_string(manifest->optimizer));
    if (manifest->state != STATE_F32)
        put(root, "state_dtype", json_string(state_dtype_name(manifest->state)));
    if (manifest->averages) put(root, "averages", json_true());
    put_count(root, "world", (uint64_t)manifest->world);
    put(root, "progress", write_progress(&manifest->progress));
    for (int u = 0; u < manifest->unit_count; u++)
        json_array_append_new(units, write_unit(&manifest->units[u]));
    put(root, "units", units);
    put(root, "state_dict", write_entries(manifest));
    for (int r = 0; r < manifest->world; r++) {
        json_array_append_new(files, write_file(manifest_file_name(r, name), &manifest->files[r]));
    }
    put(root, "files", files);
    if (manifest->reports.bytes > 0)
        put(root, "reports", write_file(MANIFEST_REPORTS_FILE, &manifest->reports));
    json_dump_callback(root, add_text, out, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    json_decref(root);
    out->length -= strlen("\n}");
    manifest_seal(out);
}

void manifest_seal(struct buf *text)
{
    struct digest sum;
    char digits[DIGEST_DIGITS + 1];
    digest_of(buf_text(text), text->length, &sum);
    buf_printf(text, SEAL_BEGIN "%s" SEAL_END, digest_format(&sum, digits));
}

/* Reading. */

static status_t refuse(const char *key, const char *what)
{
    return status_new(STATUS_INVALID_ARGUMENT, "%s: %s", key, what);
}

static status_t get_integer(const json_t *object, const char *key, int64_t least, int64_t most,
                            int64_t *value)
{
    const json_t *found = json_object_get(object, key);
    if (!json_is_integer(found)) return refuse(key, "expected an integer");
    json_int_t integer = json_integer_value(found);
    if (integer < least || integer > most)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: expected %" PRId64 " to %" PRId64 ", found %" JSON_INTEGER_FORMAT,
                          key, least, most, integer);
    *value = integer;
    return NULL;
}

static status_t get_int(const json_t *object, const char *key, int least, int most, int *value)
{
    int64_t integer = 0;
    TRY(get_integer(object, key, least, most, &integer));
    *value = (int)integer;
    return NULL;
}

static status_t get_count(const json_t *object, const char *key, uint64_t *value)
{
    int64_t integer = 0;
    TRY(get_integer(object, key, 0, INT64_MAX, &integer));
    *value = (uint64_t)integer;
    return NULL;
}

static status_t get_ns(const json_t *object, const char *key, int64_t *value)
{
    return get_integer(object, key, 0, INT64_MAX / 4, value);
}

static status_t get_number(const json_t *object, const char *key, double *value)
{
    const json_t *found = json_object_get(object, key);
    if (!json_is_number(found)) return refuse(key, "expected a number");
    *value = json_number_value(found);
    return isfinite(*value) ? NULL : refuse(key, "expected a finite number");
}

static status_t get_text(const json_t *object, const char *key, const char **value)
{
    const json_t *found = json_object_get(object, key);
    if (!json_is_string(found)) return refuse(key, "expected a text");
    size_t length = json_string_length(found);
    *value = json_string_value(found);
    if (length == 0 || length > NAME_MAX_BYTES || strlen(*value) != length)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: expected 1 to %d characters", key,
                          NAME_MAX_BYTES);
    return NULL;
}

static status_t keep_text(const json_t *object, const char *key, char **value)
{
    const char *text = NULL;
    TRY(get_text(object, key, &text));
    *value = mem_strdup(text);
    return NULL;
}

static status_t get_digits(const json_t *object, const char *key, size_t digits, const char **value)
{
    TRY(get_text(object, key, value));
    if (strlen(*value) != digits || strspn(*value, "0123456789abcdef") != digits)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: expected %zu hexadecimal digits", key,
                          digits);
    return NULL;
}

static status_t get_hash(const json_t *object, const char *key, uint64_t *value)
{
    const char *text = NULL;
    TRY(get_digits(object, key, 16, &text));
    *value = strtoull(text, NULL, 16);
    return NULL;
}

static status_t get_digest(const json_t *object, const char *key, struct digest *value)
{
    const char *text = NULL;
    TRY(get_digits(object, key, DIGEST_DIGITS, &text));
    return digest_parse(text, value) ? NULL : refuse(key, "expected a sum");
}

static status_t read_tally(const json_t *progress, const char *key, struct tally *tally)
{
    const json_t *object = json_object_get(progress, key);
    TRY(get_number(object, "loss", &tally->loss));
    TRY(get_number(object, "correct", &tally->correct));
    TRY(get_number(object, "samples", &tally->samples));
    TRY(get_number(object, "weight", &tally->weight));
    TRY(get_number(object, "tokens", &tally->tokens));
    for (int k = 0; k < PREFERENCE_SUMS; k++)
        if (json_object_get(object, preference_keys[k]) != NULL)
            TRY(get_number(object, preference_keys[k], &tally->preference[k]));
    TRY(get_count(object, "steps", &tally->steps));
    TRY(get_ns(object, "ns", &tally->ns));
    TRY(get_ns(object, "compute_ns", &tally->compute_ns));
    TRY(get_ns(object, "comm_ns", &tally->comm_ns));
    return get_ns(object, "exposed_ns", &tally->exposed_ns);
}

/* Manifests of jobs without it have none. */
static status_t read_best(const json_t *object, struct saved_early_stop *best)
{
    best->known = json_object_get(object, "best") != NULL;
    if (!best->known) return NULL;
    TRY(get_number(object, "best", &best->best));
    return get_count(object, "best_step", &best->step);
}

static status_t read_early_stop(const json_t *object, struct saved_early_stop *early)
{
    early->known = json_object_get(object, "early_stop_best") != NULL;
    if (!early->known) return NULL;
    TRY(get_number(object, "early_stop_best", &early->best));
    TRY(get_count(object, "early_stop_step", &early->step));
    return get_count(object, "early_stop_stale", &early->stale);
}

/* Manifests of jobs without held-out sets have none. */
static status_t read_evaluated(const json_t *object, struct saved_progress *progress)
{
    uint64_t sets = 0;
    if (json_object_get(object, "evaluated") == NULL) return NULL;
    TRY(get_count(object, "evaluated", &sets));
    progress->evaluated = (uint32_t)sets;
    return get_hash(object, "evaluated_of", &progress->evaluated_of);
}

static status_t read_progress(const json_t *object, struct saved_progress *progress)
{
    TRY(get_count(object, "step", &progress->step));
    TRY(get_count(object, "rows", &progress->rows));
    TRY(get_count(object, "epochs", &progress->epochs));
    TRY(get_count(object, "updates", &progress->updates));
    TRY(get_count(object, "skipped_steps", &progress->skipped_steps));
    TRY(get_number(object, "epoch_rate", &progress->epoch_rate));
    TRY(get_number(object, "gradient_norm", &progress->gradient_norm));
    TRY(status_wrap(read_tally(object, "interval", &progress->interval), "interval"));
    TRY(status_wrap(read_tally(object, "epoch", &progress->epoch), "epoch"));
    TRY(get_ns(object, "evaluation_ns", &progress->evaluation_ns));
    if (json_object_get(object, "base") != NULL) TRY(get_hash(object, "base", &progress->base));
    TRY(read_best(object, &progress->best));
    TRY(read_early_stop(object, &progress->early_stop));
    TRY(read_evaluated(object, progress));
    progress->validated = json_object_get(object, "validation_step") != NULL;
    if (!progress->validated) return NULL;
    TRY(get_number(object, "validation_loss", &progress->validation_loss));
    return get_count(object, "validation_step", &progress->validation_step);
}

/* Parameters lie one behind the other. */
static status_t read_parameter(const json_t *object, struct saved_unit *unit)
{
    int64_t end = 0, whole = unit->shard * unit->shard_world;
    if (unit->parameter_count > 0) {
        const struct saved_parameter *last = &unit->parameters[unit->parameter_count - 1];
        end = last->offset + last->elements;
    }
    struct saved_parameter *parameter = &unit->parameters[unit->parameter_count];
    TRY(get_integer(object, "elements", 0, whole, &parameter->elements));
    TRY(get_integer(object, "offset", end, whole - parameter->elements, &parameter->offset));
    parameter->words = parameter->elements;
    if (unit->shape != SHAPE_PLAIN && json_object_get(object, "words") != NULL)
        TRY(get_integer(object, "words", 0, 2 * parameter->elements, &parameter->words));
    TRY(keep_text(object, "name", &parameter->name));
    unit->parameter_count++;
    return NULL;
}

/* The sizes; the unit's flat parameter, of `whole` elements, bounds every product. */
static status_t read_shape(const json_t *shape, int64_t whole, struct state_entry *entry)
{
    int64_t elements = 1;
    size_t count = json_array_size(shape);
    if (!json_is_array(shape) || count > TENSOR_MAX_DIMS)
        return refuse("shape", "expected a list of sizes");
    for (size_t d = 0; d < count; d++) {
        const json_t *size = json_array_get(shape, d);
        json_int_t value = json_is_integer(size) ? json_integer_value(size) : -1;
        if (value < 0 || (value > 0 && elements > whole / value))
            return refuse("shape", "expected sizes whose product the unit has");
        elements *= value;
        entry->dims[entry->dim_count++] = value;
    }
    return elements <= whole ? NULL : refuse("shape", "expected at most the elements of the unit");
}

static status_t read_entry(const json_t *object, struct manifest *manifest)
{
    struct state_entry *entry = &manifest->entries[manifest->entry_count];
    TRY(get_int(object, "unit", 0, manifest->unit_count - 1, &entry->unit));
    const struct saved_unit *unit = &manifest->units[entry->unit];
    int64_t whole = unit->shard * unit->shard_world;
    TRY(read_shape(json_object_get(object, "shape"), whole, entry));
    int64_t elements = state_entry_elements(entry);
    const char *type = json_string_value(json_object_get(object, "type"));
    entry->count = type != NULL && strcmp(type, "I64") == 0;
    if (json_object_get(object, "type") != NULL && !(entry->count && elements == 2))
        return refuse("type", "expected I64, of two elements");
    TRY(get_integer(object, "offset", 0, whole - elements, &entry->offset));
    TRY(keep_text(object, "name", &entry->name));
    manifest->entry_count++;
    return NULL;
}

static status_t read_entries(const json_t *root, struct manifest *manifest)
{
    const json_t *list = json_object_get(root, "state_dict");
    if (!json_is_array(list)) return refuse("state_dict", "expected a list");
    size_t count = json_array_size(list);
    manifest->entries = mem_alloc_array(count + 1, sizeof *manifest->entries);
    for (size_t e = 0; e < count; e++)
        TRY(status_wrap(read_entry(json_array_get(list, e), manifest), "state_dict %zu", e));
    return NULL;
}

/* State in 8 bits lies on whole blocks, of which none has parts of two parameters or ranks. */
static status_t check_blocks(const struct saved_unit *unit)
{
    int64_t end = 0;
    bool packs = false;
    for (int p = 0; p < unit->parameter_count; p++) {
        int64_t offset = unit->parameters[p].offset, elements = unit->parameters[p].elements;
        bool packed = slot_packs(elements);
        if (offset < end || (packed && offset % SLOT_BLOCK != 0))
            return refuse("parameters", "expected state in 8 bits on blocks of its own");
        packs = packs || packed;
        end = packed ? offset + (int64_t)round_up((size_t)elements, SLOT_BLOCK) : 0;
    }
    if (packs && (unit->shard % SLOT_BLOCK != 0 || end > unit->shard * unit->shard_world))
        return refuse("shard", "expected whole blocks of state in 8 bits");
    return NULL;
}

static status_t check_halves(const struct saved_unit *unit)
{
    for (int p = 0; p < unit->parameter_count; p++)
        if (unit->parameters[p].offset % 2 != 0)
            return refuse("parameters", "expected even offsets of values in bf16");
    return unit->shard % 2 == 0 ? NULL : refuse("shard", "expected an even one for values in bf16");
}

static status_t read_shape_of_state(const json_t *object, const struct manifest *manifest,
                                    struct saved_unit *unit)
{
    const char *shape = json_string_value(json_object_get(object, "shape"));
    if (shape == NULL) return NULL;
    for (size_t k = 1; k < COUNT_OF(shape_words); k++)
        if (strcmp(shape, shape_words[k]) == 0) unit->shape = (enum slot_shape)k;
    if (unit->shape == SHAPE_PLAIN) return refuse("shape", "expected factors or others");
    if (slot_shaped(unit->shape) < unit->slots && manifest->state == STATE_F32) return NULL;
    return refuse("shape", "expected in f32, and of a slot that the unit has");
}

static status_t read_unit(const json_t *object, const struct manifest *manifest,
                          struct saved_unit *unit)
{
    int world = manifest->world;
    TRY(keep_text(object, "name", &unit->name));
    TRY(get_int(object, "shard_world", 1, world, &unit->shard_world));
    TRY(get_int(object, "first_rank", 0, world - unit->shard_world, &unit->first_rank));
    TRY(get_integer(object, "shard", 0, MANIFEST_ELEMENTS_MAX, &unit->shard));
    TRY(get_int(object, "slots", 0, MANIFEST_SLOTS_MAX, &unit->slots));
    TRY(read_shape_of_state(object, manifest, unit));
    const json_t *list = json_object_get(object, "parameters");
    if (!json_is_array(list)) return refuse("parameters", "expected a list");
    size_t count = json_array_size(list);
    unit->parameters = mem_alloc_array(count + 1, sizeof *unit->parameters);
    for (size_t p = 0; p < count; p++)
        TRY(status_wrap(read_parameter(json_array_get(list, p), unit), "parameter %zu", p));
    if (manifest->state == STATE_INT8 && unit->slots > 0) TRY(check_blocks(unit));
    unit->rounded = json_is_true(json_object_get(object, "rounded"));
    if (unit->rounded || (manifest->state == STATE_BF16 && unit->slots > 0))
        TRY(check_halves(unit));
    manifest_lay_out(unit, manifest->state);
    return NULL;
}

static status_t read_units(const json_t *root, struct manifest *manifest)
{
    const json_t *list = json_object_get(root, "units");
    size_t count = json_array_size(list); /* 0 if it is not a list */
    if (!json_is_array(list) || count > MANIFEST_UNITS_MAX)
        return refuse("units", "expected a list of units");
    manifest->units = mem_alloc_array(count + 1, sizeof *manifest->units);
    for (size_t u = 0; u < count; u++) {
        struct saved_unit *unit = &manifest->units[manifest->unit_count++];
        TRY(status_wrap(read_unit(json_array_get(list, u), manifest, unit), "unit %zu", u));
    }
    return NULL;
}

static status_t read_file(const json_t *object, const char *expected, struct saved_file *file)
{
    const char *name = NULL;
    int64_t bytes = 0;
    TRY(get_text(object, "name", &name));
    if (strcmp(name, expected) != 0)
        return status_new(STATUS_INVALID_ARGUMENT, "name: expected %s", expected);
    TRY(get_integer(object, "bytes", 1, FILE_BYTES_MAX, &bytes));
    file->bytes = (uint64_t)bytes;
    return get_digest(object, "blocks_sha256", &file->sum);
}

static status_t read_files(const json_t *root, struct manifest *manifest)
{
    const json_t *list = json_object_get(root, "files");
    if (!json_is_array(list) || json_array_size(list) != (size_t)manifest->world)
        return refuse("files", "expected a list of one file per rank");
    manifest->files = mem_alloc_array((size_t)manifest->world, sizeof *manifest->files);
    char name[32];
    for (int r = 0; r < manifest->world; r++)
        TRY(status_wrap(read_file(json_array_get(list, (size_t)r), manifest_file_name(r, name),
                                  &manifest->files[r]),
                        "file %d", r));
    const json_t *reports = json_object_get(root, "reports");
    if (reports == NULL) return NULL;
    TRY(status_wrap(read_file(reports, MANIFEST_REPORTS_FILE, &manifest->reports), "reports"));
    if (manifest->reports.bytes > MANIFEST_REPORTS_MAX) return refuse("reports", "too large");
    return NULL;
}

static status_t read_state(const json_t *root, enum state_dtype *state)
{
    const char *name = NULL;
    *state = STATE_F32;
    if (json_object_get(root, "state_dtype") == NULL) return NULL;
    TRY(get_text(root, "state_dtype", &name));
    for (enum state_dtype dtype = STATE_INT8; dtype <= STATE_BF16; dtype++) {
        *state = dtype;
        if (strcmp(name, state_dtype_name(dtype)) == 0) return NULL;
    }
    return refuse("state_dtype", "expected int8 or bf16");
}

static status_t read_root(const json_t *root, struct manifest *manifest)
{
    int64_t attempt = 0;
    TRY(keep_text(root, "run", &manifest->run));
    TRY(keep_text(root, "job", &manifest->job));
    TRY(keep_text(root, "optimizer", &manifest->optimizer));
    manifest->averages = json_is_true(json_object_get(root, "averages"));
    TRY(read_state(root, &manifest->state));
    TRY(get_integer(root, "attempt", 0, UINT32_MAX, &attempt));
    manifest->attempt = (uint32_t)attempt;
    TRY(get_integer(root, "time_ms", 0, INT64_MAX, &manifest->time_ms));
    TRY(get_hash(root, "plan_hash", &manifest->plan_hash));
    TRY(get_int(root, "world", 1, MANIFEST_WORLD_MAX, &manifest->world));
    status_t status = read_files(root, manifest);
    if (status != NULL && manifest->files == NULL) manifest->world = 0;
    TRY(status);
    TRY(status_wrap(read_progress(json_object_get(root, "progress"), &manifest->progress),
                    "progress"));
    TRY(read_units(root, manifest));
    return read_entries(root, manifest);
}

/* Whether the text ends with its sum, which is the only end that it can have. */
static bool find_seal(const char *text, size_t length, struct digest *sum)
{
    if (length < SEAL_BYTES) return false;
    const char *seal = text + length - SEAL_BYTES, *digits = seal + SEAL_BEGIN_BYTES;
    return memcmp(seal, SEAL_BEGIN, SEAL_BEGIN_BYTES) == 0 && digest_parse(digits, sum) &&
           memcmp(digits + DIGEST_DIGITS, SEAL_END, sizeof SEAL_END - 1) == 0;
}

/* For a text without a checksum, or with the right one. */
static status_t check_version(const json_t *root, bool sealed)
{
    const char *format = NULL;
    int version = 0;
    TRY(get_text(root, "format", &format));
    if (strcmp(format, FORMAT) != 0) return refuse("format", "expected " FORMAT);
    TRY(get_int(root, "version", 1, INT32_MAX, &version));
    if (version == VERSION || version == VERSION_STATE)
        return sealed ? NULL : refuse("sha256", "it is damaged: its checksum is not at its end");
    return status_new(STATUS_FAILED_PRECONDITION,
                      "version: %s fsdpd wrote this (%d, this one reads %d)",
                      version > VERSION ? "a newer" : "an older", version, VERSION_STATE);
}

static status_t check_sum(const char *text, size_t length, bool sealed, struct manifest *manifest)
{
    struct digest sum;
    char computed[DIGEST_DIGITS + 1], recorded[DIGEST_DIGITS + 1];
    if (!sealed) return NULL; /* check_version reports it */
    digest_of(text, length - SEAL_BYTES, &sum);
    if (digest_equal(&sum, &manifest->sum)) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "it is damaged: its checksum is %s, not %s",
                      digest_format(&sum, computed), digest_format(&manifest->sum, recorded));
}

status_t manifest_read(const char *text, size_t length, const char *file, struct manifest *out)
{
    struct manifest manifest = {0};
    bool sealed = find_seal(text, length, &manifest.sum);
    TRY(status_wrap(check_sum(text, length, sealed, &manifest), "%s", file));
    json_error_t error;
    json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL)
        return status_new(STATUS_INVALID_ARGUMENT, "%s:%d: %s", file, error.line, error.text);
    status_t status = check_version(root, sealed);
    if (status == NULL) status = read_root(root, &manifest);
    json_decref(root);
    if (status != NULL) {
        manifest_deinit(&manifest);
        return status_wrap(status, "%s", file);
    }
    *out = manifest;
    return NULL;
}
