/*
 * config.json as a model file: tiny configurations against equivalent model files, the effect of
 * every option, refusals and their messages.
 */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/file.h"
#include "base/mem.h"
#include "graph_dump.h"
#include "hf/hf.h"
#include "model/model.h"
#include "tests/testing.h"
#include "tiny_configs.h"

/* Changes that make a configuration one of another family; the first value is rope_scaling's. */
#define OF(type, more)                                                                             \
    "{\"model_type\": \"" type "\", \"architectures\": null, \"rope_scaling\": " more "}"
#define LAYERS                                                                                     \
    ", \"layer_types\": [\"full_attention\", \"sliding_attention\"], \"sliding_window\": 5"

/* An option, and the text that it adds to the model's description or removes from it. */
static const struct {
    const char *config, *changes, *there, *not_there;
} options[] = {
    {gpt2_tiny, "{\"n_inner\": 50}", "c_fc: Conv1D(nf=50, nx=24)", "nf=96"},
    {gpt2_tiny, "{\"n_inner\": null}", "c_fc: Conv1D(nf=96, nx=24)", NULL},
    {gpt2_tiny, "{\"activation_function\": \"relu\"}", "act: ReLU()", "GELU"},
    {gpt2_tiny, "{\"activation_function\": \"gelu\"}", "act: GELU(approximate='none')", NULL},
    {gpt2_tiny, "{\"activation_function\": \"gelu_pytorch_tanh\"}", "approximate='tanh'", NULL},
    {gpt2_tiny, "{\"activation_function\": \"swish\"}", "act: SiLU()", NULL},
    {gpt2_tiny, "{\"layer_norm_epsilon\": 1e-6}", "ln_f: LayerNorm((24,), eps=1e-06,", "eps=1e-05"},
    {gpt2_tiny, "{\"initializer_range\": 0.1}", "c_proj.weight: normal 0.05\n", "normal 0.02"},
    {gpt2_tiny, "{\"embd_pdrop\": 0.25}", "drop: Dropout(p=0.25", NULL},
    {gpt2_tiny, "{\"attn_pdrop\": 0}", "heads=3 causal (", "causal p="},
    {gpt2_tiny, "{\"resid_pdrop\": 0.5}", "resid_dropout: Dropout(p=0.5", NULL},
    {gpt2_tiny, "{\"scale_attn_weights\": false}", "causal scale=1 p=0.1", NULL},
    {gpt2_tiny, "{\"scale_attn_weights\": true}", "causal p=0.1", "scale="},
    {gpt2_tiny, "{\"tie_word_embeddings\": false}", "lm_head", "tied:"},
    {gpt2_tiny, "{\"n_embd\": null, \"hidden_size\": 12}", "ln_f: LayerNorm((12,)", NULL},
    {gpt2_tiny, "{\"architectures\": [\"GPT2Model\"]}", "name: GPT2LMHeadModel", NULL},
    {gpt2_tiny, "{\"architectures\": null}", "name: GPT2LMHeadModel", NULL},
    {llama_tiny, "{\"tie_word_embeddings\": true}",
     "lm_head.weight: tied: model.embed_tokens.weight", NULL},
    {llama_tiny, "{\"num_key_value_heads\": null}",
     "k_proj: Linear(in_features=32, out_features=32", "kv_heads=2"},
    {llama_tiny, "{\"head_dim\": 10}",
     "q_proj: Linear(in_features=32, out_features=40, bias=False)", NULL},
    {llama_tiny, "{\"head_dim\": 10}",
     "o_proj: Linear(in_features=40, out_features=32, bias=False)", NULL},
    {llama_tiny, "{\"attention_bias\": true}",
     "k_proj: Linear(in_features=32, out_features=16, bias=True)\n", NULL},
    {llama_tiny, "{\"mlp_bias\": true}",
     "down_proj: Linear(in_features=88, out_features=32, bias=True)\n", NULL},
    {llama_tiny, "{\"hidden_act\": \"gelu\"}", "act_fn: GELU(approximate='none')", "SiLU"},
    {llama_tiny, "{\"attention_dropout\": 0.1}", "causal p=0.1", NULL},
    {llama_tiny, "{\"pad_token_id\": 3}", "Embedding(97, 32, padding_idx=3)", NULL},
    {llama_tiny, "{\"pad_token_id\": -1}", "Embedding(97, 32, padding_idx=96)", NULL},
    {llama_tiny, "{\"rope_scaling\": null}", "head_dim=8 theta=500000 (", "llama3"},
    {llama_tiny, "{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}}",
     "theta=500000 linear factor=2", "llama3"},
    {llama_tiny, "{\"rope_scaling\": {\"rope_type\": \"default\"}}", "theta=500000 (", "llama3"},
    {llama_tiny, "{\"rope_scaling\": {\"rope_type\": \"dynamic\", \"factor\": 2}}",
     "theta=500000 (", "llama3"},
    {llama_tiny,
     "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0, \"beta_slow\": 2,"
     " \"original_max_position_embeddings\": 16}}",
     "yarn factor=4 context=16 fast=32 slow=2 magnitude=1.13863", "llama3"},
    {llama_tiny,
     "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0, \"mscale\": 1.0,"
     " \"mscale_all_dim\": 0.5, \"original_max_position_embeddings\": 16}}",
     "magnitude=1.06482", "llama3"},
    {llama_tiny,
     "{\"rope_scaling\": null,"
     " \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 7.5}}",
     "theta=7.5 (", "llama3"},
    /* rope_scaling counts, and what it lacks is not taken from rope_parameters */
    {llama_tiny,
     "{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2},"
     " \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 7.5}}",
     "theta=500000 linear factor=2", "7.5"},
    {llama_tiny, "{\"original_max_position_embeddings\": 8}", "context=8", "context=16"},
    {llama_tiny, "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0}}",
     "yarn factor=4 context=64", NULL},
    {llama_tiny, "{\"hidden_act\": \"gelu_fast\"}", "act_fn: GELU(approximate='tanh')", "SiLU"},
    {llama_tiny, "{\"hidden_act\": \"relu2\"}", "act_fn: ReLUSquaredActivation()", "SiLU"},
    {llama_tiny, "{\"hidden_act\": \"quick_gelu\"}", "act_fn: QuickGELUActivation", "SiLU"},
    {bert_tiny, "{\"hidden_act\": \"relu\"}", "transform_act_fn: ReLU()", "GELU"},
    {bert_tiny, "{\"hidden_dropout_prob\": 0.3}", "dropout: Dropout(p=0.3", "Dropout(p=0.1"},
    {bert_tiny, "{\"attention_probs_dropout_prob\": 0.2}", "heads=3 p=0.2", NULL},
    {bert_tiny, "{\"layer_norm_eps\": 1e-7}", "LayerNorm((24,), eps=1e-07", "1e-12"},
    {bert_tiny, "{\"type_vocab_size\": 5}", "token_type_embeddings: Embedding(5, 24)", NULL},
    {bert_tiny, "{\"pad_token_id\": 4}", "id=4", "padding_idx=0"},
    {bert_tiny, "{\"architectures\": [\"BertForPreTraining\"]}", "name: BertForMaskedLM", NULL},
    /* only the full layers take rope_scaling, with its theta */
    {llama_tiny,
     OF("olmo3", "{\"rope_type\": \"linear\", \"factor\": 2, \"rope_theta\": 7.5}" LAYERS),
     "head_dim=8 theta=7.5 linear factor=2", NULL},
    {llama_tiny, OF("olmo3", "null, \"rope_theta\": 7.5" LAYERS), "=8 theta=500000 (", NULL},
    {llama_tiny, OF("seed_oss", "null, \"attention_out_bias\": true"),
     "layers.1.self_attn.o_proj: Linear(in_features=512, out_features=32, bias=True)", NULL},
    {llama_tiny, OF("ministral", "null" LAYERS), "window=5", NULL},
    {llama_tiny, OF("jais2", "null"), "norm: LayerNorm((32,), eps=1e-05", "gate_proj"},
    {llama_tiny, OF("vaultgemma", "null" LAYERS), "pre_feed", "post_feed"},
    {llama_tiny, OF("cohere", "null"), "head_dim=8 interleaved theta=500000 (", "q_norm"},
    {llama_tiny, OF("cohere2", "null, \"rope_theta\": 7.5" LAYERS),
     "head_dim=8 interleaved theta=7.5 (", NULL},
    {llama_tiny,
     OF("glm", "{\"rope_type\": \"default\", \"partial_rotary_factor\": 0.25}, \"head_dim\": 8"),
     "head_dim=8 rotary_dim=2 interleaved", NULL},
    {llama_tiny, OF("glm4", "null, \"head_dim\": 8"), "post_self_attn_layernorm", NULL},
    {llama_tiny, OF("ernie4_5", "null, \"rope_theta\": null"),
     "head_dim=128 interleaved theta=500000 (", NULL},
    {llama_tiny, OF("helium", "null, \"rope_theta\": null, \"head_dim\": 8"),
     "head_dim=8 interleaved theta=100000 (", NULL},
    {llama_tiny, OF("cwm", "{\"rope_type\": \"default\"}, \"rope_theta\": null" LAYERS),
     "theta=1e+06 (", "llama3"},
    {llama_tiny,
     OF("hunyuan_v1_dense",
        "{\"rope_type\": \"dynamic\", \"factor\": 1, \"alpha\": 8}, \"rope_theta\": 4"),
     "theta=64 (", "theta=4 ("},
    {llama_tiny, OF("hyperclovax", "null"), "post_norm2: RMSNorm((32,), eps=1e-05", NULL},
    {llama_tiny, OF("nanochat", "null"), "fc1: Linear(in_features=32, out_features=88, bias=False)",
     "gate_proj"},
    {llama_tiny, OF("persimmon", "null, \"head_dim\": null"), "rotary_dim=4", "gate_proj"},
    {llama_tiny, OF("gpt_neox_japanese", "null, \"head_dim\": null"),
     "layers.1.attention.dense_bias: zeros", "layers.0.attention.dense_bias"},
    {llama_tiny, OF("exaone", "null"),
     "c_fc_1: Linear(in_features=32, out_features=88, bias=False)", "gate_proj"},
    {llama_tiny, OF("internlm3", "null, \"qkv_bias\": true, \"bias\": true"),
     "down_proj: Linear(in_features=88, out_features=32, bias=True)", NULL},
    {llama_tiny, OF("iquestcoder", "null"),
     "q_proj: Linear(in_features=32, out_features=512, bias=False)", NULL},
    {llama_tiny,
     OF("modernbert-decoder",
        "null, \"layer_types\": null, \"local_attention\": 8, \"pad_token_id\": 0"),
     "window=4", "Wqkv"},
    {gpt2_tiny, OF("gpt-sw3", "null"), "c_attn: Conv1D(nf=72, nx=24)", NULL},
    {gpt2_tiny, OF("openai-gpt", "null"), "act: GELU(approximate='tanh')", "ln_f"},
    {gpt2_tiny, OF("gptj", "null, \"rotary_dim\": 6"),
     "head_dim=8 rotary_dim=6 interleaved theta=10000 (", "c_attn"},
    {gpt2_tiny, OF("codegen", "null, \"n_head\": 4, \"rotary_dim\": 6"),
     "qkv_proj: Linear(in_features=24, out_features=72, bias=False)", "q_proj"},
    {bert_tiny, OF("camembert", "null"), "name: CamembertForMaskedLM", NULL},
};

/* The text is a model, and its graph can be built: forward, loss, gradients. */
static struct model *parse(const char *config, const char *changes)
{
    char *text = model_text(config, changes);
    struct model *model;
    struct graph *graph;
    status_t status = model_parse(text, strlen(text), "model.hf", &model);
    ck_assert_msg(status == NULL, "%s: %s\n%s", changes, status_message(status), text);
    const struct graph_options how = {.batch_size = 2, .time = 10, .train = true, .dropout = true};
    status = graph_build(model, &how, &graph);
    ck_assert_msg(status == NULL, "%s: %s\n%s", changes, status_message(status), text);
    ck_assert_int_eq(model->class_count, 97);
    ck_assert(model->tokens);
    graph_free(graph);
    free(text);
    return model;
}

static char *graph_text(const struct model *model)
{
    const struct graph_options how = {.batch_size = 2, .time = 10, .train = true, .dropout = true};
    struct graph *graph;
    status_t status = graph_build(model, &how, &graph);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    char *text = graph_dump(graph);
    graph_free(graph);
    return text;
}

/* Modules, initial values and arithmetic, a line each. */
static char *describe(const struct model *model)
{
    static const char *const inits[] = {"uniform", "normal", "zeros", "ones"};
    struct buf out = {0};
    for (int i = 0; i < model->module_count; i++)
        buf_printf(&out, "%s: %s(%s)\n", i == 0 ? "name" : model->modules[i].path,
                   model->modules[i].type, model->modules[i].print);
    for (int i = 0; i < model->parameter_count; i++) {
        const struct parameter *parameter = &model->parameters[i];
        buf_printf(&out, "%s: ", parameter->name);
        if (parameter->tied_to >= 0)
            buf_printf(&out, "tied: %s\n", model->parameters[parameter->tied_to].name);
        else buf_printf(&out, "%s %g\n", inits[parameter->init], parameter->bound);
    }
    char *graph = graph_text(model);
    buf_add_text(&out, graph);
    free(graph);
    return buf_take(&out);
}

LOOP_TEST(option, 0, COUNT_OF(options))
{
    struct model *model = parse(options[_i].config, options[_i].changes);
    char *text = describe(model);
    ck_assert_msg(strstr(text, options[_i].there) != NULL, "%s: no %s in\n%s", options[_i].changes,
                  options[_i].there, text);
    if (options[_i].not_there != NULL)
        ck_assert_msg(strstr(text, options[_i].not_there) == NULL, "%s:\n%s", options[_i].changes,
                      text);
    free(text);
    model_free(model);
}

/* num_labels counts, whether there is an id2label or not. */
TEST(classes_are_counted_by_num_labels)
{
    static const struct {
        const char *changes;
        int64_t classes;
    } counts[] = {{"{\"num_labels\": 5}", 5},
                  {"{\"num_labels\": 1, \"id2label\": null}", 1},
                  {"{\"num_labels\": null}", 3},
                  {"{\"id2label\": null}", 2}};
    for (size_t i = 0; i < COUNT_OF(counts); i++) {
        char *text = model_text(vit_tiny, counts[i].changes);
        struct model *model;
        ck_assert_ptr_null(model_parse(text, strlen(text), "model.hf", &model));
        ck_assert_int_eq(model->class_count, counts[i].classes);
        model_free(model);
        free(text);
    }
}

/* Two places of a key, and a key that is not known: notes, once each. */
TEST(what_does_not_count_is_noted)
{
    static const struct {
        const char *changes, *note;
    } notes[] = {
        {"{\"use_cache\": false, \"num_labels\": 3}", NULL},
        {"{\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 7.5}}",
         "rope_scaling counts, as in transformers, and rope_parameters does not: remove one"},
        {"{\"original_max_position_embeddings\": 8}",
         "original_max_position_embeddings counts, as in transformers, and "
         "rope_scaling.original_max_position_embeddings does not: remove one"},
        {"{\"mystery\": 1}",
         "config.json has keys that are not known, and have no effect: mystery"},
        {"{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2, \"facto\": 3}}",
         "config.json has keys that are not known, and have no effect: rope_scaling.facto"},
    };
    for (size_t i = 0; i < COUNT_OF(notes); i++) {
        free(model_text(llama_tiny, notes[i].changes));
        const char *note = hf_family_item(family_file("llama"), HF_FAMILY_NOTES, 0);
        if (notes[i].note == NULL) ck_assert_msg(note == NULL, "%s", note);
        else ck_assert_str_eq(note != NULL ? note : "", notes[i].note);
        if (note != NULL)
            ck_assert_ptr_null(hf_family_item(family_file("llama"), HF_FAMILY_NOTES, 1));
    }
}

static const struct parameter *parameter_of(const struct model *model, const char *name)
{
    int index = model_find_parameter(model, name);
    ck_assert_msg(index >= 0, "%s", name);
    return &model->parameters[index];
}

static void expect_init(const struct model *model, const char *name, enum init_kind init,
                        double bound)
{
    const struct parameter *parameter = parameter_of(model, name);
    ck_assert_msg(parameter->init == init, "%s", name);
    if (init == INIT_NORMAL) ck_assert_msg(parameter->bound == bound, "%s", name);
}

/* state_dict of the same configurations in transformers 4.x: its size, and a name of each kind. */
TEST(parameters)
{
    struct model *gpt2 = parse(gpt2_tiny, "{}");
    static const char *const of_gpt2[] = {
        "transformer.wte.weight",
        "transformer.wpe.weight",
        "transformer.h.0.ln_1.weight",
        "transformer.h.0.ln_1.bias",
        "transformer.h.0.attn.c_attn.weight",
        "transformer.h.0.attn.c_attn.bias",
        "transformer.h.0.attn.c_proj.weight",
        "transformer.h.0.attn.c_proj.bias",
        "transformer.h.0.ln_2.weight",
        "transformer.h.0.ln_2.bias",
        "transformer.h.0.mlp.c_fc.weight",
        "transformer.h.0.mlp.c_fc.bias",
        "transformer.h.0.mlp.c_proj.weight",
        "transformer.h.0.mlp.c_proj.bias",
        "transformer.h.1.ln_1.weight",
    };
    for (int i = 0; i < 15; i++) ck_assert_str_eq(gpt2->parameters[i].name, of_gpt2[i]);
    ck_assert_int_eq(gpt2->parameter_count, 2 + 2 * 12 + 2 + 1);
    ck_assert_str_eq(gpt2->parameters[28].name, "lm_head.weight");
    ck_assert_int_eq(gpt2->parameters[28].tied_to, 0);
    ck_assert_int_eq(model_parameter_elements(gpt2), 17592);
    expect_init(gpt2, "transformer.wte.weight", INIT_NORMAL, 0.02);
    expect_init(gpt2, "transformer.h.1.attn.c_attn.weight", INIT_NORMAL, 0.02);
    expect_init(gpt2, "transformer.h.1.attn.c_attn.bias", INIT_ZEROS, 0);
    expect_init(gpt2, "transformer.h.1.mlp.c_proj.weight", INIT_NORMAL, 0.01);
    expect_init(gpt2, "transformer.h.1.ln_2.weight", INIT_ONES, 0);
    expect_init(gpt2, "transformer.ln_f.bias", INIT_ZEROS, 0);
    expect_init(gpt2, "transformer.ln_f.weight", INIT_ONES, 0);
    model_free(gpt2);

    struct model *llama = parse(llama_tiny, "{\"pad_token_id\": 5}");
    static const char *const of_llama[] = {
        "model.embed_tokens.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.0.self_attn.v_proj.weight",
        "model.layers.0.self_attn.o_proj.weight",
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.post_attention_layernorm.weight",
    };
    for (int i = 0; i < 10; i++) ck_assert_str_eq(llama->parameters[i].name, of_llama[i]);
    ck_assert_int_eq(llama->parameter_count, 1 + 2 * 9 + 1 + 1);
    ck_assert_str_eq(llama->parameters[19].name, "model.norm.weight");
    ck_assert_str_eq(llama->parameters[20].name, "lm_head.weight");
    ck_assert_int_eq(llama->parameters[20].tied_to, -1);
    expect_init(llama, "model.embed_tokens.weight", INIT_NORMAL, 0.02);
    expect_init(llama, "model.layers.0.input_layernorm.weight", INIT_ONES, 0);
    ck_assert(parameter_of(llama, "model.embed_tokens.weight")->has_zero_row);
    ck_assert_int_eq(parameter_of(llama, "model.embed_tokens.weight")->zero_row, 5);
    model_free(llama);

    struct model *bert = parse(bert_tiny, "{}");
    static const char *const of_bert[] = {
        "bert.embeddings.word_embeddings.weight",
        "bert.embeddings.position_embeddings.weight",
        "bert.embeddings.token_type_embeddings.weight",
        "bert.embeddings.LayerNorm.weight",
        "bert.embeddings.LayerNorm.bias",
        "bert.encoder.layer.0.attention.self.query.weight",
        "bert.encoder.layer.0.attention.self.query.bias",
        "bert.encoder.layer.0.attention.self.key.weight",
        "bert.encoder.layer.0.attention.self.key.bias",
        "bert.encoder.layer.0.attention.self.value.weight",
        "bert.encoder.layer.0.attention.self.value.bias",
        "bert.encoder.layer.0.attention.output.dense.weight",
        "bert.encoder.layer.0.attention.output.dense.bias",
        "bert.encoder.layer.0.attention.output.LayerNorm.weight",
        "bert.encoder.layer.0.attention.output.LayerNorm.bias",
        "bert.encoder.layer.0.intermediate.dense.weight",
        "bert.encoder.layer.0.intermediate.dense.bias",
        "bert.encoder.layer.0.output.dense.weight",
        "bert.encoder.layer.0.output.dense.bias",
        "bert.encoder.layer.0.output.LayerNorm.weight",
        "bert.encoder.layer.0.output.LayerNorm.bias",
    };
    static const char *const ends_of_bert[] = {
        "cls.predictions.transform.dense.weight",
        "cls.predictions.transform.dense.bias",
        "cls.predictions.transform.LayerNorm.weight",
        "cls.predictions.transform.LayerNorm.bias",
        "cls.predictions.decoder.weight",
        "cls.predictions.decoder.bias",
    };
    for (int i = 0; i < 21; i++) ck_assert_str_eq(bert->parameters[i].name, of_bert[i]);
    ck_assert_int_eq(bert->parameter_count, 5 + 2 * 16 + 6);
    for (int i = 0; i < 6; i++) ck_assert_str_eq(bert->parameters[37 + i].name, ends_of_bert[i]);
    ck_assert_int_eq(parameter_of(bert, "cls.predictions.decoder.weight")->tied_to, 0);
    expect_init(bert, "cls.predictions.decoder.bias", INIT_ZEROS, 0);
    expect_init(bert, "bert.encoder.layer.1.output.LayerNorm.weight", INIT_ONES, 0);
    expect_init(bert, "bert.encoder.layer.1.output.dense.weight", INIT_NORMAL, 0.02);
    ck_assert(parameter_of(bert, of_bert[0])->has_zero_row);
    model_free(bert);
}

/* Published models: their configuration, and their number of parameters. */
static const struct {
    const char *config;
    int64_t parameters;
} published[] = {
    {"{\"model_type\": \"gpt2\"}", 124439808},
    {"{\"model_type\": \"gpt2\", \"n_embd\": 1600, \"n_layer\": 48, \"n_head\": 25}", 1557611200},
    {"{\"model_type\": \"bert\"}", 109514298},
    {"{\"model_type\": \"llama\"}", 6738415616}, /* Llama 2, 7B */
    {"{\"model_type\": \"llama\", \"hidden_size\": 4096, \"intermediate_size\": 14336,"
     " \"num_hidden_layers\": 32, \"num_attention_heads\": 32, \"num_key_value_heads\": 8,"
     " \"vocab_size\": 128256, \"rope_theta\": 500000.0}",
     8030261248}, /* Llama 3.1 */
    {"{\"model_type\": \"llama\", \"hidden_size\": 2048, \"intermediate_size\": 8192,"
     " \"num_hidden_layers\": 16, \"num_attention_heads\": 32, \"num_key_value_heads\": 8,"
     " \"head_dim\": 64, \"vocab_size\": 128256, \"tie_word_embeddings\": true}",
     1235814400}, /* Llama 3.2, 1B */
};

LOOP_TEST(published, 0, COUNT_OF(published))
{
    char *text = model_text(published[_i].config, "{}");
    struct model *model;
    status_t status = model_parse(text, strlen(text), "model.hf", &model);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert_int_eq(model_parameter_elements(model), published[_i].parameters);
    model_free(model);
    free(text);
}

/* The model files of examples/, and fully written ones, describe the same models as configurations
 * of their sizes. */
static const struct {
    const char *file, *config, *changes;
} examples[] = {
    {"tests/golden/hf-gpt2.yaml", gpt2_tiny, "{}"},
    {"tests/golden/hf-llama.yaml", llama_tiny, "{}"},
    {"tests/golden/hf-bert.yaml", bert_tiny, "{}"},
    {"examples/gpt2/model.yaml", gpt2_tiny,
     "{\"n_embd\": 128, \"n_layer\": 4, \"n_head\": 4, \"n_positions\": 64, \"vocab_size\": 256}"},
    {"examples/llama/model.yaml", llama_tiny,
     "{\"hidden_size\": 128, \"intermediate_size\": 352, \"num_hidden_layers\": 4,"
     " \"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"max_position_embeddings\": 128,"
     " \"vocab_size\": 256, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0,"
     " \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0,"
     " \"original_max_position_embeddings\": 64}}"},
    {"examples/bert/model.yaml", bert_tiny,
     "{\"hidden_size\": 128, \"intermediate_size\": 512, \"num_hidden_layers\": 4,"
     " \"num_attention_heads\": 4, \"max_position_embeddings\": 128, \"vocab_size\": 260}"},
};

LOOP_TEST(example, 0, COUNT_OF(examples))
{
    const char *root = getenv("srcdir");
    char *path = file_path_join(root != NULL ? root : ".", examples[_i].file);
    char *text = model_text(examples[_i].config, examples[_i].changes);
    struct buf file = {0};
    struct model *model, *example;
    ck_assert_ptr_null(file_read(path, 1 << 20, &file));
    ck_assert_ptr_null(model_parse(text, strlen(text), "model.hf", &model));
    ck_assert_ptr_null(model_parse(file.data, file.length, path, &example));
    ck_assert_int_eq(model->parameter_count, example->parameter_count);
    for (int i = 0; i < model->parameter_count; i++) {
        const struct parameter *a = &model->parameters[i], *b = &example->parameters[i];
        ck_assert_str_eq(a->name, b->name);
        ck_assert_msg(tensor_same_shape(&a->type, &b->type), "%s", a->name);
        ck_assert_int_eq(a->tied_to, b->tied_to);
        if (a->tied_to >= 0) continue;
        ck_assert_msg(a->init == b->init, "%s", a->name);
        ck_assert_double_eq_tol(a->bound, b->bound, 1e-12); /* a root, written out */
        ck_assert_msg(a->has_zero_row == b->has_zero_row && a->zero_row == b->zero_row, "%s",
                      a->name);
    }
    ck_assert_int_eq(model->context, example->context);
    ck_assert_int_eq(model->class_count, example->class_count);
    char *graph = graph_text(model), *graph_of_example = graph_text(example);
    ck_assert_str_eq(graph, graph_of_example);
    free(graph);
    free(graph_of_example);
    model_free(model);
    model_free(example);
    buf_deinit(&file);
    free(text);
    free(path);
}

/* A vision transformer has as many classes as labels have names. */
TEST(images_have_classes)
{
    char *text = model_text(vit_tiny, "{}");
    struct model *model;
    status_t status = model_parse(text, strlen(text), "model.hf", &model);
    ck_assert_msg(status == NULL, "%s\n%s", status_message(status), text);
    ck_assert(!model->tokens);
    ck_assert_int_eq(model->class_count, 3);
    ck_assert_int_eq(model->input.dims[1], 14);
    int at = model_find_parameter(model, "vit.embeddings.position_embeddings");
    ck_assert_int_ge(at, 0);
    ck_assert_int_eq(model->parameters[at].type.dims[1], 10);
    model_free(model);
    free(text);
}

/* A wrong configuration: the code and a part of the message. */
static const struct {
    const char *config, *changes, *message;
    enum status_code code;
} mistakes[] = {
    {gpt2_tiny, "{\"model_type\": \"gemma4\"}",
     "xlm-roberta-xl are, and docs/model-types.md says why others are not", STATUS_UNIMPLEMENTED},
    {gpt2_tiny, "{\"model_type\": \"rwkv\"}", "config.json: model_type: 'rwkv' is not supported; ",
     STATUS_UNIMPLEMENTED},
    {gpt2_tiny, "{\"model_type\": null}", "config.json: model_type: is missing",
     STATUS_INVALID_ARGUMENT},
    {gpt2_tiny, "{\"model_type\": 2}", "model_type: expected a text, found 2",
     STATUS_INVALID_ARGUMENT},
    {gpt2_tiny, "{\"architectures\": [\"GPT2ForQuestionAnswering\"]}",
     "architectures: 'GPT2ForQuestionAnswering' is not supported; of gpt2, GPT2LMHeadModel, "
     "GPT2ForSequenceClassification and GPT2ForTokenClassification are",
     STATUS_UNIMPLEMENTED},
    {gpt2_tiny, "{\"architectures\": \"GPT2LMHeadModel\"}", "architectures: expected an array",
     STATUS_INVALID_ARGUMENT},
    {gpt2_tiny, "{\"architectures\": [1]}", "architectures: expected an array of texts, found 1",
     STATUS_INVALID_ARGUMENT},
    {gpt2_tiny, "{\"n_embd\": \"768\"}",
     "n_embd: expected an integer from 1 to 2147483647, found \"768\"", STATUS_INVALID_ARGUMENT},
    {gpt2_tiny, "{\"n_embd\": 768.0}", "n_embd: expected an integer", STATUS_INVALID_ARGUMENT},
    {gpt2_tiny, "{\"n_embd\": 0}", "n_embd: expected an integer", STATUS_INVALID_ARGUMENT},
    {gpt2_tiny, "{\"n_layer\": 4294967296}", "found 4294967296", STATUS_INVALID_ARGUMENT},
    {gpt2_tiny, "{\"n_head\": 5}", "n_head: expected a divisor of n_embd (24), found 5",
     STATUS_INVALID_ARGUMENT},
    {gpt2_tiny, "{\"vocab_size\": {}}", "vocab_size: expected an integer", STATUS_INVALID_ARGUMENT},
    {gpt2_tiny, "{\"attn_pdrop\": 1.0}", "attn_pdrop: expected a number below 1",
     STATUS_INVALID_ARGUMENT},
    {gpt2_tiny, "{\"attn_pdrop\": -0.5}", "attn_pdrop: expected a number from 0 to 1, found -0.5",
     STATUS_INVALID_ARGUMENT},
    {gpt2_tiny, "{\"layer_norm_epsilon\": \"1e-5\"}", "layer_norm_epsilon: expected a number",
     STATUS_INVALID_ARGUMENT},
    {gpt2_tiny, "{\"activation_function\": \"mish\"}",
     "activation_function: 'mish' is not supported", STATUS_UNIMPLEMENTED},
    {gpt2_tiny, "{\"scale_attn_by_inverse_layer_idx\": true}",
     "scale_attn_by_inverse_layer_idx: true is not supported", STATUS_UNIMPLEMENTED},
    {gpt2_tiny, "{\"reorder_and_upcast_attn\": true}", "reorder_and_upcast_attn: true",
     STATUS_UNIMPLEMENTED},
    {gpt2_tiny, "{\"add_cross_attention\": true}", "add_cross_attention: true",
     STATUS_UNIMPLEMENTED},
    {gpt2_tiny, "{\"tie_word_embeddings\": \"yes\"}", "expected true or false, found \"yes\"",
     STATUS_INVALID_ARGUMENT},
    {gpt2_tiny, "{\"quantization_config\": {\"bits\": 4}}", "quantized weights",
     STATUS_UNIMPLEMENTED},
    {gpt2_tiny, "{\"pruned_heads\": {\"1\": [0]}}", "pruned_heads", STATUS_UNIMPLEMENTED},
    {llama_tiny, "{\"num_key_value_heads\": 3}",
     "num_key_value_heads: expected a divisor of num_attention_heads (4), found 3",
     STATUS_INVALID_ARGUMENT},
    {llama_tiny, "{\"head_dim\": 7}", "head_dim: expected an even number, found 7",
     STATUS_INVALID_ARGUMENT},
    {llama_tiny, "{\"rope_scaling\": {\"rope_type\": \"longrope\", \"factor\": 4.0}}",
     "rope_scaling.rope_type: 'longrope' is not supported", STATUS_UNIMPLEMENTED},
    {llama_tiny, "{\"rope_scaling\": {\"type\": \"dynamic\"}}",
     "rope_scaling.factor: is missing; the rope type dynamic needs it", STATUS_INVALID_ARGUMENT},
    {llama_tiny, "{\"layer_types\": [\"full_attention\", \"sliding_attention\"]}",
     "layer_types: layers other than full_attention are not supported in this family",
     STATUS_UNIMPLEMENTED},
    {llama_tiny,
     OF("mistral", "null, \"layer_types\": [\"sliding_attention\", \"full_attention\"]"),
     "layer_types: 'sliding_attention' is not supported; full_attention is", STATUS_UNIMPLEMENTED},
    {llama_tiny,
     "{\"model_type\": \"mistral\", \"architectures\": [\"MistralForCausalLM\"],"
     " \"sliding_window\": 4, \"layer_types\": [\"full_attention\", \"full_attention\"]}",
     "layer_types: expected no list beside a sliding_window, found a list",
     STATUS_INVALID_ARGUMENT},
    {llama_tiny, OF("olmo3", "{\"type\": \"linear\", \"factor\": 2}"),
     "rope_scaling.type: expected rope_type (default), or no such key, found",
     STATUS_INVALID_ARGUMENT},
    {llama_tiny, OF("cohere2", "{\"partial_rotary_factor\": 0.5}"),
     "rope_scaling.partial_rotary_factor: 0.5 is not supported", STATUS_UNIMPLEMENTED},
    {llama_tiny, OF("helium", "null, \"head_dim\": 16"),
     "head_dim: expected hidden_size / num_attention_heads (32 / 4), found 16",
     STATUS_INVALID_ARGUMENT},
    {gpt2_tiny, OF("gptj", "null"),
     "rotary_dim: expected an even number, at most n_embd / n_head (24 / 3)",
     STATUS_INVALID_ARGUMENT},
    {gpt2_tiny, OF("codegen", "null, \"rotary_dim\": 6, \"n_embd\": 18"),
     "n_embd: expected a multiple of 4, found 18", STATUS_INVALID_ARGUMENT},
    {bert_tiny, "{\"tie_word_embeddings\": false}",
     "tie_word_embeddings: false is not supported; true is: an output that is not tied",
     STATUS_UNIMPLEMENTED},
    {llama_tiny, "{\"rms_norm_eps\": 1, \"hidden_size\": \"Infinity\"}", "hidden_size: expected",
     STATUS_INVALID_ARGUMENT},
    {llama_tiny,
     "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0, \"mscale\": -1.0,"
     " \"original_max_position_embeddings\": 16}}",
     "rope_scaling.mscale: expected a number from 0", STATUS_INVALID_ARGUMENT},
    {llama_tiny, "{\"rope_scaling\": {\"type\": \"linear\"}}",
     "rope_scaling.factor: is missing; the rope type linear needs it", STATUS_INVALID_ARGUMENT},
    {llama_tiny,
     "{\"rope_scaling\": {}, \"rope_parameters\": {\"rope_type\": \"llama3\", \"factor\": 4.0}}",
     "rope_parameters.low_freq_factor: is missing", STATUS_INVALID_ARGUMENT},
    {llama_tiny, "{\"rope_scaling\": [1]}", "rope_scaling: expected an object, found [1]",
     STATUS_INVALID_ARGUMENT},
    {llama_tiny, "{\"rope_theta\": 0}", "rope_theta: expected a number", STATUS_INVALID_ARGUMENT},
    {llama_tiny, "{\"pretraining_tp\": 2}", "pretraining_tp", STATUS_UNIMPLEMENTED},
    {llama_tiny, "{\"sliding_window\": 16}", "sliding_window", STATUS_UNIMPLEMENTED},
    {llama_tiny, "{\"partial_rotary_factor\": 0.5}", "partial_rotary_factor", STATUS_UNIMPLEMENTED},
    {llama_tiny, "{\"pad_token_id\": 97}", "pad_token_id: expected an integer from -97 to 96",
     STATUS_INVALID_ARGUMENT},
    {vit_tiny, "{\"id2label\": [\"a\", \"b\"]}",
     "id2label: expected an object with entries, or their number", STATUS_INVALID_ARGUMENT},
    {vit_tiny, "{\"id2label\": {}}", "id2label: expected an object with entries, or their number",
     STATUS_INVALID_ARGUMENT},
    {vit_tiny, "{\"num_attention_heads\": 7}", "num_attention_heads: expected a divisor",
     STATUS_INVALID_ARGUMENT},
    {vit_tiny, "{\"patch_size\": 15}", "patch_size: expected at most image_size (14)",
     STATUS_INVALID_ARGUMENT},
    {vit_tiny, "{\"image_size\": [14, 14]}", "image_size: expected an integer from 1",
     STATUS_INVALID_ARGUMENT},
    {bert_tiny, "{\"position_embedding_type\": \"relative_key\"}",
     "position_embedding_type: 'relative_key' is not supported", STATUS_UNIMPLEMENTED},
    {bert_tiny, "{\"is_decoder\": true}", "is_decoder: true is not supported",
     STATUS_UNIMPLEMENTED},
    {bert_tiny, "{\"num_attention_heads\": 7}", "num_attention_heads: expected a divisor",
     STATUS_INVALID_ARGUMENT},
    {bert_tiny, "{\"pad_token_id\": 97}", "pad_token_id: expected an integer from 0 to 96",
     STATUS_INVALID_ARGUMENT},
};

LOOP_TEST(mistake, 0, COUNT_OF(mistakes))
{
    char *json = changed(mistakes[_i].config, mistakes[_i].changes);
    char *model = NULL;
    status_t status = to_model(json, strlen(json), &model);
    ck_assert_msg(status != NULL, "%s", mistakes[_i].changes);
    ck_assert_int_eq(status_code(status), mistakes[_i].code);
    ck_assert_msg(strstr(status_message(status), mistakes[_i].message) != NULL, "%s: %s",
                  mistakes[_i].changes, status_message(status));
    ck_assert_msg(strncmp(status_message(status), "config.json: ", 13) == 0, "%s",
                  status_message(status));
    ck_assert_ptr_null(model);
    status_free(status);
    free(json);
}

TEST(not_json)
{
    static const char *const texts[] = {"",
                                        "{",
                                        "[]",
                                        "null",
                                        "\"gpt2\"",
                                        "{\"a\": 1, \"a\": 2}",
                                        "\xff{}",
                                        "{}{}",
                                        "{\"a\": 1e999}",
                                        "{'a': 1}",
                                        "{\"n_embd\": 99999999999999999999}"};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        char *model = NULL;
        status_t status = to_model(texts[i], strlen(texts[i]), &model);
        ck_assert_msg(status_code(status) == STATUS_INVALID_ARGUMENT, "%s", texts[i]);
        status_free(status);
    }
    char *large = mem_alloc(HF_CONFIG_MAX + 2);
    memset(large, ' ', HF_CONFIG_MAX + 1);
    memcpy(large, gpt2_tiny, strlen(gpt2_tiny));
    char *model = NULL;
    ck_assert_ptr_null(to_model(large, HF_CONFIG_MAX, &model));
    free(model);
    status_t status = to_model(large, HF_CONFIG_MAX + 1, &model);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    status_free(status);
    free(large);
}
