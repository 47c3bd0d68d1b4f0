"""What files of weights on this machine say of themselves, before any job: whether they are whole, which network they
are of, its sizes. Headers alone are read; imports no torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parity.base.digests import parts
from parity.base.errors import ConfigError, ParityError
from parity.base.files import foreign_json
from parity.base.headers import Shape, check_whole, derive_sizes, read_tensor_shapes
from parity.experiment import model_checks, weights
from parity.experiment.module_metadata import find_function, read_constant
from parity.experiment.schema import ModelSpec

KL = ("encoder.conv_in.weight", "quant_conv.weight", "post_quant_conv.weight")  # tensors that identify an autoencoder
CODES = "quantize.embedding.weight"  # tensor that tells a VQ tokenizer from an autoencoder, whose tensors it has too
VAE = "vae."  # prefix of the autoencoder's tensors in a continuous model's file
PLACES = ("diffusion_pos_embed_learned", "encoder_pos_embed_learned")  # tensors whose shape [1, grid^2, W] gives a grid


def check_model(model: str, spec: ModelSpec) -> None:
    """Check the files of a model that are on this machine, by their headers. Raises ConfigError for a component that is
    damaged, belongs to another network, or has other sizes than `network`, and for an autoencoder that no file holds.
    What headers do not say is checked when the component is loaded."""
    shapes: dict[str, dict[str, Shape]] = {}
    for component, file in spec.files.items():
        is_here = model_checks.is_local(spec, component) and not model_checks.is_remote(file)
        if component != "tokenizer" and is_here:
            try:
                shapes[component] = read_part(spec, component, Path(file))
            except ParityError as error:
                raise ConfigError(f"models.{model}.files.{component}: {error}") from None
    target = shapes.get("target", {})
    if target and "kl" not in spec.files and not any(name.startswith(VAE) for name in target):
        raise ConfigError(f"models.{model}.files = {sorted(spec.files)}: needs kl, which target does not hold")


def check_readable(label: str, path: Path) -> None:
    """Check that a file of weights, or each in a folder, is whole. Raises ConfigError, which begins with `label`."""
    try:
        for file in parts(path):
            check_whole(file)
    except ParityError as error:
        raise ConfigError(f"{label}: {error}") from None


def read_part(spec: ModelSpec, component: str, path: Path) -> dict[str, Shape]:
    """Read the shapes of a component's tensors by name from its file or folder `path`; {} if headers do not say them.
    Raises ParityError if it is damaged, of another network, or of other sizes than the configuration says."""
    shapes: dict[str, Shape] = {}
    check_type(spec, component, path)
    for file in parts(path):
        check_whole(file)
        shapes |= read_tensor_shapes(file)
    if component == "text" and path.is_dir():
        model_checks.check_tokenizer(path, "text")
    if shapes:
        check_network(spec, component, path, shapes)
        sizes = weights.read_family(spec.family).get("sizes", {}) | weights.read_sizes(spec)
        for key, value in derive_network_sizes(spec, component, shapes).items():
            if sizes.get(key) != value:
                problem = f"network.{key} = {sizes.get(key)}, and the file's {key} is {value}"
                raise ParityError(f"{path}: {problem}; allowed: {value}")
    return shapes


def check_type(spec: ModelSpec, component: str, path: Path) -> None:
    """Check the config.json of a component's folder, if the family says of which model types it may be. Raises
    ParityError if it is missing, of another model type, or of other values than `network` says."""
    kind = weights.find_kind(spec.family)
    family = weights.read_family(spec.family)
    types = family.get("model_types", {})
    types_allowed: Sequence[str] = (
        types.get(component, ()) if isinstance(types, dict) else types if component == "model" else ()
    )
    if not types_allowed:
        return
    try:
        config: dict[str, Any] = foreign_json(path / "config.json")
        model_type = str(config.get("model_type"))[:60]
    except (OSError, AttributeError):
        raise ParityError(f"{path}: no config.json; allowed: a folder as transformers saves it") from None
    if model_type not in types_allowed:
        raise ParityError(f"{path}: a folder of model_type {model_type!r}; allowed: {', '.join(types_allowed)}")
    network = {**family.get("network", {}), **spec.network}
    for key, (section, name) in read_constant(f"models/{kind}", spec.family, "CONFIG", {}).items():
        value = (config.get(section) or {}).get(name, network[key])
        if value != network[key]:
            raise ParityError(f"{path}: network.{key} = {network[key]}; allowed: {value}, as its config.json says")


def list_tensors(family: str) -> dict[str, tuple[str, ...]]:
    """List by component the names of tensors that identify it among a family's published files."""
    kind = weights.find_kind(family)
    if kind == "continuous":
        return dict.fromkeys(("target", "draft"), weights.read_family(family).get("tensors", ())) | {"kl": KL}
    return read_constant(f"models/{kind}", family, "TENSORS", {})


def check_network(spec: ModelSpec, component: str, path: Path, shapes: dict[str, Shape]) -> None:
    """Check by the names of tensors, the keys of `shapes`, that a file is of the component's network. Raises a
    ParityError that names what it is of. Drafters pass, because one that was trained here has other names."""
    tensors_by_component = list_tensors(spec.family)

    def is_of(found_component: str) -> bool:
        return all(name in shapes or f"{VAE}{name}" in shapes for name in tensors_by_component[found_component])

    if (
        component == "drafter"
        or component not in tensors_by_component
        or (is_of(component) and not (component == "kl" and CODES in shapes))
    ):
        return
    found_component = next((name for name in tensors_by_component if name != component and is_of(name)), "")
    lacks = f"it has no {tensors_by_component[component][0]}"
    problem = f"it is a file of {found_component}" if found_component else lacks
    raise ParityError(f"{path}: not a file of {component}, {problem}; allowed: that of {spec.family}'s {component}")


def derive_network_sizes(spec: ModelSpec, component: str, shapes: dict[str, Shape]) -> dict[str, int]:
    """Derive a network's sizes, by their key in `network`, from the shapes of a component's tensors, as far as the
    family says how; {} if it does not."""
    kind = weights.find_kind(spec.family)
    if (
        kind == "continuous"
        and component in ("target", "draft")
        and not find_function(f"models/{kind}", spec.family, "resize")
    ):
        table = next((shapes[name] for name in PLACES if name in shapes), (0, 0))
        return {"grid": round(table[1] ** 0.5)} if table[1] else {}
    table = read_constant(f"models/{kind}", spec.family, "SHAPES", {}).get(component, {})
    return ({"classes": 0} if "classes" in table else {}) | derive_sizes(shapes, table)
