# What an installed fsdpd knows of Hugging Face's models.
familiesdir = $(pkgdatadir)/families
dist_families_DATA = \
  %D%/arcee.yaml \
  %D%/bert.yaml \
  %D%/convnext.yaml \
  %D%/deit.yaml \
  %D%/distilbert.yaml \
  %D%/electra.yaml \
  %D%/exaone4.yaml \
  %D%/gemma.yaml \
  %D%/gemma2.yaml \
  %D%/gemma3_text.yaml \
  %D%/gpt2.yaml \
  %D%/gpt_neox.yaml \
  %D%/granite.yaml \
  %D%/llama.yaml \
  %D%/mistral.yaml \
  %D%/modernbert.yaml \
  %D%/mpnet.yaml \
  %D%/nemotron.yaml \
  %D%/olmo.yaml \
  %D%/olmo2.yaml \
  %D%/opt.yaml \
  %D%/phi.yaml \
  %D%/phi3.yaml \
  %D%/qwen2.yaml \
  %D%/qwen3.yaml \
  %D%/resnet.yaml \
  %D%/roberta.yaml \
  %D%/smollm3.yaml \
  %D%/stablelm.yaml \
  %D%/starcoder2.yaml \
  %D%/vit.yaml \
  %D%/xlm_roberta.yaml
