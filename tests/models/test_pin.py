"""The plan of an experiment; commits and digests that `parity models pin` gets without downloading weights."""

import hashlib
from pathlib import Path

import pytest
import yaml

from parity.base.digests import sha256
from parity.base.errors import ConfigError
from parity.experiment import cells, checks, config_overlay, pins
from parity.models import pin, plan

COMMIT = "a" * 40
SHARDS = ("model-1-of-2.safetensors", "model-2-of-2.safetensors")


def list_folder(folder):
    """List a folder's files as the hub lists a repository: sizes of all, digests of weights alone."""
    files = {str(f.relative_to(folder)): f for f in sorted(folder.rglob("*")) if f.is_file()}
    digests = {
        name: hashlib.sha256(f.read_bytes()).hexdigest() if f.suffix in (".safetensors", ".bin", ".ckpt") else ""
        for name, f in files.items()
    }
    return pin.Listed("o/n", COMMIT, digests, {name: f.stat().st_size for name, f in files.items()})


@pytest.fixture
def repository(tmp_path):
    """A folder like a repository: shards, weights in two more formats, whose content are their names, and a note."""
    for name in (*SHARDS, "pytorch_model.bin", "sub/pytorch_model.bin", "vq.ckpt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "note.txt").write_text("small")
    return tmp_path


@pytest.mark.parametrize("path", [".", "sub", "vq.ckpt"])
def test_the_hubs_digest_equals_that_of_the_files(repository, path):
    assert pin.digest(list_folder(repository), path) == sha256(repository / path)
    digest = pin.digest(list_folder(repository), path)
    victim = {".": SHARDS[1], "sub": "sub/pytorch_model.bin", "vq.ckpt": "vq.ckpt"}[path]
    (repository / victim).write_bytes(b"other")
    assert sha256(repository / path) != digest


def test_a_local_part_is_pinned_by_its_digest(tmp_path, repository, monkeypatch):
    """A text encoder in a folder beside a repository needs no hub, and a run without its pin is refused in one line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t5").mkdir()
    (tmp_path / "t5/model.safetensors").write_bytes(b"first")
    monkeypatch.setattr(pin, "list_files", lambda repo, branch: list_folder(repository))
    model = {"source": "hub", "repo": "o/n", "files": {"vq": "vq.ckpt", "text": "t5"}}
    experiment, out = tmp_path / "e.yaml", tmp_path / "pins.yaml"
    experiment.write_text(yaml.safe_dump({"models": {"xl": model}}))
    with pytest.raises(ConfigError, match="'t5' has no sha256 yet; `parity models pin"):
        pins.fill_model(dict(model), lambda name: pins.make_pin_reader(out)(name) if "t5" in name else pins.NONE)
    for content in (b"first", b"another"):
        (tmp_path / "t5/model.safetensors").write_bytes(content)
        pin.write(experiment, out, tell=lambda text: None)
        pinned = pins.fill_pins(yaml.safe_load(experiment.read_text()), pins.make_pin_reader(out))["models"]["xl"]
        assert pinned["revision"] == COMMIT
        assert pinned["files"] == model["files"]
        assert pinned["sha256"] == {"vq": sha256(repository / "vq.ckpt"), "text": sha256(tmp_path / "t5")}


RAW = {"image": {"methods": {"ar": [{}], "sjd": [{"window": 16}]}, "batch": 4, "prompts": {"limit": 8}}}
EXPERIMENTS = Path(__file__).parents[2] / "workflow/experiments"


def plan_of(**image) -> tuple:
    """Make the configuration RAW with other keys in its image section, and its cells."""
    config = checks.make_config({"image": RAW["image"] | image})
    return config, cells.cells(config, [])


def test_an_embedded_model_downloads_nothing():
    config, all_cells = plan_of()
    assert plan.list_downloads(config, {}) == []
    assert "before a run" not in " ".join(plan.describe(config, all_cells, {}, []))


def load_table(name: str) -> tuple:
    """Load a paper's table without its data and commits: configuration, cells, and lines of what is missing."""
    unpinned: list[str] = []
    raw, absent = config_overlay.replace_absent_data(yaml.safe_load((EXPERIMENTS / f"{name}.yaml").read_text()))
    config = checks.make_config(pins.fill_pins(raw, pins.make_pin_reader(Path("none.yaml"), unpinned)))
    return config, cells.cells(config, []), [*absent, *dict.fromkeys(unpinned)]


def test_a_download_has_the_hubs_bytes_where_they_are_known(monkeypatch):
    monkeypatch.chdir(EXPERIMENTS.parents[1])
    config, _, _ = load_table("sjd-table10")
    line = "download lumina from Alpha-VLLM/Lumina-mGPT-7B-768: "
    assert line + "of a size that the hub tells" in plan.list_downloads(config, {})
    told = plan.list_downloads(config, {"lumina": 15 * 10**9})
    assert line + "15.0 GB" in told
    assert told[-1].startswith("disk: 15.0 GB of downloads")


def plan_prompts(folder, monkeypatch, count, **changes):
    """Plan RAW with `count` prompts in a file, in `folder`, which becomes the current one; `changes` replace keys."""
    scene = "a large striped red circle left of a small blue square on a cloudy green background"
    monkeypatch.chdir(folder)
    (folder / "mine.txt").write_text(f"{scene}\n" * count)
    raw = {"image": RAW["image"] | {"prompts": {"file": "mine.txt", **changes.pop("prompts", {})}}, **changes}
    return checks.make_plan(raw, str, lambda name: pins.NONE, [])


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
    made = plan_prompts(tmp_path, monkeypatch, count, **changes)
    assert f"3 cells, {images * 3} images" in plan.describe(made.config, made.cells, {}, [])[0]


def test_a_default_limit_reports_the_prompts_it_leaves_out(tmp_path, monkeypatch):
    line = "64 of the 1,632 prompts of mine.txt are used; image.prompts.limit takes more"
    assert plan_prompts(tmp_path, monkeypatch, 1632).notes == [line]
    for count, changes in ((64, {}), (1632, {"prompts": {"limit": 64}})):
        assert plan_prompts(tmp_path, monkeypatch, count, **changes).notes == []
