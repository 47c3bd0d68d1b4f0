"""The configuration: what may be asked for, checked before any job starts, and the cells it expands to.

Imports neither torch nor a decoder, for the Snakefile reads it each time it is parsed. A decoder's options are read from the source
of its module: the keyword-only arguments of the function of the module's name, with their annotations, are the schema.
"""

import ast
import csv
import hashlib
import inspect
import itertools
import json
import re
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, field_validator, model_validator

from parity.base.errors import ConfigError
from parity.base.files import canonical, digest, sums
from parity.experiment import study

DECODERS = Path(__file__).parents[1] / "decoders/discrete"
TEXT_DECODERS = Path(__file__).parents[1] / "decoders/anysubset"
CONTINUOUS_DECODERS = Path(__file__).parents[1] / "decoders/continuous"
EMBEDDED = Path(__file__).parents[1] / "embedded/weights/discrete"
COMPANIONS = ("drafter", "draft")  # networks that some methods need beside the target
Part = Literal["transformer", "vq", "text", "clip", "drafter", "draft"]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$", max_length=64)]
Hex64 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ModelSpec(Strict):
    """A model: the embedded one, or published files by repository, commit and SHA-256, or by local path."""

    family: Literal["llamagen"] = "llamagen"
    source: Literal["embedded", "hub", "files"] = "embedded"
    grid: Literal[8, 16] = Field(
        16, description="embedded: tokens a side; 16 for pictures of 64x64 pixels, 8 for 32x32"
    )
    repo: str = Field("", description="hub: owner/name")
    revision: str = Field(
        "", pattern=r"^([0-9a-f]{40})?$", description="hub: the 40-hex commit; a branch name would move"
    )
    files: dict[Part, str] = Field({}, description="hub: path in the repository; files: path here")
    sha256: dict[Part, Hex64] = {}
    network: dict[str, int | float] = Field(
        {}, description="LlamaGenConfig fields of a published file; {} for LlamaGen-XL stage 1"
    )

    @model_validator(mode="after")
    def _complete(self):
        if self.source == "hub" and not (self.repo and self.revision):
            raise ValueError("source 'hub' needs repo and revision")
        if self.source != "embedded" and "grid" in self.model_fields_set:
            raise ValueError(
                f"grid is of source 'embedded' alone; allowed with source {self.source!r}: network: {{grid: ...}}"
            )
        if self.source != "embedded" and set(self.sha256) != set(self.files):
            raise ValueError(f"sha256 must name the same files as files: {sorted(self.files)}")
        return self


class PromptSpec(Strict):
    """A prompt set: a UTF-8 text file, one prompt a line."""

    file: str = "prompts/scenes.txt"
    limit: int = Field(64, ge=1, le=100_000, description="prompts taken from the top of the file")
    repeats: int = Field(1, ge=1, le=1000, description="images per prompt, each with noise of its own")
    shards: int = Field(1, ge=1, le=1000, description="jobs the prompts are split over; changes no result")
    max_words: int = Field(23, ge=1, le=120, description="longest prompt the model's prefix holds")


class SamplingSpec(Strict):
    """The law that is sampled; the same for a decoder and its baseline."""

    guidance: float = Field(1.8, ge=0, le=50)
    temperature: float = Field(1.0, gt=0, le=10)
    top_k: int = Field(0, ge=0, description="0 keeps every token")
    top_p: float = Field(1.0, gt=0, le=1)


class Seeds(Strict):
    """Independent seeds: tests compare samples that share no noise."""

    reference: int = Field(0, ge=0, le=2**31, description="of plain sampling, the reference")
    control: int = Field(1, ge=0, le=2**31, description="of plain sampling again: the null row of every table")
    methods: int = Field(2, ge=0, le=2**31, description="of every other method")
    again: int = Field(3, ge=0, le=2**31, description="of the repetition, if `repeat` is on")

    @model_validator(mode="after")
    def _distinct(self):
        given = [self.reference, self.control, self.methods, self.again]
        if len(set(given)) < len(given):
            raise ValueError(f"reference, control, methods and again must differ, got {', '.join(map(str, given))}")
        return self


class EqualitySpec(Strict):
    """How much testing is done, and the margins, fixed before looking."""

    n: int = Field(100_000, ge=10_000, le=10**8, description="sequences per decoder and enumerable model")
    models: Literal["small", "full"] = "small"
    mutants: int = Field(10_000, ge=1000, le=10**8, description="sequences per planted fault")
    continuous: int = Field(5000, ge=1000, le=10**7, description="samples per continuous decoder and analytic target")
    anyorder: int = Field(
        10_000, ge=1000, le=10**7, description="sequences per any-subset decoder and enumerable model"
    )
    pathwise: int = Field(
        2, ge=1, le=10**6, description="images per coupled decoder, compared token for token with plain sampling"
    )
    calibration: int = Field(400, ge=100, le=10**6, description="null replicates for sizes and the QQ plot")
    alpha: float = Field(0.05, gt=0, lt=0.5)
    margin_tv: float = Field(
        0.02, gt=0, lt=1, description="certified lossless if the bound on total variation is below"
    )
    margin_clip: float = Field(0.02, gt=0, description="TOST margin on the mean CLIP cosine")
    margin_logp: float = Field(0.05, gt=0, description="TOST margin on the mean log-probability per token, nats")
    swaps: int = Field(499, ge=99, le=100_000, description="within-prompt swaps of the paired tests")
    seeds: list[int] = Field(
        [11, 12, 13, 14, 15, 16], min_length=2, description="a rejection is repeated on the next one"
    )


class FigureSpec(Strict):
    """A figure the experiment ends in, the paper's numbers beside ours."""

    title: str = Field(min_length=1, max_length=120)
    x: str = Field(
        description="a setting (method, model, sampling.<field>, an option) or a measure (a column of summary.csv)"
    )
    y: list[str] = Field(min_length=1, max_length=8, description="measures, a panel each")
    by: list[str] = Field(["method"], description="settings; each combination is a line of its own")
    where: dict[str, Any] = Field(
        {}, description="option: the value, or list of values, that is shown; methods without it stay"
    )
    paper: str = Field(
        "", description="the paper as in workflow/published, then its tables and figures, with commas between"
    )
    reading: str = Field("", max_length=1000, description="how to read the figure")


class TextModel(Strict):
    """The any-subset model and the judge: the embedded ones, or folders as transformers saves them. Nothing is downloaded."""

    xlnet: str = Field("", description="folder of an XLNetLMHeadModel with its tokenizer; '' for the embedded model")
    judge: str = Field("", description="folder of a GPT2LMHeadModel with its tokenizer; '' for the embedded judge")


class TextTask(Strict):
    rows: int = Field(32, ge=2, le=100_000, description="texts, stories, functions, passages or questions")
    data: str = Field(
        "", description="a file, or datasets:NAME[/CONFIG]:SPLIT; '' for the held-out part of the embedded grammar"
    )


class InfillingTask(TextTask):
    """Packed texts with a share of their words hidden (the paper's Tables 1, 4 to 9, 11)."""

    length: int = Field(128, ge=8, le=4096, description="tokens of a text")
    masked: float = Field(0.95, gt=0, lt=1, description="share of them that is hidden")
    prompt: Literal["scattered", "prefix"] = "scattered"

    @model_validator(mode="after")
    def _something(self):
        hidden = round(self.masked * self.length)
        if hidden == 0:
            raise ValueError(
                f"masked {self.masked} of length {self.length} hides no position; allowed: at least one hidden"
            )
        if hidden == self.length:
            raise ValueError(
                f"masked {self.masked} of length {self.length} hides every position; allowed: at least one known"
            )
        return self


class StoriesTask(TextTask):
    """Five-sentence stories: the third sentence hidden, or the three in the middle (Table 3)."""

    missing: Literal[1, 3] = 3
    attempts: int = Field(1, ge=1, le=100, description="completions per story, each with noise of its own")


class CodeTask(TextTask):
    """A function with one line hidden, judged by its unit tests in a sandbox (Table 2)."""

    attempts: int = Field(
        1, ge=1, le=100, description="completions per function, each with noise of its own; all of them count"
    )


class TextTasks(Strict):
    """Tasks, each a list of settings; the first three are decoded by every method, the others ask for the model's laws."""

    infilling: list[InfillingTask] = [InfillingTask()]
    stories: list[StoriesTask] = []
    code: list[CodeTask] = []
    last_word: list[TextTask] = []
    choice: list[TextTask] = []


class TextSpec(Strict):
    """The any-subset text experiment; a configuration without this section has none."""

    model: TextModel = TextModel()
    tasks: TextTasks = TextTasks()
    methods: dict[str, list[dict[str, Any]]] = Field(
        description="a method's variants: a list of option sets; {} for the defaults"
    )
    cache: list[bool] = Field(
        [True], min_length=1, max_length=2, description="keys and values kept; [true, false] compares both"
    )
    batch: int = Field(64, ge=1, le=4096, description="rows decoded at once; changes no result but rounding")
    run_generated_code: bool = Field(
        False, description="let the code task execute what a model wrote, in a sandbox; false skips pass@1"
    )


class ContinuousSamplingSpec(Strict):
    """How the heads of continuous models are sampled: part of what the target's law is, so the same for every method."""

    steps: int = Field(25, ge=2, le=1000, description="steps of a diffusion or flow trajectory, T; a mixture has none")
    sampler: Literal["ddpm", "ddim"] = Field("ddpm", description="of a diffusion head")
    eta: float = Field(
        1.0, gt=0, le=1, description="of ddim: the share of DDPM's noise; at 0 a trajectory has no density"
    )
    temperature: float = Field(1.0, gt=0, le=10, description="multiplies the deviation of every step")
    guidance: float = Field(1.0, ge=1, le=100)
    guidance_schedule: Literal["linear", "constant"] = Field(
        "linear", description="over the tokens of an image; mar has both, xar linear, harmon constant"
    )
    clip: float = Field(
        0.0,
        ge=0,
        le=1000,
        description="bound on a diffusion head's prediction of x_0 along the way: few steps need it; 0 is none, as published",
    )
    last: Literal["noise", "mean"] = Field(
        "noise", description="x_0 given x_1: the paper's Gaussian, or its mean as published samplers return"
    )


class ContinuousSpec(Strict):
    """The experiment on continuous tokens; a configuration without this section has none."""

    models: list[Literal["mar", "xar", "harmon", "gmm"]] = Field(["mar"], min_length=1)
    weights: str = Field(
        "", description="a folder that `python -m parity.continuous convert` wrote; '' for the embedded models"
    )
    images: int = Field(32, ge=2, le=100_000, description="per cell; classes and captions in turn")
    sampling: ContinuousSamplingSpec | list[ContinuousSamplingSpec] = ContinuousSamplingSpec()
    methods: dict[str, list[dict[str, Any]]] = Field(
        description="a method's variants: a list of option sets; {} for the defaults"
    )
    batch: list[int] = Field(
        [32], min_length=1, max_length=8, description="images decoded at once; several compare their speed"
    )
    forced: int = Field(
        256, ge=0, le=10**6, description="draws per condition of the teacher-forced tests; 0 leaves them out"
    )
    conditions: int = Field(
        6,
        ge=1,
        le=1000,
        description="conditions of the teacher-forced tests: images of plain sampling, cut at a random place",
    )


class Config(Strict):
    """One experiment."""

    experiment: Name = "default"
    models: dict[Name, ModelSpec] = Field({"scenes": ModelSpec()}, min_length=1)
    prompts: PromptSpec = PromptSpec()
    sampling: SamplingSpec | list[SamplingSpec] = SamplingSpec()
    methods: dict[str, list[dict[str, Any]]] = Field(
        description="a method's variants: a list of option sets; {} for the defaults"
    )
    seeds: Seeds = Seeds()
    repeat: bool = Field(
        False,
        description="decode every method once more on seeds.again, to confirm or clear what a layer on samples rejects",
    )
    dtype: Literal["float32", "float64", "bfloat16"] = "float32"
    batch: int = Field(32, ge=1, le=4096, description="images decoded at once; changes no result but rounding")
    reference_images: int = Field(512, ge=64, le=100_000, description="pictures the quality metrics compare with")
    reference_folder: str = Field("", description="PNG pictures to compare with, for models that are not embedded")
    equality: EqualitySpec = EqualitySpec()
    study: list[FigureSpec] = Field([], description="the figures the experiment ends in")
    text: TextSpec | None = None
    continuous: ContinuousSpec | None = None

    @field_validator("sampling")
    @classmethod
    def _some(cls, value):
        if isinstance(value, list) and not value:
            raise ValueError("needs at least one set of sampling settings")
        return value


def _allowed(error: Any) -> str:
    """What pydantic would have accepted, in a few words."""
    context, kind = error.get("ctx", {}), error["type"]
    if kind == "extra_forbidden":
        return "unknown key"
    if kind == "literal_error":
        return f"allowed: {context['expected']}"
    if kind == "missing":
        return "required"
    if kind in ("int_type", "float_type", "bool_type", "string_type", "int_from_float"):
        wanted = {
            "int_type": "a whole number",
            "int_from_float": "a whole number",
            "float_type": "a number",
            "bool_type": "true or false",
            "string_type": "text",
        }[kind]
        hint = ""
        if kind in ("int_type", "float_type") and isinstance(error["input"], str):
            try:
                number = float(error["input"])
                hint = f" (YAML reads {error['input']} as text: write {int(number) if kind == 'int_type' else f'{number:.1e}'}, unquoted)"
            except ValueError:
                pass
        return f"allowed: {wanted}{hint}"
    if kind == "model_type":
        return "allowed: a mapping of keys to values"
    return (
        error["msg"]
        .removeprefix("Value error, ")
        .replace("Input should be", "allowed:")
        .replace("String should", "allowed: text that should")
    )


def _validate(schema: type[BaseModel], value: Any, where: str) -> BaseModel:
    try:
        return schema.model_validate(value)
    except ValidationError as problem:
        error = problem.errors()[0]
        path = ".".join(
            str(p) for p in error["loc"] if not (isinstance(p, str) and p.endswith("Spec")) and "[" not in str(p)
        )
        key = ".".join(x for x in (where, path) if x) or "config"
        shown = "" if error["type"] == "missing" else f" = {error['input']!r}"[:120]
        names = ""
        if error["type"] == "extra_forbidden":
            names = f"; allowed: {', '.join(_fields(schema, error['loc'][:-1])) or 'no options'}"
        raise ConfigError(f"{key}{shown}: {_allowed(error)}{names}") from None


def _fields(schema: type[BaseModel], loc: tuple) -> list[str]:
    """Names allowed at a place inside a schema."""
    for part in loc:
        if isinstance(schema, type) and issubclass(schema, BaseModel) and part in schema.model_fields:
            kind = schema.model_fields[part].annotation
            choices = [kind, *getattr(kind, "__args__", ())]
            nested = [c for c in choices if isinstance(c, type) and issubclass(c, BaseModel)]
            schema = nested[0] if nested else schema
    return list(schema.model_fields)


@cache
def methods() -> tuple[str, ...]:
    """Names of the decoder modules."""
    return tuple(sorted(p.stem for p in DECODERS.glob("*.py") if p.stem != "__init__"))


@cache
def text_methods() -> tuple[str, ...]:
    """Names of the any-subset decoder modules."""
    return tuple(sorted(p.stem for p in TEXT_DECODERS.glob("*.py") if p.stem != "__init__"))


@cache
def continuous_methods() -> tuple[str, ...]:
    """Names of the continuous decoder modules."""
    return tuple(sorted(p.stem for p in CONTINUOUS_DECODERS.glob("*.py") if p.stem != "__init__"))


@cache
def _source(method: str) -> ast.Module:
    folder = (
        TEXT_DECODERS
        if method in text_methods()
        else CONTINUOUS_DECODERS
        if method in continuous_methods()
        else DECODERS
    )
    return ast.parse((folder / f"{method}.py").read_text(encoding="utf-8"))


def _constant(method: str, name: str) -> Any:
    """The value of a literal that a method's module assigns, or None."""
    for node in _source(method).body:
        target = (
            node.targets[0]
            if isinstance(node, ast.Assign)
            else node.target
            if isinstance(node, ast.AnnAssign)
            else None
        )
        if (
            getattr(target, "id", "") == name
            and isinstance(node, ast.Assign | ast.AnnAssign)
            and node.value is not None
        ):
            return ast.literal_eval(node.value)
    return None


def claim(method: str, given: dict[str, Any] | None = None) -> str:
    """What the method's paper says of its law, as its module declares: "lossless" or "lossy".

    CLAIM is the method's; EXACT_WITH, where there is one, names the options at whose stated value alone a lossless claim is made.
    """
    found = _constant(method, "CLAIM")
    if found not in ("lossless", "lossy"):
        raise ConfigError(f"src/parity/decoders/{method}.py: declares CLAIM = {found!r}; allowed: 'lossless', 'lossy'")
    exact_with = _constant(method, "EXACT_WITH") or {}
    return "lossy" if any((given or {}).get(k, v) != v for k, v in exact_with.items()) else found


def coupled(method: str, given: dict[str, Any]) -> bool:
    """Whether a variant shares plain sampling's noise position by position, and must return its tokens: COUPLED_WITH names the options."""
    needs = _constant(method, "COUPLED_WITH")
    return needs is not None and all(given.get(k) == v for k, v in needs.items())


@cache
def option_schema(method: str) -> type[BaseModel]:
    """The options of a method: keyword-only arguments but `noise`, from the signature in its source."""
    found = [n for n in _source(method).body if isinstance(n, ast.FunctionDef) and n.name == method]
    if not found:
        raise ConfigError(f"src/parity/decoders/{method}.py: has no function {method}(model, start, *, noise, ...)")
    names = {
        "Annotated": Annotated,
        "Literal": Literal,
        "Field": Field,
        "int": int,
        "float": float,
        "bool": bool,
        "str": str,
    }
    fields: dict[str, Any] = {}
    for argument, default in zip(found[0].args.kwonlyargs, found[0].args.kw_defaults, strict=True):
        if argument.arg != "noise" and argument.annotation is not None and default is not None:
            kind = eval(
                compile(ast.Expression(argument.annotation), method, "eval"), {"__builtins__": {}}, names
            )  # our own source
            fields[argument.arg] = (kind, ast.literal_eval(default))
    return create_model(f"{method}_options", __config__=ConfigDict(extra="forbid", strict=True), **fields)


def options(method: str, given: dict[str, Any], where: str = "") -> dict[str, Any]:
    """A variant's options, complete with defaults; ConfigError for one that does not apply or is out of range."""
    return _validate(option_schema(method), given, where or f"methods.{method}").model_dump()


def needs(method: str) -> str:
    """The companion of the target that a method needs, as its module declares in NEEDS: "drafter", "draft" or none."""
    return _constant(method, "NEEDS") or ""


def embedded_files(spec: ModelSpec) -> dict[str, str]:
    """The weights of an embedded model by what they are, in the order of SHA256SUMS; `llamagen` is the transformer whatever its grid."""
    transformer = "llamagen" if spec.grid == 16 else f"llamagen{spec.grid}"
    return {
        part: f"{transformer if part == 'llamagen' else part}.safetensors" for part in ("vq", "t5", "llamagen", "clip")
    }


@cache
def _header(file: Path) -> dict[str, Any]:
    """The configuration in the header of a safetensors file; {} if there is none, or no file."""
    try:
        with file.open("rb") as stream:
            return json.loads(
                json.loads(stream.read(int.from_bytes(stream.read(8), "little")))["__metadata__"]["config"]
            )
    except (OSError, ValueError, KeyError, MemoryError, OverflowError):
        return {}


def _network(spec: ModelSpec) -> dict[str, Any]:
    """A transformer's configuration, as far as it is known before the file is to hand."""
    if spec.source != "embedded":
        return {"grid": 16, "vocab": 16384, **spec.network}
    return {"grid": spec.grid, "vocab": 1024} | _header(EMBEDDED / embedded_files(spec)["llamagen"])


def largest(spec: ModelSpec) -> dict[str, int]:
    """The largest value a model admits of an option: no window longer than the sequence, no lead longer than a row, no group larger than the
    codebook."""
    grid, vocab = int(_network(spec)["grid"]), int(_network(spec)["vocab"])
    return {"window": grid**2, "ahead": grid, "group": vocab, "k": vocab - 1, "top_k": vocab}


def _check_trained(model: str, spec: ModelSpec) -> None:
    """ConfigError for an embedded model of a size that was not trained here."""
    file = embedded_files(spec)["llamagen"]
    if spec.source == "embedded" and spec.grid != 16 and not (EMBEDDED / file).exists():
        raise ConfigError(
            f"models.{model}.grid = {spec.grid}: {file} is missing; allowed: 16, or make it with"
            f" `python -m parity.embedded.recipe llamagen{spec.grid}`, or all with `snakemake train_embedded`"
        )


def check_companion(model: str, spec: ModelSpec, file: Path, part: str) -> None:
    """ConfigError for a drafter or draft model that was trained for another target. A draft model fits every target of its size."""
    found, network = _header(file), _network(spec)
    wanted = {"vocab": network["vocab"], "grid": network["grid"]}
    if part == "drafter":
        wanted["target"] = (
            sums(EMBEDDED).get("llamagen.safetensors") if spec.source == "embedded" else spec.sha256.get("transformer")
        )
    for key, value in wanted.items():
        if found.get(key) != value:
            what = "the SHA-256 of its target" if key == "target" else f"its {key}"
            raise ConfigError(
                f"models.{model}: {part} {file.name} was trained for another target: {what} is {str(found.get(key))[:16]}; allowed: {str(value)[:16]}"
            )


def _check_needs(method: str, model: str, spec: ModelSpec) -> None:
    """ConfigError if a method needs a companion that a model does not have, or that is another model's."""
    part = needs(method)
    if not part:
        return
    named = next((file for key, file in spec.files.items() if key == part), "")
    file = EMBEDDED / f"{part}.safetensors" if spec.source == "embedded" else Path(named)
    if spec.source == "embedded" and spec.grid != 16:
        raise ConfigError(
            f"methods.{method}: models.{model}.grid = {spec.grid} has no {part}; allowed: 16, or source files"
        )
    if spec.source == "embedded" and not file.exists():
        raise ConfigError(
            f"methods.{method}: models.{model} has no {part} yet: {file.name} is missing; make it with"
            f" `python -m parity.embedded.recipe {part}`, or all with `snakemake train_embedded`"
        )
    if spec.source != "embedded" and not named:
        raise ConfigError(
            f"methods.{method}: models.{model}.files = {sorted(spec.files)}: needs a {part} trained for this model"
        )
    if spec.source != "hub":  # else it is checked when it has been downloaded
        check_companion(model, spec, file, part)


def load(raw: dict[str, Any]) -> Config:
    """The configuration from its YAML, checked."""
    value = _validate(Config, raw, "")
    assert isinstance(value, Config)
    if "ar" not in value.methods:
        raise ConfigError(
            f"methods = {sorted(value.methods)}: needs ar, the baseline that every other method is compared with"
        )
    for model, spec in value.models.items():
        _check_trained(model, spec)
    for method, variants in value.methods.items():
        if method not in methods():
            raise ConfigError(f"methods.{method}: unknown method; allowed: {', '.join(methods())}")
        if not variants:
            raise ConfigError(
                f"methods.{method} = []: no variant; allowed: a list of option sets, [{{}}] for the defaults"
            )
        for model, spec in value.models.items():
            _check_needs(method, model, spec)
        seen: dict[str, int] = {}
        for i, variant in enumerate(variants):
            complete = options(method, variant, f"methods.{method}.{i}")
            for model, spec in value.models.items():
                for key, limit in largest(spec).items():
                    if complete.get(key, 0) > limit:
                        raise ConfigError(
                            f"methods.{method}.{i}.{key} = {complete[key]}: allowed: at most {limit} with models.{model}"
                        )
            text = canonical(complete)
            if text in seen:
                raise ConfigError(
                    f"methods.{method}.{i} = {variant}: the same variant as methods.{method}.{seen[text]}"
                )
            seen[text] = i
    if value.text is not None:
        check_text(value.text)
    if value.continuous is not None:
        from parity.experiment.continuous import check_continuous

        check_continuous(value.continuous)
    samplings = value.sampling if isinstance(value.sampling, list) else [value.sampling]
    if len({canonical(s.model_dump()) for s in samplings}) < len(samplings):
        raise ConfigError(f"sampling = {[s.model_dump() for s in samplings]}: a set of settings is given twice")
    specs = [c["spec"] for c in cells(value, []) if c["role"] in ("reference", "method")]
    for i, figure in enumerate(value.study):
        if found := study.problem(figure, specs):
            raise ConfigError(f"study.{i}.{found[0]}: allowed: {found[1]}")
        if slug(figure.title) in [slug(f.title) for f in value.study[:i]]:
            raise ConfigError(f"study.{i}.title = {figure.title!r}: given twice; allowed: one figure of a title")
    return value


def slug(title: str) -> str:
    """A title as part of a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def check_sources(value: Config, published: list[Path]) -> None:
    """ConfigError for a figure whose paper, or table, is not among the published numbers."""
    rows = [row for file in published for row in csv.DictReader(file.open(encoding="utf-8"))]
    for i, figure in enumerate(value.study):
        if figure.paper and (allowed := study.unknown_source(figure.paper, rows)):
            raise ConfigError(f"study.{i}.paper = {figure.paper!r}: allowed: {allowed}")


def check_text(text: TextSpec) -> None:
    """ConfigError for what the text section's schema alone cannot see: methods, their options, data files that are not there."""
    if "sequential" not in text.methods:
        raise ConfigError(
            f"text.methods = {sorted(text.methods)}: needs sequential, the baseline of every other method"
        )
    for method, variants in text.methods.items():
        if method not in text_methods():
            raise ConfigError(f"text.methods.{method}: unknown method; allowed: {', '.join(text_methods())}")
        if not variants:
            raise ConfigError(
                f"text.methods.{method} = []: no variant; allowed: a list of option sets, [{{}}] for the defaults"
            )
        seen: dict[str, int] = {}
        for i, variant in enumerate(variants):
            complete = canonical(options(method, variant, f"text.methods.{method}.{i}"))
            if complete in seen:
                raise ConfigError(
                    f"text.methods.{method}.{i} = {variant}: the same variant as text.methods.{method}.{seen[complete]}"
                )
            seen[complete] = i
    for kind in TextTasks.model_fields:
        for i, task in enumerate(getattr(text.tasks, kind)):
            if task.data and not task.data.startswith("datasets:") and not Path(task.data).is_file():
                raise ConfigError(f"text.tasks.{kind}.{i}.data = {task.data!r}: no such file")
    if "gpt2" in text.methods and not any(t.prompt == "prefix" for t in text.tasks.infilling):
        raise ConfigError(
            "text.methods.gpt2: reads from left to right; allowed: with an infilling task whose prompt is 'prefix'"
        )
    if len(set(text.cache)) < len(text.cache):
        raise ConfigError(f"text.cache = {text.cache}: a value is given twice")


def text_revision(model: TextModel) -> str:
    """What identifies the text models' weights: the digest of the embedded list, or of the files of the folders."""
    if model.xlnet and model.judge:
        folders = [sorted(Path(f).glob("*.safetensors")) for f in (model.xlnet, model.judge)]
        return digest([[hashlib.sha256(p.read_bytes()).hexdigest() for p in files] for files in folders])
    if model.xlnet or model.judge:
        missing = "judge" if model.xlnet else "xlnet"
        raise ConfigError(f"text.model.{missing} = '': allowed: both folders, or neither")
    lock = EMBEDDED.parent / "anysubset" / "SHA256SUMS"
    return hashlib.sha256(lock.read_bytes()).hexdigest()[:8] if lock.exists() else "untrained"


def text_tasks(text: TextSpec) -> list[dict[str, Any]]:
    """Every task of the experiment: kind, settings, and the digest of both with that of its data."""
    found = []
    for kind in TextTasks.model_fields:
        for task in getattr(text.tasks, kind):
            settings = task.model_dump()
            file = Path(task.data)
            content = hashlib.sha256(file.read_bytes()).hexdigest() if task.data and file.is_file() else ""
            found.append(
                {
                    "kind": kind,
                    "settings": settings,
                    "key": digest([kind, settings, content, text_revision(text.model)]),
                }
            )
    return found


def text_cells(config: Config) -> list[dict[str, Any]]:
    """Every cell of the text experiment, as `cells`: sequential decoding twice, under independent seeds, everything else once; each once
    more with `repeat`."""
    text = config.text
    if text is None:
        return []
    found = []
    for task in text_tasks(text):
        if task["kind"] not in ("infilling", "stories", "code"):
            continue
        prefix = task["settings"].get("prompt") == "prefix"
        for method, variants in text.methods.items():
            if method == "gpt2" and not prefix:
                continue
            for variant in variants:
                for kept in text.cache:
                    roles = [("method", config.seeds.methods)]
                    if method == "sequential":
                        roles = [("reference", config.seeds.reference), ("control", config.seeds.control)]
                    if config.repeat:
                        roles.append(("again", config.seeds.again))
                    for role, seed in roles:
                        spec = {
                            "model": text_revision(text.model), "task": task["key"], "kind": task["kind"], "method": method,
                            "options": options(method, variant), "cache": kept, "seed": seed, "batch": text.batch,
                        }  # fmt: skip
                        found.append(
                            {"spec": spec, "key": digest(spec), "role": role, "cell": f"{method}-{digest(spec)}"}
                        )
    return found


def read_prompts(spec: PromptSpec, root: Path = Path()) -> list[str]:
    """The prompts of a set; ConfigError for a file that is missing, empty, not UTF-8, or holds a prompt that is too long."""
    path = root / spec.file
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"prompts.file = {spec.file!r}: no such file") from None
    except (IsADirectoryError, PermissionError) as error:
        raise ConfigError(f"prompts.file = {spec.file!r}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"prompts.file = {spec.file!r}: not UTF-8 at byte {error.start}; allowed: UTF-8 text, one prompt a line"
        ) from None
    prompts = [line.strip() for line in text.splitlines() if line.strip()][: spec.limit]
    if not prompts:
        raise ConfigError(f"prompts.file = {spec.file!r}: holds no prompt; allowed: one prompt a line")
    for number, prompt in enumerate(prompts, 1):
        if len(prompt.split()) > spec.max_words:
            raise ConfigError(
                f"prompts.file = {spec.file!r}: prompt {number} ({prompt[:40]!r}...) has {len(prompt.split())} words; allowed: at most {spec.max_words}"
            )
    if len(prompts) < spec.limit and "limit" in spec.model_fields_set:
        raise ConfigError(
            f"prompts.limit = {spec.limit}: {spec.file!r} holds {len(prompts)} prompts; allowed: at most that"
        )
    if len(prompts) * spec.repeats < spec.shards:
        raise ConfigError(
            f"prompts.shards = {spec.shards}: more than the {len(prompts) * spec.repeats} images; allowed: at most that"
        )
    return prompts


def prompt_digest(prompts: list[str]) -> str:
    return hashlib.sha256("\n".join(prompts).encode()).hexdigest()[:16]


def revision(spec: ModelSpec) -> str:
    """What identifies a model's weights: the digest of its files' digests."""
    if spec.source != "embedded":
        return digest([spec.revision, spec.network, spec.sha256])
    lock, wanted = EMBEDDED / "SHA256SUMS", embedded_files(spec).values()
    if not lock.exists():
        return "untrained"
    lines = [line for line in lock.read_text().splitlines() if line.split()[-1] in wanted]
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()[:8]


def cells(config: Config, prompts: list[str]) -> list[dict[str, Any]]:
    """Every cell of the experiment: its specification, its key, and its role: reference, control, method, or again (the last's repetition).

    The key is a digest of what the samples depend on, and of nothing else: not of shards, batch, or the experiment's name.
    """
    found = []
    samplings = config.sampling if isinstance(config.sampling, list) else [config.sampling]
    for (name, model), sampling in itertools.product(config.models.items(), samplings):
        shared = {
            "model": name,
            "revision": revision(model),
            "prompts": prompt_digest(prompts),
            "repeats": config.prompts.repeats,
            "sampling": sampling.model_dump(),
            "dtype": config.dtype,
        }
        for method, variants in config.methods.items():
            part = needs(method)  # the files of a published model are all in its revision
            companion = (
                {part: sums(EMBEDDED).get(f"{part}.safetensors", "")[:16]}
                if part and model.source == "embedded"
                else {}
            )
            for variant in variants:
                chosen = options(method, variant)
                roles = [("method", config.seeds.methods)]
                if method == "ar":
                    roles = [("reference", config.seeds.reference), ("control", config.seeds.control)]
                if config.repeat:
                    roles.append(("again", config.seeds.again))
                for role, seed in roles:
                    spec = {**shared, **companion, "method": method, "options": chosen, "seed": seed}
                    found.append(
                        {"spec": spec, "key": digest(spec), "role": role, "cell": f"{name}/{method}-{digest(spec)}"}
                    )
    return found


def schema() -> dict[str, Any]:
    """JSON schema of config.yaml, each method's options included; workflow/schemas/config.schema.json is this, and a test says so."""
    top = Config.model_json_schema()
    variants = {}
    for method in methods():
        variant = option_schema(method).model_json_schema()
        variant["description"] = inspect.cleandoc(ast.get_docstring(_source(method)) or "")
        variants[method] = {"type": "array", "items": variant, "minItems": 1}
    top["properties"]["methods"] = {
        "type": "object",
        "properties": variants,
        "additionalProperties": False,
        "required": ["ar"],
    }
    text = top["$defs"]["TextSpec"]["properties"]["methods"]
    text["properties"] = {
        m: {"type": "array", "items": option_schema(m).model_json_schema(), "minItems": 1} for m in text_methods()
    }
    text |= {"additionalProperties": False, "required": ["sequential"]}
    vectors = top["$defs"]["ContinuousSpec"]["properties"]["methods"]
    vectors["properties"] = {
        m: {"type": "array", "items": option_schema(m).model_json_schema(), "minItems": 1} for m in continuous_methods()
    }
    vectors |= {"additionalProperties": False, "required": ["mar"]}
    top["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return top
