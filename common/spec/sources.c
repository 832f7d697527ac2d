/* data.sources: dataset directories and their weights; see spec.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "spec/internal.h"

static bool is_scalar(const struct yamldoc_node *node)
{
    return node->kind == YAMLDOC_SCALAR && node->text[0] != '\0';
}

static status_t read_source(const struct yamldoc_node *node, const Fsdpd__V1__JobFile *sent,
                            Fsdpd__V1__DataSource *source)
{
    spec_complete_source(source);
    for (int i = 0; i < node->item_count; i++) {
        const struct yamldoc_node *item = node->items[i];
        char text[72];
        if (strcmp(item->key, "path") == 0) {
            if (!is_scalar(item))
                return status_new(STATUS_INVALID_ARGUMENT, "path: expected a path");
            if (source->path != protobuf_c_empty_string) free(source->path);
            source->path = spec_expand_home(sent, item->text);
        } else if (strcmp(item->key, "weight") == 0) {
            if (!is_scalar(item) || item->quoted || !text_parse_f64(item->text, &source->weight))
                return status_new(STATUS_INVALID_ARGUMENT, "weight: expected a number");
        } else {
            return status_new(STATUS_INVALID_ARGUMENT, "%s: unknown key; expected path or weight",
                              yamldoc_excerpt(item->key, text));
        }
    }
    return NULL;
}

status_t spec_read_sources(const struct spec_key *key, const struct yamldoc_node *node,
                           const Fsdpd__V1__JobFile *sent, Fsdpd__V1__DataSpec *data)
{
    TRY(spec_expect_mappings(key, node));
    data->sources = mem_alloc_array((size_t)node->item_count + 1, sizeof *data->sources);
    for (int i = 0; i < node->item_count; i++) {
        Fsdpd__V1__DataSource *source = mem_alloc(sizeof *source);
        fsdpd__v1__data_source__init(source);
        data->sources[data->n_sources++] = source;
        TRY(status_wrap(read_source(node->items[i], sent, source), "source %d", i + 1));
    }
    return spec_check_sources(data->sources, data->n_sources);
}

status_t spec_check_sources(Fsdpd__V1__DataSource *const *sources, size_t count)
{
    if (count > SPEC_SOURCES_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "expected at most %d sources, found %zu",
                          SPEC_SOURCES_MAX, count);
    for (size_t i = 0; i < count; i++) {
        double weight = sources[i]->weight;
        if (sources[i]->path[0] == '\0')
            return status_new(STATUS_INVALID_ARGUMENT, "source %zu: path: is missing", i + 1);
        TRY(status_wrap(spec_check_path(sources[i]->path), "source %zu: path", i + 1));
        if (!(weight >= 0.001 && weight <= 1e6) ||
            fabs(weight * 1000 - round(weight * 1000)) > 1e-6)
            return status_new(STATUS_INVALID_ARGUMENT,
                              "source %zu: weight: expected a number from 0.001 to 1000000 with at "
                              "most three decimals, found %.10g",
                              i + 1, weight);
    }
    return NULL;
}
