"""What an experiment will need is told before anything is loaded, and a batch that does not fit is refused."""

import json

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


def test_hours_are_those_of_a_network_of_its_size(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "GPU", tmp_path / "gpu.json")
    kept = plan.kept_numbers(ModelSpec(family="llamagen"))
    tokens = [{"method": m, "passes a token": p} for m, p in (("ar", 1.0), ("sjd", 0.5))]
    forwards = [{"kept": kept, "batch": 1, "ms": 3.0}, {"kept": kept, "batch": 1, "ms": 2.0}]
    told = {"measured": True, "tokens": tokens, "forwards": forwards}
    plan.GPU.write_text(json.dumps(told))
    config, n = needs()
    passes = sum({"ar": 1.0, "sjd": 0.5}[c.spec["method"]] for c in plan.cells_of(config))
    assert n.hours == pytest.approx(8 * 256 * passes * 2.0 / 3.6e6)
    for wrong in ({"measured": False}, {"tokens": tokens[:1]}, {"forwards": [forwards[0] | {"kept": 1}]}):
        plan.GPU.write_text(json.dumps(told | wrong))
        assert needs()[1].hours is None


def test_what_nothing_tells_is_said_not_to_be_known():
    published = {"source": "hub", "repo": "o/n", "revision": "0" * 40, "family": "chameleon", "files": {"model": "."}}
    config = checks.load({"image": RAW["image"], "models": {"m": published | {"sha256": {"model": "0" * 64}}}})
    n = plan.needs(config, plan.cells_of(config), {"m": 14 * 10**9})[0]
    assert n.download == n.held == 14 * 10**9 and n.row is None and n.largest(10**9) is None
    assert "an image of a batch not known" in plan.lines(config, [n], 10**9)[0]
    plan.check(config, [n], 10**9)
