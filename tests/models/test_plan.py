"""What an experiment will need is told before anything is loaded, and a batch that does not fit is refused."""

import pytest

from parity.base.errors import ParityError
from parity.experiment import checks, weights
from parity.experiment.schema import ModelSpec
from parity.models import plan

RAW = {"image": {"methods": {"ar": [{}], "sjd": [{"window": 16}]}, "batch": 4, "prompts": {"limit": 8}}}


def needs(**image):
    config = checks.load({"image": RAW["image"] | image})
    return plan.needs(config, {})[0]


def test_a_model_at_hand_needs_no_download_and_its_files_are_weighed():
    spec = ModelSpec(family="llamagen")
    files = [weights.EMBEDDED / f for f in weights.embedded_files(spec).values()]
    n, cells = needs(), len(RAW["image"]["methods"]) + 1  # plain decoding has a control
    assert n.download == 0 and n.held == sum(f.stat().st_size for f in files) > 10**6
    assert n.images == 8 * cells and n.hours is None


def test_memory_grows_with_guidance_dtype_and_window():
    row = needs().row
    assert needs(sampling={"guidance": 1.0}).row < row < needs(dtype="float64").row
    assert row < needs(methods={"ar": [{}], "sjd": [{"window": 32}]}).row


def test_the_largest_batch_that_fits_is_named():
    n = needs()
    plan.check(4, [n], n.memory(4))
    with pytest.raises(ParityError, match=r"image.batch = 4: scenes needs .* allowed: at most 3"):
        plan.check(4, [n], n.memory(4) - 1)
    with pytest.raises(ParityError, match="not one image fits"):
        plan.check(4, [n], n.held)
