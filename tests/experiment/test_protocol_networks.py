"""A protocol brings its networks to experiments on published models, and trials have images to compare with."""

import copy
import re
from pathlib import Path

import pytest
import yaml

from parity.base.errors import ConfigError
from parity.experiment import checks, config_overlay, paths, pins, stand_in, weights
from parity.experiment.schema import Networks, validate
from parity.inputs import image_files
from parity.metrics import judges, protocols
from tests.workflow.conftest import ROOT

EXPERIMENTS = ROOT / "workflow/experiments"
PUBLISHED = sorted((ROOT / "workflow/published").glob("*.csv"))


def read_table(name):
    return yaml.safe_load((EXPERIMENTS / f"{name}.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("protocol", protocols.PROTOCOLS)
def test_the_networks_of_a_protocol_are_valid_and_measure_what_it_needs(protocol):
    entries = weights.list_protocol_networks(protocol)
    assert set(entries) == set(protocols.JUDGES[protocol]) <= {*judges.NEEDS.values()}
    declared = {"protocol": protocol, "models": {"m": {"family": "mar", "source": "hub"}}}
    filled = pins.fill_pins(config_overlay.add_networks(declared), lambda name: pins.NONE)
    validate(Networks, filled["networks"], "networks")
    recipe = protocols.recipe(protocol)
    assert not recipe["images"] or {"inception", recipe.get("manifold", "inception")} <= set(entries)
    for entry in entries.values():
        if "sha256" in entry:  # torch's convention: a file's name ends in the first digits of its digest
            assert re.search(r"-([0-9a-f]{8})\.pth$", entry["file"])[1] == entry["sha256"][:8]


def test_a_configuration_overrides_the_protocols_networks():
    raw = {"protocol": "sjd", "models": {"m": {"family": "llamagen", "source": "hub"}}}
    assert set(config_overlay.add_networks(copy.deepcopy(raw))["networks"]) == {"clip", "hps", "inception"}
    for own in ({}, {"inception": {"file": "mine.pth", "sha256": "0" * 64}}):
        assert config_overlay.add_networks({**raw, "networks": own})["networks"] == own
    without = [
        {"models": raw["models"]},
        {"protocol": "sjd", "models": {"m": {"family": "llamagen"}}},
        {"protocol": "sjd", "models": {"m": {"family": "xlnet", "source": "hub"}}},
        {"protocol": "sjd"},
    ]
    for other in without:
        assert "networks" not in config_overlay.add_networks(copy.deepcopy(other))


def test_a_stated_digest_is_kept_when_the_commit_is_pinned():
    pinned = {"commit": "a" * 40, "sha256": "b" * 64}
    stated = {"clip": {"repo": "o/n", "file": "x", "sha256": "c" * 64}, "hps": {"repo": "o/n", "file": "y"}}
    filled = pins.fill_pins({"networks": stated}, lambda name: pinned)["networks"]
    assert [filled[name]["sha256"][0] for name in ("clip", "hps")] == ["c", "b"]
    assert {spec["revision"] for spec in filled.values()} == {"a" * 40}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"file": "https://host"}, r"networks.inception.file = 'https://host': allowed: https://host/file"),
        ({"file": "https://host/x", "repo": "o/n", "revision": "a" * 40}, "an address alone, or a path"),
        ({"file": "absent.pth"}, "allowed: a path, an address, or repo and revision"),
    ],
)
def test_a_wrong_address_is_refused(changes, problem):
    raw = {"image": {"methods": {"ar": [{}]}}, "networks": {"inception": {"sha256": "0" * 64, **changes}}}
    with pytest.raises(ConfigError, match=problem):
        checks.make_config(raw)
    raw["networks"]["inception"] = {"sha256": "0" * 64, "file": "https://host/x.pth"}
    assert checks.make_config(raw).networks.inception.file == "https://host/x.pth"


@pytest.mark.parametrize("name", ["sjd-table1", "vvs-table1", "cspd-table3"])
def test_a_trial_has_networks_and_enough_images_on_both_sides(name, make_stand_in, tmp_path, monkeypatch):
    """With captions that are texts, so that CLIP-score has a value too; a trial of published sizes keeps its counts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts").symlink_to(ROOT / "prompts")
    raw = {**read_table(name), "stand_in": True}
    make = lambda names, published: {n: make_stand_in(n) for n in names}  # noqa: E731
    plan = checks.make_plan(copy.deepcopy(raw), str, lambda name: pins.NONE, PUBLISHED, make)
    assert {*plan.config.networks.list_named()} == {*protocols.JUDGES[raw["protocol"]]}
    section = plan.config.image or plan.config.continuous
    assert Path(section.reference).name == "random-images.npz"
    image_files.check_references(plan.config)
    count, _ = image_files.read_images(Path(section.reference))
    images = section.prompts.limit if plan.config.image else section.images
    assert min(count, images) >= 8
    assert not plan.config.image or not judges.are_numbers(plan.prompts)
    if plan.config.image:
        assert paths.jobs(plan.config, "discrete") <= 2, "no more jobs than without a reference"
    del raw[("image" if plan.config.image else "continuous")]["reference"]
    smaller = checks.make_plan(raw, str, lambda name: pins.NONE, PUBLISHED, make).config
    assert (smaller.image.prompts.limit if smaller.image else smaller.continuous.images) == 2


def test_images_of_the_users_stay_where_they_are_in_a_trial_of_published_size(tmp_path):
    raw = {"models": {"m": {"family": "llamagen", "source": "hub"}}, "image": {"reference": str(tmp_path)}}
    assert stand_in.list_compared(raw, {"m"}, published_sizes=True) == []
    assert stand_in.list_compared(raw, {"m"}, published_sizes=False) == ["image"]
    raw["image"]["reference"] = str(tmp_path / "absent")
    assert stand_in.list_compared(raw, {"m"}, published_sizes=True) == ["image"]
    raw["models"]["own"] = {"family": "llamagen"}
    assert stand_in.list_compared(raw, {"m"}, published_sizes=True) == [], "its images are drawn for its prompts"
