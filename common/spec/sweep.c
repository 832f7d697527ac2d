/*
 * Sweeps: an array whose jobs have drawn values. A sweep file has the words of Kubeflow's
 * OptimizationJob and a job file, in which ${NAME} stands for a parameter's value. Opened, it is
 * that job file with array.indices from 1 to the number of trials. A value is a function of the
 * seed, the trial and the parameter alone, so it is drawn again as it was. Pure but for
 * reading the job file, any thread.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "proto/message.h"
#include "spec/internal.h"
#include "spec/metric_table.h"

static const char template_key[] = "trainJobTemplate";
static const double LARGEST_INTEGER = 9007199254740991.0; /* 2^53 - 1 */

/* ---- values ---- */

/* A step of splitmix64 (Steele, Lea and Flood, 2014). */
static uint64_t mix(uint64_t value)
{
    value += 0x9e3779b97f4a7c15;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
    value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
    return value ^ (value >> 31);
}

/* The number of values in a grid. */
static uint64_t size_of(const Fsdpd__V1__SweepParameter *parameter)
{
    return parameter->n_choices > 0 ? parameter->n_choices
                                    : (uint64_t)(parameter->max - parameter->min) + 1;
}

/* Six digits, which every C library draws alike; a bound that has more is itself. */
static char *print_number(double value, const Fsdpd__V1__SweepParameter *parameter)
{
    char text[32];
    snprintf(text, sizeof text, parameter->integer ? "%.0f" : "%.6g", value);
    double read = strtod(text, NULL);
    if (read < parameter->min) spec_format_number(parameter->min, text);
    if (read > parameter->max) spec_format_number(parameter->max, text);
    return mem_strdup(text);
}

/* `share` from 0 to below 1. */
static char *at_share(const Fsdpd__V1__SweepParameter *parameter, double share)
{
    double low = parameter->min, high = parameter->max;
    if (parameter->n_choices > 0)
        return mem_strdup(parameter->choices[(size_t)(share * (double)parameter->n_choices)]);
    if (parameter->log)
        return print_number(exp(log(low) + share * (log(high) - log(low))), parameter);
    if (parameter->integer) return print_number(low + floor(share * (high - low + 1)), parameter);
    return print_number(low + share * (high - low), parameter);
}

char *spec_sweep_value(const Fsdpd__V1__SweepSpec *sweep, size_t number, uint32_t trial)
{
    const Fsdpd__V1__SweepParameter *parameter = sweep->parameters[number];
    if (strcmp(sweep->algorithm, "grid") != 0) {
        uint64_t drawn = mix(mix(mix(sweep->seed) ^ trial) ^ number);
        return at_share(parameter, ldexp((double)(drawn >> 11), -53));
    }
    uint64_t place = trial > 0 ? trial - 1 : 0; /* the last parameter changes first */
    for (size_t i = sweep->n_parameters; --i > number;) place /= size_of(sweep->parameters[i]);
    place %= size_of(parameter);
    return parameter->n_choices > 0 ? mem_strdup(parameter->choices[place])
                                    : print_number(parameter->min + (double)place, parameter);
}

/* ---- reading ---- */

static status_t read_objective(const struct yamldoc_node *root, Fsdpd__V1__SweepSpec *sweep)
{
    static const char *const keys[] = {"metric", "direction"};
    static const char *const directions[] = {"minimize", "maximize"};
    struct yamldoc_node *list, *metric;
    const char *name;
    int direction = 0;
    TRY(yamldoc_require(root, "objectives", &list));
    TRY(yamldoc_expect_sequence(list, "a list of one objective"));
    if (list->item_count != 1)
        return yamldoc_key_error(list, "expected one objective, found %d", list->item_count);
    TRY(yamldoc_check_keys(list->items[0], keys, COUNT_OF(keys)));
    TRY(yamldoc_require(list->items[0], "metric", &metric));
    TRY(yamldoc_read_text(metric, "a metric of docs/monitoring.md", &name));
    TRY(yamldoc_read_choice(yamldoc_get(list->items[0], "direction"), directions, 2, &direction));
    AUTO_FREE const char **names = mem_alloc_array(metric_count() + 1, sizeof *names);
    size_t count = 0;
    bool known = false;
    for (size_t i = 0; i < metric_count(); i++) {
        if (metric_table[i].latest[0] == NULL) continue;
        names[count++] = metric_table[i].name;
        known |= strcmp(name, metric_table[i].name) == 0;
    }
    const char *nearest = text_nearest(name, names, count);
    if (!known)
        return yamldoc_key_error(metric,
                                 "expected a metric of docs/monitoring.md, such as %s, found %s",
                                 nearest != NULL ? nearest : "val_loss", name);
    sweep->metric = mem_strdup(name);
    sweep->direction = mem_strdup(directions[direction]);
    return NULL;
}

static status_t read_algorithm(const struct yamldoc_node *node, Fsdpd__V1__SweepSpec *sweep)
{
    static const char *const keys[] = {"random", "grid"}, *const random_keys[] = {"seed"};
    int64_t seed = 0;
    if (node == NULL) {
        sweep->algorithm = mem_strdup("random");
        return NULL;
    }
    TRY(yamldoc_check_keys(node, keys, COUNT_OF(keys)));
    if (node->item_count != 1)
        return yamldoc_key_error(node, "expected one of random and grid, found %d keys",
                                 node->item_count);
    sweep->algorithm = mem_strdup(node->items[0]->key);
    if (yamldoc_is_null(node->items[0])) return NULL;
    TRY(yamldoc_check_keys(node->items[0], random_keys, strcmp(sweep->algorithm, "random") == 0));
    TRY(yamldoc_read_i64(yamldoc_get(node->items[0], "seed"), 0, (int64_t)LARGEST_INTEGER, &seed));
    sweep->seed = (uint64_t)seed;
    return NULL;
}

static status_t read_choices(const struct yamldoc_node *node, Fsdpd__V1__SweepParameter *parameter)
{
    static const char *const keys[] = {"choices"};
    struct yamldoc_node *list;
    TRY(yamldoc_check_keys(node, keys, COUNT_OF(keys)));
    TRY(yamldoc_require(node, "choices", &list));
    TRY(yamldoc_expect_sequence(list, "a list of values"));
    if (list->item_count < 1) return yamldoc_key_error(list, "expected values, found none");
    parameter->choices = mem_alloc_array((size_t)list->item_count, sizeof *parameter->choices);
    for (int i = 0; i < list->item_count; i++) {
        const char *text;
        TRY(yamldoc_read_text(list->items[i], "a value", &text));
        /* It is not a mark of another parameter. */
        if (strstr(text, "${") != NULL)
            return yamldoc_key_error(list->items[i], "expected a value without ${");
        parameter->choices[parameter->n_choices++] = mem_strdup(text);
    }
    return NULL;
}

static status_t read_range(const struct yamldoc_node *node, Fsdpd__V1__SweepParameter *parameter)
{
    static const char *const keys[] = {"min", "max", "type"}, *const types[] = {"double", "int"};
    struct yamldoc_node *min, *max;
    int type = 0;
    TRY(yamldoc_check_keys(node, keys, COUNT_OF(keys)));
    TRY(yamldoc_require(node, "min", &min));
    TRY(yamldoc_require(node, "max", &max));
    TRY(yamldoc_read_choice(yamldoc_get(node, "type"), types, 2, &type));
    TRY(yamldoc_read_f64(min, -INFINITY, INFINITY, &parameter->min));
    TRY(yamldoc_read_f64(max, -INFINITY, INFINITY, &parameter->max));
    parameter->integer = type == 1;
    const double bounds[] = {parameter->min, parameter->max};
    for (int i = 0; i < 2; i++) {
        const struct yamldoc_node *bound = i == 0 ? min : max;
        if (!isfinite(bounds[i])) return yamldoc_key_error(bound, "expected a finite number");
        if (parameter->integer &&
            (bounds[i] != floor(bounds[i]) || fabs(bounds[i]) > LARGEST_INTEGER))
            return yamldoc_key_error(bound, "expected an integer, found %g", bounds[i]);
    }
    if (!(parameter->min <= parameter->max))
        return yamldoc_key_error(max, "expected at least min, %g, found %g", parameter->min,
                                 parameter->max);
    if (parameter->log && !(parameter->min > 0))
        return yamldoc_key_error(min, "expected a number above 0 for logUniform, found %g",
                                 parameter->min);
    return NULL;
}

static status_t read_space(const struct yamldoc_node *node, Fsdpd__V1__SweepParameter *parameter)
{
    static const char *const keys[] = {"uniform", "logUniform", "categorical"};
    TRY(yamldoc_check_keys(node, keys, COUNT_OF(keys)));
    if (node->item_count != 1)
        return yamldoc_key_error(
            node, "expected one of uniform, logUniform and categorical, found %d keys",
            node->item_count);
    const struct yamldoc_node *space = node->items[0];
    parameter->log = strcmp(space->key, "logUniform") == 0;
    return strcmp(space->key, "categorical") == 0 ? read_choices(space, parameter)
                                                  : read_range(space, parameter);
}

static status_t read_parameter(const struct yamldoc_node *node, Fsdpd__V1__SweepSpec *sweep)
{
    static const char *const keys[] = {"name", "searchSpace"};
    struct yamldoc_node *name, *space;
    const char *text;
    TRY(yamldoc_check_keys(node, keys, COUNT_OF(keys)));
    TRY(yamldoc_require(node, "name", &name));
    TRY(yamldoc_require(node, "searchSpace", &space));
    TRY(yamldoc_read_text(name, "a name", &text));
    if (strlen(text) > SPEC_NAME_MAX || strcmp(text, "index") == 0 ||
        strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") !=
            strlen(text))
        return yamldoc_key_error(
            name, "expected 1 to %d letters, digits and _.- other than index, found %s",
            SPEC_NAME_MAX, text);
    for (size_t i = 0; i < sweep->n_parameters; i++)
        if (strcmp(sweep->parameters[i]->name, text) == 0)
            return yamldoc_key_error(name, "expected each name once, found %s twice", text);
    Fsdpd__V1__SweepParameter *parameter = MESSAGE_NEW(parameter, fsdpd__v1__sweep_parameter__init);
    sweep->parameters[sweep->n_parameters++] = parameter;
    parameter->name = mem_strdup(text);
    TRY(read_space(space, parameter));
    if (strcmp(sweep->algorithm, "grid") == 0 && parameter->n_choices == 0 && !parameter->integer)
        return yamldoc_key_error(space, "a grid needs categorical values or a range of type int");
    return NULL;
}

static status_t read_parameters(const struct yamldoc_node *root, Fsdpd__V1__SweepSpec *sweep)
{
    struct yamldoc_node *list;
    TRY(yamldoc_require(root, "parameters", &list));
    TRY(yamldoc_expect_sequence(list, "a list of parameters"));
    if (list->item_count < 1 || list->item_count > SPEC_ARGUMENTS_MAX)
        return yamldoc_key_error(list, "expected 1 to %d parameters, found %d", SPEC_ARGUMENTS_MAX,
                                 list->item_count);
    sweep->parameters = mem_alloc_array((size_t)list->item_count, sizeof *sweep->parameters);
    for (int i = 0; i < list->item_count; i++) TRY(read_parameter(list->items[i], sweep));
    return NULL;
}

/* A grid has as many trials as points, unless there are to be fewer. */
static status_t read_trials(const struct yamldoc_node *root, const Fsdpd__V1__SweepSpec *sweep,
                            int64_t *trials)
{
    const struct yamldoc_node *node = yamldoc_get(root, "numTrials");
    double points = strcmp(sweep->algorithm, "grid") == 0 ? 1 : INFINITY;
    for (size_t i = 0; i < sweep->n_parameters && isfinite(points); i++)
        points *= (double)size_of(sweep->parameters[i]);
    if (node == NULL && points > SPEC_ARRAY_MAX)
        return yamldoc_error(root, "numTrials: is missing; expected an integer from 1 to %d",
                             SPEC_ARRAY_MAX);
    *trials = points < SPEC_ARRAY_MAX ? (int64_t)points : SPEC_ARRAY_MAX;
    return yamldoc_read_i64(node, 1, *trials, trials);
}

static status_t read_sweep(const struct yamldoc_node *root, Fsdpd__V1__SweepSpec *sweep,
                           int64_t *trials, int64_t *parallel)
{
    static const char *const keys[] = {"objectives", "parameters",     "searchAlgorithm",
                                       "numTrials",  "parallelTrials", template_key};
    struct yamldoc_node *job;
    TRY(yamldoc_check_keys(root, keys, COUNT_OF(keys)));
    TRY(yamldoc_require(root, template_key, &job));
    TRY(read_objective(root, sweep));
    TRY(read_algorithm(yamldoc_get(root, "searchAlgorithm"), sweep));
    TRY(read_parameters(root, sweep));
    TRY(read_trials(root, sweep, trials));
    return yamldoc_read_i64(yamldoc_get(root, "parallelTrials"), 1, SPEC_ARRAY_MAX, parallel);
}

/* ---- the job file ---- */

static char *template_path(const struct spec_source *source, const struct yamldoc_node *node)
{
    AUTO_FREE char *directory = file_path_directory(source->file);
    bool here = node->text[0] == '/' || strcmp(directory, ".") == 0;
    return here ? mem_strdup(node->text) : file_path_join(directory, node->text);
}

/* The job file that is named, from this machine or from what the client sent. */
static status_t read_template(const struct spec_source *source, const struct yamldoc_node *node,
                              struct buf *text)
{
    AUTO_FREE char *path = template_path(source, node);
    const char *sent = source->sent != NULL ? spec_sent_text(source->sent, node->text) : NULL;
    if (sent != NULL) buf_add_text(text, sent);
    else if (source->sent == NULL) return yamldoc_wrap(file_read(path, SPEC_FILE_MAX, text), node);
    else
        return yamldoc_key_error(node, "expected the text of %s among the files sent, found none",
                                 node->text);
    return NULL;
}

static bool has_mark(const struct yamldoc_node *node, const char *mark)
{
    for (int i = 0; i < node->item_count; i++)
        if (has_mark(node->items[i], mark)) return true;
    return node->kind == YAMLDOC_SCALAR && strstr(node->text, mark) != NULL;
}

/* Whether each parameter's value goes anywhere. */
static status_t check_used(const struct spec_source *source, const struct yamldoc_node *root,
                           const struct yamldoc_node *job, const Fsdpd__V1__SweepSpec *sweep)
{
    for (size_t i = 0; i < sweep->n_parameters; i++) {
        AUTO_FREE char *mark = mem_printf("${%s}", sweep->parameters[i]->name);
        bool used = has_mark(job, mark);
        for (int set = 0; set < source->override_count; set++)
            used |= strstr(source->overrides[set].text, mark) != NULL;
        if (!used)
            return yamldoc_key_error(yamldoc_get(root, "parameters")->items[i],
                                     "expected %s in a value of the job file, found none", mark);
    }
    return NULL;
}

/* Replaces the document of the sweep by that of its job file. */
static status_t open_template(const struct spec_source *source, struct yamldoc **document,
                              const Fsdpd__V1__SweepSpec *sweep, int64_t trials)
{
    struct yamldoc_node *root = (*document)->root, *node = yamldoc_get(root, template_key);
    struct yamldoc *job = NULL;
    AUTO(buf_deinit) struct buf text = {0};
    if (node->kind == YAMLDOC_SCALAR) {
        AUTO_FREE char *path = template_path(source, node);
        TRY(read_template(source, node, &text));
        if (text.length * (size_t)trials > SPEC_ARRAY_BYTES_MAX)
            return yamldoc_key_error(
                node, "expected at most %d bytes of job file for all trials together",
                SPEC_ARRAY_BYTES_MAX);
        TRY(yamldoc_parse(buf_text(&text), text.length, path, &job));
    }
    const struct yamldoc_node *file = job != NULL ? job->root : node;
    status_t status = yamldoc_expect_mapping(file, "a job file");
    const struct yamldoc_node *array = status == NULL ? yamldoc_get(file, "array") : NULL;
    if (array != NULL) status = yamldoc_key_error(array, "a sweep is an array itself; remove this");
    if (status == NULL) status = check_used(source, root, file, sweep);
    if (status != NULL) {
        yamldoc_free(job);
        return status;
    }
    if (job == NULL) {
        yamldoc_reroot(*document, node);
        return NULL;
    }
    yamldoc_free(*document);
    *document = job;
    return NULL;
}

bool spec_is_sweep(const struct yamldoc *document)
{
    return yamldoc_get(document->root, template_key) != NULL ||
           yamldoc_get(document->root, "objectives") != NULL;
}

static status_t open_sweep(const struct spec_source *source, struct yamldoc **document,
                           Fsdpd__V1__SweepSpec *sweep)
{
    int64_t trials, parallel = 0;
    TRY(read_sweep((*document)->root, sweep, &trials, &parallel));
    TRY(open_template(source, document, sweep, trials));
    AUTO_FREE char *indices = mem_printf("\"1-%lld\"", (long long)trials);
    AUTO_FREE char *at_once = mem_printf("%lld", (long long)parallel);
    TRY(yamldoc_set(*document, "array.indices", indices, "numTrials"));
    return yamldoc_set(*document, "array.at_once", at_once, "parallelTrials");
}

status_t spec_open_sweep(const struct spec_source *source, struct yamldoc **document,
                         Fsdpd__V1__SweepSpec **out)
{
    Fsdpd__V1__SweepSpec *sweep = MESSAGE_NEW(sweep, fsdpd__v1__sweep_spec__init);
    status_t status = open_sweep(source, document, sweep);
    if (status == NULL) *out = sweep;
    else message_free(sweep);
    return status;
}

status_t spec_sweep_file(const struct spec_source *source, char **name, char **text)
{
    struct yamldoc *document;
    AUTO(buf_deinit) struct buf read = {0};
    *name = *text = NULL;
    TRY(yamldoc_parse(source->text, source->length, source->file, &document));
    const struct yamldoc_node *node = yamldoc_get(document->root, template_key);
    status_t status = NULL;
    if (node != NULL && node->kind == YAMLDOC_SCALAR) {
        status = read_template(source, node, &read);
        *name = status == NULL ? mem_strdup(node->text) : NULL;
        *text = status == NULL ? buf_take(&read) : NULL;
    }
    yamldoc_free(document);
    return status;
}
