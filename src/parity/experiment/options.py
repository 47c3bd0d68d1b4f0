"""A method's options and what its module declares of it, read from its source, so that planning imports no torch.

The options are the keyword-only arguments of the function of the module's name: an argument's annotation holds its type
and bounds, its default is the option's, and the function's docstring says what it does. The rest are literals at the
top of the module, the fields of `Declaration`.
"""

import ast
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal

from annotated_types import Interval
from parity_decoders.counts import Counts
from pydantic import BaseModel, ConfigDict, create_model

from parity.base.errors import ConfigError
from parity.experiment.module_metadata import modules, read_outline
from parity.experiment.schema import Word, validate

KINDS = {
    "discrete": "image",
    "anysubset": "text",
    "continuous": "continuous",
}  # kind of model: its section of the configuration
LENGTHS = ("positions", "lag", "steps")  # units of `Counts` that say how far a pass looks
TYPES = {"int": int, "float": float, "bool": bool, "str": str}


class Declaration(BaseModel):
    """The literals that a decoder's module assigns. Options are matched by value: {} matches any, None none."""

    model_config = ConfigDict(frozen=True, strict=True)

    CLAIM: Literal["lossless", "lossy"]  # what is said of the law, by whom ORIGIN says
    # where the method is from: its paper; others' account of a paper that was not at hand; this project
    ORIGIN: Literal["paper", "account", "project"] = "paper"
    EXACT_WITH: dict[str, Any] = {}  # options at whose stated value alone a lossless claim is made
    COUPLED_WITH: dict[str, Any] | None = None  # options with which it draws plain decoding's tokens, of the same noise
    PLAIN: dict[str, Any] | None = None  # options with which the method is plain decoding, the baseline of its kind
    NEEDS: Literal["", "drafter", "draft"] = ""  # the companion of the target that it needs
    REFILLS: bool = False  # whether a row can begin in the midst of others (`parity.decode.loop.Queue`)
    SOURCE: str = ""  # the paper, and where in it
    PROMPT: str | None = None  # the only kind of text prompt that it can read: "prefix", known tokens at the beginning
    NETWORK: Literal["target", "judge"] = "target"  # of text: "judge" decodes the judge, a causal network
    # of text: whether the ranks before a rank alone decide if a loop reaches it; then tests may look at each slot alone
    SLOTS: bool = False
    CONTROL: bool = False  # whether it claims to be lossless and is known not to be, so that a test must reject it
    RESTS_ON: str = ""  # an observation that the method rests on: a module of metrics that makes figures of it
    TARGETS: str = ""  # the models that it is tested on, if not the common ones: "walks", drawn in several steps
    EXACT_LAYER: dict[str, Any] | None = {}  # options with which it runs on enumerable models


@cache
def declaration(kind: str, method: str) -> Declaration:
    """Read what a decoder declares. Raises ConfigError that names its file for a wrong literal."""
    values = read_outline(f"decoders/{kind}", method).values
    literals = {name: value for name, value in values.items() if name in Declaration.model_fields}
    return validate(Declaration, literals, f"decoders/src/parity_decoders/{kind}/{method}.py")


def methods(kind: str) -> tuple[str, ...]:
    """List the names of the decoders of a kind."""
    return modules(f"decoders/{kind}")


def _agree(options: dict[str, Any], required: dict[str, Any] | None) -> bool:
    return required is not None and all(options.get(k) == v for k, v in required.items())


def claim(kind: str, method: str, options: dict[str, Any]) -> str:
    """Read what `claimant` says of the law with these options: "lossless", "lossy", or "equal within eps" for a method
    that follows plain decoding's own path and stops within a tolerance."""
    declared = declaration(kind, method)
    if _agree({**declared.EXACT_WITH, **options}, declared.EXACT_WITH):
        return declared.CLAIM
    return "equal within eps" if kind == "continuous" and is_coupled(kind, method, options) else "lossy"


def claimant(kind: str, method: str, options: dict[str, Any]) -> Literal["paper", "account", "project"]:
    """Find whose the claim is: the ORIGIN's, or this project's where options that the law depends on (`EXACT_WITH`) are
    not the defaults, or make of a lossless method a lossy one."""
    declared = declaration(kind, method)
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
    """Return the companion of the target that a method needs: "drafter" or "draft" or none."""
    return declaration(kind, method).NEEDS


def _annotation(call: ast.expr) -> Any:
    """Parse the Field or Counts that a call spells, its arguments literals."""
    match call:
        case ast.Call(func=ast.Name(id="Interval" | "Counts" as name), args=words, keywords=named):
            keywords = {k.arg: ast.literal_eval(k.value) for k in named if k.arg}
            note: Any = Interval if name == "Interval" else Counts
            return note(*map(ast.literal_eval, words), **keywords)
    raise ValueError(f"{ast.unparse(call)}; allowed: Interval(...), Counts(...)")


def _option_type(annotation: ast.expr) -> Any:
    """Parse the type that an annotation spells: a name of `TYPES`, Literal[...], Annotated[int, Field(...),
    Counts(...)]."""
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
    """Make the schema of a method's options: its keyword-only arguments but `noise`."""
    file = f"decoders/src/parity_decoders/{kind}/{method}.py"
    signature = read_outline(f"decoders/{kind}", method).functions.get(method)
    if signature is None:
        raise ConfigError(f"{file}: has no function {method}(model, start, *, noise, ...)")
    fields: dict[str, Any] = {}
    for argument, default in zip(signature.args.kwonlyargs, signature.args.kw_defaults, strict=True):
        if argument.arg == "noise":
            continue
        if argument.annotation is None or default is None:
            raise ConfigError(f"{file}: {argument.arg} has no type or no default; allowed: name: type = default")
        try:
            fields[argument.arg] = (_option_type(argument.annotation), ast.literal_eval(default))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{file}: {argument.arg}: {error}") from None
    config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    return create_model(f"{method}_options", __config__=config, **fields)


@cache
def counts(kind: str, method: str) -> dict[str, Counts]:
    """List what the options of a method count, of those that count something."""
    fields = make_option_schema(kind, method).model_fields.items()
    return {name: note for name, field in fields for note in field.metadata if isinstance(note, Counts)}


def cap_small(kind: str, method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Cap a variant's lengths for an enumerable model, so that a method still takes several passes."""
    caps = {name: c.small for name, c in counts(kind, method).items() if c.small is not None}
    return {name: min(value, caps[name]) if name in caps else value for name, value in options.items()}


def list_lengths(kind: str, method: str, options: Mapping[str, Any]) -> dict[str, int]:
    """List the options that say how far a pass looks, the farthest first."""
    named = {name: options[name] for name, c in counts(kind, method).items() if c.what in LENGTHS and name in options}
    return dict(sorted(named.items(), key=lambda pair: -pair[1]))


def measure_reach(kind: str, method: str, options: Mapping[str, Any]) -> dict[str, int]:
    """Measure how far a pass looks: the largest value of each unit of LENGTHS, 0 where no option has it."""
    counts_of = counts(kind, method)
    values = list_lengths(kind, method, options).items()
    return {unit: max((value for name, value in values if counts_of[name].what == unit), default=0) for unit in LENGTHS}


def list_bounds(kind: str, method: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """List the largest value of each bounded option on a model of these sizes (`weights.list_option_sizes`)."""
    return {name: sizes[c.most] for name, c in counts(kind, method).items() if c.most in sizes}


def options(kind: str, method: str, given: dict[str, Any], where: str = "") -> dict[str, Any]:
    """Complete a variant's options with defaults. Raises ConfigError for one that does not apply or is out of range."""
    return validate(make_option_schema(kind, method), given, where or f"{KINDS[kind]}.methods.{method}").model_dump()
