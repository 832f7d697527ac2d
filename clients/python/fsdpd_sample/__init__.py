"""A proxy before fsdpd's /v1/completions that has the model's tokenizer: it takes texts, and answers with texts."""
