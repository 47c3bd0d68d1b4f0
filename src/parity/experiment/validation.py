"""A value against its schema: the first thing that is wrong as one line with the key, the value and what is allowed."""

import math
import reprlib
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from parity.base.errors import ConfigError

Schema = TypeVar("Schema", bound=BaseModel)


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
                if not math.isfinite(number):
                    return f"allowed: {wanted}"
                wanted_text = f"{int(number)}" if kind == "int_type" else f"{number:.1e}"
                if kind == "float_type" or number == int(number):
                    hint = f" (YAML reads {error['input']} as text: write {wanted_text}, unquoted)"
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


def brief(value: Any) -> str:
    """The first 116 characters of a value, made without the rest of it: aliases of YAML can hold more than memory."""
    short = reprlib.Repr()
    short.maxlevel, short.maxdict, short.maxlist, short.maxstring, short.maxother = 3, 4, 6, 116, 116
    return short.repr(value)[:116]


def validate(schema: type[Schema], value: Any, where: str) -> Schema:
    """ConfigError for a value that the schema refuses."""
    try:
        return schema.model_validate(value)
    except ValidationError as problem:
        error = problem.errors()[0]
        path = ".".join(
            str(p) for p in error["loc"] if not (isinstance(p, str) and p.endswith("Spec")) and "[" not in str(p)
        )
        key = ".".join(x for x in (where, path) if x) or "config"
        shown = "" if error["type"] == "missing" else f" = {brief(error['input'])}"
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
