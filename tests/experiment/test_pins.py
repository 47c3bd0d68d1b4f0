"""An experiment may name repositories alone: their commits and digests come from pins.yaml, or none from a plan."""

import copy

import pytest
import yaml

from parity.base.errors import ConfigError
from parity.experiment import pins

COMMIT, SUM = "a" * 40, "b" * 64
RAW = {
    "models": {
        "open": {"source": "hub", "repo": "o/n", "files": {"model": ".", "vq": "hub:x/y:t/vq.ckpt"}},
        "fixed": {"source": "hub", "repo": "o/n", "revision": COMMIT, "files": {"model": "."}},
        "ours": {"source": "embedded"},
        "mar": {"source": "hub", "repo": "o/c", "files": {"target": "t.pth"}},
        "text": {"source": "hub", "files": {"xlnet": "hub:o/x@nlp", "judge": "folder", "tokenizer": "hub:o/w"}},
    },
    "networks": {"clip": {"repo": "o/clip", "file": "c.safetensors"}, "hps": {"file": "here.pt", "sha256": SUM}},
}


def test_each_open_repository_alone_is_asked_for_once():
    names = []

    def pin(name):
        names.append(name)
        return {"commit": COMMIT, "sha256": SUM}

    raw = pins.fill_pins(copy.deepcopy(RAW), pin)
    assert names == ["o/n:.", "x/y:t/vq.ckpt", "o/c:t.pth", "o/x@nlp:.", "o/w:.", "o/clip:c.safetensors"]
    model = raw["models"]["open"]
    assert model["revision"] == COMMIT
    assert model["sha256"] == {"model": SUM, "vq": SUM}
    assert model["files"] == {"model": ".", "vq": f"hub:x/y@{COMMIT}:t/vq.ckpt"}
    assert raw["models"]["fixed"] == RAW["models"]["fixed"]
    assert raw["models"]["mar"]["sha256"] == {"target": SUM}
    assert raw["models"]["text"] == {
        "source": "hub", "sha256": {"xlnet": SUM},
        "files": {"xlnet": f"hub:o/x@{COMMIT}:.", "judge": "folder", "tokenizer": f"hub:o/w@{COMMIT}:."},
    }  # fmt: skip
    assert raw["networks"]["clip"]["revision"] == COMMIT
    assert raw["networks"]["hps"] == RAW["networks"]["hps"]
    assert pins.fill_pins(copy.deepcopy(raw), pin) == raw
    assert len(names) == 6


def test_a_plan_needs_no_pin_and_a_run_does(tmp_path):
    file = tmp_path / "pins.yaml"
    unpinned = []
    assert pins.make_pin_reader(file, unpinned)("o/n:.") == pins.NONE
    assert "o/n has no commit yet" in unpinned[0]
    with pytest.raises(ConfigError, match=r"o/n has no commit yet; `parity models pin"):
        pins.make_pin_reader(file)("o/n:.")
    file.write_text(yaml.safe_dump({"o/n:.": {"commit": COMMIT, "sha256": SUM}}))
    for read in (pins.make_pin_reader(file), pins.make_pin_reader(file, unpinned)):
        assert read("o/n:.")["commit"] == COMMIT
        assert len(unpinned) == 1


@pytest.mark.parametrize("text", ["[1]", "a: 1", "o/n:.: {commit: x}", "\tx", "a: b: c"])
def test_other_files_are_refused(tmp_path, text):
    (tmp_path / "pins.yaml").write_text(text)
    with pytest.raises(ConfigError, match="allowed: to delete it and pin again"):
        pins.read(tmp_path / "pins.yaml")
