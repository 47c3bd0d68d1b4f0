"""Tokens made elsewhere, as a method of a section: what a configuration says of them, and the state of their files.

`made` is no decoder: a job reads its tokens from a file (`parity.decode.made`), and tests look at them alone."""

import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from parity.base.errors import ConfigError
from parity.base.text_files import describe_missing
from parity.experiment.schema import File, Strict

MADE = "made"
KIND = "discrete"  # the only kind of model whose tokens can be made elsewhere
FILES = ("tokens", "again", "seconds", "plain_seconds")  # options that name a file


class MadeSpec(Strict):
    """Tokens of the section's images, made elsewhere: files, and what their makers say of them."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=40, description="the method's name on the page")
    tokens: File = Field(description="an .npz with tokens and prompts; also passes and step, if they are known")
    again: File = Field("", description="the same on another seed, to confirm or clear a rejection")
    seconds: File = Field("", description="a CSV with a row a batch: seconds, and images, 1 if it is left out")
    plain_seconds: File = Field("", description="the same of plain decoding, by the same people on the same device")
    command: str = Field("", max_length=500, description="that made the tokens")
    by: str = Field("", max_length=200, description="who reports the seconds")
    device: str = Field("", max_length=200, description="that the seconds were measured on")
    claim: Literal["lossless", "lossy"] = Field("lossless", description="what its makers claim")


def is_made(kind: str, method: str) -> bool:
    """Return whether a method stands for tokens that were made elsewhere."""
    return (kind, method) == (KIND, MADE)


def list_files(options: Mapping[str, Any]) -> dict[str, Path]:
    """List the files that a variant names, by option."""
    return {name: Path(options[name]) for name in FILES if options[name]}


def check_variants(where: str, variants: list[dict[str, Any]], is_stand_in: bool) -> None:
    """Check that the files of variants are there, that each names tokens, and that no two have one name. Raises
    ConfigError."""
    if is_stand_in:
        raise ConfigError(f"{where}: tokens of a model, and stand_in puts another in its place; allowed: without it")
    seen: dict[str, int] = {}
    for i, variant in enumerate(variants):
        first = seen.setdefault(variant["name"], i)
        if first != i:
            raise ConfigError(f"{where}.{i}.name = {variant['name']!r}: the name of {where}.{first}; allowed: another")
        for option, file in list_files(variant).items():
            if not file.is_file():
                raise ConfigError(f"{where}.{i}.{option} = {str(file)!r}: {describe_missing(file)}")
            if option in ("tokens", "again") and not zipfile.is_zipfile(file):
                raise ConfigError(f"{where}.{i}.{option} = {str(file)!r}: allowed: an .npz that np.savez wrote")


def digest_files(options: Mapping[str, Any]) -> str:
    """Digest the content of a variant's files: 16 hex digits; files that are not there count as empty."""
    from parity.base.digests import digest_file

    parts = [
        f"{name} {digest_file(file) if file.is_file() and file.stat().st_size else ''}"
        for name, file in list_files(options).items()
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
