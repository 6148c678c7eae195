"""Models by name: those of the gallery, small and at their published sizes."""
