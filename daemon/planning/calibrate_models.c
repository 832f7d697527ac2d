/* The networks of a calibration; see calibrate_models.h. Pure functions; any thread. */
#include "planning/calibrate_models.h"

#include "base/array.h"
#include "base/mem.h"

/* Two rows of tokens for each width: work of one size reads few bytes or many. */
const struct calibrate_size calibrate_sizes[] = {
    {64, 4, 32},     {64, 16, 64},    {128, 2, 64},    {128, 16, 64},   {256, 2, 64},
    {256, 8, 128},   {384, 2, 128},   {512, 1, 128},   {384, 8, 128},   {512, 8, 128},
    {1024, 1, 256},  {1024, 4, 512},  {2048, 1, 1024}, {2048, 4, 1024}, {4096, 1, 1024},
    {4096, 2, 2048}, {8192, 1, 2048}, {8192, 2, 4096},
};
const int calibrate_size_count = COUNT_OF(calibrate_sizes);

static const char *const names[] = {"gpt", "llama", "bert", "images"};

const char *calibrate_model_name(enum calibrate_model model)
{
    return names[model];
}

enum { HEAD = 32 /* channels of a head on small widths */, VOCABULARY_MIN = 256 };

/* Small widths have more layers, so that their weights exceed a core's own cache, as those of real
 * models do: products of 128 rows take 15 % longer then. */
enum { WEIGHTS_BYTES = 4 << 20, LAYERS_MIN = 2, LAYERS_MAX = 8 };

static int layers(int width)
{
    int count = WEIGHTS_BYTES / (12 * width * width * (int)sizeof(float));
    return count < LAYERS_MIN ? LAYERS_MIN : count > LAYERS_MAX ? LAYERS_MAX : count;
}

static int heads(int width)
{
    return width / (width < 1024 ? HEAD : 128);
}

static int vocabulary(int width)
{
    return width * 2 > VOCABULARY_MIN ? width * 2 : VOCABULARY_MIN;
}

static char *gpt(const struct calibrate_size *size)
{
    int d = size->width, v = vocabulary(d), t = size->context;
    return mem_printf(
        "name: GPT\ninput: tokens\nvocabulary: %d\ncontext: %d\n"
        "blocks:\n"
        "  Attention:\n"
        "    modules:\n"
        "      c_attn: Linear(%d, %d, bias=False)\n"
        "      c_proj: Linear(%d, %d, bias=False)\n"
        "    forward:\n"
        "      - output = c_proj(attention(c_attn(x), num_heads=%d, is_causal=True))\n"
        "  MLP:\n"
        "    modules:\n"
        "      c_fc: Linear(%d, %d, bias=False)\n"
        "      gelu: GELU()\n"
        "      c_proj: Linear(%d, %d, bias=False)\n"
        "    forward:\n"
        "      - output = c_proj(gelu(c_fc(x)))\n"
        "  Block:\n"
        "    modules:\n"
        "      ln_1: LayerNorm(%d, bias=False)\n"
        "      attn: Attention()\n"
        "      ln_2: LayerNorm(%d, bias=False)\n"
        "      mlp: MLP()\n"
        "    forward:\n"
        "      - x += attn(ln_1(x))\n"
        "      - x += mlp(ln_2(x))\n"
        "      - output = x\n"
        "  Transformer:\n"
        "    modules:\n"
        "      wte: Embedding(%d, %d)\n"
        "      wpe: Embedding(%d, %d)\n"
        "      h: %d * Block()\n"
        "      ln_f: LayerNorm(%d, bias=False)\n"
        "    forward:\n"
        "      - y = wte(x) + wpe(positions(x))\n"
        "      - for block in h: y = block(y)\n"
        "      - output = ln_f(y)\n"
        "modules:\n  transformer: Transformer()\n  lm_head: Linear(%d, %d, bias=False)\n"
        "forward:\n  - output = lm_head(transformer(x))\n"
        "loss: cross_entropy(output, target)\n"
        "tie: {lm_head.weight: transformer.wte.weight}\n",
        v, t, d, 3 * d, d, d, heads(d), d, 4 * d, 4 * d, d, d, d, v, d, t, d, layers(d), d, d, v);
}

static char *llama(const struct calibrate_size *size)
{
    int d = size->width, v = vocabulary(d), h = heads(d), kv = h > 1 ? h / 2 : 1, w = d / h;
    return mem_printf("name: Llama\ninput: tokens\nvocabulary: %d\ncontext: %d\n"
                      "blocks:\n"
                      "  Attention:\n"
                      "    modules:\n"
                      "      q: Linear(%d, %d, bias=False)\n"
                      "      k: Linear(%d, %d, bias=False)\n"
                      "      v: Linear(%d, %d, bias=False)\n"
                      "      o: Linear(%d, %d, bias=False)\n"
                      "    forward:\n"
                      "      - q = rope(q(x), head_dim=%d, theta=10000.0)\n"
                      "      - k = rope(k(x), head_dim=%d, theta=10000.0)\n"
                      "      - output = o(attention(q, k, v(x), num_heads=%d, num_kv_heads=%d, "
                      "is_causal=True))\n"
                      "  MLP:\n"
                      "    modules:\n"
                      "      gate: Linear(%d, %d, bias=False)\n"
                      "      up: Linear(%d, %d, bias=False)\n"
                      "      down: Linear(%d, %d, bias=False)\n"
                      "      act: SiLU()\n"
                      "    forward:\n"
                      "      - output = down(act(gate(x)) * up(x))\n"
                      "  Layer:\n"
                      "    modules:\n"
                      "      attn: Attention()\n"
                      "      mlp: MLP()\n"
                      "      norm_1: RMSNorm(%d, eps=1e-5)\n"
                      "      norm_2: RMSNorm(%d, eps=1e-5)\n"
                      "    forward:\n"
                      "      - x += attn(norm_1(x))\n"
                      "      - x += mlp(norm_2(x))\n"
                      "      - output = x\n"
                      "  Model:\n"
                      "    modules:\n"
                      "      embed: Embedding(%d, %d)\n"
                      "      layers: %d * Layer()\n"
                      "      norm: RMSNorm(%d, eps=1e-5)\n"
                      "    forward:\n"
                      "      - y = embed(x)\n"
                      "      - for layer in layers: y = layer(y)\n"
                      "      - output = norm(y)\n"
                      "modules:\n  model: Model()\n  lm_head: Linear(%d, %d, bias=False)\n"
                      "forward:\n  - output = lm_head(model(x))\n"
                      "loss: cross_entropy(output, target)\n",
                      v, size->context, d, d, d, kv * w, d, kv * w, d, d, w, w, h, kv, d, 3 * d, d,
                      3 * d, 3 * d, d, d, d, v, d, layers(d), d, d, v);
}

static char *bert(const struct calibrate_size *size)
{
    int d = size->width, v = vocabulary(d), t = size->context;
    return mem_printf("name: Bert\ninput: tokens\nvocabulary: %d\ncontext: %d\n"
                      "blocks:\n"
                      "  Attention:\n"
                      "    inputs: [x, mask]\n"
                      "    modules:\n"
                      "      query: Linear(%d, %d)\n"
                      "      key: Linear(%d, %d)\n"
                      "      value: Linear(%d, %d)\n"
                      "      dense: Linear(%d, %d)\n"
                      "      norm: LayerNorm(%d, eps=1e-12)\n"
                      "      dropout: Dropout(0.1)\n"
                      "    forward:\n"
                      "      - y = attention(query(x), key(x), value(x), num_heads=%d, mask=mask, "
                      "dropout_p=0.1)\n"
                      "      - output = norm(dropout(dense(y)) + x)\n"
                      "  MLP:\n"
                      "    modules:\n"
                      "      up: Linear(%d, %d)\n"
                      "      act: GELU()\n"
                      "      down: Linear(%d, %d)\n"
                      "      norm: LayerNorm(%d, eps=1e-12)\n"
                      "      dropout: Dropout(0.1)\n"
                      "    forward:\n"
                      "      - output = norm(dropout(down(act(up(x)))) + x)\n"
                      "  Layer:\n"
                      "    inputs: [x, mask]\n"
                      "    modules:\n"
                      "      attention: Attention()\n"
                      "      mlp: MLP()\n"
                      "    forward:\n"
                      "      - output = mlp(attention(x, mask))\n"
                      "  Encoder:\n"
                      "    inputs: [x, mask]\n"
                      "    modules:\n"
                      "      layer: %d * Layer()\n"
                      "    forward:\n"
                      "      - for block in layer: x = block(x, mask)\n"
                      "      - output = x\n"
                      "modules:\n"
                      "  words: Embedding(%d, %d, padding_idx=0)\n"
                      "  places: Embedding(%d, %d)\n"
                      "  norm: LayerNorm(%d, eps=1e-12)\n"
                      "  encoder: Encoder()\n"
                      "  head: Linear(%d, %d)\n"
                      "forward:\n"
                      "  - y = norm(words(x) + places(positions(x)))\n"
                      "  - output = head(encoder(y, padding_mask(x, 0)))\n"
                      "loss: cross_entropy(output, target)\n"
                      "tie: {head.weight: words.weight}\n",
                      v, t, d, d, d, d, d, d, d, d, d, heads(d), d, 4 * d, 4 * d, d, d, layers(d),
                      v, d, t, d, d, d, v);
}

/* A side of the images: wide layers on small ones. */
enum { SIDE = 28 };

static char *images(const struct calibrate_size *size)
{
    int c = size->width / 4;
    return mem_printf("name: Images\ninput: [1, %d, %d]\nclasses: 10\n"
                      "modules:\n"
                      "  conv1: Conv2d(1, %d, 3, 1)\n"
                      "  conv2: Conv2d(%d, %d, 3, 1)\n"
                      "  dropout1: Dropout(0.25)\n"
                      "  dropout2: Dropout(0.5)\n"
                      "  fc1: Linear(%d, %d)\n"
                      "  fc2: Linear(%d, 10)\n"
                      "forward:\n"
                      "  - x = relu(conv1(x))\n"
                      "  - x = relu(conv2(x))\n"
                      "  - x = max_pool2d(x, 2)\n"
                      "  - x = dropout1(x)\n"
                      "  - x = flatten(x, 1)\n"
                      "  - x = relu(fc1(x))\n"
                      "  - x = dropout2(x)\n"
                      "  - x = fc2(x)\n"
                      "  - output = log_softmax(x, dim=1)\n"
                      "loss: nll_loss(output, target, reduction=\"sum\")\n",
                      SIDE, SIDE, c, c, 2 * c, 2 * c * 12 * 12, size->width, size->width);
}

char *calibrate_model_text(enum calibrate_model model, const struct calibrate_size *size)
{
    switch (model) {
    case CALIBRATE_GPT: return gpt(size);
    case CALIBRATE_LLAMA: return llama(size);
    case CALIBRATE_BERT: return bert(size);
    case CALIBRATE_IMAGES:
    case CALIBRATE_MODEL_COUNT: break;
    }
    return images(size);
}

double calibrate_model_flops(enum calibrate_model model, const struct calibrate_size *size)
{
    double d = size->width, rows = (double)size->batch * size->context;
    int count = layers(size->width);
    if (model != CALIBRATE_IMAGES)
        return 6 * rows * (12 * count * d * d + d * vocabulary(size->width)) +
               12 * rows * count * d * size->context;
    double c = d / 4, pixels = 24.0 * 24.0;
    return 6 * rows / 8 * (9 * c * 2 * c * pixels + 2 * c * 144 * d);
}
