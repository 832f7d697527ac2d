"""The cases that are compared with transformers: each family of families/ with its variants, each
head, and the encoders that embed; as classes of transformers with tiny configurations of odd sizes.
What each takes is here too, made from seeds (family_numbers.py). Needs numpy only."""

import hashlib
import json
import os
import re

import numpy

from family_numbers import draw_integers, draw_normal, draw_uniform

VOCABULARY, CONTEXT, BATCH, HEAD_BATCH, PADDING = 61, 23, 4, 5, 3

DECODER = dict(vocab_size=VOCABULARY, hidden_size=20, intermediate_size=37, num_hidden_layers=2,
               num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=CONTEXT,
               pad_token_id=None, bos_token_id=None, eos_token_id=None)
ENCODER = dict(vocab_size=VOCABULARY, hidden_size=24, intermediate_size=39, num_hidden_layers=2,
               num_attention_heads=3, max_position_embeddings=CONTEXT, hidden_dropout_prob=0.0,
               attention_probs_dropout_prob=0.0, pad_token_id=PADDING)
# the first position is that of padding plus 1
ROBERTA = dict(ENCODER, max_position_embeddings=CONTEXT + PADDING + 1, bos_token_id=0,
               eos_token_id=2)
MODERN = dict(vocab_size=VOCABULARY, hidden_size=24, intermediate_size=39, num_hidden_layers=3,
              num_attention_heads=3, max_position_embeddings=CONTEXT, local_attention=8,
              global_attn_every_n_layers=2, pad_token_id=PADDING, bos_token_id=None,
              eos_token_id=None, cls_token_id=None, sep_token_id=None)
NEOX = dict(vocab_size=VOCABULARY, hidden_size=48, intermediate_size=39, num_hidden_layers=2,
            num_attention_heads=3, max_position_embeddings=CONTEXT, bos_token_id=None,
            eos_token_id=None)

JOINT = dict(vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=4, n_inner=39,
             bos_token_id=None, eos_token_id=None)
OPT = dict(vocab_size=VOCABULARY, hidden_size=24, ffn_dim=39, num_hidden_layers=2, dropout=0.0,
           num_attention_heads=3, max_position_embeddings=CONTEXT, pad_token_id=PADDING,
           bos_token_id=None, eos_token_id=None)
BLOOM = dict(vocab_size=VOCABULARY, seq_length=CONTEXT, hidden_size=24, n_layer=2, n_head=3)
MPT = dict(vocab_size=VOCABULARY, max_seq_len=CONTEXT, d_model=24, n_layers=2, n_heads=3)
FALCON = dict(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
              max_position_embeddings=CONTEXT, ffn_hidden_size=39, bos_token_id=None, eos_token_id=None)
BIGCODE = dict(vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=24, n_layer=2, n_head=3, n_inner=39,
               embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0)

# language models with a vision tower, which texts do not reach
TEXT = {key: value for key, value in DECODER.items() if not key.endswith("token_id")}
TOWER = dict(hidden_size=8, intermediate_size=8, num_attention_heads=2, num_hidden_layers=1, image_size=8, patch_size=4)
VISUAL = dict(depth=1, hidden_size=8, intermediate_size=8, num_heads=2, patch_size=4)

# name, or name and variant: the model's class (and that of its configuration, if AutoModel chooses it by this one), its
# configuration
FAMILIES = {
    "gpt2": ("GPT2LMHeadModel", dict(
        vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=24, n_layer=2, n_head=3, n_inner=50,
        embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0)),
    "llama": ("LlamaForCausalLM", dict(DECODER, head_dim=16, attention_bias=True)),
    "llama-scaled": ("LlamaForCausalLM", dict(
        DECODER, head_dim=16, tie_word_embeddings=True, rope_parameters={
            "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 16})),
    "llama-yarn": ("LlamaForCausalLM", dict(
        DECODER, head_dim=16, rope_parameters={
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 2.0,
            "beta_slow": 0.5, "original_max_position_embeddings": 9})),
    "llama-mscale": ("LlamaForCausalLM", dict(
        DECODER, head_dim=16, rope_parameters={
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 1.5,
            "mscale_all_dim": 0.6, "original_max_position_embeddings": 9})),
    "llama-dynamic": ("LlamaForCausalLM", dict(
        DECODER, head_dim=16, rope_parameters={
            "rope_type": "dynamic", "rope_theta": 1000.0, "factor": 4.0})),
    "mistral": ("MistralForCausalLM", dict(DECODER, head_dim=6, sliding_window=None)),
    "mistral-window": ("MistralForCausalLM", dict(DECODER, head_dim=6, sliding_window=7)),
    "qwen2": ("Qwen2ForCausalLM", dict(DECODER, hidden_size=24)),
    "qwen2-tied": ("Qwen2ForCausalLM", dict(DECODER, hidden_size=24, tie_word_embeddings=True)),
    "qwen2-window": ("Qwen2ForCausalLM", dict(
        DECODER, hidden_size=24, use_sliding_window=True, sliding_window=5, max_window_layers=1)),
    "qwen3": ("Qwen3ForCausalLM", dict(DECODER, head_dim=6)),
    "qwen3-yarn": ("Qwen3ForCausalLM", dict(
        DECODER, head_dim=16, rope_parameters={
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "attention_factor": 1.5,
            "original_max_position_embeddings": 6})),
    "qwen3-window": ("Qwen3ForCausalLM", dict(
        DECODER, head_dim=6, attention_bias=True, tie_word_embeddings=True,
        use_sliding_window=True, sliding_window=5,
        layer_types=["sliding_attention", "full_attention"])),
    "gemma": ("GemmaForCausalLM", dict(DECODER, head_dim=6, hidden_act="gelu")),
    "gemma2": ("Gemma2ForCausalLM", dict(
        DECODER, head_dim=6, sliding_window=7, query_pre_attn_scalar=9,
        attn_logit_softcapping=1.5, final_logit_softcapping=3.0)),
    "gemma2-plain": ("Gemma2ForCausalLM", dict(
        DECODER, head_dim=6, num_hidden_layers=1, attn_logit_softcapping=None,
        final_logit_softcapping=None, layer_types=["full_attention"], pad_token_id=2)),
    "gemma3_text": ("Gemma3ForCausalLM", dict(
        DECODER, head_dim=6, num_hidden_layers=3, sliding_window=5, query_pre_attn_scalar=5,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 100000.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0}})),
    "phi3": ("Phi3ForCausalLM", dict(DECODER, hidden_size=24)),
    "phi3-partial": ("Phi3ForCausalLM", dict(
        DECODER, hidden_size=32, sliding_window=6, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0,
                         "partial_rotary_factor": 0.75})),
    "phi3-longrope": ("Phi3ForCausalLM", dict(
        DECODER, hidden_size=32, original_max_position_embeddings=9, rope_parameters={
            "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
            "short_factor": [1.0, 1.1, 1.5], "long_factor": [1.0, 2.5, 7]})),
    "phi3-short": ("Phi3ForCausalLM", dict(
        DECODER, hidden_size=24, original_max_position_embeddings=CONTEXT, rope_parameters={
            "rope_type": "longrope", "rope_theta": 500.0, "attention_factor": 1.3, "factor": 4.0,
            "short_factor": [1.25, 3.0, 0.5], "long_factor": [9.0, 9.5, 9.9]})),
    "granite": ("GraniteForCausalLM", dict(
        DECODER, hidden_size=24, embedding_multiplier=3.0, logits_scaling=2.5,
        residual_multiplier=0.4, attention_multiplier=0.3, mlp_bias=True)),
    "stablelm": ("StableLmForCausalLM", dict(DECODER, hidden_size=32, use_qkv_bias=True)),
    "stablelm-parallel": ("StableLmForCausalLM", dict(
        DECODER, hidden_size=32, use_parallel_residual=True, rope_parameters={
            "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5})),
    "stablelm-norms": ("StableLmForCausalLM", dict(DECODER, hidden_size=32, qk_layernorm=True)),
    "phi": ("PhiForCausalLM", dict(DECODER, hidden_size=32)),
    "phi-norms": ("PhiForCausalLM", dict(
        DECODER, hidden_size=32, qk_layernorm=True, tie_word_embeddings=True, hidden_act="relu",
        rope_parameters={"rope_type": "default", "rope_theta": 500.0,
                         "partial_rotary_factor": 0.75})),
    "gpt_neox": ("GPTNeoXForCausalLM", dict(NEOX)),
    "gpt_neox-serial": ("GPTNeoXForCausalLM", dict(
        NEOX, use_parallel_residual=False, attention_bias=False, tie_word_embeddings=True)),
    "olmo2": ("Olmo2ForCausalLM", dict(DECODER, hidden_size=24)),
    "olmo": ("OlmoForCausalLM", dict(DECODER, hidden_size=24)),
    "olmo-clip": ("OlmoForCausalLM", dict(DECODER, hidden_size=24, num_hidden_layers=1, clip_qkv=0.3)),
    "smollm3": ("SmolLM3ForCausalLM", dict(DECODER, hidden_size=24, num_hidden_layers=3,
                                           no_rope_layers=[1, 0, 1])),
    "smollm3-window": ("SmolLM3ForCausalLM", dict(
        DECODER, hidden_size=24, num_hidden_layers=3, no_rope_layer_interval=2,
        use_sliding_window=True, sliding_window=6)),
    "olmo3": ("Olmo3ForCausalLM", dict(
        DECODER, hidden_size=24, sliding_window=6,
        layer_types=["sliding_attention", "full_attention"], rope_parameters={
            "full_attention": {"rope_type": "yarn", "rope_theta": 900.0, "factor": 4.0, "attention_factor": 1.2,
                               "original_max_position_embeddings": 6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 900.0}})),
    "seed_oss": ("SeedOssForCausalLM", dict(
        DECODER, head_dim=6, attention_dropout=0.0, residual_dropout=0.0, attention_out_bias=True)),
    "ministral": ("MinistralForCausalLM", dict(
        DECODER, head_dim=6, sliding_window=6, layer_types=["full_attention", "sliding_attention"])),
    "jais2": ("Jais2ForCausalLM", dict(DECODER, head_dim=6)),
    "vaultgemma": ("VaultGemmaForCausalLM", dict(
        DECODER, head_dim=6, sliding_window=7, query_pre_attn_scalar=9, attn_logit_softcapping=1.5,
        final_logit_softcapping=3.0)),
    "cohere": ("CohereForCausalLM", dict(DECODER, hidden_size=24, logit_scale=0.7)),
    "cohere-norms": ("CohereForCausalLM", dict(
        DECODER, hidden_size=24, num_hidden_layers=1, logit_scale=0.7, use_qk_norm=True, tie_word_embeddings=False)),
    "cohere2": ("Cohere2ForCausalLM", dict(
        DECODER, hidden_size=24, logit_scale=0.7, sliding_window=6,
        layer_types=["sliding_attention", "full_attention"])),
    "glm": ("GlmForCausalLM", dict(DECODER, head_dim=8)),
    "glm4": ("Glm4ForCausalLM", dict(DECODER, head_dim=8, num_hidden_layers=1)),
    "ernie4_5": ("Ernie4_5ForCausalLM", dict(DECODER, head_dim=6, use_bias=True)),
    "helium": ("HeliumForCausalLM", dict(DECODER, hidden_size=24, head_dim=6)),
    "gptj": ("GPTJForCausalLM", dict(JOINT, rotary_dim=6)),
    "codegen": ("CodeGenForCausalLM", dict(JOINT, rotary_dim=4, n_layer=1)),
    "bloom": ("BloomForCausalLM", dict(BLOOM)),
    "bloom-heads": ("BloomForCausalLM", dict(
        BLOOM, n_layer=1, n_head=12, apply_residual_connection_post_layernorm=True, tie_word_embeddings=False)),
    "mpt": ("MptForCausalLM", dict(MPT)),
    "mpt-heads": ("MptForCausalLM", dict(MPT, n_layers=1, n_heads=12, attn_config={"softmax_scale": 0.6, "clip_qkv": 0.4})),
    "falcon": ("FalconForCausalLM", dict(FALCON)),
    "falcon-new": ("FalconForCausalLM", dict(
        FALCON, num_hidden_layers=1, new_decoder_architecture=True, num_kv_heads=2, tie_word_embeddings=False)),
    "falcon-one": ("FalconForCausalLM", dict(
        FALCON, num_hidden_layers=1, new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0})),
    "falcon-alibi": ("FalconForCausalLM", dict(
        FALCON, hidden_size=24, num_attention_heads=12, multi_query=False, parallel_attn=False, alibi=True, bias=True)),
    "gemma3": ("Gemma3ForConditionalGeneration", dict(
        vision_config=TOWER, mm_tokens_per_image=4, text_config=dict(
            TEXT, head_dim=6, sliding_window=5, query_pre_attn_scalar=5,
            layer_types=["sliding_attention", "full_attention"]))),
    "mistral3": ("Mistral3ForConditionalGeneration", dict(
        vision_config=dict(TOWER, head_dim=4), image_token_index=2, tie_word_embeddings=False,
        text_config=dict(TEXT, model_type="mistral", head_dim=6, sliding_window=None))),
    "qwen2_5_vl": ("Qwen2_5_VLForConditionalGeneration", dict(
        vision_config=dict(VISUAL, out_hidden_size=24, fullatt_block_indexes=[0]), text_config=dict(
            TEXT, hidden_size=24, rope_parameters={
                "rope_type": "default", "rope_theta": 900.0, "mrope_section": [1, 1, 1]}))),
    "qwen3_vl": ("Qwen3VLForConditionalGeneration", dict(
        vision_config=dict(VISUAL, out_hidden_size=20, num_position_embeddings=4, deepstack_visual_indexes=[0]),
        tie_word_embeddings=True, text_config=dict(
            TEXT, head_dim=12, rope_parameters={
                "rope_type": "default", "rope_theta": 900.0, "mrope_section": [2, 2, 2]}))),
    "cwm": ("CwmForCausalLM", dict(
        DECODER, bos_token_id=1, hidden_size=24, head_dim=8, sliding_window=6, mlp_bias=True,
        layer_types=["sliding_attention", "full_attention"], rope_parameters={
            "rope_type": "llama3", "rope_theta": 900.0, "factor": 16.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8})),
    "hunyuan_v1_dense": ("HunYuanDenseV1ForCausalLM", dict(
        DECODER, head_dim=8, rope_parameters={
            "rope_type": "dynamic", "rope_theta": 300.0, "alpha": 20.0, "factor": 1.0})),
    "hunyuan_v1_dense-plain": ("HunYuanDenseV1ForCausalLM", dict(
        DECODER, head_dim=6, num_hidden_layers=1, attention_bias=True, tie_word_embeddings=True)),
    "hyperclovax": ("HyperCLOVAXForCausalLM", dict(
        DECODER, hidden_size=24, embedding_multiplier=3.0, logits_scaling=0.4, residual_multiplier=0.4,
        attention_multiplier=0.3, mlp_bias=True)),
    "hyperclovax-plain": ("HyperCLOVAXForCausalLM", dict(
        DECODER, hidden_size=24, num_hidden_layers=1, use_post_norm=False)),
    "nanochat": ("NanoChatForCausalLM", dict(DECODER, hidden_size=24, final_logit_softcapping=3.0)),
    "persimmon": ("PersimmonForCausalLM", dict(NEOX, pad_token_id=None)),
    "persimmon-plain": ("PersimmonForCausalLM", dict(
        NEOX, num_hidden_layers=1, qk_layernorm=False, tie_word_embeddings=True, hidden_act="gelu")),
    "gpt_neox_japanese": ("GPTNeoXJapaneseForCausalLM", dict(
        vocab_size=VOCABULARY, hidden_size=24, intermediate_multiple_size=2, num_hidden_layers=2,
        num_attention_heads=3, max_position_embeddings=CONTEXT, attention_dropout=0.0, bos_token_id=None,
        eos_token_id=None)),
    "biogpt": ("BioGptForCausalLM", dict(
        ENCODER, bos_token_id=None, eos_token_id=None)),
    "openai_gpt": ("OpenAIGPTLMHeadModel", dict(
        vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=24, n_layer=2, n_head=3, embd_pdrop=0.0,
        attn_pdrop=0.0, resid_pdrop=0.0)),
    "exaone": ("LlamaForCausalLM/ExaoneConfig", dict(DECODER, hidden_size=24, num_hidden_layers=1)),
    "internlm3": ("LlamaForCausalLM/InternLM3Config", dict(
        DECODER, hidden_size=24, head_dim=8, num_hidden_layers=1, attention_bias=True, mlp_bias=True)),
    "iquestcoder": ("LlamaForCausalLM/IQuestCoderConfig", dict(
        DECODER, hidden_size=24, head_dim=8, num_hidden_layers=1)),
    "modernbert_decoder": ("ModernBertDecoderForCausalLM", dict(
        MODERN, bos_token_id=1, eos_token_id=1, cls_token_id=1, sep_token_id=1)),
    "gpt_bigcode": ("GPTBigCodeForCausalLM", dict(BIGCODE)),
    "gpt_bigcode-heads": ("GPTBigCodeForCausalLM", dict(
        BIGCODE, n_layer=1, multi_query=False, scale_attn_weights=False, tie_word_embeddings=False)),
    "gpt_neo": ("GPTNeoForCausalLM", dict(
        vocab_size=VOCABULARY, max_position_embeddings=CONTEXT, hidden_size=24, num_layers=2, num_heads=3,
        intermediate_size=39, window_size=6, attention_types=[[["local", "global"], 1]])),
    "arcee": ("ArceeForCausalLM", dict(DECODER, hidden_size=24, head_dim=6, mlp_bias=True)),
    "exaone4": ("Exaone4ForCausalLM", dict(
        DECODER, head_dim=6, num_hidden_layers=3, sliding_window=6, sliding_window_pattern=2)),
    "exaone4-full": ("Exaone4ForCausalLM", dict(
        DECODER, head_dim=6, sliding_window=None, sliding_window_pattern=None,
        layer_types=["full_attention"] * 2, tie_word_embeddings=True)),
    "nemotron": ("NemotronForCausalLM", dict(DECODER, head_dim=12, attention_bias=True)),
    "opt": ("OPTForCausalLM", dict(OPT)),
    "opt-after": ("OPTForCausalLM", dict(
        OPT, do_layer_norm_before=False, word_embed_proj_dim=16, activation_function="gelu",
        tie_word_embeddings=False)),
    "opt-plain": ("OPTForCausalLM", dict(
        OPT, enable_bias=False, layer_norm_elementwise_affine=False, _remove_final_layer_norm=True)),
    "starcoder2": ("Starcoder2ForCausalLM", dict(DECODER, hidden_size=24)),
    "distilbert": ("DistilBertForMaskedLM", dict(
        vocab_size=VOCABULARY, dim=24, hidden_dim=39, n_layers=2, n_heads=3, dropout=0.0,
        max_position_embeddings=CONTEXT, attention_dropout=0.0, pad_token_id=PADDING)),
    "bert": ("BertForMaskedLM", dict(ENCODER)),
    "electra": ("ElectraForMaskedLM", dict(ENCODER, embedding_size=17, type_vocab_size=1)),
    "electra-wide": ("ElectraForMaskedLM", dict(
        ENCODER, embedding_size=24, hidden_act="relu", tie_word_embeddings=False)),
    "mpnet": ("MPNetForMaskedLM", dict(
        ROBERTA, pad_token_id=1, max_position_embeddings=CONTEXT + 2)),
    "mpnet-buckets": ("MPNetForMaskedLM", dict(
        ROBERTA, pad_token_id=1, max_position_embeddings=CONTEXT + 2, num_attention_heads=2,
        relative_attention_num_buckets=40, hidden_act="silu")),
    "modernbert": ("ModernBertForMaskedLM", dict(MODERN)),
    "modernbert-biased": ("ModernBertForMaskedLM", dict(
        MODERN, norm_bias=True, attention_bias=True, mlp_bias=True, classifier_bias=True,
        decoder_bias=False, tie_word_embeddings=False, hidden_activation="silu",
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 500.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 90.0}})),
    "roberta": ("RobertaForMaskedLM", dict(ROBERTA)),
    "camembert": ("CamembertForMaskedLM", dict(ROBERTA)),
    "xlm_roberta": ("XLMRobertaForMaskedLM", dict(ROBERTA, type_vocab_size=2)),
    "data2vec_text": ("Data2VecTextForMaskedLM", dict(ROBERTA, num_hidden_layers=1)),
    "ernie": ("ErnieForMaskedLM", dict(ENCODER, num_hidden_layers=1, use_task_id=True)),
    "megatron_bert": ("MegatronBertForMaskedLM", dict(ENCODER)),
    "roberta_prelayernorm": ("RobertaPreLayerNormForMaskedLM", dict(ROBERTA, num_hidden_layers=1)),
    "xlm_roberta_xl": ("XLMRobertaXLForMaskedLM", dict(ROBERTA)),
    "rembert": ("RemBertForMaskedLM", dict(ENCODER, input_embedding_size=17, output_embedding_size=21)),
    "eurobert": ("EuroBertForMaskedLM", dict(DECODER, head_dim=6, pad_token_id=PADDING, mlp_bias=True)),
    "albert": ("AlbertForMaskedLM", dict(ENCODER, embedding_size=17, num_hidden_layers=3)),
    "albert-groups": ("AlbertForMaskedLM", dict(
        ENCODER, embedding_size=17, num_hidden_groups=2)),
}
IMAGES = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=39,
              image_size=14, patch_size=4, num_channels=1, num_labels=7)
DINO = {key: value for key, value in IMAGES.items() if key != "intermediate_size"}
EYES = dict(hidden_size=24, intermediate_size=39, num_hidden_layers=1, num_attention_heads=3, image_size=14, patch_size=4,
            num_channels=1)
# The same for images.
PICTURES = {
    "vit": ("ViTForImageClassification", dict(IMAGES)),
    "deit": ("DeiTForImageClassification", dict(IMAGES, qkv_bias=False, hidden_act="gelu_new")),
    "resnet": ("ResNetForImageClassification", dict(
        image_size=14, num_channels=1, num_labels=7, embedding_size=6, hidden_sizes=[16, 24],
        depths=[1, 2])),
    "resnet-basic": ("ResNetForImageClassification", dict(
        image_size=14, num_channels=1, num_labels=7, embedding_size=6, hidden_sizes=[6, 10],
        depths=[2, 1], layer_type="basic", downsample_in_first_stage=True)),
    "resnet-sync": ("ResNetForImageClassification", dict(
        image_size=14, num_channels=1, num_labels=7, embedding_size=6, hidden_sizes=[16, 24],
        depths=[1, 2], sync_batch_norm=True)),
    "convnext": ("ConvNextForImageClassification", dict(
        image_size=14, patch_size=2, num_channels=1, num_labels=7, hidden_sizes=[12, 20],
        depths=[1, 2], num_stages=2, layer_scale_init_value=0.5)),
    "convnext-plain": ("ConvNextForImageClassification", dict(
        image_size=14, patch_size=1, num_channels=1, num_labels=7, hidden_sizes=[6, 10, 14],
        depths=[2, 1, 1], num_stages=3, layer_scale_init_value=0.0, hidden_act="gelu_new")),
    "ijepa": ("IJepaForImageClassification", dict(IMAGES, num_hidden_layers=1)),
    "dinov2": ("Dinov2ForImageClassification", dict(DINO, mlp_ratio=2, layerscale_value=0.5)),
    "dinov2-gated": ("Dinov2ForImageClassification", dict(DINO, num_hidden_layers=1, mlp_ratio=2, use_swiglu_ffn=True)),
    "dinov2_with_registers": ("Dinov2WithRegistersForImageClassification", dict(
        DINO, num_hidden_layers=1, mlp_ratio=2, num_register_tokens=3)),
    "convnextv2": ("ConvNextV2ForImageClassification", dict(
        image_size=14, patch_size=2, num_channels=1, num_labels=7, hidden_sizes=[12, 20],
        depths=[1, 2], num_stages=2)),
    "regnet": ("RegNetForImageClassification", dict(
        image_size=14, num_channels=1, num_labels=7, embedding_size=6, hidden_sizes=[8, 12], depths=[1, 2],
        groups_width=4)),
    "regnet-x": ("RegNetForImageClassification", dict(
        image_size=14, num_channels=1, num_labels=7, embedding_size=6, hidden_sizes=[6, 10], depths=[1, 1],
        groups_width=5, layer_type="x", downsample_in_first_stage=False)),
    "poolformer": ("PoolFormerForImageClassification", dict(
        image_size=14, num_channels=1, num_labels=7, hidden_sizes=[5, 6, 7, 8], depths=[1, 1, 2, 1],
        patch_sizes=[3, 3, 3, 3], strides=[2, 2, 1, 1], padding=[1, 1, 1, 1], mlp_ratio=2.0, layer_scale_init_value=0.5)),
    "clip": ("CLIPForImageClassification", dict(vision_config=EYES, num_labels=7)),
    "metaclip_2": ("MetaClip2ForImageClassification", dict(vision_config=EYES, num_labels=7)),
    "siglip": ("SiglipForImageClassification", dict(vision_config=EYES, num_labels=7)),
}
FAMILIES.update(PICTURES)

PADDED = dict(DECODER, pad_token_id=PADDING)
ONE, MANY, REGRESSION, TOKENS = "one label", "several labels", "regression", "labels of tokens"
SEVERAL = dict(num_labels=4, problem_type="multi_label_classification")
MPNET = dict(ROBERTA, pad_token_id=1, max_position_embeddings=CONTEXT + 2)
LABELED_TOKENS = dict(num_labels=5, classifier_dropout=0.0)

# name, or name and variant: the model's class, its configuration, what its labels are
HEADS = {
    "bert": ("BertForSequenceClassification", dict(ENCODER, num_labels=3), ONE),
    "bert-binary": ("BertForSequenceClassification", dict(ENCODER), ONE),
    "bert-regression": ("BertForSequenceClassification", dict(ENCODER, num_labels=1), REGRESSION),
    "bert-several": ("BertForSequenceClassification", dict(ENCODER, **SEVERAL), MANY),
    "bert-tokens": ("BertForTokenClassification", dict(ENCODER, num_labels=5), TOKENS),
    "roberta": ("RobertaForSequenceClassification", dict(ROBERTA, num_labels=3), ONE),
    "roberta-tokens": ("RobertaForTokenClassification", dict(ROBERTA, num_labels=5), TOKENS),
    "xlm_roberta": ("XLMRobertaForSequenceClassification", dict(ROBERTA, num_labels=3), ONE),
    "xlm_roberta-tokens": ("XLMRobertaForTokenClassification", dict(ROBERTA, num_labels=5), TOKENS),
    "camembert": ("CamembertForSequenceClassification", dict(ROBERTA, num_hidden_layers=1, num_labels=3), ONE),
    "camembert-tokens": ("CamembertForTokenClassification", dict(ROBERTA, num_hidden_layers=1, num_labels=5), TOKENS),
    "ernie": ("ErnieForSequenceClassification", dict(ENCODER, num_hidden_layers=1, num_labels=3), ONE),
    "ernie-tokens": ("ErnieForTokenClassification", dict(ENCODER, num_hidden_layers=1, num_labels=5), TOKENS),
    "data2vec_text": ("Data2VecTextForSequenceClassification", dict(ROBERTA, num_hidden_layers=1, num_labels=3), ONE),
    "gpt_bigcode": ("GPTBigCodeForSequenceClassification", dict(
        BIGCODE, n_layer=1, num_labels=3, pad_token_id=PADDING), ONE),
    "gpt_bigcode-tokens": ("GPTBigCodeForTokenClassification", dict(
        BIGCODE, n_layer=1, pad_token_id=PADDING, **LABELED_TOKENS), TOKENS),
    "distilbert": ("DistilBertForSequenceClassification", dict(
        FAMILIES["distilbert"][1], num_labels=3, seq_classif_dropout=0.0), ONE),
    "distilbert-tokens": ("DistilBertForTokenClassification", dict(
        FAMILIES["distilbert"][1], num_labels=5), TOKENS),
    "electra": ("ElectraForSequenceClassification", dict(ENCODER, embedding_size=16, num_labels=3), ONE),
    "electra-tokens": ("ElectraForTokenClassification", dict(ENCODER, embedding_size=16, num_labels=5), TOKENS),
    "gpt2": ("GPT2ForSequenceClassification", dict(
        FAMILIES["gpt2"][1], num_labels=3, pad_token_id=PADDING), ONE),
    "llama": ("LlamaForSequenceClassification", dict(PADDED, head_dim=6, num_labels=3), ONE),
    "llama-regression": ("LlamaForSequenceClassification", dict(
        PADDED, head_dim=6, num_labels=2, problem_type="regression"), REGRESSION),
    "mistral": ("MistralForSequenceClassification", dict(PADDED, head_dim=6, num_labels=3), ONE),
    "qwen2": ("Qwen2ForSequenceClassification", dict(PADDED, hidden_size=24, num_labels=3), ONE),
    "qwen3": ("Qwen3ForSequenceClassification", dict(PADDED, head_dim=6, num_labels=3), ONE),
    "gemma3_text": ("Gemma3TextForSequenceClassification", dict(
        PADDED, head_dim=6, num_labels=3, sliding_window=5, query_pre_attn_scalar=5,
        layer_types=["sliding_attention", "full_attention"]), ONE),
    "olmo": ("OlmoForSequenceClassification", dict(PADDED, hidden_size=24, num_labels=3), ONE),
    "olmo2": ("Olmo2ForSequenceClassification", dict(PADDED, hidden_size=24, num_labels=3), ONE),
    "opt": ("OPTForSequenceClassification", dict(FAMILIES["opt"][1], num_labels=3), ONE),
    "opt-projected": ("OPTForSequenceClassification", dict(
        FAMILIES["opt"][1], word_embed_proj_dim=16, num_labels=3), ONE),
    "gpt_neox": ("GPTNeoXForSequenceClassification", dict(NEOX, pad_token_id=PADDING, num_labels=3), ONE),
    "gpt_neox-tokens": ("GPTNeoXForTokenClassification", dict(NEOX, pad_token_id=PADDING, **LABELED_TOKENS), TOKENS),
    "gpt2-tokens": ("GPT2ForTokenClassification", dict(FAMILIES["gpt2"][1], **LABELED_TOKENS), TOKENS),
    "mpnet": ("MPNetForSequenceClassification", dict(MPNET, num_labels=3), ONE),
    "mpnet-tokens": ("MPNetForTokenClassification", dict(MPNET, num_labels=5), TOKENS),
    "modernbert": ("ModernBertForSequenceClassification", dict(MODERN, num_labels=3), ONE),
    "modernbert-mean": ("ModernBertForSequenceClassification", dict(
        MODERN, classifier_pooling="mean", classifier_bias=True, norm_bias=True, **SEVERAL), MANY),
    "modernbert-tokens": ("ModernBertForTokenClassification", dict(MODERN, num_labels=5), TOKENS),
}
# decoders with the classes that transformers makes of any model
GENERIC = {"gemma": "Gemma", "gemma2": "Gemma2", "phi": "Phi", "phi3": "Phi3", "stablelm": "StableLm",
           "starcoder2": "Starcoder2", "smollm3": "SmolLM3", "llama": "Llama", "mistral": "Mistral",
           "qwen2": "Qwen2", "qwen3": "Qwen3", "arcee": "Arcee", "exaone4": "Exaone4", "nemotron": "Nemotron"}
# one of each head and loss; test_families.py has curves of every body
CURVES = {"bert", "bert-regression", "bert-several", "bert-tokens", "roberta", "roberta-tokens", "xlm_roberta",
          "distilbert", "distilbert-tokens", "electra", "electra-tokens", "gpt2", "gpt_neox-tokens", "llama",
          "llama-regression", "llama-tokens", "qwen3", "mpnet", "modernbert-mean", "modernbert-tokens"}
CAUSAL = {"gpt2", "gpt_bigcode", "gpt_neox", *GENERIC}
for name, stem in GENERIC.items():
    settings = dict(FAMILIES[name][1], pad_token_id=PADDING)
    HEADS.setdefault(name, (stem + "ForSequenceClassification", dict(settings, num_labels=3), ONE))
    HEADS[name + "-tokens"] = (stem + "ForTokenClassification", dict(settings, **LABELED_TOKENS), TOKENS)

# The class without a head, the one of a masked language model, the configuration.
EMBEDDINGS = {
    "bert": ("BertModel", "BertForMaskedLM", dict(ENCODER)),
    "bert-cls": ("BertModel", "BertForMaskedLM", dict(ENCODER, pooling="cls")),
    "roberta": ("RobertaModel", "RobertaForMaskedLM", dict(ROBERTA)),
    "xlm_roberta": ("XLMRobertaModel", "XLMRobertaForMaskedLM", dict(ROBERTA)),
    "distilbert": ("DistilBertModel", "DistilBertForMaskedLM", dict(FAMILIES["distilbert"][1])),
    "mpnet": ("MPNetModel", "MPNetForMaskedLM", MPNET),
    "electra": ("ElectraModel", "ElectraForMaskedLM", dict(ENCODER, embedding_size=16)),
    "modernbert": ("ModernBertModel", "ModernBertForMaskedLM", dict(MODERN)),
}
BODIES = ("vit", "deit", "resnet", "convnext")  # whose checkpoint may lack the classifier
RESIZED = [(name, size) for name in ("vit", "deit") for size in (9, 22, 33)]  # positions of other images

LEARNING_RATE, WEIGHT_DECAY = 1e-3, 0.01
STEPS = 20  # of the comparisons with transformers at work
LOSSES = 5  # steps whose losses travel
WINDOWS, PAIRS, IMAGES_OF_A_STEP, MEAN, STD = 6, 6, 12, 0.4, 0.25
TRAIN = "train: {max_steps: %d, shuffle: false, evaluate: false, log_interval: 1}"
OPTIMIZER = f"optimizer: {{type: adamw, lr: {LEARNING_RATE}, weight_decay: {WEIGHT_DECAY}}}"
DATA = {
    "text": f"{{format: tokens, path: stream.bin, encoding: uint16, context: {CONTEXT}, validation_fraction: 0}}",
    "documents": f"{{format: dataset, path: labels, windows: document, context: {CONTEXT}}}",
    "pictures": f"{{format: idx, dir: ., normalize: {{mean: {MEAN}, std: {STD}}}}}",
}
STILL = ("optimizer.lr=0", "optimizer.weight_decay=0", "train.max_steps=1")  # changes no parameter


def job_file(kind, steps=STEPS):
    """Of AdamW steps on this kind of data, whose losses are compared."""
    return f"name: curve\ndata: {DATA[kind]}\n{TRAIN % steps}\n{OPTIMIZER}\n"


def attention_of(kind):
    """How transformers computes attention of a class; its eager one adds Falcon's ALiBi twice."""
    return "sdpa" if kind.startswith("Falcon") else "eager"


def family_of(name):
    return name.partition("-")[0]


def is_picture(name):
    return family_of(name) in PICTURES


def draw_inputs(name):
    """A model's inputs and targets."""
    if is_picture(name):
        return draw_normal("pixels", (BATCH, 1, 14, 14)).astype("<f4"), draw_integers("classes", (BATCH,), 0, 7)
    return (draw_integers("tokens", (BATCH, CONTEXT), PADDING + 1, VOCABULARY),
            draw_integers("targets", (BATCH, CONTEXT), 0, VOCABULARY))


def batch_bytes(inputs, targets):
    """As dump_transformer reads a batch."""
    return b"".join(values.astype("<f4" if values.dtype.kind == "f" else "<i4").tobytes()
                    for values in (inputs, targets))


def draw_stream():
    """Tokens of all steps: a step takes WINDOWS of CONTEXT, and each window's last target is one further."""
    return draw_integers("stream", (STEPS * WINDOWS * CONTEXT + 1,), PADDING + 1, VOCABULARY)


def draw_pictures():
    """Images and labels of all steps."""
    count = STEPS * IMAGES_OF_A_STEP
    return draw_integers("images", (count, 14, 14), 0, 256), draw_integers("labels", (count,), 0, 7)


def write_idx(path, values):
    with open(path, "wb") as file:
        file.write(bytes([0, 0, 8, values.ndim]))
        for size in values.shape:
            file.write(size.to_bytes(4, "big"))
        file.write(values.astype("u1").tobytes())


def write_streams(directory):
    """What jobs of models train on: stream.bin, and images with labels."""
    draw_stream().astype("<u2").tofile(os.path.join(directory, "stream.bin"))
    images, labels = draw_pictures()
    for part in ("train", "t10k"):
        write_idx(os.path.join(directory, f"{part}-images-idx3-ubyte"), images)
        write_idx(os.path.join(directory, f"{part}-labels-idx1-ubyte"), labels)


def padding_of(settings):
    return settings.get("pad_token_id", PADDING)


def shortest_of(settings):
    """transformers gives NaN to padding whose window has no token."""
    if "local_attention" in settings:
        return CONTEXT - settings["local_attention"] // 2
    return CONTEXT + 1 - (settings.get("sliding_window") or CONTEXT - 1)


def draw_documents(name, count, seed):
    """Documents for a head: tokens with padding, their labels, and their lengths."""
    _, settings, kind = HEADS[name]
    labels, padding = settings.get("num_labels", 2), padding_of(settings)
    lengths = draw_integers(f"lengths {seed}", (count,), shortest_of(settings), CONTEXT + 1)
    tokens = draw_integers(f"documents {seed}", (count, CONTEXT), PADDING + 1, VOCABULARY)
    tokens[numpy.arange(CONTEXT) >= lengths[:, None]] = padding
    if kind == ONE:
        targets = draw_integers(f"one label {seed}", (count,), 0, labels)
    elif kind == REGRESSION:
        targets = draw_normal(f"regression {seed}", (count, labels)).astype("<f4")
    elif kind == MANY:
        targets = draw_integers(f"several labels {seed}", (count, labels), 0, 2).astype("<f4")
    else:
        targets = draw_integers(f"labels of tokens {seed}", (count, CONTEXT), 0, labels)
        targets[draw_uniform(f"without a label {seed}", (count, CONTEXT)) < 0.2] = -100
        targets[tokens == padding] = -100
    return tokens, targets, lengths


def hidden_padding(name, tokens):
    """The padded positions if their logits are not compared, or None: a causal model does not mask
    padding, because nothing before it sees it, and no label is there."""
    _, settings, kind = HEADS[name]
    return tokens == padding_of(settings) if kind == TOKENS and name.removesuffix("-tokens") in CAUSAL else None


def draw_pairs(padding):
    """Pairs of texts of all steps; some tokens of the second are those of the first."""
    shape = (STEPS * PAIRS, 2, CONTEXT)
    rows = draw_integers("pairs", shape, PADDING + 1, VOCABULARY)
    same = draw_uniform("same tokens", (shape[0], CONTEXT)) < 0.5
    rows[:, 1] = numpy.where(same, rows[:, 0], rows[:, 1])
    rows[numpy.arange(CONTEXT) >= draw_integers("lengths of pairs", shape[:2], CONTEXT - 3, CONTEXT + 1)[..., None]] = padding
    return rows


def write_dataset(directory, splits, **root):
    """As fsdpd-prepare writes these arrays of splits."""
    os.mkdir(directory)
    described = {}
    for split, arrays in splits.items():
        described[split] = {}
        for name, values in arrays.items():
            file = f"{split}.{name}.npy"
            numpy.save(os.path.join(directory, file), values)
            with open(os.path.join(directory, file), "rb") as stream:
                digest = hashlib.sha256(stream.read()).hexdigest()
            described[split][name] = {"file": file, "type": values.dtype.name, "shape": list(values.shape),
                                      "sha256": digest}
    root = {"format": "fsdpd-dataset", "version": 1, "kind": "tokens", **root, "splits": described}
    with open(os.path.join(directory, "dataset.json"), "w", encoding="utf-8") as file:
        json.dump(root, file)


def write_documents(directory, name, count=STEPS * WINDOWS, seed=3):
    """A dataset for a head. Returns its documents and their labels."""
    tokens, targets, lengths = draw_documents(name, count, seed)
    kind = HEADS[name][2]
    inside = numpy.arange(CONTEXT) < lengths[:, None]
    labels = targets[inside] if kind == TOKENS else targets
    write_dataset(directory, {"train": {
        "tokens": tokens[inside].astype("<u2"),
        "documents": numpy.concatenate([[0], numpy.cumsum(lengths)]).astype("<u8"),
        {ONE: "labels", TOKENS: "token_labels"}.get(kind, "targets"):
            labels.astype("<f4" if labels.dtype.kind == "f" else "<i4")}}, vocabulary=VOCABULARY)
    return tokens, targets


def write_texts(directory, parts, padding, vocabulary):
    """A dataset of pairs, triples and so on: arrays [samples, texts, tokens] by split."""
    splits = {}
    for split, rows in parts.items():
        lengths = (rows != padding).sum(-1).reshape(-1)
        splits[split] = {"tokens": rows[rows != padding].astype("<u2"),
                         "documents": numpy.concatenate([[0], numpy.cumsum(lengths)]).astype("<u8")}
    write_dataset(directory, splits, texts=next(iter(parts.values())).shape[1], vocabulary=vocabulary)
