/* The settings to choose from; see space.h. Immutable once made; any thread. */
#include "planning/space.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"

enum {
    OPTIONS_MAX = 64,   /* of one dimension */
    PATTERNS_MAX = 64,  /* of fsdp.activation_checkpointing (docs/job-file.md) */
    BATCHES_MAX = 16,   /* sizes of a batch */
    THRESHOLDS_MAX = 7, /* size policies, a power of ten apart */
};

struct batch_option {
    uint32_t batch, steps;
    bool no_sync;
};

struct sharding_option {
    enum strategy strategy;
    int shard_size; /* STRATEGY_HYBRID_SHARD */
    enum reshard reshard;
    int reshard_ranks; /* RESHARD_GROUP */
};

struct fetch_option {
    int limit; /* 0: no limit */
    enum prefetch prefetch;
};

struct recompute_option {
    const char **patterns;
    int count;
    enum recompute what;
};

struct units_option {
    struct wrap_policy policy;
    struct wrap_unit_spec *units; /* the policy's own; one module list for all */
    const char **names;
};

struct space {
    const struct train_job *job;
    const struct model *model;
    int blocks; /* the module whose children are the model's blocks; -1: none */
    int sizes[DIMENSION_COUNT];
    struct batch_option batches[OPTIONS_MAX];
    struct recompute_option recompute[OPTIONS_MAX];
    struct units_option units[OPTIONS_MAX];
    struct sharding_option sharding[OPTIONS_MAX];
    struct fetch_option fetch[OPTIONS_MAX];
    char *words[DIMENSION_COUNT][OPTIONS_MAX];
    char **texts; /* patterns and the like, owned */
    int text_count, text_capacity;
};

/* ---- Options ---- */

/* Takes over `text`. */
static const char *keep(struct space *space, char *text)
{
    MEM_GROW(space->texts, space->text_count, space->text_capacity);
    return space->texts[space->text_count++] = text;
}

/* Adds an option described by `words`, which it takes over; returns its index. */
static int add(struct space *space, enum dimension dimension, char *words)
{
    space->words[dimension][space->sizes[dimension]] = words;
    return space->sizes[dimension]++;
}

static bool is_full(const struct space *space, enum dimension dimension)
{
    return space->sizes[dimension] >= OPTIONS_MAX;
}

/* Divides a rank's samples of a step into equal batches, the largest first. */
static void add_batches(struct space *space)
{
    const struct train_job *job = space->job;
    uint64_t steps = job->accumulation_steps > 1 ? job->accumulation_steps : 1;
    uint64_t samples = job->batch_size * steps;
    for (uint64_t count = 1; count <= samples; count++) {
        if (samples % count != 0) continue;
        uint64_t batch = samples / count;
        if (batch > UINT32_MAX || count > UINT32_MAX) continue;
        for (int no_sync = 0; no_sync <= (count > 1 && job->world > 1); no_sync++) {
            if (space->sizes[DIMENSION_BATCH] >= BATCHES_MAX * 2) return;
            char *words = mem_printf("batches of %" PRIu64 "%s", batch,
                                     no_sync ? ", reduced once per step" : "");
            int option = add(space, DIMENSION_BATCH, words);
            space->batches[option] =
                (struct batch_option){(uint32_t)batch, (uint32_t)count, no_sync};
        }
    }
}

static int64_t count_elements(const struct model *model, int module)
{
    int64_t count = 0;
    for (int p = 0; p < model->parameter_count; p++) {
        int m = model->parameters[p].module;
        while (m > 0 && m != module) m = model->modules[m].parent;
        if (m == module && model->parameters[p].tied_to < 0)
            count += tensor_element_count(&model->parameters[p].type);
    }
    return count;
}

/* The list of the model's blocks, as the policy `auto` finds it. */
static int find_blocks(const struct model *model)
{
    int found = -1;
    int64_t most = 0;
    for (int m = 1; m < model->module_count; m++) {
        if (strcmp(model->modules[m].type, "ModuleList") != 0) continue;
        int64_t count = count_elements(model, m);
        if (count <= most) continue;
        most = count;
        found = m;
    }
    return found;
}

static const struct module *block(const struct space *space, int index)
{
    const struct model *model = space->model;
    return &model->modules[model->modules[space->blocks].children[index]];
}

static int block_count(const struct space *space)
{
    return space->blocks < 0 ? 0 : space->model->modules[space->blocks].child_count;
}

static void add_recompute(struct space *space, char *words, const char **patterns, int count)
{
    int option = add(space, DIMENSION_RECOMPUTE, words);
    space->recompute[option] = (struct recompute_option){patterns, count, RECOMPUTE_ALL};
}

static void add_pattern(struct space *space, const char *part, char *words)
{
    const char *list = space->model->modules[space->blocks].path;
    const char **patterns = mem_alloc_array(1, sizeof *patterns);
    patterns[0] =
        keep(space, part != NULL ? mem_printf("%s.*.%s", list, part) : mem_printf("%s.*", list));
    add_recompute(space, words, patterns, 1);
}

/* Nothing; a part of every block; every block; some of the blocks. */
static void add_recomputations(struct space *space)
{
    add_recompute(space, mem_strdup(""), NULL, 0);
    int blocks = block_count(space);
    if (blocks == 0) return;
    const struct module *first = block(space, 0);
    for (int i = 0; i < first->child_count && i < 8; i++) {
        const char *part = space->model->modules[first->children[i]].name;
        add_pattern(space, part, mem_printf("%s of each block computed again", part));
    }
    add_pattern(space, NULL, mem_strdup("each block computed again"));
    add_pattern(space, NULL, mem_strdup("each block computed again but for its products"));
    space->recompute[space->sizes[DIMENSION_RECOMPUTE] - 1].what = RECOMPUTE_CHEAP;
    for (int quarter = 1; quarter < 4; quarter++) {
        int count = blocks * quarter / 4;
        if (count < 1 || count > PATTERNS_MAX || count == blocks * (quarter - 1) / 4) continue;
        const char **patterns = mem_alloc_array((size_t)count, sizeof *patterns);
        for (int i = 0; i < count; i++) patterns[i] = block(space, i)->path;
        add_recompute(space, mem_printf("%d of %d blocks computed again", count, blocks), patterns,
                      count);
    }
}

static void add_policy(struct space *space, char *words, const struct wrap_policy *policy)
{
    space->units[add(space, DIMENSION_UNITS, words)].policy = *policy;
}

static bool is_below(const struct model *model, int module, int ancestor)
{
    while (module > 0 && module != ancestor) module = model->modules[module].parent;
    return module == ancestor;
}

/* Modules with parameters of their own that no block contains: embeddings, the head. */
static int find_outside(const struct space *space, const char **names, int most)
{
    const struct model *model = space->model;
    int count = 0;
    for (int m = 1; m < model->module_count && count < most; m++) {
        const struct module *module = &model->modules[m];
        if (module->parameter_count == 0 || is_below(model, m, space->blocks)) continue;
        bool tied = false;
        for (int i = 0; i < module->parameter_count; i++)
            for (int p = 0; p < model->parameter_count && !tied; p++)
                tied = model->parameters[p].tied_to == module->parameters[i] ||
                       model->parameters[module->parameters[i]].tied_to >= 0;
        if (!tied) names[count++] = module->path;
    }
    return count;
}

/* Units of `group` consecutive blocks each; with `outside`, other modules are units, too. */
static void add_groups(struct space *space, int group, bool outside)
{
    int blocks = block_count(space);
    const char *others[16];
    int other_count = outside ? find_outside(space, others, COUNT_OF(others)) : 0;
    if (outside && other_count == 0) return;
    struct units_option option = {.policy = {.kind = WRAP_UNITS}};
    int units = (blocks + group - 1) / group + other_count;
    option.units = mem_alloc_array((size_t)units, sizeof *option.units);
    option.names = mem_alloc_array((size_t)(blocks + other_count), sizeof *option.names);
    int unit = 0;
    for (int i = 0; i < blocks; i++) {
        option.names[i] = block(space, i)->path;
        if (i % group == 0) option.units[unit++].modules = &option.names[i];
        option.units[unit - 1].module_count++;
    }
    for (int i = 0; i < other_count; i++) {
        option.names[blocks + i] = others[i];
        option.units[unit++] =
            (struct wrap_unit_spec){.modules = &option.names[blocks + i], .module_count = 1};
    }
    option.policy.units = option.units;
    option.policy.unit_count = unit;
    char *words = group > 1 ? mem_printf("units of %d blocks", group)
                            : mem_strdup("units for embeddings and head, too");
    space->units[add(space, DIMENSION_UNITS, words)] = option;
}

/* Every block is a unit. The last ones stay gathered after forward: backward needs them first. Or
 * the first ones are offloaded. */
static void add_some(struct space *space, int quarter, bool offload)
{
    int blocks = block_count(space), count = blocks * quarter / 4;
    if (count < 1 || count == blocks * (quarter - 1) / 4) return;
    struct units_option option = {.policy = {.kind = WRAP_UNITS, .unit_count = blocks}};
    option.units = mem_alloc_array((size_t)blocks, sizeof *option.units);
    option.names = mem_alloc_array((size_t)blocks, sizeof *option.names);
    for (int i = 0; i < blocks; i++) {
        option.names[i] = block(space, i)->path;
        option.units[i] = (struct wrap_unit_spec){
            .modules = &option.names[i],
            .module_count = 1,
            .reshard = !offload && i >= blocks - count ? RESHARD_NO : RESHARD_DEFAULT,
            .cpu_offload = offload && i < count,
        };
    }
    option.policy.units = option.units;
    char *words = offload ? mem_printf("%d of %d blocks on the host", count, blocks)
                          : mem_printf("%d of %d blocks gathered until backward", count, blocks);
    space->units[add(space, DIMENSION_UNITS, words)] = option;
}

/* Every block is a unit, and its parts are units inside it. */
static void add_parts(struct space *space)
{
    struct units_option option = {.policy = {.kind = WRAP_TYPE}};
    const struct module *first = block(space, 0);
    option.names = mem_alloc_array((size_t)first->child_count + 1, sizeof *option.names);
    int count = 0;
    option.names[count++] = first->type;
    for (int i = 0; i < first->child_count && count < PATTERNS_MAX; i++) {
        const struct module *part = &space->model->modules[first->children[i]];
        bool known = part->child_count == 0; /* a block's own layers are too small for units */
        for (int k = 0; k < count && !known; k++) known = strcmp(option.names[k], part->type) == 0;
        if (!known) option.names[count++] = part->type;
    }
    option.policy.types = (struct wrap_names){option.names, count};
    space->units[add(space, DIMENSION_UNITS, mem_strdup("units of parts of blocks"))] = option;
}

static void add_units(struct space *space, bool offload)
{
    const struct model *model = space->model;
    if (block_count(space) > 0 && model->tokens) {
        add_policy(space, mem_strdup(""), &(struct wrap_policy){.kind = WRAP_AUTO});
        add_groups(space, 1, true);
        for (int group = 2; group <= 8 && group < block_count(space); group *= 2)
            add_groups(space, group, false);
        add_parts(space);
        for (int quarter = 1; quarter < 4; quarter++) {
            if (space->job->world > 1) add_some(space, quarter, false);
            if (offload) add_some(space, quarter, true);
        }
    } else {
        int64_t all = model_parameter_elements(model);
        int count = 0;
        for (int64_t size = 100000000; size >= 100 && count < THRESHOLDS_MAX; size /= 10) {
            if (size > all) continue;
            struct wrap_policy policy = {.kind = WRAP_SIZE, .min_num_params = (uint64_t)size};
            add_policy(space, mem_printf("units of at least %" PRId64 " parameters", size),
                       &policy);
            count++;
        }
    }
    add_policy(space, mem_strdup("one unit"), &(struct wrap_policy){.kind = WRAP_NONE});
}

static void add_sharding(struct space *space, char *words, enum strategy strategy, int shard_size,
                         enum reshard reshard, int ranks)
{
    if (is_full(space, DIMENSION_SHARDING)) {
        free(words);
        return;
    }
    int option = add(space, DIMENSION_SHARDING, words);
    space->sharding[option] = (struct sharding_option){strategy, shard_size, reshard, ranks};
}

static void add_shardings(struct space *space, int per_host)
{
    int world = space->job->world;
    add_sharding(space, mem_strdup(""), STRATEGY_FULL_SHARD, 0, RESHARD_DEFAULT, 0);
    if (world == 1) return;
    add_sharding(space, mem_strdup("shard_grad_op"), STRATEGY_SHARD_GRAD_OP, 0, RESHARD_DEFAULT, 0);
    add_sharding(space, mem_strdup("no_shard"), STRATEGY_NO_SHARD, 0, RESHARD_DEFAULT, 0);
    for (int ranks = 2; ranks < world; ranks++) {
        if (world % ranks != 0) continue;
        const char *host = ranks == per_host ? " (a host)" : "";
        add_sharding(space, mem_printf("hybrid_shard over %d ranks%s", ranks, host),
                     STRATEGY_HYBRID_SHARD, ranks, RESHARD_DEFAULT, 0);
        if (ranks > per_host) continue; /* backward's gathers stay within a host */
        add_sharding(space, mem_printf("resharded to %d ranks%s after forward", ranks, host),
                     STRATEGY_FULL_SHARD, 0, RESHARD_GROUP, ranks);
    }
}

static void add_fetches(struct space *space)
{
    static const struct fetch_option options[] = {
        {2, PREFETCH_PRE}, {2, PREFETCH_POST}, {2, PREFETCH_NONE}, {1, PREFETCH_PRE},
        {3, PREFETCH_PRE}, {4, PREFETCH_PRE},  {8, PREFETCH_PRE},
    };
    static const char *const words[] = {"",
                                        "backward_prefetch post",
                                        "no prefetching in backward",
                                        "one unit gathered at a time",
                                        "up to 3 units gathered",
                                        "up to 4 units gathered",
                                        "up to 8 units gathered"};
    int count = space->job->world > 1 ? (int)COUNT_OF(options) : 1;
    for (int i = 0; i < count; i++)
        space->fetch[add(space, DIMENSION_FETCH, mem_strdup(words[i]))] = options[i];
}

struct space *space_new(const struct train_job *job, const struct model *model,
                        const struct plan_rates *rates, bool offload)
{
    struct space *space = mem_alloc(sizeof *space);
    space->job = job;
    space->model = model;
    space->blocks = find_blocks(model);
    add_batches(space);
    add_recomputations(space);
    add_units(space, offload);
    add_shardings(space, rates->devices_per_host);
    add_fetches(space);
    add(space, DIMENSION_OFFLOAD, mem_strdup(""));
    if (offload) add(space, DIMENSION_OFFLOAD, mem_strdup("parameters and optimizer on the host"));
    return space;
}

void space_free(struct space *space)
{
    if (space == NULL) return;
    for (int d = 0; d < DIMENSION_COUNT; d++)
        for (int i = 0; i < space->sizes[d]; i++) free(space->words[d][i]);
    for (int i = 0; i < space->sizes[DIMENSION_RECOMPUTE]; i++) free(space->recompute[i].patterns);
    for (int i = 0; i < space->sizes[DIMENSION_UNITS]; i++) {
        free(space->units[i].units);
        free(space->units[i].names);
    }
    for (int i = 0; i < space->text_count; i++) free(space->texts[i]);
    free(space->texts);
    free(space);
}

/* ---- Points ---- */

int space_size(const struct space *space, enum dimension dimension)
{
    return space->sizes[dimension];
}

uint64_t space_points(const struct space *space)
{
    uint64_t points = 1;
    for (int d = 0; d < DIMENSION_COUNT; d++)
        if (__builtin_mul_overflow(points, (uint64_t)space->sizes[d], &points)) return UINT64_MAX;
    return points;
}

uint64_t space_key(const struct space *space, struct point point)
{
    const struct sharding_option *sharding = &space->sharding[point.at[DIMENSION_SHARDING]];
    bool gathers = space->job->world > 1 && sharding->strategy != STRATEGY_NO_SHARD;
    if (!gathers) point.at[DIMENSION_FETCH] = 0;
    uint64_t key = 0;
    for (int d = 0; d < DIMENSION_COUNT; d++)
        key = key * (uint64_t)space->sizes[d] + (uint64_t)point.at[d];
    return key;
}

void space_apply(const struct space *space, struct point point, struct train_job *job)
{
    const struct batch_option *batch = &space->batches[point.at[DIMENSION_BATCH]];
    const struct recompute_option *recompute = &space->recompute[point.at[DIMENSION_RECOMPUTE]];
    const struct sharding_option *sharding = &space->sharding[point.at[DIMENSION_SHARDING]];
    const struct fetch_option *fetch = &space->fetch[point.at[DIMENSION_FETCH]];
    *job = *space->job;
    job->batch_size = batch->batch;
    job->accumulation_steps = batch->steps;
    job->no_sync = batch->no_sync;
    job->batch_tokens = job->global_batch = 0;
    job->checkpoint = recompute->patterns;
    job->checkpoint_count = recompute->count;
    job->recompute = recompute->what;
    job->wrap = space->units[point.at[DIMENSION_UNITS]].policy;
    job->plan.strategy = sharding->strategy;
    job->shard_size = sharding->shard_size;
    job->plan.reshard = sharding->reshard;
    job->plan.reshard_ranks = sharding->reshard_ranks;
    job->plan.gathered_limit = fetch->limit;
    job->plan.backward_prefetch = fetch->prefetch;
    job->plan.cpu_offload = point.at[DIMENSION_OFFLOAD] > 0;
}

static void add_list(struct buf *out, const char *const *items, int count)
{
    buf_add_char(out, '[');
    for (int i = 0; i < count; i++) buf_printf(out, "%s\"%s\"", i > 0 ? ", " : "", items[i]);
    buf_add_char(out, ']');
}

static void print_policy(const struct wrap_policy *policy, struct buf *out)
{
    static const char *const names[] = {[WRAP_NONE] = "none",
                                        [WRAP_SIZE] = "size",
                                        [WRAP_UNITS] = "units",
                                        [WRAP_TYPE] = "type",
                                        [WRAP_AUTO] = "auto"};
    buf_printf(out, "fsdp.wrap.policy=%s\n", names[policy->kind]);
    if (policy->kind == WRAP_SIZE)
        buf_printf(out, "fsdp.wrap.min_num_params=%" PRIu64 "\n", policy->min_num_params);
    if (policy->kind == WRAP_TYPE) {
        buf_add_text(out, "fsdp.wrap.types=");
        add_list(out, policy->types.items, policy->types.count);
        buf_add_char(out, '\n');
    }
    if (policy->kind != WRAP_UNITS) return;
    buf_add_text(out, "fsdp.wrap.units=[");
    for (int u = 0; u < policy->unit_count; u++) {
        const struct wrap_unit_spec *unit = &policy->units[u];
        bool kept = unit->reshard == RESHARD_NO;
        if (u > 0) buf_add_text(out, ", ");
        if (kept || unit->cpu_offload) buf_add_text(out, "{modules: ");
        add_list(out, unit->modules, unit->module_count);
        if (kept) buf_add_text(out, ", reshard_after_forward: false}");
        else if (unit->cpu_offload) buf_add_text(out, ", cpu_offload: true}");
    }
    buf_add_text(out, "]\n");
}

void space_print(const struct space *space, struct point point, struct buf *out)
{
    static const char *const prefetches[] = {
        [PREFETCH_NONE] = "none", [PREFETCH_PRE] = "pre", [PREFETCH_POST] = "post"};
    struct train_job job;
    space_apply(space, point, &job);
    buf_printf(out, "train.batch_size=%" PRIu32 "\n", job.batch_size);
    if (space->job->batch_tokens == 0 && space->job->global_batch == 0)
        buf_printf(out, "train.accumulation_steps=%" PRIu32 "\n", job.accumulation_steps);
    buf_printf(out, "train.no_sync=%s\n", job.no_sync ? "true" : "false");
    buf_printf(out, "fsdp.strategy=%s\n", plan_strategy_name(job.plan.strategy));
    if (job.plan.strategy == STRATEGY_HYBRID_SHARD)
        buf_printf(out, "fsdp.shard_size=%d\n", job.shard_size);
    if (job.plan.reshard == RESHARD_GROUP)
        buf_printf(out, "fsdp.reshard_after_forward=%d\n", job.plan.reshard_ranks);
    print_policy(&job.wrap, out);
    buf_printf(out, "fsdp.backward_prefetch=%s\n", prefetches[job.plan.backward_prefetch]);
    buf_printf(out, "fsdp.gathered_limit=%d\n", job.plan.gathered_limit);
    buf_add_text(out, "fsdp.activation_checkpointing=");
    add_list(out, job.checkpoint, job.checkpoint_count);
    buf_printf(out, "\nfsdp.recompute=%s", job.recompute == RECOMPUTE_CHEAP ? "cheap" : "all");
    buf_printf(out, "\nfsdp.cpu_offload=%s\n", job.plan.cpu_offload ? "true" : "false");
}

void space_print_units(const struct space *space, int option, struct buf *out)
{
    print_policy(&space->units[option].policy, out);
}

const char *space_words(const struct space *space, enum dimension dimension, int option)
{
    return space->words[dimension][option];
}

int space_frugal(const struct space *space, enum dimension dimension)
{
    int last = space->sizes[dimension] - 1;
    switch (dimension) {
    case DIMENSION_BATCH: return last > 0 && space->batches[last].no_sync ? last - 1 : last;
    case DIMENSION_OFFLOAD: return last;
    case DIMENSION_RECOMPUTE:
        for (int i = 0; i <= last; i++)
            if (strcmp(space->words[dimension][i], "each block computed again") == 0) return i;
        return 0;
    case DIMENSION_UNITS:
    case DIMENSION_SHARDING:
    case DIMENSION_FETCH:
    case DIMENSION_COUNT: break;
    }
    return 0;
}
