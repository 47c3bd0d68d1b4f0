"""A method's options, and what its module claims: read from the source of the decoder, without importing torch.

The keyword-only arguments of the function of the module's name, with their annotations, are the option schema. A module
declares, as literals:

    CLAIM         "lossless" or "lossy": what the paper says of the law
    EXACT_WITH    options at whose stated value alone a lossless claim is made
    COUPLED_WITH  options with which the tokens must be plain decoding's under the same noise; {} for any
    PLAIN         options with which the method is plain decoding, the baseline of its kind; {} for any
    NEEDS         the companion of the target that it needs: "drafter" or "draft"
    RESTS_ON      an observation that the method rests on: a module of metrics that makes figures of it
    TARGETS       the models of the exact layer it is tested on, if not the common ones: "walks", drawn in several steps
    EXACT_LAYER   options with which it runs on enumerable models; {} (the default) for any, None for never
"""

import ast
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, create_model

from parity.base.errors import ConfigError
from parity.experiment.config_types import Word
from parity.experiment.module_metadata import constant, function, modules
from parity.experiment.validation import validate

KINDS = {
    "discrete": "image",
    "anysubset": "text",
    "continuous": "continuous",
}  # of model: the section of the configuration
# On models of a few positions a window of 16 would be the whole sequence, and a fourth step after its end.
SMALL: dict[str, dict[str, Any]] = {
    "discrete": {"window": 3, "interval": 2, "ahead": 1, "depth": 2, "total": 12},
    "anysubset": {"k": 3, "steps": 4, "orders": 4},
    "continuous": {"gamma": 3, "prefill": 0.0, "ahead": 3},
}
PLACES = {  # options that count places of one pass
    "discrete": ("window", "interval", "ahead", "depth", "gamma"),
    "anysubset": ("k",),
    "continuous": ("window", "ahead", "gamma"),
}


def longest_place(kind: str, options: Mapping[str, Any]) -> tuple[str, int]:
    """The option that counts the most places; ("", 0) if none does."""
    own = ((name, options[name]) for name in PLACES[kind] if name in options)
    return max(own, key=lambda pair: pair[1], default=("", 0))


def methods(kind: str) -> tuple[str, ...]:
    """Names of the decoders of a kind."""
    return modules(f"decoders/{kind}")


def _declared(kind: str, method: str, name: str, default: Any = None) -> Any:
    return constant(f"decoders/{kind}", method, name, default)


def _agrees(options: dict[str, Any], wanted: dict[str, Any] | None) -> bool:
    return wanted is not None and all(options.get(k) == v for k, v in wanted.items())


def claim(kind: str, method: str, options: dict[str, Any]) -> str:
    """What the method's paper says of its law with these options: "lossless" or "lossy"; or "equal within eps" where it
    follows plain decoding's own path, and stops within a tolerance."""
    said = _declared(kind, method, "CLAIM")
    if said not in ("lossless", "lossy"):
        raise ConfigError(
            f"src/parity/decoders/{kind}/{method}.py: declares CLAIM = {said!r}; allowed: 'lossless', 'lossy'"
        )
    exact_with = _declared(kind, method, "EXACT_WITH", {})
    if all(options.get(k, v) == v for k, v in exact_with.items()):
        return said
    return "equal within eps" if kind == "continuous" and coupled(kind, method, options) else "lossy"


def coupled(kind: str, method: str, options: dict[str, Any]) -> bool:
    """Whether a variant shares plain decoding's noise place by place, and must return its tokens."""
    return _agrees(options, _declared(kind, method, "COUPLED_WITH"))


def plain(kind: str, method: str, options: dict[str, Any]) -> bool:
    """Whether a variant is plain decoding, the baseline of its kind."""
    return _agrees(options, _declared(kind, method, "PLAIN"))


@cache
def plain_method(kind: str) -> str:
    """The decoder that is plain decoding."""
    return next(m for m in methods(kind) if _declared(kind, m, "PLAIN") is not None)


def plain_options(kind: str) -> dict[str, Any]:
    """Plain decoding's options."""
    method = plain_method(kind)
    return options(kind, method, _declared(kind, method, "PLAIN"))


def needs(kind: str, method: str) -> str:
    """The companion of the target that a method needs: "drafter", "draft" or none."""
    return _declared(kind, method, "NEEDS", "")


def walked(kind: str, method: str) -> bool:
    """Whether a method looks at the steps of a law, and its exactness hangs on them."""
    return _declared(kind, method, "TARGETS", "") == "walks"


def rests_on(kind: str, method: str) -> str:
    """The observation that a method rests on, or none."""
    return _declared(kind, method, "RESTS_ON", "")


def on_enumerable(kind: str, method: str, options: dict[str, Any]) -> bool:
    """Whether a variant runs on the enumerable models of the exact layer."""
    return _agrees(options, _declared(kind, method, "EXACT_LAYER", {}))


def small(kind: str, options: dict[str, Any]) -> dict[str, Any]:
    """A variant's options for an enumerable model: those that count places cut to a few, so that a method is what it is
    on larger ones."""
    return {k: min(v, SMALL[kind][k]) if k in SMALL[kind] else v for k, v in options.items()}


@cache
def option_schema(kind: str, method: str) -> type[BaseModel]:
    """The options of a method: keyword-only arguments but `noise`, from the signature in its source."""
    signature = function(f"decoders/{kind}", method, method)
    if signature is None:
        raise ConfigError(
            f"src/parity/decoders/{kind}/{method}.py: has no function {method}(model, start, *, noise, ...)"
        )
    types = {"int": int, "float": float, "bool": bool, "str": str}
    names = {"Annotated": Annotated, "Literal": Literal, "Field": Field, **types}
    fields: dict[str, Any] = {}
    for argument, default in zip(signature.args.kwonlyargs, signature.args.kw_defaults, strict=True):
        if argument.arg != "noise" and argument.annotation is not None and default is not None:
            expression = compile(ast.Expression(argument.annotation), method, "eval")
            annotation = eval(expression, {"__builtins__": {}}, names)  # our own source
            words = get_origin(annotation) is Literal and {"on", "off"} & set(get_args(annotation))
            fields[argument.arg] = (Annotated[annotation, Word] if words else annotation, ast.literal_eval(default))
    return create_model(
        f"{method}_options", __config__=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False), **fields
    )


def options(kind: str, method: str, given: dict[str, Any], where: str = "") -> dict[str, Any]:
    """A variant's options, complete with defaults; ConfigError for one that does not apply or is out of range."""
    place = where or f"{KINDS[kind]}.methods.{method}"
    return validate(option_schema(kind, method), given, place).model_dump()
