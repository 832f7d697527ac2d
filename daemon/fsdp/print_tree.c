/*
 * The module tree as PyTorch prints a model wrapped in FullyShardedDataParallel, with each unit's
 * size. Pure functions; any thread.
 */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/text.h"
#include "fsdp/units.h"

enum { INDENT = 2 };

struct printing {
    const struct model *model;
    const struct unit_set *units;
    int *wrapper; /* by module: the unit that wraps it (the trainable one of two), or -1 */
    int *frozen;  /* by unit: its frozen twin, or -1 */
    struct buf out;
};

static void indent(struct printing *printing, int depth)
{
    buf_printf(&printing->out, "%*s", depth * INDENT, "");
}

/* Appends the unit's own settings. */
static void print_own(struct printing *printing, const struct unit *unit)
{
    struct buf *out = &printing->out;
    if (unit->shard_world != printing->units->shard_world) {
        if (unit->shard_world == 1) buf_add_text(out, ", not sharded");
        else buf_printf(out, ", sharded over %d ranks", unit->shard_world);
    }
    if (unit->shard_world > 1) {
        if (unit->reshard == RESHARD_YES) buf_add_text(out, ", resharded after forward");
        if (unit->reshard == RESHARD_NO) buf_add_text(out, ", kept until backward");
        if (unit->reshard == RESHARD_GROUP)
            buf_printf(out, ", resharded to %d rank%s after forward", unit->reshard_ranks,
                       unit->reshard_ranks == 1 ? "" : "s");
    }
    if (unit->param_dtype != UNIT_DTYPE_DEFAULT)
        buf_printf(out, ", in %s", dtype_name(unit_dtype_or(unit->param_dtype, DTYPE_F32)));
    if (unit->reduce_dtype != UNIT_DTYPE_DEFAULT)
        buf_printf(out, ", reduced in %s",
                   dtype_name(unit_dtype_or(unit->reduce_dtype, DTYPE_F32)));
    if (unit->cpu_offload) buf_add_text(out, ", offloaded to the CPU");
}

static void print_wrapper(struct printing *printing, int u)
{
    const struct unit *unit = &printing->units->units[u];
    char count[32];
    text_format_count((uint64_t)unit->flat.parameter_elements, count);
    buf_add_text(&printing->out, "FullyShardedDataParallel(  # ");
    if (unit->module_count > 1)
        buf_printf(&printing->out, "unit %s of %d modules: ", unit->name, unit->module_count);
    buf_printf(&printing->out, "%s %sparameter%s", count, unit->frozen ? "frozen " : "",
               unit->flat.parameter_elements == 1 ? "" : "s");
    int twin = printing->frozen[u];
    if (twin >= 0) {
        text_format_count((uint64_t)printing->units->units[twin].flat.parameter_elements, count);
        buf_printf(&printing->out, " and %s frozen", count);
    }
    print_own(printing, unit);
    buf_add_char(&printing->out, '\n');
}

static void print_module(struct printing *printing, int m, int depth);

static void print_run(struct printing *printing, const struct module *list, int first, int last,
                      int depth, const char *text)
{
    const struct module *modules = printing->model->modules;
    indent(printing, depth);
    buf_printf(&printing->out, "(%s", modules[list->children[first]].name);
    if (last > first)
        buf_printf(&printing->out, "-%s): %d x %s", modules[list->children[last]].name,
                   last - first + 1, text);
    else buf_printf(&printing->out, "): %s", text);
}

/* Consecutive modules of a ModuleList that look alike are printed once, as PyTorch does since
 * 2.0. */
static void print_list(struct printing *printing, const struct module *list, int depth)
{
    char *previous = NULL;
    int first = 0;
    for (int i = 0; i < list->child_count; i++) {
        struct buf whole = printing->out;
        printing->out = (struct buf){0};
        print_module(printing, list->children[i], depth);
        char *text = buf_take(&printing->out);
        printing->out = whole;
        if (previous != NULL && strcmp(previous, text) == 0) {
            free(text);
            continue;
        }
        if (previous != NULL) print_run(printing, list, first, i - 1, depth, previous);
        free(previous);
        previous = text;
        first = i;
    }
    print_run(printing, list, first, list->child_count - 1, depth, previous);
    free(previous);
}

static void print_module(struct printing *printing, int m, int depth)
{
    const struct module *module = &printing->model->modules[m];
    int unit = printing->wrapper[m];
    if (unit >= 0) {
        print_wrapper(printing, unit);
        indent(printing, ++depth);
        buf_add_text(&printing->out, "(_fsdp_wrapped_module): ");
    }
    const char *inside = module->print != NULL ? module->print : "";
    buf_printf(&printing->out, "%s(", module->type);
    if (module->child_count == 0) {
        buf_printf(&printing->out, "%s)\n", inside);
    } else {
        buf_add_char(&printing->out, '\n');
        if (inside[0] != '\0') {
            indent(printing, depth + 1);
            buf_printf(&printing->out, "%s\n", inside);
        }
        bool list = strcmp(module->type, "ModuleList") == 0;
        if (list) print_list(printing, module, depth + 1);
        for (int i = 0; i < module->child_count && !list; i++) {
            int child = module->children[i];
            indent(printing, depth + 1);
            buf_printf(&printing->out, "(%s): ", printing->model->modules[child].name);
            print_module(printing, child, depth + 1);
        }
        indent(printing, depth);
        buf_add_text(&printing->out, ")\n");
    }
    if (unit >= 0) {
        indent(printing, depth - 1);
        buf_add_text(&printing->out, ")\n");
    }
}

char *units_print_tree(const struct unit_set *units, const struct model *model)
{
    struct printing printing = {.model = model, .units = units};
    printing.wrapper = mem_alloc_array(model->module_count, sizeof(int));
    printing.frozen = mem_alloc_array(units->unit_count, sizeof(int));
    for (int m = 0; m < model->module_count; m++) printing.wrapper[m] = -1;
    for (int u = 0; u < units->unit_count; u++) {
        const struct unit *unit = &units->units[u];
        printing.frozen[u] = -1;
        if (unit->buffers) continue;
        /* A frozen twin comes right before its trainable unit, which wraps the same modules. */
        int before = printing.wrapper[unit->modules[0]];
        if (before >= 0) printing.frozen[u] = before;
        for (int i = 0; i < unit->module_count; i++) printing.wrapper[unit->modules[i]] = u;
    }
    print_module(&printing, 0, 0);
    buf_add_text(&printing.out, units->notes);
    free(printing.wrapper);
    free(printing.frozen);
    return buf_take(&printing.out);
}
