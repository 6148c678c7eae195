"""Lower bounds on makespans, and what memory allows."""
