"""lattice-388: the reported fault, remade (field/remade.py)."""

import remade


def design(models, fixed=False):
    """Make the conditions of the default design."""
    return remade.make_design(models, "lattice-388", fixed)
