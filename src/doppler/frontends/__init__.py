"""Models of other libraries in: PyTorch modules become graphs that the engine runs."""
