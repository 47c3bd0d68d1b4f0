"""Networks, protocol and references of a configuration: what stops it, and whose pictures they are for."""

import pytest

from parity.base.errors import ConfigError
from parity.experiment import checks, paths
from parity.experiment.cells import cells

ZERO = "0" * 64


@pytest.fixture
def config(tmp_path):
    for name in ("t", "v", "c"):
        (tmp_path / name).touch()
    (tmp_path / "five").mkdir()

    def make(published=True, image=None, **top):
        files = {part: str(tmp_path / name) for part, name in (("transformer", "t"), ("vq", "v"), ("text", "five"))}
        model = {"family": "llamagen"}
        if published:
            model |= {"source": "files", "files": files, "sha256": dict.fromkeys(files, ZERO)}
        clip = {"clip": {"file": str(tmp_path / "c"), "sha256": ZERO}}
        section = {"methods": {"ar": [{}]}, **(image or {})}
        return {"models": {"m": model}, "image": section, "networks": clip, **top}

    return make


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"protocol": "sdj"}, ["protocol = 'sdj'", "clean, sjd, lantern, torchfid50k"]),
        ({"networks": {"clip": {"file": "nowhere", "sha256": ZERO}}}, ["networks.clip.file = 'nowhere'", "no such"]),
        ({"networks": {"clip": {"file": "x", "sha256": "1"}}}, ["networks.clip.sha256"]),
        ({"networks": {"clap": {"file": "x", "sha256": ZERO}}}, ["networks.clap", "clip, inception"]),
        ({"networks": {"clip": {"file": "x", "sha256": ZERO, "repo": "a/b"}}}, ["networks.clip", "repo and revision"]),
        ({"image": {"reference": "nowhere"}}, ["image.reference = 'nowhere'", "no such"]),
    ],
)
def test_what_is_wrong_is_one_line(config, change, parts):
    with pytest.raises(ConfigError) as error:
        checks.load(config(**change))
    assert "\n" not in str(error.value) and all(part in str(error.value) for part in parts), str(error.value)


def test_a_protocol_takes_its_own_clip(config):
    wrong = config(protocol="sjd")
    wrong["networks"]["clip"]["architecture"] = "ViT-B-16"  # the same network with another activation
    with pytest.raises(ConfigError, match=r"networks.clip.architecture = 'ViT-B-16': .* allowed: 'ViT-B-16-quickgelu'"):
        checks.load(wrong)
    wrong["networks"]["clip"]["architecture"] = "ViT-B-16-quickgelu"
    assert checks.load(wrong).protocol == "sjd"


def test_networks_judge_published_models_alone(config, tmp_path):
    published, ours = (checks.load(config(p, {"reference": str(tmp_path / "five")})) for p in (True, False))
    (cell, *_), (own, *_) = (cells(c, ["a"]) for c in (published, ours))
    assert len(paths.judges(published, cell)) == 1 and paths.judged(published, cell)
    assert not paths.judges(ours, own) and not any("networks" in name for name in paths.manifests(ours))
    assert paths.reference(published, ["a"], cell).count("/") < paths.reference(ours, ["a"], own).count("/")
    other = published.model_copy(update={"protocol": "sjd"})
    assert paths.reference(published, ["a"], cell) != paths.reference(other, ["a"], cell)
    assert paths.asked_reference(published, "discrete") == (str(tmp_path / "five"), 0)
    some = checks.load(config(image={"reference": str(tmp_path / "five"), "reference_images": 64}))
    assert paths.asked_reference(some, "discrete")[1] == 64


def test_only_embedded_models_bound_the_words_of_a_prompt(config):
    assert checks.most_words(checks.load(config(False))) == 23
    assert checks.most_words(checks.load(config(True))) is None
