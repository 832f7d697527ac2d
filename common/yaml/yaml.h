/*
 * YAML documents as trees whose nodes know their position, for the files that people write: job
 * files and model files. A document is one mapping, list or scalar. Refused, with file and line:
 * duplicate keys, keys that are not scalars, anchors, aliases, tags, a second document, nesting
 * deeper than YAMLDOC_MAX_DEPTH, and texts above the limits below. So the memory of a tree is at
 * most a small multiple of its text, and recursive walks are safe.
 *
 * Errors are INVALID_ARGUMENT. They begin with the place, "job.yaml:7: ", and name the key by its
 * path from the root: "job.yaml:7: key 'train.epochs': expected a positive integer, found 'abc'".
 *
 * Pure: no I/O, no threads. A document owns all its nodes; nodes are read directly.
 */
#ifndef FSDPD_YAML_YAML_H
#define FSDPD_YAML_YAML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

enum {
    YAMLDOC_MAX_BYTES = 1 << 20,
    YAMLDOC_MAX_NODES = 200000,
    YAMLDOC_MAX_DEPTH = 64,
};

enum yamldoc_kind { YAMLDOC_SCALAR, YAMLDOC_SEQUENCE, YAMLDOC_MAPPING };

struct yamldoc_node {
    enum yamldoc_kind kind;
    const char *file; /* or the `origin` of yamldoc_set; owned by the document */
    int line, column; /* from 1; line 0: not from a file */

    /* Position in the parent: key and key_line in a mapping, index in a sequence; otherwise NULL
     * and -1. */
    struct yamldoc_node *parent;
    char *key;
    int key_line;
    int index;

    /* YAMLDOC_SCALAR */
    char *text;
    bool quoted; /* in any way: "x", 'x', | and > blocks: text even if it looks like a number */

    /* YAMLDOC_SEQUENCE and YAMLDOC_MAPPING, in the order of the file */
    struct yamldoc_node **items;
    int item_count, item_capacity;
};

struct yamldoc {
    struct yamldoc_node *root;
    char **files; /* every name that nodes point to */
    int file_count, file_capacity;
    int node_count;
};

/* `file` is copied and used in messages only. A UTF-8 byte order mark at the beginning is
 * skipped. */
status_t yamldoc_parse(const char *text, size_t length, const char *file,
                       struct yamldoc **document) FSDPD_MUST_USE;
void yamldoc_free(struct yamldoc *document); /* accepts NULL */

/* Makes a node of the document its root, and frees all others. Lines stay those of the file. */
void yamldoc_reroot(struct yamldoc *document, struct yamldoc_node *node);

/*
 * Sets the value at `path` ("train.epochs"; creates mappings along the path) to `value`, itself
 * parsed as YAML. Messages about it name `origin` instead of file and line. The root and every node
 * along the path must be a mapping.
 */
status_t yamldoc_set(struct yamldoc *document, const char *path, const char *value,
                     const char *origin) FSDPD_MUST_USE;

/* The value of `key` in a mapping. NULL if it is missing, or `mapping` is NULL or not a mapping. */
struct yamldoc_node *yamldoc_get(const struct yamldoc_node *mapping, const char *key);

/* A plain null scalar: "", "~" or "null". */
bool yamldoc_is_null(const struct yamldoc_node *node);

/* "train.epochs", "fsdp.wrap.modules[2]"; "" for the root. Caller frees. */
char *yamldoc_path(const struct yamldoc_node *node);

/* `text` shortened for a message: one line, at most 60 bytes of whole UTF-8 characters, followed by
 * "..." if cut. Returns `out`. */
char *yamldoc_excerpt(const char *text, char out[static 72]);

/*
 * Appends `text` so that yamldoc_parse reads the same text back, in any place that takes a value.
 * Quoted: in double quotes, with escapes for every character that YAML refuses, folds or skips, or
 * that a terminal does not show. print_text leaves the quotes out of words and paths that need
 * none. A byte that is not UTF-8 stays as it is, and is refused when it is read.
 */
void yamldoc_print_quoted(struct buf *out, const char *text);
void yamldoc_print_text(struct buf *out, const char *text);

/* "<file>:<line>: <message>". */
status_t yamldoc_error(const struct yamldoc_node *node, const char *format, ...) FSDPD_PRINTF(2, 3);

/* "<file>:<line>: key '<path>': <message>". */
status_t yamldoc_key_error(const struct yamldoc_node *node, const char *format, ...)
    FSDPD_PRINTF(2, 3);

/* Puts the same before the message of `status` and returns it; NULL stays NULL. */
status_t yamldoc_wrap(status_t status, const struct yamldoc_node *node);
/* Without the key: "<file>:<line>: <message>". */
status_t yamldoc_place(status_t status, const struct yamldoc_node *node);

/* "<file>:<line>: key '<path>': expected <what>, found <value>". */
status_t yamldoc_expected(const struct yamldoc_node *node, const char *what);

/* Requires a kind of node. `what` describes it ("a list of module names"); NULL is "a list" or "a
 * mapping". */
status_t yamldoc_expect_mapping(const struct yamldoc_node *node, const char *what) FSDPD_MUST_USE;
status_t yamldoc_expect_sequence(const struct yamldoc_node *node, const char *what) FSDPD_MUST_USE;

/* Requires a mapping with only these keys; the error for an unknown one suggests the nearest. */
status_t yamldoc_check_keys(const struct yamldoc_node *mapping, const char *const *keys,
                            size_t count) FSDPD_MUST_USE;

/* Like yamldoc_get, but a missing or null value is an error that names the mapping and the key. */
status_t yamldoc_require(const struct yamldoc_node *mapping, const char *key,
                         struct yamldoc_node **node) FSDPD_MUST_USE;

/*
 * Typed values. `node` may be NULL: then nothing happens, so a default stays:
 *     int64_t epochs = 10;
 *     TRY(yamldoc_read_i64(yamldoc_get(train, "epochs"), 1, INT32_MAX, &epochs));
 * A null value is an error. Bounds are inclusive; INT64_MAX and INFINITY mean "no upper bound",
 * INT64_MIN and -INFINITY no lower one. Texts belong to the document.
 */
status_t yamldoc_read_i64(const struct yamldoc_node *node, int64_t minimum, int64_t maximum,
                          int64_t *value) FSDPD_MUST_USE;
status_t yamldoc_read_f64(const struct yamldoc_node *node, double minimum, double maximum,
                          double *value) FSDPD_MUST_USE;
status_t yamldoc_read_bool(const struct yamldoc_node *node, bool *value) FSDPD_MUST_USE;

/* Any scalar that is not null; `what` describes it ("a path"; NULL: "a text"). Not empty. */
status_t yamldoc_read_text(const struct yamldoc_node *node, const char *what,
                           const char **value) FSDPD_MUST_USE;

/* One of `count` words; *index is its position. */
status_t yamldoc_read_choice(const struct yamldoc_node *node, const char *const *words,
                             size_t count, int *index) FSDPD_MUST_USE;

#endif
