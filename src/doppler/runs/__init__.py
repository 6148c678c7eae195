"""A training run on disk: directory, manifest, metrics."""
