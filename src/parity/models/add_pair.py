"""A published pair of continuous models as an experiment of its own: files known by their tensors, digests and sizes
read from them, sampled as their authors do. `parity.models add` asks here first.

    python -m parity.models add mar-h FOLDER --captions captions.txt
    python -m parity.models add mar-h hub:owner/name@revision
"""

import importlib
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from parity.base.errors import ParityError
from parity.base.weights import sha256
from parity.models import add
from parity.models.continuous.published import RELEASED, check_loads, tokenizer_file
from parity.models.download import download

KL = ("encoder.conv_in.weight", "quant_conv.weight", "post_quant_conv.weight")  # which a VQ tokenizer has too, and more
CODES = "quantize.embedding.weight"
Shapes = Mapping[str, tuple[int, ...]]


def module(family: str) -> Any:
    return importlib.import_module(f"parity.models.continuous.{family}")


def family_of(held: Shapes) -> str:
    """The family of a file with these tensors, "kl" for an autoencoder, "" for neither."""
    for name in RELEASED:
        if all(tensor in held for tensor in module(name).FAMILY["tensors"]):
            return name
    return "kl" if all(tensor in held for tensor in KL) and CODES not in held else ""


def recognised(files: Mapping[str, Shapes]) -> tuple[str, dict[str, str]]:
    """The family and its parts by the names of their files: the largest network, and the smallest as its draft. "" if
    none is known; ParityError for several families in one folder, or no autoencoder."""
    known = {name: family_of(held) for name, held in files.items()}
    families = sorted(set(known.values()) - {"", "kl"})
    if not families:
        return "", {}
    if len(families) > 1:
        raise ParityError(
            f"{', '.join(files)}: networks of {' and '.join(families)}; allowed: one, in a folder of its own"
        )
    size = {n: sum(map(math.prod, files[n].values())) for n, family in known.items() if family == families[0]}
    ordered = sorted(size, key=lambda name: (-size[name], name))
    parts = {"target": ordered[0], **({"draft": ordered[-1]} if len(ordered) > 1 else {})}
    kl = sorted(name for name, family in known.items() if family == "kl")
    if kl:
        parts["kl"] = kl[0]
    elif not any(name.startswith("vae.") for name in files[ordered[0]]):
        raise ParityError(f"{', '.join(files)}: no autoencoder among them; allowed: with kl16.ckpt beside them")
    return families[0], parts


def sizes(family: str, held: Shapes, grid: int | None) -> tuple[int, dict[str, int]]:
    """Width of a network, and what a configuration must know of its places before the file is to hand."""
    at = "mar." if "mar.z_proj.weight" in held else ""
    width, trained = held[f"{at}z_proj.weight"][0], module(family).FAMILY["released"]
    table = held.get(f"{at}diffusion_pos_embed_learned") or held[f"{at}encoder_pos_embed_learned"]
    side = math.isqrt(table[1])
    resized = hasattr(module(family), "resized")
    if grid and not resized and grid != side:
        raise ParityError(f"--grid {grid}: the pictures of {family} have one size; allowed: {side}")
    return width, {**trained, "grid": grid or (2 * side if resized else side)}


def find_weights(where: str) -> tuple[dict[str, Path], dict[str, str]]:
    """Files of weights in a folder, or in a repository (`hub:owner/name`, `@revision`), and where that is."""
    if not where.startswith("hub:"):
        return add.at_hand(Path(where)), {"source": "files"}
    repo, _, wanted = where.removeprefix("hub:").partition("@")
    commit, names = add.pinned(repo, wanted or None)
    files = {name: download(repo, commit, name) for name in names if Path(name).suffix in add.READ}
    return files, {"source": "hub", "repo": repo, "revision": commit}


def joined(files: Mapping[str, Path]) -> tuple[dict[str, Path], dict[str, dict[str, tuple[int, ...]]]]:
    """Paths and shapes of networks by name; the shards of one are its folder."""
    paths: dict[str, Path] = {}
    held: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, file in files.items():
        shard = re.fullmatch(r"(.*?)model-\d+-of-\d+\.safetensors", name)
        key = (shard[1] or ".") if shard else name
        paths[key] = file.parent if shard else file
        held.setdefault(key, {}).update(add.shapes_of(file))
    return paths, held


def entry(
    named: Mapping[str, Path], source: Mapping[str, Any], grid: int | None, tokenizer: Path | None
) -> dict[str, Any] | None:
    """The model that these files are, and the sampling of its authors; None if they are of no continuous family."""
    files, held = joined(named)
    family, parts = recognised(held)
    if not family:
        return None
    width, network = sizes(family, held[parts["target"]], grid)
    paths = {part: files[name] for part, name in parts.items()}
    if hasattr(module(family), "PROMPT"):
        if tokenizer is None:
            near = sorted(paths["target"].parent.rglob("tokenizer.json"))
            if not near:
                raise ParityError(f"{family} reads captions: no tokenizer.json beside it; give --tokenizer")
            tokenizer = near[0]
        parts["tokenizer"], paths["tokenizer"] = str(tokenizer), tokenizer_file(tokenizer)
    given = (paths["target"], paths.get("draft"), paths.get("kl"), paths.get("tokenizer"))
    check_loads(family, *given, network["grid"] if hasattr(module(family), "resized") else 0)
    digests = {part: sha256(path) for part, path in paths.items()}
    model = {"family": family, **source, "files": parts, "sha256": digests, "network": network}
    sampled = module(family).FAMILY["sampled"]
    return {"model": model, "sampling": dict(sampled.get(width, next(iter(sampled.values()))))}


def write(
    name: str, found: dict[str, Any], captions: Path | None, out: Path, tell: Callable[[str], None] = print
) -> None:
    """An experiment on a pair, checked as a run would: one token at a time, 64 iterations, drafts if there is a
    draft."""
    model, section = found["model"], {"sampling": found["sampling"], "images": 32, "batch": [8]}
    if hasattr(module(model["family"]), "PROMPT"):
        if captions is None:
            raise ParityError(f"{model['family']} reads captions; give --captions, a file with one a line")
        section["captions"] = {"file": str(captions)}
    causal = module(model["family"]).FAMILY["causal"]
    methods: dict[str, Any] = {"mar": [{}] if causal else [{}, {"iterations": 64}]}
    if "draft" in model["files"]:
        methods["cspd"] = [{"gamma": 2 if causal else 8}]
    least = model["network"]["grid"] // model["network"].get("cell", 1)
    for variants in methods.values():
        for variant in variants:
            variant |= {key: min(value, least**2) for key, value in variant.items()}
    add.write_experiment(name, model, {"continuous": {**section, "methods": methods}}, out, tell=tell)
