"""Placement that learns while it serves, and the incumbent that Stage III shares with it."""
