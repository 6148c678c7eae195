"""What runs tasks for the engine: nothing at all, CPU threads, or CUDA streams."""
