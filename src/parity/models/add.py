"""Write an experiment for a published model: identifies each file by its tensors, and reads digests and sizes.

python -m parity.models add llamagen-xl FOLDER                    files of a folder
python -m parity.models add llamagen-xl hub:owner/name@revision   files of a repository, its commit pinned
"""

import importlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from parity.base.errors import ParityError
from parity.base.files import MOST, foreign_json, publish
from parity.base.weights import PICKLED, parts, plain, sha256, shapes
from parity.experiment import checks, weights
from parity.experiment.schema import ModelSpec
from parity.experiment.validation import validate
from parity.models.discrete import load as loading

READ = (".safetensors", *PICKLED)
Shapes = dict[str, tuple[int, ...]]


def shapes_of(file: Path) -> Shapes:
    """Names and shapes of a file's tensors; of a safetensors file its header alone is read."""
    return {plain(name): tuple(tensor.shape) for name, tensor in shapes(file).items()}


def families() -> Iterator[tuple[str, Any]]:
    """Families that say by which tensors their files are known."""
    for name in weights.families("discrete"):
        module = importlib.import_module(f"parity.models.discrete.{name}")
        if hasattr(module, "TENSORS"):
            yield name, module


def encoders(folder: Path) -> list[Path]:
    """Folders of T5 encoders, as transformers saves them."""
    return [f.parent for f in sorted(folder.rglob("config.json")) if '"t5"' in start_of(f)]


def start_of(file: Path) -> str:
    with file.open("rb") as stream:
        return stream.read(MOST).decode(errors="replace")


def recognised(files: Mapping[str, Path]) -> tuple[str, dict[str, str], dict[str, Shapes]]:
    """The family, its parts by the names of their files, and the shapes of their tensors. ParityError that lists what
    was looked at if none of it is known, or two files are the same part."""
    taken: dict[str, str] = {}
    which, known = "", dict[str, Shapes]()
    for name, file in files.items():
        held = shapes_of(file)
        for family, module in families():
            for part, tensors in module.TENSORS.items():
                if not all(t in held for t in tensors):
                    continue
                if part in taken:
                    raise ParityError(f"{part}: both {taken[part]} and {name}; allowed: one, in a folder of its own")
                which, taken[part], known[part] = family, name, held
    if "transformer" not in taken:
        allowed = ", ".join(family for family, _ in families())
        raise ParityError(f"no transformer among {', '.join(files) or 'no files'}; allowed: files of {allowed}")
    return which, taken, known


def grid_of(name: str, given: int | None, stride: int) -> int:
    """Tokens a side, which no tensor tells: as given, or of the pixels in the file's name, `stride` a token."""
    pixels = re.search(r"(?<!\d)(256|384|512)(?!\d)", name)
    if given is None and pixels is None:
        raise ParityError(
            f"{name}: its name tells no size of pictures; give --grid, tokens a side (256 pixels have {256 // stride})"
        )
    return given or int(pixels[1]) // stride  # type: ignore[index]


def at_hand(folder: Path) -> dict[str, Path]:
    """Files of weights in a folder, those of text encoders aside."""
    if not folder.is_dir():
        raise ParityError(f"{folder}: no such folder; allowed: a folder, or hub:owner/name")
    aside = encoders(folder)
    files = (f for f in sorted(folder.rglob("*")) if f.suffix in READ and f.is_file())
    return {str(f): f for f in files if not any(f.is_relative_to(a) for a in aside)}


def whole_folder(config: Path) -> tuple[str, Any] | None:
    """The family of a folder in transformers' layout, by `model_type` in its config.json; None where it has none.
    ParityError for a model_type that no family declares."""
    try:
        model_type = foreign_json(config).get("model_type")
    except (OSError, ValueError, AttributeError):
        return None
    if not model_type:
        return None
    known = {t: name for name in weights.families("discrete") for t in family_of(name).get("model_types", ())}
    if model_type not in known:
        layout = "folders in transformers' layout, whose model_type is one of " + ", ".join(sorted(known))
        raise ParityError(f"{config}: model_type = {str(model_type)[:60]!r}; allowed: {layout}")
    return known[model_type], importlib.import_module(f"parity.models.discrete.{known[model_type]}")


def family_of(name: str) -> dict[str, Any]:
    """What a family of image models declares."""
    return weights.declared(name)


def pinned(repo: str, revision: str | None) -> tuple[str, list[str]]:
    """The commit of a repository that its revision (else its main branch) is now, and the names of its files."""
    from huggingface_hub import HfApi

    from parity.models.download import refused

    try:
        listing = HfApi().model_info(repo, revision=revision)
    except Exception as error:  # the hub's client raises several families
        raise ParityError(refused(repo, revision or "main", error)) from None
    return str(listing.sha), [f.rfilename for f in listing.siblings or []]


class Found(NamedTuple):
    """A model that was found: what the configuration says of it, and where its parts are now."""

    entry: dict[str, Any]
    paths: dict[str, Path]


def released_files(
    files: Mapping[str, Path], source: dict[str, Any], grid: int | None, given: Mapping[str, Path]
) -> Found:
    """Of a family whose files are known by their tensors; `given` are parts that lie elsewhere."""
    family, taken, known = recognised(files)
    module = importlib.import_module(f"parity.models.discrete.{family}")
    stride = module.stride(known["vq"]) if "vq" in known else 16
    sizes = module.read_sizes(known["transformer"], grid_of(taken["transformer"], grid, stride))
    paths = {part: files[name] for part, name in taken.items()}
    if "drafter" in taken and (paths["drafter"].parent / "config.json").is_file():  # which tells what no tensor does
        taken["drafter"], paths["drafter"] = str(Path(taken["drafter"]).parent), paths["drafter"].parent
    taken, paths = {**taken, **{k: str(v) for k, v in given.items()}}, {**paths, **given}
    return Found({"family": family, **source, "files": taken, "network": sizes}, paths)


def released_folder(
    known: tuple[str, Any], folder: Path, source: dict[str, Any], pixels: int | None, given: Mapping[str, Path]
) -> Found:
    """Of a family whose files are a folder in transformers' layout."""
    family, module = known
    name = source.get("repo", str(folder))
    pixels_named = re.search(r"(?<!\d)(256|384|512|720|768|1024)(?!\d)", Path(name).name)
    sizes = module.read_sizes(folder, pixels or (int(pixels_named[1]) if pixels_named else None))
    files = {"model": "." if source["source"] == "hub" else str(folder), **{k: str(v) for k, v in given.items()}}
    return Found({"family": family, **source, "files": files, "network": sizes}, {"model": folder, **given})


def entry(
    where: str, grid: int | None = None, elsewhere: Mapping[str, Path] | None = None, pixels: int | None = None
) -> dict[str, Any]:
    """What the configuration says of the model in a folder, or in a repository (`hub:owner/name`, `@revision`), with a
    digest of every part. elsewhere: parts that do not lie there, but on this machine."""
    from parity.models.download import download, snapshot

    given = {part: path.resolve() for part, path in (elsewhere or {}).items()}
    for path in given.values():
        parts(path)  # it has weights that can be verified
    if where.startswith("hub:"):
        repo, _, wanted = where.removeprefix("hub:").partition("@")
        commit, names = pinned(repo, wanted or None)
        source: dict[str, Any] = {"source": "hub", "repo": repo, "revision": commit}
        known = whole_folder(download(repo, commit, "config.json")) if "config.json" in names else None
        if known:
            found = released_folder(known, snapshot(repo, commit), source, pixels, given)
        else:
            read = {name: download(repo, commit, name) for name in names if Path(name).suffix in READ}
            found = released_files(read, source, grid, given)
    elif known := whole_folder(Path(where) / "config.json"):
        found = released_folder(known, Path(where), {"source": "files"}, pixels, given)
    else:
        files = at_hand(Path(where))
        t5 = next(iter(encoders(Path(where))), None)
        found = released_files(files, {"source": "files"}, grid, ({"text": t5} if t5 else {}) | given)
    check_loads(found)
    digests = {part: sha256(path) for part, path in found.paths.items()}
    model = {**found.entry, "sha256": digests}
    model["network"] = model.pop("network")  # last, as it is longest
    check_companions(model, found.paths)
    return model


def check_loads(found: Found) -> None:
    """ParityError for a model that a run would refuse: its networks are built and filled without their numbers, its
    captions' reader is opened."""
    manifest = found.entry | {"files": {part: str(path) for part, path in found.paths.items()}, "sha256": {}}
    loading.networks(manifest, ("net", "vq"), "meta")
    if {"text", "model"} & set(found.paths):
        loading.encoder(manifest, "meta")


def check_companions(model: dict[str, Any], paths: Mapping[str, Path]) -> None:
    """ParityError for a drafter or draft model of another target."""
    files = {part: str(path.resolve()) for part, path in paths.items()}
    spec = validate(ModelSpec, {**model, "files": files}, "model")
    module = importlib.import_module(f"parity.models.discrete.{spec.family}")
    for part in weights.COMPANIONS:
        if part in paths:
            getattr(module, "published", lambda *_: None)(part, paths[part], spec)
            weights.check_companion(spec.family, spec, paths[part], part)


def write(name: str, model: dict[str, Any], out: Path, tell: Callable[[str], None] = print) -> None:
    """An experiment on a model, checked as a run would: plain decoding, and the decoders that need no companion."""
    classes = model["network"].get("classes", 0)
    methods = {"ar": [{}], "jacobi": [{}], "sjd": [{"window": 16}], "mtj": [{}]}
    image: dict[str, Any] = {"methods": methods}
    prompts = out.with_suffix(".classes.txt")
    family = family_of(model["family"])
    law: dict[str, Any]  # its authors'
    if classes:
        law = {"guidance": 4.0, "top_k": 2000}
        image |= {"prompts": {"file": str(prompts)}, "sampling": law}
    else:
        without_lines = model["network"].get("line") == 0
        law = dict(family.get("sampling_without_lines" if without_lines else "sampling", {"guidance": 3.0}))
        image |= {"prompts": {"max_words": 119}, "sampling": law}
    if "top_k" in law:
        law["top_k"] = min(law["top_k"], {**family["network"], **model["network"]}["vocab"])
    files = {prompts: "".join(f"{i * classes // 64}\n" for i in range(64))} if classes else {}
    write_experiment(name, model, {"image": image}, out, files, tell)


def write_experiment(
    name: str,
    model: dict[str, Any],
    section: dict[str, Any],
    out: Path,
    files: Mapping[Path, str] | None = None,
    tell: Callable[[str], None] = print,
) -> None:
    """An experiment on one model, checked as a run would; `files` are written beside it."""
    experiment = {"experiment": re.sub(r"[^a-z0-9_.-]", "-", name.lower()), "models": {name: model}, **section}
    checks.load(json.loads(json.dumps(experiment)))
    if out.exists():
        raise ParityError(f"{out}: is there already; allowed: a name that is free, with --out")
    for file, text in (files or {}).items():
        publish(file, text.encode())
    text = yaml.safe_dump(experiment, sort_keys=False, width=120)
    publish(out, f"# Run `snakemake --cores all --resources gpu=1 --configfile {out.name}`.\n{text}".encode())
    tell(yaml.safe_dump({"models": {name: model}}, sort_keys=False, width=120))
    tell(f"written: {out}")
