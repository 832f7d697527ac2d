"""Follows jobs of fsdpd, and writes what happens to them to a tracker: MLflow, Weights & Biases, trackio, OTLP
metrics."""
