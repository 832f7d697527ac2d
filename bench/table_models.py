"""The models of bench/table.sh and bench/lora.sh, for both sides: what a transformers configuration says, and the data."""

TEXT, MASKED, IMAGES = "text", "masked", "images"


class Model:
    """A model is trained on `batch` samples per step, over all processes."""

    def __init__(self, kind, architecture, batch, config, context=0, side=0):
        self.kind, self.architecture, self.batch = kind, architecture, batch
        self.context, self.side = context, side
        self.config = dict(config, architectures=[architecture])

    def samples(self):
        """The number of things per step that a rate counts, and their name."""
        return (self.batch, "images") if self.kind == IMAGES else \
            (self.batch * self.context, "tokens")


CLASSES = {"id2label": {str(label): str(label) for label in range(10)},
           "label2id": {str(label): label for label in range(10)}}
MODELS = {
    "mnist": None,  # the tutorial's network: examples/mnist, tests/parity/reference.py
    "resnet-18": Model(IMAGES, "ResNetForImageClassification", 32, dict(
        CLASSES, model_type="resnet", num_channels=3, image_size=64, embedding_size=64,
        hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic"), side=64),
    "minilm": Model(MASKED, "BertForMaskedLM", 16, dict(
        model_type="bert", vocab_size=30522, hidden_size=384, num_hidden_layers=12,
        num_attention_heads=12, intermediate_size=1536, max_position_embeddings=512,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0), context=128),
    "vit-s": Model(IMAGES, "ViTForImageClassification", 8, dict(
        CLASSES, model_type="vit", hidden_size=384, num_hidden_layers=12, num_attention_heads=6,
        intermediate_size=1536, image_size=224, patch_size=16, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0), side=224),
    "gpt2-124m": Model(TEXT, "GPT2LMHeadModel", 2, dict(
        model_type="gpt2", vocab_size=50257, n_positions=1024, n_embd=768, n_layer=12, n_head=12,
        embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0), context=1024),
    "llama-0.5b": Model(TEXT, "LlamaForCausalLM", 2, dict(
        model_type="llama", vocab_size=32000, hidden_size=1280, intermediate_size=3456,
        num_hidden_layers=24, num_attention_heads=20, num_key_value_heads=20,
        max_position_embeddings=2048, tie_word_embeddings=True), context=512),
}
# Those that are in no table of bench/table.sh, too.
ALL = dict(MODELS, **{
    "llama-134m": Model(TEXT, "LlamaForCausalLM", 2, dict(
        model_type="llama", vocab_size=32000, hidden_size=768, intermediate_size=2048,
        num_hidden_layers=12, num_attention_heads=12, num_key_value_heads=12,
        max_position_embeddings=1024, tie_word_embeddings=False), context=128),
})
MNIST_BATCH = 128
