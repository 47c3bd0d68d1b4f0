"""The plan of an experiment: downloads, memory and images, and a batch that does not fit is refused."""

import json

import pytest

from parity.base.errors import ParityError
from parity.experiment import checks, pins, weights
from parity.experiment.schema import ModelSpec
from parity.models import plan

RAW = {"image": {"methods": {"ar": [{}], "sjd": [{"window": 16}]}, "batch": 4, "prompts": {"limit": 8}}}


def list_needs(**image):
    """Return the needs (download, memory, images) of the model of RAW, with other keys in its image section."""
    config = checks.load({"image": RAW["image"] | image})
    return plan.list_needs(config, {})[0]


def test_an_embedded_model_needs_no_download():
    spec = ModelSpec(family="llamagen")
    files = [weights.EMBEDDED / f for f in weights.list_embedded_files(spec).values()]
    n = list_needs()
    cells = len(RAW["image"]["methods"]) + 1  # each method has a cell, plain decoding a control too
    assert n.download == 0
    assert n.held == sum(f.stat().st_size for f in files) > 10**6
    assert n.images == 8 * cells
    assert n.hours is None


def plan_prompts(folder, monkeypatch, count, **changes):
    """Plan RAW with `count` prompts in a file, in `folder`, which becomes the current one; `changes` replace keys."""
    scene = "a large striped red circle left of a small blue square on a cloudy green background"
    monkeypatch.chdir(folder)
    (folder / "mine.txt").write_text(f"{scene}\n" * count)
    raw = {"image": RAW["image"] | {"prompts": {"file": "mine.txt", **changes.pop("prompts", {})}}, **changes}
    return checks.make_plan(raw, str, None, lambda name: pins.NONE, [])


@pytest.mark.parametrize(
    ("count", "changes", "images"),
    [
        (2, {}, 2),
        (2, {"prompts": {"repeats": 3}}, 6),
        (100, {}, 64),
        (100, {"prompts": {"limit": 70}}, 70),
        (40, {"scale": 0.1}, 4),
    ],
)
def test_images_are_counted_from_the_prompts_in_the_file(tmp_path, monkeypatch, count, changes, images):
    config = plan_prompts(tmp_path, monkeypatch, count, **changes).config
    sent = checks.load(json.loads(config.model_dump_json(exclude_unset=True)))  # as the rule `plan` gets it
    assert plan.list_needs(sent, {})[0].images == images * 3


def test_a_default_limit_reports_the_prompts_it_leaves_out(tmp_path, monkeypatch):
    line = "64 of the 1,632 prompts of mine.txt are used; image.prompts.limit takes more"
    assert plan_prompts(tmp_path, monkeypatch, 1632).notes == [line]
    for count, changes in ((64, {}), (1632, {"prompts": {"limit": 64}})):
        assert plan_prompts(tmp_path, monkeypatch, count, **changes).notes == []


def test_memory_grows_with_guidance_dtype_and_window():
    row = list_needs().row
    assert list_needs(sampling={"guidance": 1.0}).row < row < list_needs(dtype="float64").row
    assert row < list_needs(methods={"ar": [{}], "sjd": [{"window": 32}]}).row


def test_the_largest_batch_that_fits_is_named():
    n = list_needs()
    plan.check(4, [n], n.memory(4))
    with pytest.raises(ParityError, match=r"image.batch = 4: scenes needs .* allowed: at most 3"):
        plan.check(4, [n], n.memory(4) - 1)
    with pytest.raises(ParityError, match="not one image fits"):
        plan.check(4, [n], n.held)
