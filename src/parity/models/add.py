"""Write an experiment for a published model: identifies each file by its tensors, and reads digests and sizes.

python -m parity.models add llamagen-xl FOLDER                    files of a folder
python -m parity.models add llamagen-xl hub:owner/name@revision   files of a repository, its commit pinned
python -m parity.models add mar-h FOLDER --captions captions.txt  a pair of continuous models
"""

import importlib
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from parity.base.errors import ParityError
from parity.base.files import foreign_json, publish
from parity.base.weights import PICKLED, parts, plain, sha256, shapes
from parity.experiment import checks, weights
from parity.experiment.module_metadata import constant
from parity.experiment.schema import HUB, ModelSpec, validate
from parity.models.continuous import published
from parity.models.discrete import load as loading
from parity.models.hub import download, list_files, snapshot

READ = (".safetensors", *PICKLED)
KL = ("encoder.conv_in.weight", "quant_conv.weight", "post_quant_conv.weight")  # of an autoencoder
CODES = "quantize.embedding.weight"  # of a VQ tokenizer, which has an autoencoder's tensors too
Paths = Mapping[str, Path]
Shapes = dict[str, tuple[int, ...]]


class Found(NamedTuple):
    """A published model: its entry in a configuration, where its parts are now, and how its authors sample it."""

    entry: dict[str, Any]
    paths: dict[str, Path]
    sampling: dict[str, Any]


def find(where: str, grid: int | None = None, elsewhere: Paths | None = None, pixels: int | None = None) -> Found:
    """The model in a folder, or in a repository (`hub:owner/name`, `@revision`), with a digest of every part.

    grid is tokens a side and pixels a picture's side, where no file tells them; elsewhere: parts that do not lie there,
    but on this machine. ParityError for a model that is not known, or would not load.
    """
    given = {part: path.resolve() for part, path in (elsewhere or {}).items() if part != "tokenizer"}
    for path in given.values():
        parts(path)  # it has weights that can be verified
    listed, source, config = None, {"source": "files"}, Path(where, "config.json")
    if where.startswith(HUB):
        repo, _, revision = where.removeprefix(HUB).partition("@")
        listed = list_files(repo, revision or None)
        source = {"source": "hub", "repo": repo, "revision": listed.commit}
        config = download(repo, listed.commit, "config.json") if "config.json" in listed.files else Path()
    model_type, family = family_of_folder(config)
    if family:
        folder = snapshot(listed.repo, listed.commit) if listed else Path(where)
        found = from_folder(family, folder, source, pixels, given)
    else:
        if listed:
            files = {n: download(listed.repo, listed.commit, n) for n in listed.files if Path(n).suffix in READ}
        else:
            files = weights_in(Path(where))
            text = encoders(Path(where))
            given = ({"text": text[0]} if text else {}) | given
        unknown = f"{config}: model_type = {model_type!r}" if model_type else ""
        found = from_tensors(files, source, grid, given, (elsewhere or {}).get("tokenizer"), unknown)
    digests = {part: sha256(path) for part, path in found.paths.items()}
    model = {**found.entry, "sha256": digests}
    model["network"] = model.pop("network")  # last, as it is longest
    if weights.kind_of(model["family"]) == "discrete":
        check_companions(model, found.paths)
    return found._replace(entry=model)


def module(family: str) -> Any:
    return importlib.import_module(f"parity.models.{weights.kind_of(family)}.{family}")


def weights_in(folder: Path) -> dict[str, Path]:
    """Files of weights in a folder, without those of text encoders."""
    if not folder.is_dir():
        raise ParityError(f"{folder}: no such folder; allowed: a folder, or hub:owner/name")
    text = encoders(folder)
    files = (f for f in sorted(folder.rglob("*")) if f.suffix in READ and f.is_file())
    return {str(f): f for f in files if not any(f.is_relative_to(t5) for t5 in text)}


def encoders(folder: Path) -> list[Path]:
    """Folders of T5 encoders, as transformers saves them."""
    return [f.parent for f in sorted(folder.rglob("config.json")) if '"t5"' in f.read_text(errors="replace")]


def folder_types() -> dict[str, str]:
    """Families of image models in transformers' layout, by `model_type` in their config.json."""
    return {t: name for name in weights.families("discrete") for t in weights.declared(name).get("model_types", ())}


def family_of_folder(config: Path) -> tuple[str, str]:
    """`model_type` in a config.json, and its family, "" for neither."""
    try:
        model_type = str(foreign_json(config).get("model_type") or "")[:60]
    except (OSError, ParityError, AttributeError):
        return "", ""
    return model_type, folder_types().get(model_type, "")


def from_folder(family: str, folder: Path, source: dict[str, Any], pixels: int | None, given: Paths) -> Found:
    """A model of a family whose files are a folder in transformers' layout."""
    named = re.search(r"(?<!\d)(256|384|512|720|768|1024)(?!\d)", Path(source.get("repo", folder)).name)
    sizes = module(family).read_sizes(folder, pixels or (int(named[1]) if named else None))
    files = {"model": "." if "repo" in source else str(folder), **{k: str(v) for k, v in given.items()}}
    return found_images({"family": family, **source, "files": files, "network": sizes}, {"model": folder, **given})


def tensors_by_part() -> list[tuple[str, str, tuple[str, ...]]]:
    """Family, part and the tensors by which a published file is known; the networks of a pair are all "network"."""
    pairs = [(family, "network", weights.declared(family)["tensors"]) for family in published.RELEASED]
    tables = {name: constant("models/discrete", name, "TENSORS", {}) for name in weights.families("discrete")}
    images = [(family, part, tensors) for family, table in tables.items() for part, tensors in table.items()]
    return [*pairs, ("", "kl", KL), *images]


def from_tensors(
    files: Paths,
    source: dict[str, Any],
    grid: int | None = None,
    given: Paths | None = None,
    tokenizer: Path | None = None,
    unknown: str = "",
) -> Found:
    """A model whose files are known by their tensors. ParityError that lists the files, or begins with `unknown`, if
    none of them is, and for two files of one part."""
    paths, held = joined(files)
    known: dict[str, dict[str, str]] = {}  # family of each file, by part
    for name, has in held.items():
        for family, part, tensors in tensors_by_part():
            if all(t in has for t in tensors) and not (part == "kl" and CODES in has):
                known.setdefault(part, {})[name] = family
    if "network" in known:
        return found_pair(known["network"], sorted(known.get("kl", {})), paths, held, source, grid, tokenizer)
    known.pop("kl", None)
    if several := next((part for part, names in known.items() if len(names) > 1), None):
        first, second, *_ = known[several]
        raise ParityError(f"{several}: both {first} and {second}; allowed: one, in a folder of its own")
    if "transformer" not in known:
        families = ", ".join(dict.fromkeys(family for family, part, _ in tensors_by_part() if part == "transformer"))
        layout = "folders in transformers' layout, whose model_type is one of " + ", ".join(sorted(folder_types()))
        problem = f"no transformer among {', '.join(files) or 'no files'}; allowed: files of {families}"
        raise ParityError(f"{unknown}; allowed: {layout}" if unknown else problem)
    named = {part: next(iter(names)) for part, names in known.items()}
    family = known["transformer"][named["transformer"]]
    stride = module(family).stride(held[named["vq"]]) if "vq" in named else 16
    side = tokens_a_side(named["transformer"], grid, stride)
    sizes = module(family).read_sizes(held[named["transformer"]], side)
    own = {part: paths[name] for part, name in named.items()}
    if "drafter" in named and (own["drafter"].parent / "config.json").is_file():  # which tells what no tensor does
        named["drafter"], own["drafter"] = str(Path(named["drafter"]).parent), own["drafter"].parent
    named |= {part: str(path) for part, path in (given or {}).items()}
    return found_images({"family": family, **source, "files": named, "network": sizes}, {**own, **(given or {})})


def joined(files: Paths) -> tuple[dict[str, Path], dict[str, Shapes]]:
    """Paths and shapes of tensors of networks, by name; the shards of one are its folder."""
    paths, held = dict[str, Path](), dict[str, Shapes]()
    for name, file in files.items():
        shard = re.fullmatch(r"(.*?)model-\d+-of-\d+\.safetensors", name)
        key = (shard[1] or ".") if shard else name
        paths[key] = file.parent if shard else file
        held.setdefault(key, {}).update({plain(k): tuple(v.shape) for k, v in shapes(file).items()})
    return paths, held


def tokens_a_side(name: str, grid: int | None, stride: int) -> int:
    """Tokens a side, which no tensor tells: as given, or of the pixels in the file's name, `stride` a token."""
    pixels = re.search(r"(?<!\d)(256|384|512)(?!\d)", name)
    if grid is None and pixels is None:
        raise ParityError(
            f"{name}: its name tells no size of pictures; give --grid, tokens a side (256 pixels have {256 // stride})"
        )
    return grid or int(pixels[1]) // stride  # type: ignore[index]


def found_images(model: dict[str, Any], paths: Paths) -> Found:
    """A model of images, with its authors' sampling; ParityError for one that would not load. Its networks are built
    without their numbers."""
    manifest = model | {"files": {part: str(path) for part, path in paths.items()}, "sha256": {}}
    loading.networks(manifest, ("net", "vq"), "meta")
    if {"text", "model"} & set(paths):
        loading.encoder(manifest, "meta")
    family = weights.declared(model["family"])
    if model["network"].get("classes"):
        law = {"guidance": 4.0, "top_k": 2000}
    else:
        without_lines = model["network"].get("line") == 0
        law = dict(family.get("sampling_without_lines" if without_lines else "sampling", {"guidance": 3.0}))
    if "top_k" in law:
        law["top_k"] = min(law["top_k"], {**family["network"], **model["network"]}["vocab"])
    return Found(model, dict(paths), law)


def found_pair(
    networks: Mapping[str, str],
    kl: list[str],
    paths: Paths,
    held: Mapping[str, Shapes],
    source: dict[str, Any],
    grid: int | None,
    tokenizer: Path | None,
) -> Found:
    """A pair of continuous models: the largest of `networks` (families by name), the smallest as its draft, and their
    autoencoder. ParityError for several families, a part that is missing, or one that would not load."""
    every, (family, *others) = ", ".join(held), sorted(set(networks.values()))
    if others:
        names = " and ".join([family, *others])
        raise ParityError(f"{every}: networks of {names}; allowed: one, in a folder of its own")
    ordered = sorted(networks, key=lambda name: (-sum(map(math.prod, held[name].values())), name))
    files = {"target": ordered[0], **({"draft": ordered[-1]} if len(ordered) > 1 else {})}
    target = held[ordered[0]]
    if kl:
        files["kl"] = kl[0]
    elif not any(name.startswith(published.VAE) for name in target):
        raise ParityError(f"{every}: no autoencoder among them; allowed: with kl16.ckpt beside them")
    own = {part: paths[name] for part, name in files.items()}
    if hasattr(module(family), "PROMPT"):
        tokenizer = tokenizer or next(iter(sorted(own["target"].parent.rglob("tokenizer.json"))), None)
        if tokenizer is None:
            raise ParityError(f"{family} reads captions: no tokenizer.json beside it; give --tokenizer")
        files["tokenizer"], own["tokenizer"] = str(tokenizer), published.tokenizer_file(tokenizer)
    declared, resized = weights.declared(family), hasattr(module(family), "resized")
    prefix = "mar." if "mar.z_proj.weight" in target else ""
    table = target.get(f"{prefix}diffusion_pos_embed_learned") or target[f"{prefix}encoder_pos_embed_learned"]
    side = math.isqrt(table[1])
    if grid and not resized and grid != side:
        raise ParityError(f"--grid {grid}: the pictures of {family} have one size; allowed: {side}")
    network = {**declared["released"], "grid": grid or (2 * side if resized else side)}
    checked = (own["target"], own.get("draft"), own.get("kl"), own.get("tokenizer"))
    published.check_loads(family, *checked, network["grid"] if resized else 0)
    by_width = declared["sampled"]
    law = by_width.get(target[f"{prefix}z_proj.weight"][0], next(iter(by_width.values())))
    return Found({"family": family, **source, "files": files, "network": network}, own, dict(law))


def check_companions(model: dict[str, Any], paths: Paths) -> None:
    """ParityError for a drafter or draft model of another target."""
    files = {part: str(path.resolve()) for part, path in paths.items()}
    spec = validate(ModelSpec, {**model, "files": files}, "model")
    for part in weights.COMPANIONS:
        if part in paths:
            getattr(module(spec.family), "published", lambda *_: None)(part, paths[part], spec)
            weights.check_companion(spec.family, spec, paths[part], part)


def image_section(found: Found, classes: Path) -> dict[str, Any]:
    """Plain decoding, and the decoders that need no companion; a model of classes reads them from a file."""
    methods = {"ar": [{}], "jacobi": [{}], "sjd": [{"window": 16}], "mtj": [{}]}
    prompts = {"file": str(classes)} if found.entry["network"].get("classes") else {"max_words": 119}
    return {"methods": methods, "prompts": prompts, "sampling": found.sampling}


def pair_section(found: Found, captions: Path | None) -> dict[str, Any]:
    """One token at a time, 64 iterations, and drafts if there is a draft."""
    family, network = found.entry["family"], found.entry["network"]
    section: dict[str, Any] = {"sampling": found.sampling, "images": 32, "batch": [8]}
    if hasattr(module(family), "PROMPT"):
        if captions is None:
            raise ParityError(f"{family} reads captions; give --captions, a file with one a line")
        section["captions"] = {"file": str(captions)}
    causal, most = weights.declared(family)["causal"], (network["grid"] // network.get("cell", 1)) ** 2
    methods = {"mar": [{}] if causal else [{}, {"iterations": min(64, most)}]}
    if "draft" in found.entry["files"]:
        methods["cspd"] = [{"gamma": min(2 if causal else 8, most)}]
    return {**section, "methods": methods}


def write(
    name: str, found: Found, out: Path, captions: Path | None = None, tell: Callable[[str], None] = print
) -> None:
    """An experiment on a model, checked as a run would; the classes of a model of classes are written beside it."""
    model, prompts = found.entry, out.with_suffix(".classes.txt")
    if weights.kind_of(model["family"]) == "discrete":
        section = {"image": image_section(found, prompts)}
    else:
        section = {"continuous": pair_section(found, captions)}
    experiment = {"experiment": re.sub(r"[^a-z0-9_.-]", "-", name.lower()), "models": {name: model}, **section}
    checks.load(json.loads(json.dumps(experiment)))
    if out.exists():
        raise ParityError(f"{out}: is there already; allowed: a name that is free, with --out")
    if classes := model["network"].get("classes", 0):
        publish(prompts, "".join(f"{i * classes // 64}\n" for i in range(64)).encode())
    text = yaml.safe_dump(experiment, sort_keys=False, width=120)
    publish(out, f"# Run `snakemake --cores all --resources gpu=1 --configfile {out.name}`.\n{text}".encode())
    tell(yaml.safe_dump({"models": {name: model}}, sort_keys=False, width=120))
    tell(f"written: {out}")
