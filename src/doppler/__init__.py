"""doppler."""
