"""Levels: large problems made small, by groups of vertices that are placed as one."""
