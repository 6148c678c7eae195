"""Placers that use a learned policy."""
