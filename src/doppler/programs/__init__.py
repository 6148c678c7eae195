"""Workloads: graphs made from a few parameters."""

from doppler.programs.random_dag import random_dag

__all__ = ["random_dag"]
