"""What files of weights on this machine say of themselves, before any job: whether they are whole, which network they
are of, its sizes. Headers alone are read; imports no torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parity.base.digests import parts
from parity.base.errors import ConfigError, ParityError
from parity.base.files import foreign_json
from parity.base.headers import Shape, check_whole, derive_sizes, read_tensor_shapes
from parity.experiment import weights
from parity.experiment.module_metadata import find_function, read_constant
from parity.experiment.schema import HUB, ModelSpec

KL = ("encoder.conv_in.weight", "quant_conv.weight", "post_quant_conv.weight")  # of an autoencoder
CODES = "quantize.embedding.weight"  # of a VQ tokenizer, which has an autoencoder's tensors too
VAE = "vae."  # where a continuous model's file holds its autoencoder
PLACES = ("diffusion_pos_embed_learned", "encoder_pos_embed_learned")  # [1, grid^2, width] of a continuous model


def is_here(spec: ModelSpec, part: str, file: str) -> bool:
    """Whether a part is on this machine, and not at an address or in a repository."""
    here = spec.source == "files" or Path(file).is_absolute() or (part == "text" and not file.endswith("/"))
    return here and not file.startswith(("https://", "http://", HUB))


def check_model(model: str, spec: ModelSpec) -> None:
    """ConfigError for a part on this machine that is not whole, that is another network than its part, or that has
    other sizes than `network`. What headers do not say is checked when the part is loaded."""
    shapes: dict[str, dict[str, Shape]] = {}
    for part, file in spec.files.items():
        if part != "tokenizer" and is_here(spec, part, file):
            try:
                shapes[part] = read_part(spec, part, Path(file))
            except ParityError as error:
                raise ConfigError(f"models.{model}.files.{part}: {error}") from None
    target = shapes.get("target", {})
    if target and "kl" not in spec.files and not any(name.startswith(VAE) for name in target):
        raise ConfigError(f"models.{model}.files = {sorted(spec.files)}: needs kl, which target does not hold")


def check_readable(what: str, path: Path) -> None:
    """ConfigError, which begins with `what`, for a file of weights, or a folder of them, that is not whole."""
    try:
        for file in parts(path):
            check_whole(file)
    except ParityError as error:
        raise ConfigError(f"{what}: {error}") from None


def read_part(spec: ModelSpec, part: str, path: Path) -> dict[str, Shape]:
    """Shapes of a part's tensors, {} where headers do not say them; ParityError for one that is not whole or does not
    fit its place."""
    shapes: dict[str, Shape] = {}
    check_type(spec, part, path)
    for file in parts(path):
        check_whole(file)
        shapes |= read_tensor_shapes(file)
    if part == "text" and path.is_dir():
        weights.check_tokenizer(path, "text")
    if shapes:
        check_network(spec, part, path, shapes)
        for key, value in derive_network_sizes(spec, part, shapes).items():
            if (
                told := weights.sizes(spec).get(key, weights.read_family(spec.family).get("sizes", {}).get(key))
            ) != value:
                raise ParityError(f"{path}: network.{key} = {told}, and the file's {key} is {value}; allowed: {value}")
    return shapes


def check_type(spec: ModelSpec, part: str, path: Path) -> None:
    """ParityError for a folder whose config.json is that of another kind of model, or of other codes than `network`
    says."""
    kind, family = weights.find_kind(spec.family), weights.read_family(spec.family)
    types = family.get("model_types", {})
    wanted: Sequence[str] = types.get(part, ()) if isinstance(types, dict) else types if part == "model" else ()
    if not wanted:
        return
    try:
        config: dict[str, Any] = foreign_json(path / "config.json")
        model_type = str(config.get("model_type"))[:60]
    except (OSError, AttributeError):
        raise ParityError(f"{path}: no config.json; allowed: a folder as transformers saves it") from None
    if model_type not in wanted:
        raise ParityError(f"{path}: a folder of model_type {model_type!r}; allowed: {', '.join(wanted)}")
    known = {**family.get("network", {}), **spec.network}
    for key, (section, name) in read_constant(f"models/{kind}", spec.family, "CONFIG", {}).items():
        value = (config.get(section) or {}).get(name, known[key])
        if value != known[key]:
            raise ParityError(f"{path}: network.{key} = {known[key]}; allowed: {value}, as its config.json says")


def list_tensors(family: str) -> dict[str, tuple[str, ...]]:
    """Tensors by which the parts of a family's published files are known."""
    kind = weights.find_kind(family)
    if kind == "continuous":
        return dict.fromkeys(("target", "draft"), weights.read_family(family).get("tensors", ())) | {"kl": KL}
    return read_constant(f"models/{kind}", family, "TENSORS", {})


def check_network(spec: ModelSpec, part: str, path: Path, shapes: dict[str, Shape]) -> None:
    """ParityError for another network than the part's. A drafter may have been trained here, under other names."""
    known = list_tensors(spec.family)

    def is_of(other: str) -> bool:
        return all(name in shapes or f"{VAE}{name}" in shapes for name in known[other])

    if part == "drafter" or part not in known or (is_of(part) and not (part == "kl" and CODES in shapes)):
        return
    other = next((name for name in known if name != part and is_of(name)), "")
    found = f"it is a file of {other}" if other else f"it has no {known[part][0]}"
    raise ParityError(f"{path}: not a file of {part}, {found}; allowed: that of {spec.family}'s {part}")


def derive_network_sizes(spec: ModelSpec, part: str, shapes: dict[str, Shape]) -> dict[str, int]:
    """Sizes that a part's shapes say, by their key in `network`."""
    kind = weights.find_kind(spec.family)
    if (
        kind == "continuous"
        and part in ("target", "draft")
        and not find_function(f"models/{kind}", spec.family, "resize")
    ):
        table = next((shapes[name] for name in PLACES if name in shapes), (0, 0))
        return {"grid": round(table[1] ** 0.5)} if table[1] else {}
    table = read_constant(f"models/{kind}", spec.family, "SHAPES", {}).get(part, {})
    return ({"classes": 0} if "classes" in table else {}) | derive_sizes(shapes, table)
