"""What everything else stands on: arrays, text, files, progress, compiled kernels."""
