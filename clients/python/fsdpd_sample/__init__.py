"""Texts of a job that continues token ids: fsdpd-sample JOB, and a proxy before fsdpd's /v1/completions; both have the
model's tokenizer."""
