"""Training of speculators: drafters, heads and draft models of a checkpoint, from its own samples."""
