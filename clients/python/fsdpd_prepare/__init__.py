"""Makes dataset directories for fsdpd of conversations and text; docs/datasets.md has their format."""
