"""Runs over several processes, each with devices of its own, joined by torch.distributed."""
