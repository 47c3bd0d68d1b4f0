"""Networks that look at pictures: those of the embedded models, and published ones."""
