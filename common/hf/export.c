/*
 * config.json as it goes back; see hf.h. Versions 4 and 5 of transformers spell rotary positions
 * differently, and each ignores the other's spelling: a file gets both.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "hf/family.h"
#include "hf/json.h"

static json_t *value_at(json_t *root, const char *path)
{
    const char *dot = strchr(path, '.');
    if (dot == NULL) return json_object_get(root, path);
    char *outer = mem_strndup(path, (size_t)(dot - path));
    json_t *value = value_at(json_object_get(root, outer), dot + 1);
    free(outer);
    return value;
}

/* The place of a key at the top of the file; NULL if it has none. */
static const char *top_place(const struct yamldoc_node *key, bool *is_first)
{
    const struct yamldoc_node *places = yamldoc_get(key, "at");
    for (int i = 0; i < family_count(places); i++) {
        *is_first = i == 0;
        if (strchr(family_text(places, i), '.') == NULL) return family_text(places, i);
    }
    return NULL;
}

/* Both the object, which is the one that counts, and the top of the file get the value of a key that
 * may stand in both: the object's, unless the top's goes before it. */
static void spell_key(const struct yamldoc_node *key, json_t *root, json_t *object)
{
    static const char outer[] = "rope_parameters.";
    const struct yamldoc_node *places = yamldoc_get(key, "at");
    bool top_first = false;
    const char *top = top_place(key, &top_first), *name = NULL;
    for (int i = 0; i < family_count(places) && name == NULL; i++)
        if (strncmp(family_text(places, i), outer, strlen(outer)) == 0)
            name = family_text(places, i) + strlen(outer);
    if (top == NULL || name == NULL) return;
    json_t *inside = json_object_get(object, name), *outside = json_object_get(root, top);
    if (json_is_null(outside)) outside = NULL;
    if (outside != NULL && (inside == NULL || top_first)) json_object_set(object, name, outside);
    else if (inside != NULL && !top_first) json_object_set(root, top, inside);
}

/* The first value inside an object becomes that at the top, too. */
static void spell_layers_key(const struct yamldoc_node *key, json_t *root)
{
    const struct yamldoc_node *places = yamldoc_get(key, "at");
    bool is_first;
    const char *top = top_place(key, &is_first);
    for (int i = 0; i < family_count(places) && top != NULL; i++) {
        const char *place = family_text(places, i);
        json_t *value = strchr(place, '.') != NULL ? value_at(root, place) : NULL;
        if (value == NULL) continue;
        json_object_set(root, top, value);
        return;
    }
}

/* rope_parameters, with the theta in it, for version 5; rope_scaling and keys at the top for 4. */
static void spell_rope(const struct hf_family *family, json_t *root)
{
    json_t *scaling = json_object_get(root, "rope_scaling"), *made;
    int type_key = family_find_key(family, "rope_type");
    if (type_key < 0) return;
    bool by_layer = family_has_text(yamldoc_get(family->keys[type_key], "at"),
                                    "rope_parameters.full_attention.rope_type");
    if (by_layer) {
        made = value_at(root, "rope_parameters.full_attention");
        if (made == NULL || json_object_size(scaling) > 0) return;
        made = json_copy(made);
        for (int i = 0; i < family->key_count; i++) spell_layers_key(family->keys[i], root);
    } else {
        made = json_object_size(scaling) > 0 ? scaling : json_object_get(root, "rope_parameters");
        if (json_object_size(made) == 0) return;
        made = json_copy(made);
        for (int i = 0; i < family->key_count; i++) spell_key(family->keys[i], root, made);
        if (json_object_get(made, "rope_type") == NULL && json_object_get(made, "type") != NULL)
            json_object_set(made, "rope_type", json_object_get(made, "type"));
        json_object_set_new(root, "rope_parameters", json_copy(made));
    }
    const char *type = json_string_value(json_object_get(made, "rope_type"));
    json_object_del(made, "rope_theta");
    json_object_del(made, "partial_rotary_factor");
    if (family_find_key(family, "rope_long_factor") >= 0) { /* Phi-3's has three keys */
        json_object_set(made, "type", json_object_get(made, "rope_type"));
        json_object_del(made, "rope_type");
        json_object_del(made, "original_max_position_embeddings");
    }
    if (type == NULL || strcmp(type, "default") == 0) json_object_del(root, "rope_scaling");
    else json_object_set(root, "rope_scaling", made);
    json_decref(made);
}

/* Numbers have the digits that a person would write, if these are enough for all of them. */
static char *write_json(const json_t *root)
{
    char *text = json_dumps(root, JSON_REAL_PRECISION(15));
    json_t *again = json_loads(text, 0, NULL);
    int digits = json_equal(root, again) ? 15 : 17;
    free(text);
    json_decref(again);
    return hf_json_write(root, JSON_INDENT(2) | JSON_REAL_PRECISION(digits));
}

status_t hf_config_export(const struct hf_family *family, const char *json, size_t length,
                          const char *dtype, struct buf *out)
{
    json_t *root;
    TRY(hf_json_load(json, length, HF_CONFIG_MAX, "config.json", &root));
    spell_rope(family, hf_json_inside(root, hf_family_inside(family)));
    json_object_set_new(root, "architectures", json_pack("[s]", family->architecture));
    /* newer versions of transformers write "dtype"; all of them read "torch_dtype" */
    bool newer = json_object_get(root, "dtype") != NULL;
    json_object_del(root, newer ? "torch_dtype" : "dtype");
    json_object_set_new(root, newer ? "dtype" : "torch_dtype", json_string(dtype));
    char *text = write_json(root);
    buf_printf(out, "%s\n", text);
    free(text);
    json_decref(root);
    return NULL;
}

status_t hf_config_untied(const struct hf_family *family, const char *json, size_t length,
                          const char *file, const char *parameter, char **changed)
{
    const struct yamldoc_node *key = yamldoc_get(yamldoc_get(family->tensors, "left_out"), parameter);
    json_t *root;
    if (key == NULL || family_find_key(family, key->text) < 0)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: no key decides whether %.60s is tied", file,
                          parameter);
    TRY(hf_json_load(json, length, HF_CONFIG_MAX, file, &root));
    json_object_set_new(root, key->text, json_false());
    *changed = hf_json_write(root, JSON_INDENT(2));
    json_decref(root);
    return NULL;
}
