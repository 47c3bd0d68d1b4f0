"""A method's options and what its module declares of it, read from its source, so that planning imports no torch.

The options are the keyword-only arguments of the function of the module's name: an argument's annotation holds its type
and bounds, its default is the option's, and the function's docstring says what it does. The rest are literals at the
top of the module, the fields of `Declaration`.
"""

import ast
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from parity.base.errors import ConfigError
from parity.experiment.module_metadata import modules, outline
from parity.experiment.schema import Word, validate

KINDS = {"discrete": "image", "anysubset": "text", "continuous": "continuous"}  # of model: the configuration's section
# Caps of length options on models of a few positions, where a window of 16 would be the whole sequence.
SMALL: dict[str, dict[str, Any]] = {
    "discrete": {"window": 3, "interval": 2, "ahead": 1, "depth": 2, "total": 12},
    "anysubset": {"k": 3, "steps": 4, "orders": 4},
    "continuous": {"gamma": 3, "prefill": 0.0, "ahead": 3},
}
PLACES = {  # options that say how many positions a pass covers
    "discrete": ("window", "interval", "ahead", "depth", "gamma"),
    "anysubset": ("k",),
    "continuous": ("window", "ahead", "gamma"),
}
TYPES = {"int": int, "float": float, "bool": bool, "str": str}


class Declaration(BaseModel):
    """The literals that a decoder's module assigns. Options are matched by value: {} matches any, None none."""

    model_config = ConfigDict(frozen=True, strict=True)

    CLAIM: Literal["lossless", "lossy"]  # what the paper says of the law
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
    """What a decoder declares; ConfigError that names its file for a wrong literal."""
    values = outline(f"decoders/{kind}", method).values
    literals = {name: value for name, value in values.items() if name in Declaration.model_fields}
    return validate(Declaration, literals, f"src/parity/decoders/{kind}/{method}.py")


def longest_place(kind: str, options: Mapping[str, Any]) -> tuple[str, int]:
    """The option that counts the most places; ("", 0) if none does."""
    counts = ((name, options[name]) for name in PLACES[kind] if name in options)
    return max(counts, key=lambda pair: pair[1], default=("", 0))


def methods(kind: str) -> tuple[str, ...]:
    """Names of the decoders of a kind."""
    return modules(f"decoders/{kind}")


def _agree(options: dict[str, Any], required: dict[str, Any] | None) -> bool:
    return required is not None and all(options.get(k) == v for k, v in required.items())


def claim(kind: str, method: str, options: dict[str, Any]) -> str:
    """What the paper says of the law with these options: "lossless", "lossy", or "equal within eps" for a method that
    follows plain decoding's own path and stops within a tolerance."""
    declared = declaration(kind, method)
    if _agree({**declared.EXACT_WITH, **options}, declared.EXACT_WITH):
        return declared.CLAIM
    return "equal within eps" if kind == "continuous" and coupled(kind, method, options) else "lossy"


def coupled(kind: str, method: str, options: dict[str, Any]) -> bool:
    """Whether a variant shares plain decoding's noise place by place, and must return its tokens."""
    return _agree(options, declaration(kind, method).COUPLED_WITH)


def plain(kind: str, method: str, options: dict[str, Any]) -> bool:
    """Whether a variant is plain decoding, the baseline of its kind."""
    return _agree(options, declaration(kind, method).PLAIN)


def on_enumerable(kind: str, method: str, options: dict[str, Any]) -> bool:
    """Whether a variant runs on the enumerable models of the exact layer."""
    return _agree(options, declaration(kind, method).EXACT_LAYER)


@cache
def plain_method(kind: str) -> str:
    return next(m for m in methods(kind) if declaration(kind, m).PLAIN is not None)


def plain_options(kind: str) -> dict[str, Any]:
    method = plain_method(kind)
    return options(kind, method, declaration(kind, method).PLAIN or {})


def needs(kind: str, method: str) -> str:
    """The companion of the target that a method needs: "drafter" or "draft" or none."""
    return declaration(kind, method).NEEDS


def small(kind: str, options: dict[str, Any]) -> dict[str, Any]:
    """A variant's options for an enumerable model: lengths are capped, so that a method still takes several passes."""
    return {k: min(v, SMALL[kind][k]) if k in SMALL[kind] else v for k, v in options.items()}


def _option_type(annotation: ast.expr) -> Any:
    """The type that an annotation spells: a name of `TYPES`, Literal[...], or Annotated[type, Field(bounds)]."""
    match annotation:
        case ast.Name(id=name) if name in TYPES:
            return TYPES[name]
        case ast.Subscript(value=ast.Name(id="Literal"), slice=words):
            choices = ast.literal_eval(words)
            return Annotated[Literal[choices], Word] if "off" in choices else Literal[choices]
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[inner, ast.Call(keywords=bounds)])):
            return Annotated[_option_type(inner), Field(**{b.arg: ast.literal_eval(b.value) for b in bounds if b.arg})]
    raise ValueError(
        f"{ast.unparse(annotation)}; allowed: {', '.join(TYPES)}, Literal[...], Annotated[int, Field(...)]"
    )


@cache
def option_schema(kind: str, method: str) -> type[BaseModel]:
    """The options of a method: keyword-only arguments but `noise`."""
    file = f"src/parity/decoders/{kind}/{method}.py"
    signature = outline(f"decoders/{kind}", method).functions.get(method)
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
        except ValueError as error:
            raise ConfigError(f"{file}: {argument.arg}: {error}") from None
    config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    return create_model(f"{method}_options", __config__=config, **fields)


def options(kind: str, method: str, given: dict[str, Any], where: str = "") -> dict[str, Any]:
    """A variant's options, complete with defaults; ConfigError for one that does not apply or is out of range."""
    return validate(option_schema(kind, method), given, where or f"{KINDS[kind]}.methods.{method}").model_dump()
