/*
 * Arrays: one job for each index of a list, of one job file in which ${index} stands for it, and in
 * a sweep ${NAME} for a value that was drawn. They are put into the values of the document before
 * these are read, so that each has the type of its key. Pure functions, any thread.
 */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "proto/message.h"
#include "spec/internal.h"

static const char mark[] = "${index}";

/* ---- indices ---- */

static status_t refuse(const char *text, const char *why)
{
    char shown[72];
    return status_new(STATUS_INVALID_ARGUMENT,
                      "expected indices such as 1-20, 1,3,7-9 or 0-100:10, found '%s'%s",
                      yamldoc_excerpt(text, shown), why);
}

/* Digits at *at, which it moves behind them. */
static bool read_index(const char **at, uint32_t *value)
{
    size_t digits = strspn(*at, "0123456789");
    if (digits < 1 || digits > 9) return false;
    *value = (uint32_t)strtoul(*at, NULL, 10);
    *at += digits;
    return true;
}

/* "7", "7-9" or "0-100:10" at *at. */
static bool read_range(const char **at, uint32_t *first, uint32_t *last, uint32_t *step)
{
    *step = 1;
    if (!read_index(at, first)) return false;
    *last = *first;
    if (**at != '-') return true;
    (*at)++;
    if (!read_index(at, last) || *last < *first) return false;
    if (**at != ':') return true;
    (*at)++;
    return read_index(at, step) && *step > 0;
}

static int compare(const void *a, const void *b)
{
    uint32_t first = *(const uint32_t *)a, second = *(const uint32_t *)b;
    return first < second ? -1 : first > second;
}

static status_t check_once(const char *text, const uint32_t *indices, size_t count)
{
    AUTO_FREE uint32_t *sorted = mem_alloc_array(count + 1, sizeof *sorted);
    memcpy(sorted, indices, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, compare);
    for (size_t i = 1; i < count; i++)
        if (sorted[i] == sorted[i - 1]) {
            AUTO_FREE char *why = mem_printf(", which has %u twice", sorted[i]);
            return refuse(text, why);
        }
    return NULL;
}

static status_t read_indices(const char *text, uint32_t *indices, size_t *count)
{
    *count = 0;
    for (const char *at = text;; at++) {
        uint32_t first, last, step;
        at += strspn(at, " ");
        if (!read_range(&at, &first, &last, &step)) return refuse(text, "");
        for (uint64_t index = first; index <= last; index += step) {
            if (*count == SPEC_ARRAY_MAX)
                return status_new(STATUS_INVALID_ARGUMENT,
                                  "expected at most %d indices, found more", SPEC_ARRAY_MAX);
            indices[(*count)++] = (uint32_t)index;
        }
        at += strspn(at, " ");
        if (*at == '\0') return check_once(text, indices, *count);
        if (*at != ',') return refuse(text, "");
    }
}

status_t spec_array_indices(const char *text, uint32_t **indices, size_t *count)
{
    uint32_t *read = mem_alloc_array(SPEC_ARRAY_MAX, sizeof *read);
    status_t status = read_indices(text, read, count);
    if (status == NULL) *indices = mem_resize_array(read, *count, sizeof *read);
    else free(read);
    return status;
}

/* ---- ${index} ---- */

/* The values of a document that depend on the index. */
struct marked {
    struct yamldoc_node **nodes;
    char **texts; /* as in the file */
    size_t count, capacity, text_capacity;
    struct yamldoc_node *name, *indices; /* keys of the file */
    bool in_name;
    const Fsdpd__V1__SweepSpec *sweep; /* NULL: only ${index} */
};

static void marked_deinit(struct marked *marked)
{
    for (size_t i = 0; i < marked->count; i++) free(marked->texts[i]);
    free(marked->texts);
    free(marked->nodes);
}

/* `text` with `value` in place of each mark. */
static char *replace(const char *text, const char *name, const char *value)
{
    struct buf out = {0};
    for (const char *next; (next = strstr(text, name)) != NULL; text = next + strlen(name)) {
        buf_add(&out, text, (size_t)(next - text));
        buf_add_text(&out, value);
    }
    buf_add_text(&out, text);
    return buf_take(&out);
}

/* The same with every mark: the index, and what was drawn for it. No value contains a mark. */
static char *replace_all(const char *text, const struct marked *marked, char *const *values)
{
    char *out = replace(text, mark, values[0]);
    for (size_t i = 0; marked->sweep != NULL && i < marked->sweep->n_parameters; i++) {
        AUTO_FREE char *name = mem_printf("${%s}", marked->sweep->parameters[i]->name),
                       *before = out;
        out = replace(before, name, values[i + 1]);
    }
    return out;
}

/* The text without its marks. */
static char *unmarked(const char *text, const struct marked *marked)
{
    size_t count = 1 + (marked->sweep != NULL ? marked->sweep->n_parameters : 0);
    AUTO_FREE char **nothing = mem_alloc_array(count, sizeof *nothing);
    for (size_t i = 0; i < count; i++) nothing[i] = (char *)"";
    return replace_all(text, marked, nothing);
}

static void find_marks(struct yamldoc_node *node, struct marked *marked)
{
    for (int i = 0; i < node->item_count; i++) find_marks(node->items[i], marked);
    if (node->kind != YAMLDOC_SCALAR || strstr(node->text, "${") == NULL) return;
    AUTO_FREE char *rest = unmarked(node->text, marked);
    if (strcmp(rest, node->text) == 0) return;
    size_t count = marked->count;
    MEM_GROW(marked->nodes, count, marked->capacity);
    MEM_GROW(marked->texts, count, marked->text_capacity);
    marked->nodes[count] = node;
    marked->texts[count] = mem_strdup(node->text);
    /* In {lr: "${index}"} the braces need quotes, which say nothing about the type. */
    if (rest[0] == '\0') node->quoted = false;
    marked->count++;
    marked->in_name = marked->in_name || node == marked->name;
}

static void set_text(struct yamldoc_node *node, char *text)
{
    free(node->text);
    node->text = text;
}

/* What was drawn for the trial, in its spec. */
static Fsdpd__V1__ArrayPlace *drawn(const Fsdpd__V1__SweepSpec *sweep, char *const *values)
{
    Fsdpd__V1__ArrayPlace *place = MESSAGE_NEW(place, fsdpd__v1__array_place__init);
    place->values = mem_alloc_array(sweep->n_parameters, sizeof *place->values);
    for (size_t i = 0; i < sweep->n_parameters; i++) {
        Fsdpd__V1__ArrayPlace__ValuesEntry *entry =
            MESSAGE_NEW(entry, fsdpd__v1__array_place__values_entry__init);
        entry->key = mem_strdup(sweep->parameters[i]->name);
        entry->value = mem_strdup(values[i + 1]);
        place->values[place->n_values++] = entry;
    }
    return place;
}

/* The document is that of this index's job then; a name without a mark gets the index at its end.
 * Returns the drawn values of a sweep's trial, else NULL. */
static Fsdpd__V1__ArrayPlace *set_index(struct marked *marked, const char *base, uint32_t index)
{
    size_t count = marked->sweep != NULL ? marked->sweep->n_parameters : 0;
    AUTO_FREE char **values = mem_alloc_array(count + 1, sizeof *values);
    values[0] = mem_printf("%u", index);
    for (size_t i = 0; i < count; i++) values[i + 1] = spec_sweep_value(marked->sweep, i, index);
    for (size_t i = 0; i < marked->count; i++)
        set_text(marked->nodes[i], replace_all(marked->texts[i], marked, values));
    if (base != NULL && !marked->in_name)
        set_text(marked->name, mem_printf("%s-%s", base, values[0]));
    Fsdpd__V1__ArrayPlace *place = count > 0 ? drawn(marked->sweep, values) : NULL;
    for (size_t i = 0; i <= count; i++) free(values[i]);
    return place;
}

/* A name without its marks and the dashes around them. */
static char *array_name(const char *text, const struct marked *marked)
{
    char *name = unmarked(text, marked);
    size_t length = 0;
    for (const char *c = name; *c != '\0'; c++)
        if (*c != '-' || (length > 0 && name[length - 1] != '-')) name[length++] = *c;
    while (length > 0 && name[length - 1] == '-') length--;
    name[length] = '\0';
    if (length > 0) return name;
    free(name);
    return mem_strdup("array");
}

/* ---- reading ---- */

bool spec_is_array(const struct yamldoc *document)
{
    const struct yamldoc_node *node = yamldoc_get(yamldoc_get(document->root, "array"), "indices");
    return node != NULL && node->kind == YAMLDOC_SCALAR && !yamldoc_is_null(node);
}

static status_t open_marked(struct yamldoc *document, struct marked *marked, uint32_t **indices,
                            size_t *count)
{
    marked->indices = yamldoc_get(yamldoc_get(document->root, "array"), "indices");
    struct yamldoc_node *name = yamldoc_get(document->root, "name");
    if (name != NULL && name->kind == YAMLDOC_SCALAR) marked->name = name;
    status_t status = spec_array_indices(marked->indices->text, indices, count);
    if (status != NULL) {
        status_t placed =
            yamldoc_error(marked->indices, "array.indices: %s", status_message(status));
        status_free(status);
        return status_with(placed, (struct status_details){.field = "array.indices"});
    }
    find_marks(document->root, marked);
    return NULL;
}

/* A label that depends on the index is none of the array's. */
static void drop_labels(const struct yamldoc *document, const struct marked *marked,
                        Fsdpd__V1__JobSpec *spec)
{
    const struct yamldoc_node *labels = yamldoc_get(document->root, "labels");
    for (size_t m = 0; m < marked->count; m++) {
        if (marked->nodes[m]->parent != labels || labels == NULL) continue;
        size_t kept = 0;
        for (size_t i = 0; i < spec->n_labels; i++)
            if (strcmp(spec->labels[i]->key, marked->nodes[m]->key) != 0)
                spec->labels[kept++] = spec->labels[i];
            else message_free(spec->labels[i]);
        spec->n_labels = kept;
    }
}

static status_t read_record(const struct spec_source *source, struct yamldoc *document,
                            struct marked *marked, Fsdpd__V1__JobSpec **spec)
{
    uint32_t *indices = NULL;
    size_t count = 0;
    TRY(open_marked(document, marked, &indices, &count));
    AUTO_FREE char *base =
        marked->name != NULL ? array_name(marked->name->text, marked) : mem_strdup("array");
    message_free(set_index(marked, NULL, indices[0]));
    free(indices);
    TRY(spec_read_tree(source, document, spec));
    if ((*spec)->name != protobuf_c_empty_string) free((*spec)->name);
    (*spec)->name = mem_strdup(base);
    drop_labels(document, marked, *spec);
    if (source->sent == NULL) return NULL;
    (*spec)->array->file = message_copy(source->sent);
    if (marked->sweep != NULL) (*spec)->array->sweep = message_copy(marked->sweep);
    return NULL;
}

status_t spec_read_array(const struct spec_source *source, struct yamldoc *document,
                         const Fsdpd__V1__SweepSpec *sweep, Fsdpd__V1__JobSpec **spec)
{
    struct marked marked = {.sweep = sweep};
    status_t status = read_record(source, document, &marked, spec);
    marked_deinit(&marked);
    return status;
}

/* Takes ownership of `place`, which may be NULL. */
static status_t read_one(const struct spec_source *source, struct yamldoc *document, uint32_t index,
                         Fsdpd__V1__ArrayPlace *place, spec_array_visit *visit, void *user)
{
    Fsdpd__V1__JobSpec *spec = NULL;
    status_t status = spec_read_tree(source, document, &spec);
    if (status != NULL) {
        message_free(place);
        return status;
    }
    message_free(spec->array);
    spec->array = NULL;
    spec->of_array = place;
    status = visit(user, index, spec);
    spec_free(spec);
    return status;
}

static status_t each(const struct spec_source *source, struct yamldoc *document,
                     struct marked *marked, const struct spec_array_part *part,
                     spec_array_visit *visit, void *user)
{
    uint32_t *indices = NULL;
    size_t count = 0;
    TRY(open_marked(document, marked, &indices, &count));
    AUTO_FREE uint32_t *own = indices;
    AUTO_FREE char *base = marked->name != NULL ? mem_strdup(marked->name->text) : NULL;
    size_t end = part->count < count - (part->first < count ? part->first : count)
                     ? part->first + part->count
                     : count;
    if (source->length * (end - part->first) > SPEC_ARRAY_BYTES_MAX)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "array: expected at most %d bytes of job file for all indices together, "
                          "found %zu times %zu",
                          SPEC_ARRAY_BYTES_MAX, end - part->first, source->length);
    set_text(marked->indices, mem_strdup("0")); /* read with every job: as short as it can be */
    for (size_t i = part->first; i < end; i++) {
        Fsdpd__V1__ArrayPlace *place = set_index(marked, base, own[i]);
        TRY(status_wrap(read_one(source, document, own[i], place, visit, user), "index %u",
                        own[i]));
    }
    return NULL;
}

status_t spec_array_each_of(const struct spec_source *source, const struct spec_array_part *part,
                            spec_array_visit *visit, void *user)
{
    struct yamldoc *document;
    Fsdpd__V1__SweepSpec *sweep;
    TRY(spec_open(source, &document, &sweep));
    struct marked marked = {.sweep = sweep};
    status_t status =
        spec_is_array(document)
            ? each(source, document, &marked, part, visit, user)
            : status_new(STATUS_INVALID_ARGUMENT, "%s: array.indices: is missing", source->file);
    marked_deinit(&marked);
    message_free(sweep);
    yamldoc_free(document);
    return status;
}

bool spec_is_of_array(const Fsdpd__V1__JobSpec *spec, const char *array)
{
    return spec->of_array != NULL && strcmp(spec->of_array->array, array) == 0;
}
