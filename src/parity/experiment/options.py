"""A method's options and what its module declares of it, read from its source, so that planning imports no torch.

The options are the keyword-only arguments of its function, which in a module of ours has the module's name: an
argument's annotation holds its type and bounds, its default is the option's, and the function's docstring says what it
does. The rest are literals at the top of the module, the fields of `Declaration`.
"""

import ast
import sys
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal

from annotated_types import Interval
from parity_decoders.counts import Counts
from pydantic import BaseModel, ConfigDict, create_model

from parity.base.errors import ConfigError
from parity.experiment.decoder_sources import find_source, read_decoder
from parity.experiment.made import MadeSpec, is_made
from parity.experiment.module_metadata import modules
from parity.experiment.schema import Word, validate

KINDS = {
    "discrete": "image",
    "anysubset": "text",
    "continuous": "continuous",
}  # the section of the configuration for each kind of model
AUTO = "auto"  # in place of a method: the fastest on this machine, see `parity.experiment.tuned`
LENGTHS = ("positions", "lag", "steps")  # those units of `Counts` that say how far a pass looks
LONGEST = 256  # tokens of the longest model of known distribution, unless images have more
TYPES = {"int": int, "float": float, "bool": bool, "str": str}


class Declaration(BaseModel):
    """The literals that a decoder's module assigns. Options are matched by value: {} matches any, None none."""

    model_config = ConfigDict(frozen=True, strict=True)

    # what the method claims of its samples' distribution; ORIGIN says whose claim that is
    CLAIM: Literal["lossless", "lossy"]
    # Where the method is from: its paper; others' account of a paper that was not at hand; this project; the makers of
    # a decoder, or of tokens, elsewhere: the default of a decoder of others.
    ORIGIN: Literal["paper", "account", "project", "makers"] = "paper"
    # What stands beside its name, if it claims CLAIM, where "ours" or "from others' account" says too little.
    MARK: str = ""
    EXACT_BY: str = "ours"  # whose the lossless form is, of a method whose defaults are lossy
    EXACT_WITH: dict[str, Any] = {}  # options that must have these values for the method to claim to be lossless
    COUPLED_WITH: dict[str, Any] | None = None  # options with which it returns plain decoding's tokens under its noise
    PLAIN: dict[str, Any] | None = None  # options with which the method is plain decoding, the baseline of its kind
    NEEDS: Literal["", "drafter", "draft", "heads"] = ""  # the second network that the method needs beside the target
    REFILLS: bool = False  # whether a row can begin while others are being decoded (`parity.decode.loop.Queue`)
    SOURCE: str = ""  # the paper of the method, and where in it
    PROMPT: str | None = None  # the only kind of text prompt that it can read: "prefix", known tokens at the beginning
    NETWORK: Literal["target", "judge"] = "target"  # of texts, which network is decoded: the judge is a causal one
    # Whether the ranks before a rank alone decide if a loop of a text reaches it; then tests may look at each slot.
    SLOTS: bool = False
    CONTROL: bool = False  # whether it claims to be lossless and is known not to be, so that a test must reject it
    RESTS_ON: str = ""  # the module of metrics that measures an observation on which the method rests
    TARGETS: str = ""  # the models that it is tested on, if not the common ones: "walks", drawn in several steps
    EXACT_LAYER: dict[str, Any] | None = {}  # options with which it can run on enumerable models; None: never
    DRAFT: str = ""  # a class of the module: a draft network of the decoder's own, see `parity.experiment.decoders`
    DRAFT_ROWS: Annotated[int, Interval(ge=1)] = 256  # rows that the target draws for this network to learn from


MADE_ELSEWHERE = Declaration(CLAIM="lossless", EXACT_WITH={"claim": "lossless"}, EXACT_LAYER=None, ORIGIN="makers")


@cache
def declaration(kind: str, method: str) -> Declaration:
    """Read what a decoder's module declares, without importing it. Raises ConfigError that names its file for a wrong
    literal."""
    if is_made(kind, method):
        return MADE_ELSEWHERE
    outline, file = read_decoder(kind, method), find_source(kind, method).label
    literals = {name: value for name, value in outline.values.items() if name in Declaration.model_fields}
    if find_source(kind, method).owner != "parity":
        literals = {"ORIGIN": "makers", **literals}
    declared = validate(Declaration, literals, file)
    if declared.DRAFT:
        lacks = [name for name in ("load", "propose") if name not in outline.classes.get(declared.DRAFT, ())]
        if lacks or kind != "discrete":
            allowed = "a class of this file with load and propose" if lacks else "of a decoder of image tokens"
            raise ConfigError(f"{file}: DRAFT = {declared.DRAFT!r}: allowed: {allowed}")
    return declared


def methods(kind: str) -> tuple[str, ...]:
    """List the names of our decoders of a kind."""
    return modules(f"decoders/{kind}")


def check_decoder(kind: str, method: str) -> None:
    """Raise ConfigError for a decoder that does not exist, or whose module declares something wrong."""
    declaration(kind, method)
    make_option_schema(kind, method)


def _agree(options: dict[str, Any], required: dict[str, Any] | None) -> bool:
    return required is not None and all(options.get(k) == v for k, v in required.items())


def claim(kind: str, method: str, options: dict[str, Any]) -> str:
    """Return what is claimed of the samples' distribution with these options: "lossless", "lossy", or "equal within
    eps" for a method that follows plain decoding's path and stops within a tolerance."""
    declared = declaration(kind, method)
    if _agree({**declared.EXACT_WITH, **options}, declared.EXACT_WITH):
        return declared.CLAIM
    return "equal within eps" if kind == "continuous" and is_coupled(kind, method, options) else "lossy"


def claimant(kind: str, method: str, options: dict[str, Any]) -> Literal["paper", "account", "project", "makers"]:
    """Return whose the `claim` is: the declared ORIGIN, or "project" where options that the distribution depends on
    (those of EXACT_WITH) are not the defaults or the claim is not the declared one."""
    declared = declaration(kind, method)
    if declared.ORIGIN == "makers":
        return "makers"
    defaults = make_option_schema(kind, method)().model_dump()
    departs = any(options.get(name, defaults[name]) != defaults[name] for name in declared.EXACT_WITH)
    return "project" if departs or claim(kind, method, options) != declared.CLAIM else declared.ORIGIN


def is_coupled(kind: str, method: str, options: dict[str, Any]) -> bool:
    """Return whether a variant shares plain decoding's noise position by position, and must return its tokens."""
    return _agree(options, declaration(kind, method).COUPLED_WITH)


def is_plain_decoding(kind: str, method: str, options: dict[str, Any]) -> bool:
    """Return whether a variant is plain decoding, the baseline of its kind."""
    return _agree(options, declaration(kind, method).PLAIN)


def runs_on_enumerable(kind: str, method: str, options: dict[str, Any]) -> bool:
    """Return whether a variant runs on the enumerable models of the exact layer."""
    return _agree(options, declaration(kind, method).EXACT_LAYER)


@cache
def find_plain_method(kind: str) -> str:
    return next(m for m in methods(kind) if declaration(kind, m).PLAIN is not None)


def make_plain_options(kind: str) -> dict[str, Any]:
    method = find_plain_method(kind)
    return options(kind, method, declaration(kind, method).PLAIN or {})


def needs(kind: str, method: str) -> str:
    """Return the speculator of the target that a method needs: "drafter", "draft", "heads" or "" for none."""
    return declaration(kind, method).NEEDS


def has_drafts(kind: str, method: str) -> bool:
    """Return whether a method drafts by a network: a speculator of the target, or one of its own."""
    declared = declaration(kind, method)
    return bool(declared.NEEDS or declared.DRAFT)


def trains_draft(kind: str, method: str) -> bool:
    """Return whether a method has a draft network of its own that is trained for a model."""
    return "train" in read_decoder(kind, method).classes.get(declaration(kind, method).DRAFT, ())


def _annotation(call: ast.expr) -> Any:
    """Make the Interval or Counts that a call in source spells, whose arguments are literals. Raises ValueError for
    anything else."""
    match call:
        case ast.Call(func=ast.Name(id="Interval" | "Counts" as name), args=words, keywords=named):
            keywords = {k.arg: ast.literal_eval(k.value) for k in named if k.arg}
            note: Any = Interval if name == "Interval" else Counts
            return note(*map(ast.literal_eval, words), **keywords)
    raise ValueError(f"{ast.unparse(call)}; allowed: Interval(...), Counts(...)")


def _option_type(annotation: ast.expr) -> Any:
    """Make the type that an annotation in source spells: a name of TYPES, Literal[...], or Annotated[...] with Interval
    and Counts. Raises ValueError for anything else."""
    match annotation:
        case ast.Name(id=name) if name in TYPES:
            return TYPES[name]
        case ast.Subscript(value=ast.Name(id="Literal"), slice=words):
            choices = ast.literal_eval(words)
            return Annotated[Literal[choices], Word] if "off" in choices else Literal[choices]
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[inner, *notes])):
            return Annotated[(_option_type(inner), *map(_annotation, notes))]
    raise ValueError(
        f"{ast.unparse(annotation)}; allowed: {', '.join(TYPES)}, Literal[...], Annotated[int, Interval(...)]"
    )


@cache
def make_option_schema(kind: str, method: str) -> type[BaseModel]:
    """Make the pydantic model of a method's options: the keyword-only arguments of its function, `noise` and a draft
    network of its own left out. Raises ConfigError that names the file if the function is missing or takes other
    arguments, or an option has no type or default."""
    if is_made(kind, method):
        return MadeSpec
    source = find_source(kind, method)
    file, name = source.label, source.function
    signature = read_decoder(kind, method).functions.get(name)
    given = ("noise", "draft") if declaration(kind, method).DRAFT else ("noise",)
    form = f"{name}(model, start, *, {', '.join(given)}, ...)"
    if signature is None:
        raise ConfigError(f"{file}: has no function {form}")
    keywords = {argument.arg for argument in signature.args.kwonlyargs}
    if len([*signature.args.posonlyargs, *signature.args.args]) != 2 or not keywords >= {*given}:
        raise ConfigError(f"{file}: {name}({ast.unparse(signature.args)}): allowed: {form}")
    fields: dict[str, Any] = {}
    for argument, default in zip(signature.args.kwonlyargs, signature.args.kw_defaults, strict=True):
        if argument.arg in given:
            continue
        if argument.annotation is None or default is None:
            raise ConfigError(f"{file}: {argument.arg} has no type or no default; allowed: name: type = default")
        try:
            fields[argument.arg] = (_option_type(argument.annotation), ast.literal_eval(default))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{file}: {argument.arg}: {error}") from None
    config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    return create_model(f"{name}_options", __config__=config, **fields)


@cache
def counts(kind: str, method: str) -> dict[str, Counts]:
    """List the `Counts` of those options of a method that count something, by name of the option."""
    fields = make_option_schema(kind, method).model_fields.items()
    return {name: note for name, field in fields for note in field.metadata if isinstance(note, Counts)}


def cap_small(kind: str, method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a variant's options, those that count positions capped for an enumerable model (`Counts.small`), so that
    the method still takes several passes."""
    caps = {name: c.small for name, c in counts(kind, method).items() if c.small is not None}
    return {name: min(value, caps[name]) if name in caps else value for name, value in options.items()}


def list_lengths(kind: str, method: str, options: Mapping[str, Any]) -> dict[str, int]:
    """List, with their values, the given options that say how far a pass looks, the largest first."""
    named = {name: options[name] for name, c in counts(kind, method).items() if c.what in LENGTHS and name in options}
    return dict(sorted(named.items(), key=lambda pair: -pair[1]))


def measure_reach(kind: str, method: str, options: Mapping[str, Any]) -> dict[str, int]:
    """Measure how far a pass looks: the largest value of each unit of LENGTHS, 0 where no option has it."""
    counts_of = counts(kind, method)
    values = list_lengths(kind, method, options).items()
    return {unit: max((value for name, value in values if counts_of[name].what == unit), default=0) for unit in LENGTHS}


def list_bounds(kind: str, method: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """List the largest allowed value of each option of a method that a model of these sizes bounds, by name of the
    option (sizes: `weights.list_option_sizes`)."""
    return {name: sizes[c.most] for name, c in counts(kind, method).items() if c.most in sizes}


# Methods whose option `law` has another name now
RENAMED_OPTIONS = {("discrete", "sjd_pp"): "store", ("discrete", "sjd_vp"): "store", ("continuous", "coupled"): "goal"}


@cache
def tell_renamed(line: str) -> None:
    """Print a line on standard error, once in a process."""
    print(f"note: {line}", file=sys.stderr)


def options(kind: str, method: str, given: dict[str, Any], where: str = "") -> dict[str, Any]:
    """Return a variant's options, completed with defaults. Raises ConfigError, which begins with `where`, for one that
    the method does not have or whose value is not allowed."""
    if isinstance(given, dict) and "law" in given and (new := RENAMED_OPTIONS.get((kind, method))):
        given = {new if key == "law" else key: value for key, value in given.items()}
        tell_renamed(f"option law of {method} is called {new} now")
    return validate(make_option_schema(kind, method), given, where or f"{KINDS[kind]}.methods.{method}").model_dump()
