"""Exact solving with CP-SAT."""
