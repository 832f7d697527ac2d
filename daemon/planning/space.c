/* The settings to choose from; see space.h. Immutable once made; any thread. */
#include "planning/space.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "planning/message.h"
#include "proto/message.h"

enum {
    OPTIONS_MAX = 64,   /* of one dimension */
    PATTERNS_MAX = 64,  /* of fsdp.activation_checkpointing (docs/job-file.md) */
    BATCHES_MAX = 16,   /* sizes of a batch */
    THRESHOLDS_MAX = 7, /* size policies, a power of ten apart */
    QUARTERS = 4,       /* of the units */
};

struct batch_option {
    uint32_t batch, steps;
    bool no_sync;
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
    struct unit_list list;
};

struct space {
    const struct train_job *job;
    const struct model *model;
    int per_host; /* ranks */
    int blocks;   /* the module whose children are the model's blocks; -1: none */
    int sizes[DIMENSION_COUNT];
    struct batch_option batches[OPTIONS_MAX];
    struct recompute_option recompute[OPTIONS_MAX];
    struct units_option units[OPTIONS_MAX];
    struct sharding sharding[OPTIONS_MAX];
    struct fetch_option fetch[OPTIONS_MAX];
    struct own_option own[OPTIONS_MAX];
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

static void add_units(struct space *space)
{
    const struct model *model = space->model;
    if (block_count(space) > 0 && model->tokens) {
        add_policy(space, mem_strdup(""), &(struct wrap_policy){.kind = WRAP_AUTO});
        add_groups(space, 1, true);
        for (int group = 2; group <= 8 && group < block_count(space); group *= 2)
            add_groups(space, group, false);
        add_parts(space);
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
    for (int i = 0; i < space->sizes[DIMENSION_UNITS]; i++)
        space->units[i].list = unit_list_new(model, &space->units[i].policy);
}

static void add_sharding(struct space *space, char *words, enum strategy strategy, int shard_size,
                         enum reshard reshard, int ranks, bool keep_frozen)
{
    if (is_full(space, DIMENSION_SHARDING)) {
        free(words);
        return;
    }
    int option = add(space, DIMENSION_SHARDING, words);
    space->sharding[option] = (struct sharding){strategy, shard_size, reshard, ranks, keep_frozen};
}

/* Whether every world of the job can have groups of that many ranks, and not only this one. */
static bool divides(const struct train_job *job, int ranks)
{
    return !job->elastic && job->world % ranks == 0;
}

/* Whether each shard must have a copy on another rank. */
static bool needs_copies(const struct train_job *job)
{
    return job->redundancy == REDUNDANCY_REPLICA;
}

static bool has_frozen(const struct model *model)
{
    for (int p = 0; p < model->parameter_count; p++)
        if (!model->parameters[p].trainable && model->parameters[p].buffer == MODEL_BUFFER_NONE)
            return true;
    return false;
}

static void add_shardings(struct space *space)
{
    const struct train_job *job = space->job;
    bool copies = needs_copies(job);
    if (!copies)
        add_sharding(space, mem_strdup(""), STRATEGY_FULL_SHARD, 0, RESHARD_DEFAULT, 0, false);
    if (job->world == 1 && !copies) return;
    if (!copies)
        add_sharding(space, mem_strdup("shard_grad_op"), STRATEGY_SHARD_GRAD_OP, 0, RESHARD_DEFAULT,
                     0, false);
    add_sharding(space, mem_strdup("no_shard"), STRATEGY_NO_SHARD, 0, RESHARD_DEFAULT, 0, false);
    if (!copies && has_frozen(space->model))
        add_sharding(space, mem_strdup("frozen parameters whole on every rank"),
                     STRATEGY_FULL_SHARD, 0, RESHARD_DEFAULT, 0, true);
    for (int ranks = 2; ranks < job->world; ranks++) {
        if (!divides(job, ranks)) continue;
        const char *host = ranks == space->per_host ? " (a host)" : "";
        add_sharding(space, mem_printf("hybrid_shard over %d ranks%s", ranks, host),
                     STRATEGY_HYBRID_SHARD, ranks, RESHARD_DEFAULT, 0, false);
        if (copies || ranks > space->per_host) continue; /* backward's gathers stay within a host */
        add_sharding(space, mem_printf("resharded to %d ranks%s after forward", ranks, host),
                     STRATEGY_FULL_SHARD, 0, RESHARD_GROUP, ranks, false);
    }
}

static void add_fetches(struct space *space)
{
    static const struct fetch_option options[] = {
        {2, PREFETCH_PRE}, {2, PREFETCH_POST}, {2, PREFETCH_NONE}, {1, PREFETCH_PRE},
        {3, PREFETCH_PRE}, {4, PREFETCH_PRE},  {8, PREFETCH_PRE},  {1, PREFETCH_NONE},
    };
    static const char *const words[] = {"",
                                        "backward_prefetch post",
                                        "no prefetching in backward",
                                        "one unit gathered at a time",
                                        "up to 3 units gathered",
                                        "up to 4 units gathered",
                                        "up to 8 units gathered",
                                        "one unit gathered at a time, without prefetching"};
    int count = space->job->world > 1 ? (int)COUNT_OF(options) : 1;
    for (int i = 0; i < count; i++)
        space->fetch[add(space, DIMENSION_FETCH, mem_strdup(words[i]))] = options[i];
}

static void add_own(struct space *space, enum own_kind kind, enum strategy strategy, int shard_size,
                    char *words)
{
    if (is_full(space, DIMENSION_OWN)) {
        free(words);
        return;
    }
    int option = add(space, DIMENSION_OWN, words);
    space->own[option] =
        (struct own_option){.kind = kind,
                            .sharding = {.strategy = strategy, .shard_size = shard_size}};
}

/* What some units may have of their own, the most frequent first; and how many of them. */
static void add_owns(struct space *space, bool offload)
{
    int world = space->job->world;
    add_own(space, OWN_NOTHING, 0, 0, mem_strdup(""));
    if (world > 1) {
        add_own(space, OWN_KEPT, 0, 0, mem_strdup("gathered until backward"));
        add_own(space, OWN_STRATEGY, STRATEGY_NO_SHARD, 0, mem_strdup("no_shard"));
        if (!needs_copies(space->job))
            add_own(space, OWN_STRATEGY, STRATEGY_FULL_SHARD, 0, mem_strdup("full_shard"));
        add_own(space, OWN_REST, 0, 0, mem_strdup("no_shard for what no unit has"));
    }
    if (offload) add_own(space, OWN_HOST, 0, 0, mem_strdup("on the host"));
    for (int ranks = 2; ranks < world; ranks++)
        if (divides(space->job, ranks))
            add_own(space, OWN_STRATEGY, STRATEGY_HYBRID_SHARD, ranks,
                    mem_printf("hybrid_shard over %d ranks", ranks));
    int shares = space->sizes[DIMENSION_OWN] > 1 ? QUARTERS : 1;
    for (int quarters = 1; quarters <= shares; quarters++)
        add(space, DIMENSION_SHARE, mem_strdup(""));
}

struct space *space_new(const struct train_job *job, const struct model *model,
                        const struct plan_rates *rates, bool offload)
{
    struct space *space = mem_alloc(sizeof *space);
    space->job = job;
    space->model = model;
    space->per_host = rates->devices_per_host;
    space->blocks = find_blocks(model);
    add_batches(space);
    add_recomputations(space);
    add_units(space);
    add_shardings(space);
    add_fetches(space);
    add(space, DIMENSION_OFFLOAD, mem_strdup(""));
    if (offload) add(space, DIMENSION_OFFLOAD, mem_strdup("parameters and optimizer on the host"));
    add_owns(space, offload);
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
        unit_list_deinit(&space->units[i].list);
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

static const struct unit_list *list_of(const struct space *space, struct point point)
{
    return &space->units[point.at[DIMENSION_UNITS]].list;
}

/* Whether units' own settings change anything. */
static bool own_matters(const struct space *space, struct point point)
{
    const struct own_option *own = &space->own[point.at[DIMENSION_OWN]];
    const struct sharding *all = &space->sharding[point.at[DIMENSION_SHARDING]];
    if (list_of(space, point)->count == 0) return false;
    switch (own->kind) {
    case OWN_NOTHING: return false;
    case OWN_KEPT:
        return all->strategy != STRATEGY_SHARD_GRAD_OP && all->strategy != STRATEGY_NO_SHARD;
    case OWN_HOST: return point.at[DIMENSION_OFFLOAD] == 0;
    case OWN_STRATEGY:
        return all->strategy != own->sharding.strategy ||
               all->shard_size != own->sharding.shard_size || all->reshard != RESHARD_DEFAULT;
    case OWN_REST: return all->strategy != STRATEGY_NO_SHARD;
    }
    return false;
}

struct point space_canonical(const struct space *space, struct point point)
{
    if (!own_matters(space, point)) point.at[DIMENSION_OWN] = 0;
    enum own_kind own = space->own[point.at[DIMENSION_OWN]].kind;
    if (own == OWN_NOTHING || own == OWN_REST) point.at[DIMENSION_SHARE] = 0;
    int units = list_of(space, point)->count;
    for (int *share = &point.at[DIMENSION_SHARE]; *share > 0; --*share)
        if (own_share_count(units, *share) != own_share_count(units, *share + 1)) break;
    bool gathers = space->sharding[point.at[DIMENSION_SHARDING]].strategy != STRATEGY_NO_SHARD ||
                   own == OWN_STRATEGY || own == OWN_REST;
    if (space->job->world == 1 || !gathers) point.at[DIMENSION_FETCH] = 0;
    return point;
}

uint64_t space_key(const struct space *space, struct point point)
{
    uint64_t key = 0;
    for (int d = 0; d < DIMENSION_COUNT; d++)
        key = key * (uint64_t)space->sizes[d] + (uint64_t)point.at[d];
    return key;
}

/* The policy with units' own settings. */
static void apply_own(const struct space *space, struct point point, struct space_job *out)
{
    const struct own_option *own = &space->own[point.at[DIMENSION_OWN]];
    const struct sharding *all = &space->sharding[point.at[DIMENSION_SHARDING]];
    const struct unit_list *list = list_of(space, point);
    if (own->kind == OWN_NOTHING) return;
    out->units = own_apply(own, list, point.at[DIMENSION_SHARE] + 1, all, out->job.world);
    out->job.wrap =
        (struct wrap_policy){.kind = WRAP_UNITS, .units = out->units, .unit_count = list->count};
    if (own->kind != OWN_REST) return;
    out->job.plan.strategy = STRATEGY_NO_SHARD;
    out->job.plan.reshard = RESHARD_DEFAULT;
    out->job.shard_size = out->job.plan.reshard_ranks = 0;
}

void space_apply(const struct space *space, struct point point, struct space_job *out)
{
    const struct batch_option *batch = &space->batches[point.at[DIMENSION_BATCH]];
    const struct recompute_option *recompute = &space->recompute[point.at[DIMENSION_RECOMPUTE]];
    const struct sharding *sharding = &space->sharding[point.at[DIMENSION_SHARDING]];
    const struct fetch_option *fetch = &space->fetch[point.at[DIMENSION_FETCH]];
    struct train_job *job = &out->job;
    *out = (struct space_job){.job = *space->job};
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
    job->keep_frozen = sharding->keep_frozen;
    job->plan.gathered_limit = fetch->limit;
    job->plan.backward_prefetch = fetch->prefetch;
    job->plan.cpu_offload = point.at[DIMENSION_OFFLOAD] > 0;
    apply_own(space, point, out);
}

void space_job_deinit(struct space_job *job)
{
    free(job->units);
    *job = (struct space_job){0};
}

Fsdpd__V1__Chosen *space_chosen(const struct space *space, struct point point, bool units_only)
{
    static const Fsdpd__V1__Prefetch prefetches[] = {
        [PREFETCH_NONE] = FSDPD__V1__PREFETCH__PREFETCH_NONE,
        [PREFETCH_PRE] = FSDPD__V1__PREFETCH__PREFETCH_PRE,
        [PREFETCH_POST] = FSDPD__V1__PREFETCH__PREFETCH_POST};
    struct space_job applied;
    space_apply(space, point, &applied);
    const struct train_job *job = &applied.job;
    Fsdpd__V1__Chosen *chosen = MESSAGE_NEW(chosen, fsdpd__v1__chosen__init);
    chosen->by = FSDPD__V1__CHOOSER__CHOOSER_PLANNER;
    chosen->wrap = plan_message_wrap(&job->wrap, job->world);
    if (!units_only) {
        Fsdpd__V1__ChosenSettings *settings = chosen->settings =
            MESSAGE_NEW(settings, fsdpd__v1__chosen_settings__init);
        settings->batch_size = job->batch_size;
        if (space->job->batch_tokens == 0 && space->job->global_batch == 0)
            settings->accumulation_steps = job->accumulation_steps;
        settings->no_sync = job->no_sync;
        settings->strategy = plan_message_strategy(job->plan.strategy);
        settings->shard_size = (uint32_t)job->shard_size;
        if (job->plan.reshard == RESHARD_GROUP)
            settings->reshard_after_forward = mem_printf("%d", job->plan.reshard_ranks);
        settings->backward_prefetch = prefetches[job->plan.backward_prefetch];
        settings->gathered_limit = (uint32_t)job->plan.gathered_limit;
        settings->n_activation_checkpointing = (size_t)job->checkpoint_count;
        settings->activation_checkpointing =
            plan_message_texts(job->checkpoint, job->checkpoint_count);
        settings->recompute = job->recompute == RECOMPUTE_CHEAP
                                  ? FSDPD__V1__RECOMPUTE__RECOMPUTE_CHEAP
                                  : FSDPD__V1__RECOMPUTE__RECOMPUTE_ALL;
        settings->cpu_offload = job->plan.cpu_offload;
        settings->keep_frozen = job->keep_frozen;
    }
    space_job_deinit(&applied);
    return chosen;
}

const char *space_words(const struct space *space, enum dimension dimension, int option)
{
    return space->words[dimension][option];
}

void space_describe_own(const struct space *space, struct point point, struct buf *out)
{
    const char *words = space_words(space, DIMENSION_OWN, point.at[DIMENSION_OWN]);
    enum own_kind own = space->own[point.at[DIMENSION_OWN]].kind;
    int units = list_of(space, point)->count;
    int count = own_share_count(units, point.at[DIMENSION_SHARE] + 1);
    if (own == OWN_NOTHING || own == OWN_REST) buf_add_text(out, words);
    else if (count < units)
        buf_printf(out, "the %s %d of %d units %s", own == OWN_KEPT ? "last" : "first", count,
                   units, words);
    else buf_printf(out, "all units but the root %s", words);
}

int space_own_kept(const struct space *space)
{
    for (int i = 0; i < space->sizes[DIMENSION_OWN]; i++)
        if (space->own[i].kind == OWN_KEPT) return i;
    return -1;
}

int space_frugal(const struct space *space, enum dimension dimension)
{
    int last = space->sizes[dimension] - 1;
    switch (dimension) {
    case DIMENSION_BATCH: return last > 0 && space->batches[last].no_sync ? last - 1 : last;
    case DIMENSION_OFFLOAD:
    case DIMENSION_FETCH: return last;
    case DIMENSION_RECOMPUTE:
        for (int i = 0; i <= last; i++)
            if (strcmp(space->words[dimension][i], "each block computed again") == 0) return i;
        return 0;
    case DIMENSION_UNITS:
    case DIMENSION_SHARDING:
    case DIMENSION_OWN:
    case DIMENSION_SHARE:
    case DIMENSION_COUNT: break;
    }
    return 0;
}

int space_survey(const struct space *space, enum dimension dimension,
                 int options[static SPACE_SURVEY_MAX])
{
    int count = 0;
    switch (dimension) {
    case DIMENSION_BATCH:
        for (int i = 0; i < space->sizes[dimension] && count < SPACE_SURVEY_MAX; i++)
            if (!space->batches[i].no_sync) options[count++] = i;
        break;
    case DIMENSION_SHARDING: /* of all ranks, and within a host */
        options[count++] = 0;
        for (int i = 1; i < space->sizes[dimension] && count < 2; i++)
            if (space->sharding[i].shard_size == space->per_host) options[count++] = i;
        break;
    case DIMENSION_RECOMPUTE: /* nothing, and all */
    case DIMENSION_OFFLOAD:
        options[count++] = 0;
        if (space_frugal(space, dimension) != 0) options[count++] = space_frugal(space, dimension);
        break;
    case DIMENSION_UNITS:
    case DIMENSION_FETCH:
    case DIMENSION_OWN:
    case DIMENSION_SHARE:
    case DIMENSION_COUNT: options[count++] = 0;
    }
    return count;
}
