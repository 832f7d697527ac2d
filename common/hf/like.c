/* See like.h. */
#include "hf/like.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"

struct lines {
    const struct family_line *at;
    int count;
};

struct family_entry {
    enum {
        LEAF,  /* with a value, which may take further lines */
        GROUP, /* with entries below it */
        ITEM,  /* of a list, or a line without a key */
        PLACE, /* "key:" alone: where the file's next entry goes */
        GONE,  /* "key: ~" */
    } kind;
    char *key;          /* without quotes and arguments; NULL: an ITEM */
    bool has_arguments; /* "Block(size):" */
    int indent;
    struct lines above, head; /* comments and empty lines; its own lines */
    struct family_entry **items;
    int count, capacity;
};

/* ---- Texts ---- */

static void add_line(struct family_text *text, const char *bytes, size_t length, const char *file,
                     int number)
{
    MEM_GROW(text->lines, text->count, text->capacity);
    text->lines[text->count++] = (struct family_line){mem_strndup(bytes, length), file, number};
}

void family_text_read(struct family_text *text, const char *bytes, const char *file)
{
    for (int number = 1; *bytes != '\0'; number++) {
        size_t length = strcspn(bytes, "\n");
        add_line(text, bytes, length, file, number);
        bytes += length + (bytes[length] == '\n');
    }
}

char *family_text_write(const struct family_text *text)
{
    struct buf out = {0};
    for (int i = 0; i < text->count; i++) buf_printf(&out, "%s\n", text->lines[i].text);
    return buf_take(&out);
}

void family_text_deinit(struct family_text *text)
{
    for (int i = 0; i < text->count; i++) free(text->lines[i].text);
    free(text->lines);
}

void family_text_place(const struct family_text *text, struct yamldoc_node *node)
{
    if (node->line > 0 && node->line <= text->count) {
        const struct family_line *line = &text->lines[node->line - 1];
        node->file = line->file;
        node->line = line->number;
    }
    if (node->key_line > 0 && node->key_line <= text->count)
        node->key_line = text->lines[node->key_line - 1].number;
    for (int i = 0; i < node->item_count; i++) family_text_place(text, node->items[i]);
}

void family_join_lines(char *text)
{
    char *to = text;
    for (const char *from = text; *from != '\0';)
        if (from[0] == '\\' && from[1] == '\n') from += 2 + strspn(from + 2, " ");
        else *to++ = *from++;
    *to = '\0';
}

/* ---- A text as entries ---- */

static bool is_remark(const char *line)
{
    line += strspn(line, " ");
    return *line == '#' || *line == '\0';
}

static bool is_item(const char *line)
{
    return strncmp(line + strspn(line, " "), "- ", 2) == 0;
}

/* An item is inside of its list, even if it stands below its key. */
static int indent_of(const char *line)
{
    return (int)strspn(line, " ") + is_item(line);
}

static bool ends_joined(const char *line)
{
    return line[0] != '\0' && line[strlen(line) - 1] == '\\';
}

/* Moves the first `count` lines of one run to the end of another, which they follow. */
static void take(struct lines *from, int count, struct lines *to)
{
    if (to->count == 0) to->at = from->at;
    to->count += count;
    from->at += count;
    from->count -= count;
}

/* The comments and empty lines before a line of at least this indentation; -1 if there is none. */
static int count_remarks(const struct lines *lines, int indent)
{
    int count = 0;
    while (count < lines->count && is_remark(lines->at[count].text)) count++;
    return count < lines->count && indent_of(lines->at[count].text) >= indent ? count : -1;
}

/* Reads the key of an entry, and its kind as far as its head tells it. */
static void read_head(struct family_entry *entry)
{
    struct buf head = {0};
    for (int i = 0; i < entry->head.count; i++)
        buf_printf(&head, "%s%s", entry->head.at[i].text, i + 1 < entry->head.count ? "\n" : "");
    AUTO_FREE char *line = buf_take(&head);
    family_join_lines(line);
    char *key = line + strspn(line, " "), *end;
    if (*key == '"' || *key == '\'') {
        end = strchr(key + 1, *key);
        if (end != NULL) end++, key++;
    } else {
        end = key;
        while ((end = strchr(end, ':')) != NULL && end[1] != ' ' && end[1] != '\0') end++;
    }
    entry->kind = ITEM;
    if (is_item(line) || end == NULL || *end != ':') return;
    const char *value = end + 1 + strspn(end + 1, " ");
    if (end[-1] == '"' || end[-1] == '\'') end--;
    size_t name = strcspn(key, "(");
    entry->has_arguments = name < (size_t)(end - key);
    entry->key = mem_strndup(key, entry->has_arguments ? name : (size_t)(end - key));
    entry->kind = strcmp(value, "~") == 0                                      ? GONE
                  : *value == '\0' || *value == '#' || strcmp(value, "|") == 0 ? PLACE
                                                                               : LEAF;
}

/* The entries of both texts, which own nothing: they change places as texts are merged. */
struct pool {
    struct family_entry **entries;
    int count, capacity;
};

static struct family_entry *new_entry(struct pool *pool)
{
    MEM_GROW(pool->entries, pool->count, pool->capacity);
    return pool->entries[pool->count++] = mem_alloc(sizeof(struct family_entry));
}

static void pool_deinit(struct pool *pool)
{
    for (int i = 0; i < pool->count; i++) {
        free(pool->entries[i]->items);
        free(pool->entries[i]->key);
        free(pool->entries[i]);
    }
    free(pool->entries);
}

static void insert_item(struct family_entry *parent, int at, struct family_entry *item)
{
    MEM_GROW(parent->items, parent->count, parent->capacity);
    memmove(&parent->items[at + 1], &parent->items[at],
            (size_t)(parent->count++ - at) * sizeof *parent->items);
    parent->items[at] = item;
}

static void read_entries(struct pool *pool, struct lines *lines, int indent,
                         struct family_entry *parent)
{
    for (int remarks; (remarks = count_remarks(lines, indent)) >= 0;) {
        struct family_entry *entry = new_entry(pool);
        take(lines, remarks, &entry->above);
        entry->indent = indent_of(lines->at->text);
        do take(lines, 1, &entry->head);
        while (lines->count > 0 && ends_joined(lines->at[-1].text));
        read_head(entry);
        if (entry->kind == PLACE) read_entries(pool, lines, entry->indent + 1, entry);
        else
            while ((remarks = count_remarks(lines, entry->indent + 1)) >= 0)
                take(lines, remarks + 1, &entry->head);
        if (entry->count > 0) entry->kind = GROUP;
        insert_item(parent, parent->count, entry);
    }
}

static struct family_entry *read_text(struct pool *pool, const struct family_text *text)
{
    struct family_entry *root = new_entry(pool);
    struct lines lines = {text->lines, text->count};
    read_entries(pool, &lines, 0, root);
    return root;
}

static void remove_item(struct family_entry *parent, int at)
{
    parent->count--;
    memmove(&parent->items[at], &parent->items[at + 1],
            (size_t)(parent->count - at) * sizeof *parent->items);
}

static int find_item(const struct family_entry *parent, const char *key)
{
    int at = parent->count - 1;
    while (at >= 0 && (parent->items[at]->key == NULL || strcmp(parent->items[at]->key, key) != 0))
        at--;
    return at;
}

static void add_lines(const struct lines *lines, struct family_text *out)
{
    for (int i = 0; i < lines->count; i++)
        add_line(out, lines->at[i].text, strlen(lines->at[i].text), lines->at[i].file,
                 lines->at[i].number);
}

static void write_entries(const struct family_entry *parent, struct family_text *out)
{
    for (int i = 0; i < parent->count; i++) {
        add_lines(&parent->items[i]->above, out);
        add_lines(&parent->items[i]->head, out);
        write_entries(parent->items[i], out);
    }
}

/* ---- Merging ---- */

static status_t error_at(const struct family_entry *entry, const char *what)
{
    const struct family_line *line = entry->head.at;
    return status_new(STATUS_INVALID_ARGUMENT, "%s:%d: key '%.60s': %s", line->file, line->number,
                      entry->key != NULL ? entry->key : line->text + strspn(line->text, " "), what);
}

static bool is_list(const struct family_entry *entry)
{
    return entry->kind == GROUP && entry->items[0]->kind == ITEM;
}

/* Whether the texts of two entries are the same but for remarks and breaks between lines. */
static bool is_same(const struct family_entry *a, const struct family_entry *b)
{
    const struct family_entry *both[] = {a, b};
    char *texts[2];
    for (int i = 0; i < 2; i++) {
        struct family_text text = {0};
        struct buf words = {0};
        add_lines(&both[i]->head, &text);
        write_entries(both[i], &text);
        for (int k = 0; k < text.count; k++)
            if (!is_remark(text.lines[k].text))
                buf_printf(&words, "%s\n", text.lines[k].text + strspn(text.lines[k].text, " "));
        family_text_deinit(&text);
        texts[i] = buf_take(&words);
        family_join_lines(texts[i]);
    }
    bool same = strcmp(texts[0], texts[1]) == 0;
    free(texts[0]);
    free(texts[1]);
    return same;
}

/* The items of a list replace the base's; an item "..." stands for these. */
static void merge_list(const struct family_entry *base, struct family_entry *list)
{
    int at = 0;
    while (at < list->count &&
           strcmp(list->items[at]->head.at->text + list->items[at]->indent - 1, "- ...") != 0)
        at++;
    if (at == list->count) return;
    remove_item(list, at);
    for (int i = 0; i < base->count; i++) insert_item(list, at + i, base->items[i]);
}

static status_t merge_items(struct family_entry *base, const struct family_entry *changes);

/* Makes an entry of the base what the file has in its place. */
static status_t merge_entry(struct family_entry *base, struct family_entry *change)
{
    if (change->above.count > 0) base->above = change->above;
    if (change->kind != GROUP || base->kind != GROUP || change->has_arguments)
        base->head = change->head;
    if (change->kind == GROUP && base->kind == GROUP && !is_list(base) && !is_list(change))
        return merge_items(base, change);
    if (change->kind == GROUP && base->kind == GROUP) merge_list(base, change);
    base->count = 0;
    for (int i = 0; i < change->count; i++) insert_item(base, i, change->items[i]);
    base->kind = change->kind;
    return NULL;
}

static status_t merge_items(struct family_entry *base, const struct family_entry *changes)
{
    int at = 0; /* where an entry goes that the base lacks */
    for (int i = 0; i < changes->count; i++) {
        struct family_entry *change = changes->items[i];
        bool moves = i > 0 && changes->items[i - 1]->kind == PLACE;
        if (change->key == NULL) return error_at(change, "expected a key");
        int found = find_item(base, change->key);
        if (found < 0 && change->kind >= PLACE)
            return error_at(change, "overrides nothing: the family that this one is like lacks it");
        struct family_entry *item = found < 0 ? change : base->items[found];
        if (found >= 0 && !moves && change->kind != PLACE && is_same(item, change))
            return error_at(change, "is the same in the family that this one is like");
        if (found >= 0 && change->kind < PLACE) TRY(merge_entry(item, change));
        if (found >= 0 && (moves || change->kind == GONE)) {
            remove_item(base, found);
            at -= found < at;
        }
        if (found < 0 || moves) insert_item(base, at++, item);
        else at = change->kind == GONE ? found : found + 1;
    }
    return NULL;
}

static void drop(struct family_entry *root, const char *key)
{
    int at = find_item(root, key);
    if (at >= 0) remove_item(root, at);
}

/* ---- Renaming ---- */

static bool is_of_name(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* The item of `rename` whose key begins here; NULL if there is none, or no word begins here. */
static struct yamldoc_node *find_renamed(const struct yamldoc_node *rename, const char *line,
                                         const char *at)
{
    if (rename == NULL || (at > line && is_of_name(at[-1]))) return NULL;
    for (int i = 0; i < rename->item_count; i++)
        if (strncmp(at, rename->items[i]->key, strlen(rename->items[i]->key)) == 0)
            return rename->items[i];
    return NULL;
}

/* Adds the lines of `base`, with other beginnings of words. */
static status_t add_renamed(const struct family_text *base, const struct yamldoc_node *rename,
                            struct family_text *out)
{
    const int count = rename != NULL ? rename->item_count : 0;
    AUTO_FREE bool *used = mem_alloc_array((size_t)count + 1, sizeof *used);
    const char *ignored;
    if (rename != NULL)
        TRY(yamldoc_expect_mapping(rename, "a mapping from beginnings of words to others"));
    for (int i = 0; i < count; i++)
        TRY(yamldoc_read_text(rename->items[i], "the beginning of a word", &ignored));
    for (int i = 0; i < base->count; i++) {
        struct buf line = {0};
        for (const char *at = base->lines[i].text; *at != '\0';) {
            const struct yamldoc_node *item = find_renamed(rename, base->lines[i].text, at);
            if (item == NULL) buf_add_char(&line, *at++);
            else {
                buf_add_text(&line, item->text);
                at += strlen(item->key);
                for (int k = 0; k < count; k++) used[k] = used[k] || rename->items[k] == item;
            }
        }
        add_line(out, buf_text(&line), line.length, base->lines[i].file, base->lines[i].number);
        buf_deinit(&line);
    }
    for (int i = 0; i < count; i++)
        if (!used[i]) return yamldoc_key_error(rename->items[i], "no word begins so");
    return NULL;
}

status_t family_text_inherit(struct family_text *text, const struct yamldoc_node *root,
                             const struct family_text *base)
{
    AUTO(family_text_deinit) struct family_text renamed = {0};
    AUTO(pool_deinit) struct pool pool = {0};
    TRY(add_renamed(base, yamldoc_get(root, "rename"), &renamed));
    struct family_entry *merged = read_text(&pool, &renamed), *changes = read_text(&pool, text);
    drop(merged, "name");
    drop(merged, "model_type");
    drop(changes, "like");
    drop(changes, "rename");
    TRY(merge_items(merged, changes));
    struct family_text out = {0};
    write_entries(merged, &out);
    family_text_deinit(text);
    *text = out;
    return NULL;
}
