"""Write an experiment for a published model: identifies each file by its tensors, and reads digests and sizes.

python -m parity.models add llamagen-xl FOLDER                    files of a folder
python -m parity.models add llamagen-xl hub:owner/name@revision   files of a repository, its commit pinned
python -m parity.models add mar-h FOLDER --captions captions.txt  a pair of continuous models
"""

import importlib
import itertools
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from parity.base.digests import check_link
from parity.base.errors import ParityError
from parity.base.files import foreign_json, publish
from parity.base.weights import PICKLED, parts, read_shapes, sha256, strip_wrappers
from parity.experiment import checks, model_checks, weights
from parity.experiment.checkpoint_files import CODES, KL
from parity.experiment.module_metadata import read_constant
from parity.experiment.schema import HUB, ModelSpec, validate
from parity.models.continuous import published
from parity.models.discrete import load as loading
from parity.models.hub import download, download_folder, list_files

READ = (".safetensors", *PICKLED)
ASKED = {  # messages say so how to give a component that is not in the model's folder
    "vq": "give --vq, the file of its image tokenizer",
    "text": "give --text, the folder of a T5 encoder (a model of classes needs none)",
}
Paths = Mapping[str, Path]


class PublishedModel(NamedTuple):
    """A published model: its entry in a configuration, where its parts are now, and how its authors sample it."""

    entry: dict[str, Any]
    paths: dict[str, Path]
    sampling: dict[str, Any]


class Weights(NamedTuple):
    """A published file of weights, or the folder of its shards, and the shapes of its tensors."""

    path: Path
    shapes: dict[str, tuple[int, ...]]


def find(
    source: str, grid: int | None = None, elsewhere: Paths | None = None, pixels: int | None = None
) -> PublishedModel:
    """Find the model in a folder or a repository (`identify`), and add the SHA-256 of each component to its entry."""
    return add_digests(identify(source, grid, elsewhere, pixels))


def add_digests(model: PublishedModel) -> PublishedModel:
    """Read a model's files and add their SHA-256 to its entry. Raises ParityError if a drafter is another target's."""
    digests = {component: sha256(path) for component, path in model.paths.items()}
    network = model.entry.pop("network")
    model = model._replace(entry={**model.entry, "sha256": digests, "network": network})
    if weights.find_kind(model.entry["family"]) == "discrete":
        check_speculators(model)
    return model


def identify(
    location: str, grid: int | None = None, elsewhere: Paths | None = None, pixels: int | None = None
) -> PublishedModel:
    """Identify the model in a folder, or in a repository (`hub:owner/name`, `@revision`), whose files are downloaded.
    Raises ParityError if it is of no known family, or would not load.

    grid, pixels  tokens, and pixels, of an image's side, where no file tells them
    elsewhere     paths of components that are not in the folder or repository
    """
    local = {component: path.resolve() for component, path in (elsewhere or {}).items() if component != "tokenizer"}
    for path in local.values():
        parts(path)  # this raises an error if the path has no weights
    listed = None
    source = {"source": "files"}
    config = Path(location, "config.json")
    if location.startswith(HUB):
        repo, _, revision = location.removeprefix(HUB).partition("@")
        listed = list_files(repo, revision or None)
        source = {"source": "hub", "repo": repo, "revision": listed.commit}
        config = download(repo, listed.commit, "config.json") if "config.json" in listed.files else Path()
    model_type, family = read_family(config)
    if family:
        folder = download_folder(listed.repo, listed.commit) if listed else Path(location)
        return read_folder(family, folder, source, pixels, local)
    if listed:
        refuse_own_layout(listed.files)
        files = {n: download(listed.repo, listed.commit, n) for n in listed.files if Path(n).suffix in READ}
    else:
        files = find_weights(Path(location))
        refuse_own_layout(files)
        text = [] if "text" in local else find_encoders(Path(location))
        if len(text) > 1:
            raise ParityError(f"text: both {text[0]} and {text[1]}; give --text, the folder of one")
        local = ({"text": text[0]} if text else {}) | local
    unknown = f"{config}: model_type = {model_type!r}" if model_type else ""
    return identify_tensors(files, source, grid, local, (elsewhere or {}).get("tokenizer"), unknown)


def refuse_own_layout(names: Iterable[str]) -> None:
    """Raise ParityError if one of these files is named as Meta names Chameleon's, and Anole's authors theirs."""
    if own := next((name for name in names if re.fullmatch(r"consolidated(\.\d+)?\.pth", Path(name).name)), ""):
        raise ParityError(
            f"{own}: Meta's own layout of Chameleon and Anole; allowed: the folder that transformers'"
            " convert_chameleon_weights_to_hf.py makes of it, with --vq tokenizer/vqgan.ckpt, whose decoder that omits"
        )


def load_family(family: str) -> Any:
    return importlib.import_module(f"parity.models.{weights.find_kind(family)}.{family}")


def find_weights(folder: Path) -> dict[str, Path]:
    """Find files of weights below a folder, without text encoders', by path. Raises ParityError if it does not
    exist."""
    if not folder.is_dir():
        raise ParityError(f"{folder}: no such folder; allowed: a folder, or hub:owner/name")
    text = find_encoders(folder)
    files = (f for f in list_files_below(folder) if f.suffix in READ)
    return {str(f): f for f in files if not any(f.is_relative_to(t5) for t5 in text)}


def list_files_below(folder: Path) -> list[Path]:
    """List the files of a folder and its subfolders, sorted; linked folders are followed, each once. Raises ParityError
    for weights or a config.json that are a link to nothing."""
    files = list[Path]()
    walked = {os.path.realpath(folder)}
    for root, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if os.path.realpath(Path(root, name)) not in walked]
        walked |= {os.path.realpath(Path(root, name)) for name in folders}
        files += [Path(root, name) for name in names]
    for file in files:
        check_link(file)
    return sorted(file for file in files if file.is_file())


def find_encoders(folder: Path) -> list[Path]:
    """Find the folders below a folder whose config.json is that of a T5 encoder."""
    configs = (f for f in list_files_below(folder) if f.name == "config.json")
    return [f.parent for f in configs if '"t5"' in f.read_text(errors="replace")]


def list_model_types() -> dict[str, str]:
    """Map each `model_type` that a config.json may have to its family, for image models in transformers' layout."""
    return {
        t: name for name in weights.list_families("discrete") for t in weights.read_family(name).get("model_types", ())
    }


def read_family(config: Path) -> tuple[str, str]:
    """Read `model_type` from a config.json, and return it and the family that has it; "" for what is unknown, and if
    there is no such file. Raises ParityError for a file that is damaged."""
    try:
        content = foreign_json(config)
    except FileNotFoundError:
        return "", ""
    if not isinstance(content, dict):
        raise ParityError(f"{config}: no JSON object; get it again")
    model_type = str(content.get("model_type") or "")[:60]
    return model_type, list_model_types().get(model_type, "")


def read_folder(family: str, folder: Path, source: dict[str, Any], pixels: int | None, local: Paths) -> PublishedModel:
    """Describe a model whose files are a folder in transformers' layout. Pixels of an image's side that are not given
    are read from the folder's name. source: its entry's "source", "repo", "revision"; local: paths of components that
    lie elsewhere."""
    pixels = pixels or read_pixels(Path(source.get("repo", folder)).name, (256, 384, 512, 720, 768, 1024), "--pixels")
    network = load_family(family).read_sizes(folder, pixels)
    files = {"model": "." if "repo" in source else str(folder)} | {
        component: str(path) for component, path in local.items()
    }
    return make_image_model(
        {"family": family, **source, "files": files, "network": network}, {"model": folder, **local}
    )


def list_identifying_tensors() -> list[tuple[str, str, tuple[str, ...]]]:
    """List (family, component, tensors): a published file with all these tensors is this component. Networks of a
    continuous pair are "network"; the autoencoder, "kl", is of family ""."""
    pairs = [(family, "network", weights.read_family(family)["tensors"]) for family in published.RELEASED]
    tables = {name: read_constant("models/discrete", name, "TENSORS", {}) for name in weights.list_families("discrete")}
    images = [
        (family, component, tensors)
        for family, table in tables.items()
        for component, tensors in table.items()
        if component != "text"
    ]
    return [*pairs, ("", "kl", KL), *images]


def identify_tensors(
    candidates: Paths,
    source: dict[str, Any],
    grid: int | None = None,
    local: Paths | None = None,
    tokenizer: Path | None = None,
    unknown: str = "",
) -> PublishedModel:
    """Identify the model among files, by name, by their tensors; for arguments see `identify` and `read_folder`.

    Raises ParityError if no file is a transformer (the message lists the files, or begins with `unknown`), or if two
    files are the same component.
    """
    local = dict(local or {})
    files_read = read_candidates(candidates)
    identifying = list_identifying_tensors()
    by_part: dict[str, dict[str, str]] = {}  # this is, for each component, the family of each file that may be it
    for name, file in files_read.items():
        for family, component, tensors in identifying:
            if all(t in file.shapes for t in tensors) and not (component == "kl" and CODES in file.shapes):
                by_part.setdefault(component, {})[name] = family
    kl = sorted(by_part.pop("kl", {}))
    if "network" in by_part:
        return make_pair_model(by_part["network"], kl, files_read, source, grid, tokenizer)
    for component, (first, *more_files) in by_part.items():
        if more_files:
            raise ParityError(f"{component}: both {first} and {more_files[0]}; allowed: one, in a folder of its own")
    if "transformer" not in by_part:
        families = ", ".join(
            dict.fromkeys(family for family, component, _ in identifying if component == "transformer")
        )
        layout = "folders in transformers' layout, whose model_type is one of " + ", ".join(sorted(list_model_types()))
        problem = f"no transformer among {', '.join(candidates) or 'no files'}; allowed: files of {families}"
        raise ParityError(f"{unknown}; allowed: {layout}" if unknown else problem)
    files = {component: next(iter(names)) for component, names in by_part.items()}
    tell_left_out(files_read, files)
    family = by_part["transformer"][files["transformer"]]
    tokenizers = read_candidates({"vq": local["vq"]}) if "vq" in local else files_read
    vq = "vq" if "vq" in local else files.get("vq")
    stride = load_family(family).stride(tokenizers[vq].shapes) if vq else 16
    side = count_tokens_a_side(files["transformer"], grid, stride)
    network = load_family(family).read_sizes(files_read[files["transformer"]].shapes, side)
    paths = {component: files_read[name].path for component, name in files.items()}
    # a drafter's folder is named in place of its file, because config.json says what no tensor does
    if "drafter" in files and (paths["drafter"].parent / "config.json").is_file():
        files["drafter"] = str(Path(files["drafter"]).parent)
        paths["drafter"] = paths["drafter"].parent
    files |= {component: str(path) for component, path in local.items()}
    return make_image_model({"family": family, **source, "files": files, "network": network}, {**paths, **local})


def read_candidates(candidates: Paths) -> dict[str, Weights]:
    """Read the shapes of files of weights, by name; shards of one network become one entry, named by their folder."""
    networks: dict[str, Weights] = {}
    for name, file in candidates.items():
        shard = re.fullmatch(r"(.*?)model-\d+-of-\d+\.safetensors", name)
        network = networks.setdefault((shard[1] or ".") if shard else name, Weights(file.parent if shard else file, {}))
        network.shapes.update({strip_wrappers(tensor): tuple(v.shape) for tensor, v in read_shapes(file).items()})
    return networks


def tell_left_out(candidates: Iterable[str], files: Mapping[str, str]) -> None:
    """Say on standard error which of the files that were read are no component of the model."""
    if left_out := sorted(set(candidates) - set(files.values())):
        names = ", ".join(left_out[:5]) + (", ..." if len(left_out) > 5 else "")
        print(f"left out: {len(left_out)} files of weights that are no component of it: {names}", file=sys.stderr)


def count_tokens_a_side(name: str, grid: int | None, stride: int) -> int:
    """Return the tokens of an image's side: `grid` if given, else the pixels in the file's name divided by `stride`,
    the pixels of a token. Raises ParityError if the name has none."""
    if grid is not None:
        return grid
    pixels = read_pixels(Path(name).name, (256, 384, 512), "--grid")
    if pixels is None:
        raise ParityError(
            f"{name}: its name tells no size of images; give --grid, tokens a side (256 pixels have {256 // stride})"
        )
    return pixels // stride


def read_pixels(name: str, sizes: tuple[int, ...], flag: str) -> int | None:
    """Read the pixels of an image's side from the name of a file or folder, and say so; None if it names none of
    `sizes`, or only beside a word for a step of training. Raises ParityError, which names the `flag` that gives them,
    for a name with several."""
    alternatives = "|".join(map(str, sizes))
    found = re.findall(rf"(?<!\d)({alternatives})(?:px|p|x\1)(?!\d)", name)
    stem = re.sub(r"\.\w+$", "", name)
    if not found and not re.search(r"step|epoch|ckpt|checkpoint|iter|^\d+$", stem, re.I):
        found = re.findall(rf"(?<!\d)({alternatives})(?!\d)", stem)
    if len(set(found)) > 1:
        raise ParityError(f"{name}: its name has {' and '.join(found)}; give {flag}; allowed: one size of images")
    if not found:
        return None
    print(f"{name}: images of {found[0]} pixels a side, as its name says; otherwise give {flag}", file=sys.stderr)
    return int(found[0])


def check_has(entry: Mapping[str, Any], component: str) -> None:
    """Raise ParityError, which names the flag that gives it, if an entry lacks a component that its family needs."""
    needed = component in weights.read_family(entry["family"]).get("files", ())
    if needed and component not in entry["files"] and not (component == "text" and entry["network"].get("classes")):
        raise ParityError(
            f"{entry['family']}: no {component} among {', '.join(entry['files'].values())}; {ASKED[component]}"
        )


def make_image_model(entry: dict[str, Any], paths: Paths) -> PublishedModel:
    """Describe an image model by its entry, paths by component, and its authors' sampling. Its networks are built
    without their numbers; raises ParityError if they would not load, or one is missing."""
    check_has(entry, "vq")
    manifest = entry | {"files": {component: str(path) for component, path in paths.items()}, "sha256": {}}
    loading.load_networks(manifest, ("net", "vq"), "meta")
    if {"text", "model"} & set(paths):
        loading.load_encoder(manifest, "meta")
    family = weights.read_family(entry["family"])
    network = entry["network"]
    if network.get("classes"):
        probs = {"guidance": 4.0, "top_k": 2000}
    else:
        key = "sampling_without_lines" if network.get("line") == 0 else "sampling"
        probs = dict(family.get(key, {"guidance": 3.0}))
    if "top_k" in probs:
        probs["top_k"] = min(probs["top_k"], {**family["network"], **network}["vocab"])
    return PublishedModel(entry, dict(paths), probs)


def make_pair_model(
    networks: Mapping[str, str],
    kl: list[str],
    files_read: Mapping[str, Weights],
    source: dict[str, Any],
    grid: int | None,
    tokenizer: Path | None,
) -> PublishedModel:
    """Describe a pair of continuous models: the largest of `networks` (families by file name), the smallest as its
    draft, and the autoencoder. Raises ParityError for several families, a missing component, or networks that would not
    load."""
    names = ", ".join(files_read)
    (family, *more_families) = sorted(set(networks.values()))
    if more_families:
        several = " and ".join([family, *more_families])
        raise ParityError(f"{names}: networks of {several}; allowed: one, in a folder of its own")
    largest, *smaller = sorted(
        networks, key=lambda name: (-sum(map(math.prod, files_read[name].shapes.values())), name)
    )
    for first_name, second in itertools.pairwise([largest, *smaller]):
        if files_read[first_name].shapes == files_read[second].shapes:
            raise ParityError(f"both {first_name} and {second}: networks of one size; allowed: one of each size")
    if len(kl) > 1:
        raise ParityError(f"kl: both {kl[0]} and {kl[1]}; allowed: one, in a folder of its own")
    target = files_read[largest].shapes
    family_module = load_family(family)
    declared = weights.read_family(family)
    if not kl and not any(name.startswith(published.VAE) for name in target):
        raise ParityError(f"{names}: no autoencoder among them; allowed: with kl16.ckpt beside them")
    files = {"target": largest, **({"draft": smaller[-1]} if smaller else {}), **({"kl": kl[0]} if kl else {})}
    tell_left_out(files_read, files)
    paths = {component: files_read[name].path for component, name in files.items()}
    if hasattr(family_module, "PROMPT"):
        tokenizer = tokenizer or next(iter(sorted(paths["target"].parent.rglob("tokenizer.json"))), None)
        if tokenizer is None:
            raise ParityError(f"{family} reads captions: no tokenizer.json beside it; give --tokenizer")
        files["tokenizer"] = str(tokenizer)
        paths["tokenizer"] = published.find_tokenizer(tokenizer)
    resized = hasattr(family_module, "resize")
    prefix = "mar." if "mar.z_proj.weight" in target else ""
    table = target.get(f"{prefix}diffusion_pos_embed_learned") or target[f"{prefix}encoder_pos_embed_learned"]
    side = math.isqrt(table[1])
    if grid and not resized and grid != side:
        raise ParityError(f"--grid {grid}: the images of {family} have one size; allowed: {side}")
    network = {**declared["released"], "grid": grid or (2 * side if resized else side)}
    checked = (paths["target"], paths.get("draft"), paths.get("kl"), paths.get("tokenizer"))
    published.check_loads(family, *checked, network["grid"] if resized else 0)
    by_width = declared["sampled"]
    probs = by_width.get(target[f"{prefix}z_proj.weight"][0], next(iter(by_width.values())))
    return PublishedModel({"family": family, **source, "files": files, "network": network}, paths, dict(probs))


def check_speculators(model: PublishedModel) -> None:
    """Raise ParityError if a drafter or draft model belongs to another target."""
    files = {component: str(path.resolve()) for component, path in model.paths.items()}
    spec = validate(ModelSpec, {**model.entry, "files": files}, "model")
    for component in weights.SPECULATORS:
        if path := model.paths.get(component):
            getattr(load_family(spec.family), "read_published", lambda *_: None)(component, path, spec)
            model_checks.check_speculator(spec.family, spec, path, component)


def make_image_section(model: PublishedModel, classes: Path) -> dict[str, Any]:
    """Make the `image` section of an experiment: decoders that need no speculator, the model's sampling, prompts. A
    model of classes reads them from the file `classes`."""
    methods = {"ar": [{}], "sjd": [{"window": 16}], "sjd_coupled": [{}], "mtj": [{}]}
    prompts = {"file": str(classes)} if model.entry["network"].get("classes") else {"max_words": 119}
    return {"methods": methods, "prompts": prompts, "sampling": model.sampling}


def make_pair_section(model: PublishedModel, captions: Path | None) -> dict[str, Any]:
    """Make the `continuous` section of an experiment: `mar`, one token at a time and, unless causal, in 64 iterations;
    `cspd` if there is a draft. Raises ParityError if the family reads captions and there is no file of them."""
    family, network = model.entry["family"], model.entry["network"]
    section: dict[str, Any] = {"sampling": model.sampling, "images": 32, "batch": [8]}
    if hasattr(load_family(family), "PROMPT"):
        if captions is None:
            raise ParityError(f"{family} reads captions; give --captions, a file with one a line")
        section["captions"] = {"file": str(captions)}
    causal = weights.read_family(family)["causal"]
    n_tokens = (network["grid"] // network.get("cell", 1)) ** 2
    methods = {"mar": [{}] if causal else [{}, {"iterations": min(64, n_tokens)}]}
    if "draft" in model.entry["files"]:
        methods["cspd"] = [{"gamma": min(2 if causal else 8, n_tokens)}]
    return {**section, "methods": methods}


def write(
    name: str, model: PublishedModel, out: Path, captions: Path | None = None, tell: Callable[[str], None] = print
) -> None:
    """Write an experiment for a model to `out`, checked as a run would check it, with digests; a model of classes gets
    a file of 64 classes beside it. Raises ParityError if `out` exists."""
    check_free(out)
    check_has(model.entry, "text")
    prompts = out.with_suffix(".classes.txt")
    classes = model.entry["network"].get("classes", 0)
    if weights.find_kind(model.entry["family"]) == "discrete":
        section = {"image": make_image_section(model, prompts)}
    else:
        section = {"continuous": make_pair_section(model, captions)}
    title = re.sub(r"[^a-z0-9_.-]", "-", name.lower())

    def experiment(entry: dict[str, Any]) -> dict[str, Any]:
        return {"experiment": title, "models": {name: entry}, **section}

    unread = {"sha256": dict.fromkeys(model.entry["files"], "0" * 64)}
    checks.make_config(json.loads(json.dumps(experiment(unread | model.entry))))
    model = model if "sha256" in model.entry else add_digests(model)
    if classes:
        publish(prompts, "".join(f"{i * classes // 64}\n" for i in range(64)).encode())
    text = yaml.safe_dump(experiment(model.entry), sort_keys=False, width=120)
    publish(out, f"# Run `snakemake --cores all --resources gpu=1 --configfile {out.name}`.\n{text}".encode())
    files = (f"{component} {Path(file).name or file}" for component, file in model.entry["files"].items())
    tell(f"written: {out} ({model.entry['family']}: {', '.join(files)})")


def check_free(out: Path) -> None:
    """Raise ParityError if a file of this name exists."""
    if out.exists():
        raise ParityError(f"{out}: is there already; allowed: a name that is free, with --out")
