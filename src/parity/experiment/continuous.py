"""The cells of the continuous experiment, and what its section of the configuration may say. Imports no torch: rules are parsed with it."""

import itertools
from pathlib import Path
from typing import Any

from parity.base.errors import ConfigError
from parity.base.files import canonical, digest, sums
from parity.experiment.config import (
    Config,
    ContinuousSamplingSpec,
    ContinuousSpec,
    _header,
    continuous_methods,
    needs,
    options,
)

WEIGHTS = Path(__file__).parents[1] / "embedded/weights/continuous"
SCHEDULES = {"mar": ("linear", "constant"), "xar": ("linear",), "harmon": ("constant",), "gmm": ()}
COUNTED = ("iterations", "gamma")  # options that count an image's tokens


def samplings(spec: ContinuousSpec) -> list[ContinuousSamplingSpec]:
    return spec.sampling if isinstance(spec.sampling, list) else [spec.sampling]


def folder(spec: ContinuousSpec) -> Path:
    """Where the weights are."""
    return Path(spec.weights) if spec.weights else WEIGHTS


def length(model: str, weights: Path) -> int:
    """Places of an image: its tokens, or cells of them."""
    header = _header(weights / f"{model}.safetensors")
    return (header["grid"] // header.get("cell", 1)) ** 2


def read_by(model: str, sampling: ContinuousSamplingSpec) -> dict[str, Any]:
    """The settings that a model reads: another one's do not make another cell."""
    read = {"gmm": {"temperature"}, "xar": {"steps", "temperature", "guidance", "guidance_schedule", "last"}}
    return {k: v for k, v in sampling.model_dump().items() if k in read.get(model, sampling.model_dump())}


def check_continuous(spec: ContinuousSpec) -> None:
    """ConfigError for what the schema alone cannot see."""
    where, weights = "continuous", folder(spec)
    if not (weights / "SHA256SUMS").exists():
        raise ConfigError(
            f"{where}.weights = {spec.weights!r}: no SHA256SUMS in it; allowed: '' or a folder that `convert` wrote"
        )
    for model in spec.models:
        check_pair(model, any(needs(m) == "draft" for m in spec.methods), weights)
    shortest = min(spec.models, key=lambda m: length(m, weights))
    places = length(shortest, weights)
    if "mar" not in spec.methods:
        raise ConfigError(
            f"{where}.methods = {sorted(spec.methods)}: needs mar, the target alone, with which the others are compared"
        )
    for method, variants in spec.methods.items():
        if method not in continuous_methods():
            raise ConfigError(f"{where}.methods.{method}: unknown method; allowed: {', '.join(continuous_methods())}")
        if not variants:
            raise ConfigError(
                f"{where}.methods.{method} = []: no variant; allowed: a list of option sets, [{{}}] for the defaults"
            )
        seen: dict[str, int] = {}
        for i, variant in enumerate(variants):
            complete = options(method, variant, f"{where}.methods.{method}.{i}")
            for key in COUNTED:
                if complete.get(key, 0) > places:
                    raise ConfigError(
                        f"{where}.methods.{method}.{i}.{key} = {complete[key]}: allowed: at most the {places} tokens of an image ({shortest})"
                    )
            if canonical(complete) in seen:
                raise ConfigError(
                    f"{where}.methods.{method}.{i} = {variant}: the same variant as {where}.methods.{method}.{seen[canonical(complete)]}"
                )
            seen[canonical(complete)] = i
    if not any(options("mar", v)["iterations"] == 0 for v in spec.methods["mar"]):
        raise ConfigError(
            f"{where}.methods.mar = {spec.methods['mar']}: needs a variant with iterations 0, one token at a time: the reference"
        )
    blind = [v for v in spec.methods.get("cspd", []) if v.get("verify") == "blind"]
    if blind and (causal := [m for m in spec.models if m in ("xar", "gmm")]):
        raise ConfigError(
            f"{where}.methods.cspd: verify = 'blind' with {causal[0]}, which has no law of a token before it has read the one before; allowed: 'each'"
        )
    for name in ("models", "batch"):
        if len(set(getattr(spec, name))) < len(getattr(spec, name)):
            raise ConfigError(f"{where}.{name} = {getattr(spec, name)}: a value is given twice")
    for b in spec.batch:
        if not 1 <= b <= 4096:
            raise ConfigError(f"{where}.batch = {b}: allowed: 1 to 4096")
    for model, sampling in itertools.product(spec.models, samplings(spec)):
        if sampling.guidance != 1 and sampling.guidance_schedule not in SCHEDULES[model]:
            allowed = ", ".join(SCHEDULES[model]) or "guidance 1 alone"
            raise ConfigError(
                f"{where}.sampling.guidance_schedule = {sampling.guidance_schedule!r}: {model} does not have it; allowed: {allowed}"
            )
        if sampling.sampler == "ddim" and model in ("xar", "gmm"):
            raise ConfigError(
                f"{where}.sampling.sampler = 'ddim': {model} has no diffusion head; allowed: 'ddpm', which it does not read"
            )
    if any(options("mar", v)["iterations"] for v in spec.methods["mar"]):
        for model in spec.models:
            if model in ("xar", "gmm"):
                raise ConfigError(
                    f"{where}.methods.mar: {model} reads in raster order and draws one token at a time; allowed: iterations 0"
                )


def check_pair(model: str, draft: bool, weights: Path) -> None:
    """ConfigError for weights that are missing, or for a draft of other tokens, latents or classes than its target's."""
    files = [weights / f"{model}.safetensors", *([weights / f"{model}-draft.safetensors"] if draft else [])]
    for file in files:
        if not file.exists():
            made = (
                "make it with `snakemake train_continuous`" if weights == WEIGHTS else f"allowed: what {weights} holds"
            )
            raise ConfigError(f"continuous.models: {file.name} is missing; {made}")
        if "grid" not in _header(file):
            raise ConfigError(
                f"continuous.models: {file} says nothing of its sizes; allowed: a file that `convert` or a recipe wrote"
            )
    found = [_header(f) for f in files]
    for key, what in (
        ("grid", "tokens a side"),
        ("dim", "numbers a token"),
        ("classes", "classes"),
        ("latents", "latents"),
    ):
        values = [h.get(key) for h in found]
        if len(set(map(str, values))) > 1:
            raise ConfigError(
                f"continuous.models.{model}: draft and target differ in {what}: {values[1]} and {values[0]}; allowed: the same"
            )


def weights_digest(model: str, weights: Path) -> str:
    """Of every file a model's cells depend on."""
    known = sums(weights)
    return digest([known.get(f"{name}.safetensors") for name in ("kl", model, f"{model}-draft")])


def continuous_cells(config: Config) -> list[dict[str, Any]]:
    """Every cell: the target alone twice under independent seeds, everything else once. The batch is part of it, since speed is measured."""
    spec, found = config.continuous, []
    if spec is None:
        return []
    seen, weights = set(), {m: weights_digest(m, folder(spec)) for m in spec.models}
    for model, sampling, batch in itertools.product(spec.models, samplings(spec), spec.batch):
        for method, variants in spec.methods.items():
            for variant in variants:
                chosen = options(method, variant)
                roles = [("method", config.seeds.methods)]
                if method == "mar" and chosen["iterations"] == 0:
                    roles = [("reference", config.seeds.reference)] + [("control", config.seeds.control)] * (
                        batch == spec.batch[0]
                    )
                for role, seed in roles:
                    own = {
                        "model": model, "weights": weights[model], "sampling": read_by(model, sampling), "method": method,
                        "options": chosen, "images": spec.images, "batch": batch, "seed": seed,
                    }  # fmt: skip
                    if digest(own) not in seen:
                        seen.add(digest(own))
                        found.append(
                            {"spec": own, "key": digest(own), "role": role, "cell": f"{model}-{method}-{digest(own)}"}
                        )
    return found


def reference_of(cell: dict[str, Any], cells: list[dict[str, Any]]) -> dict[str, Any]:
    """The target alone that a cell is compared with: same model, settings and batch."""
    same = ("model", "sampling", "batch")
    return next(c for c in cells if c["role"] == "reference" and all(c["spec"][k] == cell["spec"][k] for k in same))


def forced_cells(config: Config) -> list[dict[str, Any]]:
    """Cells whose law of one token is tested: speculative variants, at the first batch size; and the control."""
    spec = config.continuous
    if spec is None or not spec.forced:
        return []
    return [
        c
        for c in continuous_cells(config)
        if c["spec"]["batch"] == spec.batch[0] and (needs(c["spec"]["method"]) or c["role"] == "control")
    ]


def exact_variants(config: Config) -> dict[str, dict[str, Any]]:
    """Variants that run on mixtures whose law is known, by key: one token at a time and speculative ones, gamma cut to three tokens."""
    spec, found = config.continuous, {}
    for method, variants in spec.methods.items() if spec else ():
        for variant in variants:
            chosen = options(method, variant)
            if method == "mar" and chosen["iterations"]:
                continue
            if chosen.get("inner_temperature", 1.0) != 1.0:
                continue  # a closed form has no residuals to divide
            small = {k: min(v, 3) if k == "gamma" else 0.0 if k == "prefill" else v for k, v in chosen.items()}
            e = config.equality
            found[digest([method, small, e.n, e.seeds[:2]])] = {"method": method, "options": small, "given": chosen}
    return found


def sources(method: str, model: str = "") -> list[str]:
    """The files that a cell's tokens depend on: an edit of one of them, and of nothing else, decodes anew."""
    shared = (
        "noise",
        "continuous/cell",
        "continuous/protocol",
        "continuous/steps",
        "continuous/guided",
        "continuous/models",
        "continuous/decoders/mar",
        "models/diffusion",
        "models/mar",
    )
    own = [f"continuous/decoders/{method}", *([f"models/{model}"] if model else [])]
    return [f"src/parity/{name}.py" for name in dict.fromkeys((*shared, *own))]
