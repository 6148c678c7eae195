"""A topology from measurements, and how far to trust it: probe, calibrate, validate."""
