"""mlxcel-902: the reported fault, remade (field/remade.py)."""

import remade


def design(models, fixed=False):
    """Make the conditions of the default design."""
    return remade.make_design(models, "mlxcel-902", fixed)
