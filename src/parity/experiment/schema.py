"""What a configuration may say. A value against its schema is taken, or refused in one line: key, value, allowed.

The descriptions of the fields are the reference of the configuration (docs/reference/configuration.md).
"""

import datetime
import math
import re
import reprlib
from typing import Annotated, Any, Literal, TypeVar

from parity_certify.seeding import LARGEST_SEED
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from parity.base.errors import ConfigError

CLASSES = "classes:"  # prefix, in place of a prompt file's name, for class labels, which need no file
HUB = "hub:"  # prefix of owner/name@commit[:path], a file in a repository of its own
OWNER = r"(?P<repo>[^/@:\s]+/[^/@:\s]+)"
PINNED = re.compile(rf"{HUB}{OWNER}@(?P<commit>[0-9a-f]{{40}})(:(?P<path>[^:]+))?")


def check_path(text: str) -> str:
    """Return a path that a file system can hold and Snakemake can use. Raises ValueError for any other."""
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        raise ValueError("allowed: a path in characters that UTF-8 has") from None
    if not text.isprintable():
        raise ValueError("allowed: a path without control characters")
    if set(text) & set("{}"):
        raise ValueError("allowed: a path without { and }, which Snakemake takes for wildcards")
    if len(encoded) > 4000 or any(len(name) > 255 for name in encoded.split(b"/")):
        raise ValueError("allowed: a path of at most 4000 bytes, and 255 between two slashes")
    return text


def check_distinct(values: Any) -> Any:
    """Return the value. Raises ValueError for a list that has a value twice; anything else passes."""
    if isinstance(values, list) and any(value in values[:i] for i, value in enumerate(values)):
        raise ValueError("a value is given twice")
    return values


def check_sampling(value: Any) -> Any:
    """Return the value, sampling settings or a list of them. Raises ValueError for an empty list."""
    if value == []:
        raise ValueError("needs at least one set of sampling settings")
    return value


# YAML reads `on` and `off` as true and false; options of type Word turn these back into words.
Word = BeforeValidator(lambda value: ("off", "on")[value] if isinstance(value, bool) else value)
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$", max_length=64)]
Hex64 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Commit = Annotated[str, Field(pattern=r"^([0-9a-f]{40})?$")]
Part = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=32)]  # a model's family names its parts
File = Annotated[str, AfterValidator(check_path)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
Batch = Annotated[int, Field(ge=1, le=4096)]
Scalar = str | int | float | bool | None


def check_guidance(value: Any) -> Any:
    """Return a scale of guidance. Raises ValueError if it is below 1: there some authors' code gives the model without
    guidance, as at 1, and others' mixes in, or gives at 0, the model without a caption."""
    if isinstance(value, int | float) and value < 1:
        raise ValueError("allowed: 1, which is no guidance, or more (below 1 authors' codes differ)")
    return value


Guidance = Annotated[float, BeforeValidator(check_guidance)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ModelSpec(Strict):
    """A model: an embedded one, or published files by repository, commit and SHA-256, or by their paths here."""

    family: str = Field(description="a module of src/parity/models/*/ that declares FAMILY; it says the model's kind")
    source: Literal["embedded", "hub", "files"] = "embedded"
    grid: Literal[8, 16] = Field(16, description="embedded llamagen: tokens a side, four pixels each")
    repo: str = Field("", description="hub: owner/name")
    revision: Commit = Field("", description="hub: the 40-hex commit; a branch would move")
    files: dict[Part, File] = Field(
        {},
        description="the parts that the family names. hub: a path in the repository, or hub:owner/name@commit:path in"
        " another; files: a path here",
    )
    sha256: dict[Part, Hex64] = Field({}, description="of a file, or of a folder's weights file by file")
    folder: File = Field("", description="continuous: a folder that `python -m parity.models convert` wrote")
    stand_in: str = Field("", description="the stand-in that `stand_in: true` takes; '' for the family's")
    network: dict[str, int | float] = Field({}, description="published: sizes that differ from the family's")
    methods: Annotated[list[str], AfterValidator(check_distinct)] = Field(
        [], description="text: those of the section that run on it; []: all that its family runs"
    )

    @model_validator(mode="after")
    def _complete_files(self):
        """Raise ValueError unless the keys of a model fit its source. Returns the model itself."""
        elsewhere = [file for file in self.files.values() if file.startswith(HUB)]
        if self.source == "hub" and not (self.repo and self.revision) and len(elsewhere) < max(len(self.files), 1):
            raise ValueError("source 'hub' needs repo and revision")
        if self.source != "embedded" and "grid" in self.model_fields_set:
            raise ValueError(
                f"grid is of source 'embedded' alone; allowed with source {self.source!r}: network: {{grid: ...}}"
            )
        if self.source == "embedded" and (self.files or self.folder or self.repo):
            raise ValueError("source 'embedded' has no files of its own; allowed with files: source 'hub' or 'files'")
        if unknown := set(self.sha256) - set(self.files):
            raise ValueError(f"sha256 must name the same files as files: {sorted(self.files)}, not {sorted(unknown)}")
        return self


class PromptSpec(Strict):
    """A prompt set: a UTF-8 file of one of these formats, or class labels in turn (`file: classes:1000`)."""

    file: File = "prompts/scenes.txt"
    format: Literal["auto", "lines", "tsv", "csv", "jsonl", "coco", "parti", "dpg", "labels"] = Field(
        "auto",
        description="auto: by the suffix (.json is coco), an unknown one is refused; parti: PartiPrompts.tsv;"
        " dpg: dpg_bench.csv; labels: a number a line",
    )
    column: str = Field(
        "", max_length=200, description="the prompt's, of a table or JSON lines; '': prompt, caption or text"
    )
    caption: Literal["first", "longest", "sjd"] = Field(
        "first", description="coco: which of an image's captions; sjd: as the SJD repository picks one"
    )
    limit: int = Field(
        64, ge=1, le=100_000, description="prompts taken from the top; the default takes fewer from a shorter file"
    )
    sample: Seed | None = Field(None, description="seed of a random subset of `limit` prompts; null: the first ones")
    repeats: int = Field(1, ge=1, le=1000, description="images per prompt, each with noise of its own")
    shards: int = Field(1, ge=1, le=100_000, description="parts, each kept as soon as it is decoded; changes no result")
    jobs: int = Field(64, ge=1, le=1000, description="at most this many jobs decode a cell's shards; changes no result")
    max_words: int = Field(23, ge=1, le=120, description="longest prompt of embedded models; others cut prompts")


class NetworkSpec(Strict):
    """A published network that a metric asks, as one file or folder of its repository, at an address or of this
    machine. It is verified before anything reads it; no library fetches it."""

    file: File = Field(
        description="its weights, or a folder of weights and configuration; with repo: a path in it; or https://host/file"
    )
    sha256: Hex64
    repo: str = Field("", description="owner/name; '' for a file here")
    revision: Commit = Field("", description="the 40-hex commit; a branch would move")
    architecture: str = Field(
        "",
        pattern=r"^[A-Za-z0-9_.-]*$",
        max_length=64,
        description="open_clip's name of what a single file holds; OpenAI's weights are a -quickgelu one;"
        " '' for the protocol's",
    )

    @model_validator(mode="after")
    def _check_repo(self):
        if bool(self.repo) != bool(self.revision):
            raise ValueError("repo and revision go together; allowed: both, or neither for a file here")
        if self.repo and "://" in self.file:
            raise ValueError(f"file = {self.file!r} with repo; allowed: an address alone, or a path in the repository")
        return self


class Networks(Strict):
    """Networks that judge images of published models; a metric whose network is not named here says so. Without this
    key they are the protocol's, if one is named."""

    clip: NetworkSpec | None = Field(None, description="CLIP-score: an open_clip network")
    inception: NetworkSpec | None = Field(
        None, description="FID, KID, IS, precision and recall: pt_inception-2015-12-05-6726825d.pth"
    )
    vgg16: NetworkSpec | None = Field(
        None, description="precision and recall of protocol lantern: torchvision's vgg16-397923af.pth"
    )
    clip_vision: NetworkSpec | None = Field(None, description="CMMD: an open_clip network, of which images are read")
    hps: NetworkSpec | None = Field(None, description="HPSv2: ViT-H-14 with HPS_v2.1_compressed.pt")
    pickscore: NetworkSpec | None = Field(None, description="PickScore: a folder of transformers' CLIP")

    def list_named(self) -> dict[str, NetworkSpec]:
        """List the networks that are declared, by name."""
        return {name: spec for name, spec in self if spec is not None}


class SamplingSpec(Strict):
    """The distribution that is sampled; the same for a decoder and its baseline."""

    guidance: Guidance = Field(1.8, ge=1, le=50, description="scale s of u + s (c - u); 1: none")
    temperature: float = Field(1.0, gt=0, le=10)
    top_k: int = Field(0, ge=0, description="0 keeps every token")
    top_p: float = Field(1.0, gt=0, le=1)


class HeadSpec(Strict):
    """How heads of continuous models are sampled: part of what the target's distribution is, so the same for every
    method."""

    steps: int = Field(25, ge=2, le=1000, description="steps of a diffusion or flow trajectory, T; a mixture has none")
    sampler: Literal["ddpm", "ddim"] = Field("ddpm", description="of a diffusion head")
    eta: float = Field(1.0, gt=0, le=1, description="ddim: share of DDPM's noise; at 0 a trajectory has no density")
    temperature: float = Field(1.0, gt=0, le=10, description="multiplies the deviation of every step")
    guidance: Guidance = Field(1.0, ge=1, le=100, description="scale s of u + s (c - u); 1: none")
    guidance_schedule: Literal["linear", "constant"] = Field(
        "linear", description="over the tokens of an image; mar has both, xar linear, harmon constant"
    )
    clip: float = Field(0.0, ge=0, le=1000, description="bound on a diffusion head's x_0, for few steps; 0: none")
    last: Literal["noise", "mean"] = Field(
        "noise", description="x_0 given x_1: a draw of the paper's Gaussian, or its mean as published samplers return"
    )


class Seeds(Strict):
    """Independent seeds: tests compare samples that share no noise."""

    reference: Seed = Field(0, description="of plain decoding, the reference")
    control: Seed = Field(1, description="of plain decoding again: the null row of every table")
    methods: Seed = Field(2, description="of every other method")
    again: Seed = Field(3, description="of the repetition, if `repeat` is on")

    @model_validator(mode="after")
    def _check_distinct(self):
        """Raise ValueError if two of the seeds are equal. Returns the seeds themselves."""
        seeds = [self.reference, self.control, self.methods, self.again]
        if len(set(seeds)) < len(seeds):
            raise ValueError(f"reference, control, methods and again must differ, got {', '.join(map(str, seeds))}")
        return self


MARGIN = 0.02  # of TV, of an experiment and of `parity certify decoder`: 100,000 draws bring a correct one below it


class EqualitySpec(Strict):
    """How much testing is done, and the margins, fixed before looking."""

    n: int = Field(
        100_000,
        ge=10_000,
        le=10**8,
        description="sequences per decoder and enumerable model; of methods that claim to be lossy a fifth",
    )
    models: Literal["small", "full"] = Field("small", description="enumerable models of discrete decoders")
    long: int = Field(
        65_536,
        ge=0,
        le=10**9,
        description="tokens per decoder and long model; of methods that claim to be lossy a fifth; 0: no such tests",
    )
    pathwise: int = Field(2, ge=1, le=10**6, description="images per coupled decoder, compared token for token")
    alpha: float = Field(
        0.05,
        ge=0.001,
        lt=0.5,
        description="level of every test, bound and verdict; below .05 a fault must be larger to be found, and tests"
        " against a Monte-Carlo null take as many times longer. Self-tests, and intervals of quality and speed, stay at"
        " .05",
    )
    margin_tv: float = Field(MARGIN, gt=0, lt=1, description="certified lossless if the bound on TV is below")
    margin_clip: float = Field(0.02, gt=0, description="TOST margin on the mean CLIP cosine")
    margin_logp: float = Field(0.05, gt=0, description="TOST margin on the mean log-probability per token, nats")
    swaps: int = Field(499, ge=99, le=100_000, description="within-prompt swaps of the paired tests")
    seeds: list[Seed] = Field([11, 12, 13, 14, 15, 16], min_length=2, description="a rejection is repeated on the next")


class FigureSpec(Strict):
    """A figure the experiment ends in, the paper's numbers beside ours."""

    title: str = Field(min_length=1, max_length=120)
    x: str = Field(description="a setting (method, model, sampling.<field>, an option) or a metric's figure")
    y: list[str] = Field(min_length=1, max_length=8, description="figures of metrics, a panel each")
    by: list[str] = Field(["method"], description="settings; each combination is a line of its own")
    where: dict[str, Scalar | list[Scalar]] = Field({}, description="option: values shown; methods without it stay")
    paper: str = Field("", description="the paper as in workflow/published, then its tables and figures, with commas")
    reading: str = Field("", max_length=1000, description="how to read the figure")


class TextTask(Strict):
    rows: int = Field(32, ge=2, le=100_000, description="texts, stories, functions, passages or questions")
    data: File = Field("", description="a file, or datasets:NAME[/CONFIG]:SPLIT; '' for the embedded grammar's own")


class InfillingTask(TextTask):
    """Packed texts with a share of their words hidden (the paper's Tables 1, 4 to 9, 11)."""

    length: int = Field(128, ge=8, le=4096, description="tokens of a text")
    masked: float = Field(0.95, gt=0, lt=1, description="share of them that is hidden")
    prompt: Literal["scattered", "prefix"] = "scattered"

    @model_validator(mode="after")
    def _check_hidden(self):
        """Raise ValueError if the share hides all positions of a text, or none. Returns the task itself."""
        hidden = round(self.masked * self.length)
        share = f"masked {self.masked} of length {self.length}"
        if hidden == 0:
            raise ValueError(f"{share} hides no position; allowed: at least one hidden")
        if hidden == self.length:
            raise ValueError(f"{share} hides every position; allowed: at least one known")
        return self


class StoriesTask(TextTask):
    """Five-sentence stories: the third sentence hidden, or the three in the middle (Table 3)."""

    missing: Literal[1, 3] = 3
    attempts: int = Field(1, ge=1, le=100, description="completions per story, each with noise of its own")


class CodeTask(TextTask):
    """A function with one line hidden, judged by its unit tests in a sandbox (Table 2)."""

    attempts: int = Field(1, ge=1, le=100, description="completions per function, each with noise of its own")


class TextTasks(Strict):
    """Tasks, each a list of settings: the first three are decoded by every method, the others ask for distributions."""

    infilling: list[InfillingTask] = [InfillingTask()]
    stories: list[StoriesTask] = []
    code: list[CodeTask] = []
    last_word: list[TextTask] = []
    choice: list[TextTask] = []

    def count_fewest(self) -> int:
        """Count the texts of the smallest of the tasks that methods decode; 1 without such a task."""
        decoded = [task for kind in DECODED for task in getattr(self, kind)]
        return min((task.rows * getattr(task, "attempts", 1) for task in decoded), default=1)


DECODED = ("infilling", "stories", "code")  # text tasks that methods decode
# those that ask for the model's distributions
ASKED = tuple(name for name in TextTasks.model_fields if name not in DECODED)


class Section(Strict):
    methods: dict[str, list[dict[str, Any]]] = Field(description="a method's variants, sets of options; {}: defaults")
    study: list[FigureSpec] = Field([], description="the figures the experiment ends in")


class ShardedSection(Section):
    """A section whose cells are decoded in parts; images of tokens have them in `prompts`."""

    shards: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="parts of a cell, each kept as soon as it is decoded; null: one job, which keeps every four"
        " batches. Changes no result but rounding",
    )
    jobs: int = Field(
        64, ge=1, le=1000, description="at most this many jobs decode a cell's shards; changes no result but rounding"
    )


class TrainingSpec(Strict):
    """How a speculator of a model of image tokens is trained, by `parity train` and the target `speculators`."""

    steps: int = Field(4000, ge=1, le=1_000_000, description="at most; training ends sooner once it no longer pays")
    batch: int = Field(8, ge=1, le=4096, description="rows a step")
    images: int = Field(8192, ge=1, le=1_000_000, description="rows that the model draws, at most")
    drawn: int = Field(32, ge=1, le=4096, description="rows that are drawn at once")
    layers: int = Field(0, ge=0, le=1000, description="draft: of the target's; 0: a quarter of them")
    width: int = Field(0, ge=0, le=65536, description="draft: narrower than the target; 0: as wide")
    minutes: float = Field(1e6, gt=0, le=1e6, description="training ends after this many")


class ImageSection(Section):
    """The experiment on image tokens: models of kind `discrete`."""

    prompts: PromptSpec = PromptSpec()
    sampling: Annotated[
        SamplingSpec | list[SamplingSpec], AfterValidator(check_sampling), AfterValidator(check_distinct)
    ] = SamplingSpec()
    dtype: Literal["float32", "float64", "bfloat16"] = Field(
        "float32", description="of the transformer; what stays float32: docs/howto/checkpoint.md"
    )
    batch: Batch = Field(32, description="images decoded at once; changes no result but rounding")
    render_batch: Batch = Field(8, description="images decoded from tokens at once; changes no result but rounding")
    reference_images: int = Field(
        512, ge=64, le=100_000, description="images to compare with; of published models all, if it is not said"
    )
    reference: File = Field(
        "",
        description="images to compare published models' with: a folder, or an .npz",
    )
    speculators: dict[Literal["heads", "draft", "drafter"], TrainingSpec] = Field(
        {}, description="those that the target `speculators` trains for each model"
    )


class TextSection(ShardedSection):
    """The experiment on text: models of kind `anysubset`."""

    tasks: TextTasks = TextTasks()
    cache: Annotated[list[bool], AfterValidator(check_distinct)] = Field(
        [True], min_length=1, max_length=2, description="keys and values kept; [true, false] compares both"
    )
    batch: Batch = Field(64, description="rows decoded at once; changes no result but rounding")
    run_generated_code: bool = Field(False, description="run what a model wrote in a sandbox; false: no pass@1")


class ContinuousSection(ShardedSection):
    """The experiment on tokens that are vectors: models of kind `continuous`."""

    captions: PromptSpec | None = Field(None, description="in turn, for published models that read captions")
    images: int = Field(32, ge=2, le=100_000, description="per cell; classes and captions in turn")
    repeats: int = Field(
        1,
        ge=1,
        le=100,
        description="runs of each method, of `images` images each, numbered on and so with noise of their own; figures"
        " of sets of images (FID, IS ...) are the runs' mean, with their standard deviation",
    )
    sampling: Annotated[HeadSpec | list[HeadSpec], AfterValidator(check_sampling)] = HeadSpec()
    batch: Annotated[list[Batch], AfterValidator(check_distinct)] = Field(
        [32], min_length=1, max_length=8, description="images decoded at once; several compare speed"
    )
    render_batch: Batch = Field(8, description="images decoded from tokens at once; changes no result but rounding")
    reference: File = Field(
        "", description="as `reference` of `image`, for published models; embedded ones have images of their own"
    )
    forced: int = Field(256, ge=0, le=10**6, description="draws per condition of the one-token tests; 0: no such tests")
    conditions: int = Field(6, ge=1, le=1000, description="prefixes of plain decoding's images for the one-token tests")


class TimingSpec(Strict):
    """Which speeds are measured, in turns with plain decoding, and for how long. All others are predicted."""

    methods: Annotated[Literal["all"], Word] | list[str] = Field(
        [], description="methods that are timed beside the lossless ones predicted to be fastest"
    )
    seconds: float = Field(
        60,
        ge=0,
        le=1e6,
        description="that this takes at a batch, and as many for single rows, at most; 0: every speed is predicted",
    )


class StandInSpec(Strict):
    """Random networks in place of published ones."""

    size: Literal["small", "published"] = Field(
        "published",
        description="published: the sizes that authors released, with prompts, batches and options as they are; small:"
        " as `stand_in: true`, with few prompts",
    )


class Config(Strict):
    """One experiment: a section for each kind of model that it is about, and what they share."""

    experiment: Name = "default"
    scale: float = Field(1.0, gt=0, le=1, description="share of every section's prompts, texts and images to run")
    stand_in: bool | StandInSpec = Field(
        False, description="a trial run: tiny random networks in place of every published one"
    )
    models: dict[Name, ModelSpec] = Field({}, description="a section runs all of its kind, or the embedded one")
    image: ImageSection | None = None
    text: TextSection | None = None
    continuous: ContinuousSection | None = None
    networks: Networks = Networks()
    protocol: str = Field(
        "clean", description="how published models' images are measured, and by which networks: metrics/protocols.py"
    )
    seeds: Seeds = Seeds()
    repeat: bool = Field(False, description="decode every method again on seeds.again, to confirm or clear a rejection")
    equality: EqualitySpec = EqualitySpec()
    timing: TimingSpec = TimingSpec()
    compile: Annotated[Literal["auto", "on", "off"], Word] = Field(
        "auto",
        description="whether passes are compiled: on a CPU the network's, on CUDA a method's whole pass if it repeats;"
        " auto: on CUDA, and not on a CPU, where compiling takes longer than few images save",
    )
    capture: Annotated[Literal["auto", "off"], Word] = Field(
        "auto",
        description="whether passes over image tokens are captured as CUDA graphs; auto: on CUDA, where the method's"
        " passes allow it, and the log names those that do not. Tokens are the same except for rounding in bfloat16",
    )
    refill: Annotated[Literal["auto", "on", "off"], Word] = Field(
        "auto",
        description="whether an image that is done gives its place in the batch to the next of its shard, with the same"
        " tokens; auto: on CUDA, where a pass costs the same with fewer images, and not on a CPU",
    )

    @model_validator(mode="after")
    def _check_sections(self):
        if not (self.image or self.text or self.continuous):
            raise ValueError("no section; allowed: one or more of image, text, continuous")
        return self


Schema = TypeVar("Schema", bound=BaseModel)
WANTED = {  # what is allowed, by pydantic's type of an error
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "invalid_key": "text",
    "model_type": "a mapping of keys to values",
    "dict_type": "a mapping of keys to values",
    "list_type": "a list",
}
READ = {  # what YAML reads of an unquoted text, by its type in Python
    bool: "true or false (yes, no, on, off)",
    int: "a number",
    float: "a number",
    datetime.datetime: "a time",
    datetime.date: "a date",
    bytes: "bytes",
    type(None): "nothing",
}


def validate(schema: type[Schema], value: Any, prefix: str) -> Schema:
    """Make an instance of a schema from a value. Raises ConfigError for the first thing that the schema refuses: one
    line with the key, after `prefix`, the value and what is allowed."""
    try:
        return schema.model_validate(value)
    except ValidationError as problem:
        errors = [(_list_keys(error["loc"]), error) for error in problem.errors()]
        first = errors[0][0]  # of a value that may be a list, its part that is refused comes after the value itself
        path, error = max((one for one in errors if one[0][: len(first)] == first), key=lambda one: len(one[0]))
        is_key = error["type"] == "invalid_key" or error["loc"][-1:] == ("[key]",)  # the key itself is wrong
        key = ".".join(filter(None, (prefix, *(path[:-1] if is_key else path)))) or "config"
        shown = "" if error["type"] == "missing" else f"{': key' if is_key else ''} = {brief(error['input'])}"
        raise ConfigError(f"{key}{shown}: {_describe_allowed(error, schema)}") from None


def _list_keys(loc: tuple) -> list[str]:
    """List the keys that lead to the place of pydantic's error, without the names of the types that it tried."""
    return [str(p) for p in loc if not (isinstance(p, str) and p.endswith("Spec")) and "[" not in str(p)]


def _describe_allowed(error: Any, schema: type[BaseModel]) -> str:
    """Describe in a few words what pydantic would have accepted."""
    kind = error["type"]
    if kind == "extra_forbidden":
        return f"unknown key; allowed: {', '.join(_list_fields(schema, error['loc'][:-1])) or 'no options'}"
    if kind == "missing":
        return "required"
    if kind == "literal_error":
        return f"allowed: {error['ctx']['expected']}"
    if kind in WANTED:
        hint = _hint_quotes(error["input"]) if WANTED[kind] == "text" else _hint_spelling(kind, error["input"])
        return f"allowed: {WANTED[kind]}{hint}"
    text = error["msg"].removeprefix("Value error, ").replace("Input should be", "allowed:")
    return text.replace("String should", "allowed: text that should")


def _hint_quotes(value: Any) -> str:
    """Explain that a text must be quoted that YAML reads as a value of another type; "" for a mapping or a list."""
    return f" (YAML reads it as {READ[type(value)]}: write it in quotes)" if type(value) in READ else ""


def _hint_spelling(kind: str, value: Any) -> str:
    """Explain how to write a number that YAML reads as text, such as 1e-4; "" if the value is no such text, or `kind`,
    the type of pydantic's error, is not about numbers."""
    try:
        if kind == "bool_type" and value in ("y", "n", "yes", "no", "on", "off", "true", "false"):
            return " (unquoted)"
        number = float(value) if kind in ("int_type", "float_type") and isinstance(value, str) else math.nan
    except ValueError:
        return ""
    if not math.isfinite(number) or (kind == "int_type" and number != int(number)):
        return ""
    written = str(int(number)) if kind == "int_type" else f"{number:.1e}"
    return f" (YAML reads {value} as text: write {written}, unquoted)"


def _list_fields(schema: type[BaseModel], loc: tuple) -> list[str]:
    """List the keys allowed at a place inside a schema; `loc` are the keys and indices that lead to it."""
    for key in loc:
        if key in schema.model_fields:
            kind = schema.model_fields[key].annotation
            nested = [
                c for c in (kind, *getattr(kind, "__args__", ())) if isinstance(c, type) and issubclass(c, BaseModel)
            ]
            schema = nested[0] if nested else schema
    return list(schema.model_fields)


def brief(value: Any) -> str:
    """Shorten a value to 116 characters without writing the rest of it: aliases of YAML can hold more than memory."""
    short = reprlib.Repr()
    short.maxlevel = 3
    short.maxdict = 4
    short.maxlist = 6
    short.maxstring = 116
    short.maxother = 116
    return short.repr(value)[:116]
