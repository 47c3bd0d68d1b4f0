"""The law of a table of Parity's."""

import numpy as np
import pytest
import torch
from parity_certify import law
from parity_certify.errors import ParityError

from parity.models.discrete.tabular import TabularModel, joint, random_table

V, L = 3, 3


def test_the_enumeration_is_the_models_own_joint():
    table = random_table(V, L, torch.Generator().manual_seed(0))
    found = law(TabularModel(table, L, 1))
    assert np.allclose(found.cells, joint(TabularModel(table, L, V**L), V, L).numpy())


def test_a_table_with_guidance_is_one_line():
    with pytest.raises(ParityError, match="a table with guidance"):
        law(TabularModel(torch.zeros(2, 4, 3), 2, 1))
