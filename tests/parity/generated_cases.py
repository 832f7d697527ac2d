"""What models continue: cases of family_cases.py with a longer context, and prompts of unequal length.
Needs numpy only."""

import family_cases as cases
from family_numbers import draw_integers

CONTEXT, TOKENS, CLOSE = 96, 64, 1e-3
NAMES = ("gpt2", "llama", "llama-scaled", "llama-yarn", "qwen3", "gemma2", "gemma3_text", "phi", "olmo2", "stablelm",
         "gpt_neox", "smollm3", "mistral-window", "codegen", "cohere2", "bloom", "mpt", "falcon", "falcon-alibi", "gptj", "gpt_neo",
         "opt", "gpt_bigcode", "exaone4", "modernbert_decoder", "nanochat", "openai_gpt")
PROMPTS = [draw_integers(f"prompt {length}", (length,), 0, cases.VOCABULARY).tolist() for length in (5, 1, 32)]


def settings_of(name):
    """The model's class and its configuration."""
    kind, settings = cases.FAMILIES[name]
    sizes = ("n_positions", "seq_length", "max_seq_len")
    size = next((key for key in sizes if key in settings), "max_position_embeddings")
    return kind, dict(settings, **{size: CONTEXT})
