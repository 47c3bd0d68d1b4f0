"""Images and texts of any model of a configuration, by any decoder.

    import parity

    (made,) = parity.load("scenes").generate(["a large red circle on a blue background"], method="mtj", seed=2)
    made.image.save("circle.png")

An image is the one that the workflow's cell of that seed has for the same caption at the same place of its prompts."""

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from parity_certify.seeding import check_seed

from parity.base import machine
from parity.base.devices import check
from parity.base.errors import ConfigError, ParityError
from parity.base.headers import find_largest_dtype
from parity.decode import loop
from parity.embedded.scenes import WORDS
from parity.experiment import tuned, weights
from parity.experiment.caption_cleaning import check_prompts
from parity.experiment.cells import describe_source, dump_model, kinds
from parity.experiment.checks import read_config
from parity.experiment.made import is_made
from parity.experiment.options import AUTO, check_decoder, needs
from parity.experiment.prompt_files import find_flaw, refuse_prompts
from parity.experiment.schema import Config, ModelSpec
from parity.experiment.tuned import Case
from parity.generate.animation import mask_open
from parity.inputs.prompts import encode
from parity.models import fetch
from parity.models.continuous.load import choose_label, load_painter

BLANK = "___"  # stands for a word to fill in


@dataclass
class Made:
    """One image or text.

    number   its place among all that were asked for, from 0
    prompt   the caption, the class, or the text with blanks
    image    PIL.Image, of an image; None of a text
    text     the text filled in; None of an image
    tokens   [L] int64, or [L, D] of vectors
    passes   of the target, one after another; of vectors all calls one after another, of heads too
    seconds  its share of the time of decoding, without that of drawing its pixels; see `loop.stream`
    facts    model, revision, method, options, sampling, dtype and seed: what the tokens depend on, beside the prompt
    final    [rows, columns] of an image's cells: the pass, of vectors the step, that made each final; [0, 0] of a text
    """

    number: int
    prompt: str
    image: Any
    text: str | None
    tokens: torch.Tensor
    passes: int
    seconds: float
    facts: dict[str, Any]
    final: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int16))

    @property
    def frames(self) -> list[Any]:
        """The image after each pass, PIL.Image each, with cells grey that are open then; [] of a text."""
        return [mask_open(self.image, self.final, after) for after in range(1, int(self.final.max(initial=0)) + 1)]


def lay_out(step: np.ndarray, free: np.ndarray, width: int) -> np.ndarray:
    """Lay the passes [L] of an image's tokens out in rows of `width`, without those that are not free [L] bool: the
    tokens between rows, and after the last."""
    rows = len(step) // width
    return step[: rows * width].reshape(rows, width)[:, free[:width]]


class Generator:
    """A model of a configuration, ready to make images or texts."""

    def __init__(
        self,
        case: Case,
        config: Config,
        dtype: str = "",
        device: str = "",
        manifest: dict[str, Any] | None = None,
        compile: str = "off",
        capture: str = "",
    ):
        """Choose the device, by default a GPU if there is one; files and networks are loaded when they are needed.

        dtype     of a transformer of image tokens; by default the configuration's, else that of the model's files
        manifest  of the model's files, where they are there already
        compile, capture  as in the configuration, which says `capture` by default

        Raises ParityError for another model's dtype, and for a device that is not there.
        """
        self.case = case
        self.kind = case.kind
        self.config = config
        self.family = weights.read_family(case.spec.family)
        if dtype and self.kind != "discrete":
            raise ParityError(
                f"dtype {dtype}: {case.model} is computed in float32; allowed: of a model of image tokens"
            )
        # not claimed: jobs may use the GPU meanwhile, as a notebook may never end
        self.device = device or ("cuda" if machine.gpu() else "cpu")
        self.compile, self.capture = compile, capture or config.capture
        if config.image is not None and "dtype" in config.image.model_fields_set:
            dtype = dtype or config.image.dtype
        self.given_dtype = dtype
        check(self.device, dtype or "float32")
        if manifest is not None:
            self.manifest = manifest
        self.loaded: dict[str, Any] = {}  # networks by the speculator that they were loaded with
        self.loading_seconds = 0.0  # that loading them took

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The manifest of the model's files, which are fetched and verified when it is first asked for."""
        raw = dump_model(self.config, self.kind, self.case.model)
        folder = Path(f"results/checkpoints/{self.kind}/{self.case.model}-{self.case.setting['revision']}")
        return fetch.make_manifest(self.kind, self.case.model, raw, folder)

    @cached_property
    def dtype(self) -> str:
        """The dtype of the transformer: the one that was given, else bfloat16 of a published model of image tokens
        whose files hold it, else float32."""
        if self.given_dtype or self.kind != "discrete" or self.case.spec.source == "embedded":
            return self.given_dtype or "float32"
        files = Path(self.manifest["files"][self.family["files"][0]])
        return "bfloat16" if find_largest_dtype(files) == "BF16" else "float32"

    def choose_method(self, method: str, given: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Complete a method's options; "auto" stands for the choice of `parity tune`, else for a lossless method.

        Raises ConfigError for a method that does not exist or that this model cannot run, and for a wrong option.
        """
        if method == AUTO:
            entry, _ = tuned.find(self.case)
            if entry and not given:
                return entry["method"], entry["options"]
            method = tuned.UNTUNED[self.kind]
        if is_made(self.kind, method):
            raise ConfigError(f"method {method!r}: tokens that were made elsewhere; allowed: in an experiment alone")
        try:
            check_decoder(self.kind, method)
        except ConfigError as error:
            raise ConfigError(f"method {method!r}: {error}, or {AUTO}") from None
        return method, tuned.complete_runnable(self.kind, method, dict(given), self.case.model, self.case.spec)

    @cached_property
    def is_compiled(self) -> bool:
        """Whether passes are compiled: as the configuration says, else on CUDA, or as `parity tune` found it faster."""
        if self.compile != "auto":
            return self.compile == "on"
        entry, _ = tuned.find(self.case)
        return self.device.startswith("cuda") or bool(entry and entry["compiled"])

    def load_networks(self, method: str) -> Any:
        """Load the networks that a method needs; those loaded before are used again."""
        speculator = needs(self.kind, method)
        if speculator in self.loaded:
            return self.loaded[speculator]
        start = time.monotonic()
        if loaded := next(iter(self.loaded.values()), None):
            self.loaded[speculator] = loaded.take_speculator(speculator)
        else:
            spec = {"method": method, "dtype": self.dtype}
            captured = self.device.startswith("cuda") and self.capture == "auto"
            self.loaded[speculator] = loop.load(
                self.kind, self.manifest, spec, self.device, self.is_compiled, captured=captured
            )
        self.loading_seconds += time.monotonic() - start
        return self.loaded[speculator]

    def generate(self, prompts: Sequence[str], method: str = "auto", seed: int = 0, **given: Any) -> list[Made]:
        """Make an image of each caption or class, or fill in the blanks of each text; see `make_batches`."""
        made = [one for some in self.make_batches(prompts, method, seed, **given) for one in some]
        return sorted(made, key=lambda one: one.number)

    def list_facts(self, method: str, chosen: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """List what tokens depend on, beside the prompt: see `Made.facts`."""
        setting = self.case.setting
        shared: dict[str, Any] = {name: setting[name] for name in ("revision", "sampling", "cache") if name in setting}
        dtype = {"dtype": self.dtype} if self.kind == "discrete" else {}
        own = describe_source(self.config, self.kind, method, self.case.model)
        shared |= {**dtype, "method": method, **own, "options": dict(chosen), "seed": seed}
        return {"model": self.case.model, **shared}

    def make_batches(
        self,
        prompts: Sequence[str],
        method: str = "auto",
        seed: int = 0,
        n: int = 1,
        batch: int = 8,
        refill: bool = False,
        numbers: Sequence[int] | None = None,
        **given: Any,
    ) -> Iterator[list[Made]]:
        """Yield the images or texts, `n` of each prompt, as they are done, decoded `batch` at once.

        refill   a place in the batch goes to the next row as soon as one is done, if the method can do so
        numbers  which of all that are asked for are made, by default all
        given    options of the method

        Raises ParityError for prompts that are no list, or that the model cannot read, and for a seed that is none.
        """
        seed = check_seed(seed)
        method, chosen = self.choose_method(method, given)
        if isinstance(prompts, str) or not prompts:
            raise ParityError(f"prompts {prompts!r}: allowed: a list of one or more")
        wanted = np.arange(len(prompts) * n) if numbers is None else np.array(numbers, int)
        rows = {name: column[wanted] for name, column in self.make_rows(list(prompts), n).items()}
        loaded = self.load_networks(method)
        if self.reads_given_captions:
            loaded = replace(loaded, manifest={**self.manifest, "captions": list(prompts)})
        spec = {**self.case.setting, "seed": seed, "method": method, "options": chosen}
        spec |= {"dtype": self.dtype} if self.kind == "discrete" else {}
        spec |= describe_source(self.config, self.kind, method, self.case.model)
        facts = self.list_facts(method, chosen, seed)
        for some, columns in loop.stream(self.kind, loaded, spec, rows, batch, refill):
            images, texts = self.finish(loaded, columns["tokens"], {name: rows[name][some] for name in rows})
            final = self.find_final(loaded, columns)
            passes = torch.as_tensor(columns["passes"]).expand(len(some)).tolist()
            yield [
                Made(number, prompts[number // n], images[i], texts[i], columns["tokens"][i], int(passes[i]),
                     columns["seconds"], facts, final[i])
                for i, number in enumerate(wanted[some].tolist())
            ]  # fmt: skip

    @property
    def reads_given_captions(self) -> bool:
        """Whether the model is a continuous one whose images are numbered, and have captions in turn."""
        return self.kind == "continuous" and self.family["condition"] == "caption"

    def make_rows(self, prompts: list[str], n: int) -> dict[str, np.ndarray]:
        """Make decoding's inputs, `n` rows a prompt. Raises ParityError for a prompt that the model cannot read."""
        if self.kind == "anysubset":
            return self.make_text_rows(prompts, n)
        if self.kind == "continuous" and not self.reads_given_captions:
            return {"ids": np.array([str(image) for p in prompts for image in self.find_images(p, n)])}
        check_captions(prompts, self.case.spec)
        if self.reads_given_captions:
            return {"ids": np.array([str(i + r * len(prompts)) for i in range(len(prompts)) for r in range(n)])}
        encoded = {name: column.repeat(n, 0) for name, column in encode(self.manifest, prompts, self.device).items()}
        ids = [f"{i:05d}/{r:03d}" for i in range(len(prompts)) for r in range(n)]
        return {"ids": np.array(ids), "captions": np.array(prompts).repeat(n), **encoded}

    def find_images(self, name: str, n: int) -> list[int]:
        """Find the numbers of the first `n` images of a class, as the workflow numbers images. name: of the class, or
        its number, by the model. Raises ParityError for one that the model does not have."""
        painter = load_painter(self.manifest)  # which has no network yet
        named = {painter.class_of(image): image for image in range(painter.classes)}
        if name not in named:
            shown = ", ".join(list(named)[:5])
            raise ParityError(f"prompt {name!r}: no class of {self.case.model}; allowed: {shown}, ...")
        label = choose_label(named[name], painter.classes)
        of_class = (image for image in count() if choose_label(image, painter.classes) == label)
        return list(islice(of_class, n))

    def make_text_rows(self, texts: list[str], n: int) -> dict[str, np.ndarray]:
        """Make `n` rows of each text: ids, tokens, known (False at a blank `___`, which stands for one token), end."""
        from parity.inputs.tasks import MaskedText, hide, load_vocabulary, pack

        words = load_vocabulary(self.manifest)
        packed: list[MaskedText] = []
        for text in texts:
            segments = text.split(BLANK)
            if flaw := find_flaw(text):
                raise ParityError(f"text {text[:60]!r} {flaw}")
            if len(segments) == 1 or not "".join(segments).strip():
                raise ParityError(f"text {text[:60]!r}: allowed: words, and a blank, {BLANK}, for each word to fill in")
            if unclear := re.search(rf"{BLANK}_+|[^\W_]{BLANK}|{BLANK}[^\W_]", text):
                problem = f"{unclear[0]!r} is no whole blank"
                raise ParityError(
                    f"text {text[:60]!r}: {problem}; allowed: {BLANK}, apart from letters and other blanks"
                )
            pieces = [(words.encode(segments[0].strip()), False)]
            for piece in segments[1:]:
                pieces += [([words.mask], True), (words.encode(piece.strip()), False)]
            packed += [hide(*pieces)] * n
        ids = [f"{i:05d}/{r:03d}" for i in range(len(texts)) for r in range(n)]
        task = pack(ids, packed, words.mask, [None] * len(ids))
        return {"ids": np.array(ids), "tokens": task.tokens, "known": task.known, "end": task.end}

    def find_final(self, loaded: Any, columns: Mapping[str, Any]) -> list[np.ndarray]:
        """Find for each image the pass in which each of its cells became final; none for a text."""
        step = columns["step"].cpu().numpy()
        if self.kind == "anysubset":
            return [np.zeros((0, 0), np.int16)] * len(step)
        if self.kind == "discrete":
            free = (columns["forced"] < 0).cpu().numpy()
            return [lay_out(row, free, loaded.width) for row in step]
        by_position = np.zeros_like(step)
        np.put_along_axis(by_position, columns["order"].cpu().numpy(), step, 1)
        side = math.isqrt(step.shape[1])
        return list(by_position.reshape(-1, side, side))

    def finish(self, loaded: Any, tokens: torch.Tensor, rows: Mapping[str, np.ndarray]) -> tuple[list[Any], list[Any]]:
        """Turn tokens into a list of images and one of texts, of which one is a list of None by the kind of model."""
        if self.kind == "anysubset":
            texts = [loaded.words.decode(row[:end]) for row, end in zip(tokens.tolist(), rows["end"], strict=True)]
            return [None] * len(texts), texts
        from PIL import Image

        images = [Image.fromarray(pixels) for pixels in loaded.images(tokens)]
        return images, [None] * len(images)


def check_captions(captions: list[str], spec: ModelSpec) -> None:
    """Raise ParityError for captions without words, of an embedded model also with words that it does not know, and for
    those of which a published encoder reads nothing."""

    def find_unread(caption: str) -> str:
        words = re.findall(r"\w+|[^\w\s]+", caption.lower())
        if flaw := find_flaw(caption):
            return flaw
        if spec.source == "embedded" and (unknown := [word for word in words if word not in WORDS]):
            return f"has the unknown word {unknown[0]!r}; allowed: {', '.join(WORDS)}"
        return ""

    refuse_prompts(captions, find_unread)
    check_prompts(captions, spec)


def load(
    model: str = "",
    configfile: str | Path = "config.yaml",
    dtype: str = "",
    device: str = "",
    compile: str = "",
    capture: str = "",
) -> Generator:
    """Prepare a model of a configuration by its name, the first if none is named; its files are loaded when needed.
    dtype: of a transformer of image tokens, "float32" or "bfloat16", in place of the configuration's. device: "cpu",
    "cuda" or "cuda:<number>"; by default a GPU if there is one. compile, capture: in place of the configuration's.

    Raises ParityError for a model that the configuration does not have, or if there is no such file.
    """
    file = Path(configfile)
    if not file.is_file():
        raise ParityError(f"--configfile {file}: no such file; allowed: an experiment, in a clone of the project")
    config, _ = read_config(file)
    cases = {case.model: case for kind in kinds(config) for case in tuned.list_cases(config, kind)}
    if model and model not in cases:
        raise ParityError(f"--model {model!r}: not in {file}; allowed: {', '.join(cases)}")
    return Generator(cases[model or next(iter(cases))], config, dtype, device, None, compile or config.compile, capture)
