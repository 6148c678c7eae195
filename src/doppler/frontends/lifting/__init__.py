"""Lifting: exported programs as programs that can be sharded, and the pieces of their shards."""
