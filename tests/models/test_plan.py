"""What an experiment will need is told before anything is loaded, and a batch that does not fit is refused."""

import pytest

from parity.base.errors import ParityError
from parity.experiment import checks
from parity.experiment.schema import ModelSpec
from parity.models import plan

RAW = {"image": {"methods": {"ar": [{}], "sjd": [{"window": 16}]}, "batch": 4, "prompts": {"limit": 8}}}


def needs(**image):
    config = checks.load({"image": RAW["image"] | image})
    return config, plan.needs(config, plan.cells_of(config), {})[0]


def test_a_model_at_hand_is_downloaded_by_nobody_and_weighs_its_files():
    config, n = needs()
    cells = len(plan.cells_of(config))
    assert n.download == 0 and n.held == sum(map(plan.size_here, map(str, files()))) > 10**6
    assert n.images == 8 * cells and n.hours is None


def files():
    from parity.experiment import weights

    return [weights.EMBEDDED / f for f in weights.embedded_files(ModelSpec(family="llamagen")).values()]


def test_memory_grows_with_guidance_dtype_and_window():
    row = needs()[1].row
    assert needs(sampling={"guidance": 1.0})[1].row < row < needs(dtype="float64")[1].row
    assert row < needs(methods={"ar": [{}], "sjd": [{"window": 32}]})[1].row


def test_the_largest_batch_that_fits_is_named():
    config, n = needs()
    plan.check(config, [n], n.memory(4))
    with pytest.raises(ParityError, match=r"image.batch = 4: scenes needs .* allowed: at most 3"):
        plan.check(config, [n], n.memory(4) - 1)
    with pytest.raises(ParityError, match="not one image fits"):
        plan.check(config, [n], n.held)
