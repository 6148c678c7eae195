"""Learned competitors: Placeto, GDP and the sequence placer."""
