"""The experiments behind the labels: their jobs, and what follows from the results."""
