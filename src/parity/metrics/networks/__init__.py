"""Networks that look at images: those of the embedded models, and published ones."""
