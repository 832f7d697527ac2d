/*
 * Flat parameters: where each parameter of a unit starts, and the length of one rank's shard. Pure
 * functions; any thread.
 *
 * Every parameter starts at a multiple of FLAT_ALIGN_ELEMENTS, and so does every shard, because a
 * shard's length is rounded up to one. With more ranks than elements the last shards hold padding
 * only; without elements all shards are empty. With state in 8 bits (slots.h) parameters that have
 * such state lie on whole blocks, and shards are rounded up to those; so with a base in blocks.
 */
#include "fsdp/flat_parameter.h"

#include <stdlib.h>

#include "base/mem.h"
#include "fsdp/factors.h"

int flat_parameter_owner(const struct model *model, int parameter)
{
    while (model->parameters[parameter].tied_to >= 0)
        parameter = model->parameters[parameter].tied_to;
    return parameter;
}

static bool is_packed(const struct model *model, int parameter, const struct flat_storage *storage)
{
    const struct tensor_type *type = &model->parameters[parameter].type;
    int64_t elements = tensor_element_count(type);
    if (storage->base == BASE_FILE) return storage->halved[parameter];
    if (storage->base == BASE_INT8 || storage->base == BASE_NF4)
        return base_packs(type->dim_count, elements);
    return storage->state == STATE_INT8 && slot_packs(elements);
}

static void add_shaped(struct flat_parameter *flat, const struct model *model, int i,
                       const struct flat_storage *storage)
{
    int parameter = flat->parameters[i];
    const struct tensor_type *type = &model->parameters[parameter].type;
    int64_t elements = tensor_element_count(type);
    if (storage->base == BASE_INT8 || storage->base == BASE_NF4)
        slot_layout_add_shaped(&flat->slots, flat->offsets[i], elements, elements);
    if (storage->shape == SHAPE_OTHERS && storage->matrices[parameter])
        slot_layout_add_shaped(&flat->slots, flat->offsets[i], elements, 0);
    if (storage->shape == SHAPE_FACTORS && type->dim_count > 1)
        slot_layout_add_shaped(&flat->slots, flat->offsets[i], elements, factor_words(type));
}

void flat_parameter_init(struct flat_parameter *flat, const struct model *model, int *parameters,
                         int count, int world, const struct flat_storage *storage)
{
    enum base_dtype base = storage->base;
    bool packs = storage->state == STATE_INT8 || base == BASE_INT8 || base == BASE_NF4;
    int64_t block = base_block(base);
    flat->parameters = parameters;
    flat->parameter_count = count;
    flat->offsets = mem_alloc_array(count, sizeof *flat->offsets);
    flat->parameter_elements = 0;
    flat->slots.base = base;
    flat->slots.shape = storage->shape;
    int64_t end = 0;
    for (int i = 0; i < count; i++) {
        const struct tensor_type *type = &model->parameters[parameters[i]].type;
        int64_t elements = tensor_element_count(type);
        bool packed = is_packed(model, parameters[i], storage);
        size_t align = packed && block > FLAT_ALIGN_ELEMENTS ? (size_t)block : FLAT_ALIGN_ELEMENTS;
        flat->offsets[i] = (int64_t)round_up((size_t)end, align);
        flat->parameter_elements += elements;
        end = flat->offsets[i] + (packed ? (int64_t)round_up((size_t)elements, align) : elements);
        if (packed) slot_layout_add(&flat->slots, flat->offsets[i], elements);
        else add_shaped(flat, model, i, storage);
    }
    flat->shard = (int64_t)round_up((size_t)((end + world - 1) / world),
                                    packs ? (size_t)block : FLAT_ALIGN_ELEMENTS);
    flat->padded = flat->shard * world;
    flat->slots.rounded = storage->rounded;
    flat->slots.halves = storage->state == STATE_BF16;
    if (base == BASE_BF16 && count > 0) slot_layout_add(&flat->slots, 0, flat->padded);
    slot_layout_end(&flat->slots, flat->shard, world);
}

void flat_parameter_deinit(struct flat_parameter *flat)
{
    free(flat->parameters);
    free(flat->offsets);
    slot_layout_deinit(&flat->slots);
}

int64_t flat_parameter_offset(const struct flat_parameter *flat, int parameter)
{
    int low = 0, high = flat->parameter_count - 1;
    while (low <= high) {
        int middle = low + (high - low) / 2;
        if (flat->parameters[middle] == parameter) return flat->offsets[middle];
        if (flat->parameters[middle] < parameter) low = middle + 1;
        else high = middle - 1;
    }
    return -1;
}
