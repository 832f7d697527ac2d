/* The heads of a family, one of which a config.json chooses; see hf.h and family.h. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "hf/family.h"

/* ---- Sections of a model file, as texts ---- */

/* A part of a text: the lines from one that starts a name, at some indentation, to the next. */
struct section {
    const char *text;
    size_t length, name; /* bytes; of the name, behind the indentation */
};

static const char *line_end(const char *line)
{
    const char *end = strchr(line, '\n');
    return end != NULL ? end + 1 : line + strlen(line);
}

/* Whether the line has a name at exactly this indentation. */
static bool starts_section(const char *line, const char *end, size_t indentation)
{
    size_t blanks = strspn(line, " ");
    if (blanks != indentation || line + blanks >= end) return false;
    return strchr("#\n-", line[blanks]) == NULL;
}

/* The next section from *at on, before `end`; false if there is none. */
static bool next_section(const char **at, const char *end, size_t indentation,
                         struct section *section)
{
    const char *line = *at;
    while (line < end && !starts_section(line, line_end(line), indentation)) line = line_end(line);
    if (line >= end) return false;
    section->text = line;
    section->name = strcspn(line + indentation, ":(");
    do line = line_end(line);
    while (line < end && !starts_section(line, line_end(line), indentation));
    section->length = (size_t)(line - section->text);
    *at = line;
    return true;
}

static bool find_section(const char *text, const char *end, size_t indentation,
                         const struct section *like, struct section *found)
{
    while (next_section(&text, end, indentation, found))
        if (found->name == like->name &&
            strncmp(found->text + indentation, like->text + indentation, like->name) == 0)
            return true;
    return false;
}

static bool is_blocks(const struct section *section)
{
    return section->name == strlen("blocks") && strncmp(section->text, "blocks", 6) == 0;
}

static void add(struct buf *out, const char *text, size_t length)
{
    buf_add(out, text, length);
    if (length > 0 && text[length - 1] != '\n') buf_add_char(out, '\n');
}

/* Adds the sections of `from` at some indentation, with those of `to` of the same names in their
 * places, then the others of `to`. */
static void merge(const char *from, const char *from_end, const char *to, const char *to_end,
                  size_t indentation, struct buf *out)
{
    struct section section, other;
    for (const char *at = from; next_section(&at, from_end, indentation, &section);) {
        if (!find_section(to, to_end, indentation, &section, &other)) {
            add(out, section.text, section.length);
        } else if (indentation == 0 && is_blocks(&section)) {
            add(out, "blocks:", strlen("blocks:"));
            merge(line_end(section.text), section.text + section.length, line_end(other.text),
                  other.text + other.length, 2, out);
        } else {
            add(out, other.text, other.length);
        }
    }
    for (const char *at = to; next_section(&at, to_end, indentation, &section);)
        if (!find_section(from, from_end, indentation, &section, &other))
            add(out, section.text, section.length);
}

char *family_compose(const char *model, const char *head)
{
    struct buf out = {0};
    merge(model, model + strlen(model), head, head + strlen(head), 0, &out);
    return buf_take(&out);
}

/* ---- The choice ---- */

static int key_index(const struct hf_family *family, const char *name)
{
    for (int i = 0; i < family->key_count; i++)
        if (strcmp(family->keys[i].name, name) == 0) return i;
    return -1;
}

/* Moves the head's keys to the family's. */
static void take_keys(struct hf_family *family, struct family_head *head)
{
    size_t count = (size_t)(family->key_count + head->key_count);
    struct family_key *keys = mem_alloc_array(count + 1, sizeof *keys);
    memcpy(keys, family->keys, (size_t)family->key_count * sizeof *keys);
    free(family->keys);
    family->keys = keys;
    for (int i = 0; i < head->key_count; i++) {
        int at = key_index(family, head->keys[i].name);
        if (at >= 0) family_key_deinit(&keys[at]);
        else at = family->key_count++;
        keys[at] = head->keys[i];
    }
    head->key_count = 0;
}

static void take_head(struct hf_family *family, struct family_head *head)
{
    take_keys(family, head);
    family->composed = family_compose(family->model, head->model);
    family->architecture = head->architecture;
    family->model = family->composed;
    family->also = NULL;
    family->other_heads = head->other_heads;
    family->fresh = head->fresh;
}

status_t hf_family_choose(struct hf_family *family, const char *json, size_t length,
                          const char *file)
{
    char *architecture = NULL;
    TRY(hf_config_architecture(json, length, file, &architecture));
    for (int i = 0; i < family->head_count && architecture != NULL; i++) {
        if (strcmp(family->heads[i].architecture, architecture) != 0) continue;
        take_head(family, &family->heads[i]);
        break;
    }
    free(architecture);
    return NULL;
}
