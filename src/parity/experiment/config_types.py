"""What keys of a configuration may hold: names, digests, paths."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$", max_length=64)]
Hex64 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Scalar = str | int | float | bool | None


def a_path(text: str) -> str:
    """The name of a file or folder that some file system could hold."""
    try:
        whole = text.encode()
    except UnicodeEncodeError:
        raise ValueError("allowed: a path in characters that UTF-8 has") from None
    if not text.isprintable():
        raise ValueError("allowed: a path without control characters")
    if set(text) & set("{}"):
        raise ValueError("allowed: a path without { and }, which Snakemake takes for wildcards")
    if len(whole) > 4000 or any(len(part) > 255 for part in whole.split(b"/")):
        raise ValueError("allowed: a path of at most 4000 bytes, and 255 between two slashes")
    return text


HUB = "hub:"  # before owner/name@commit[:path], what lies in a repository of its own
OWNER = r"(?P<repo>[^/@:\s]+/[^/@:\s]+)"
PINNED = re.compile(rf"{HUB}{OWNER}@(?P<commit>[0-9a-f]{{40}})(:(?P<path>[^:]+))?")
File = Annotated[str, AfterValidator(a_path)]


def as_word(value: Any) -> Any:
    """YAML reads `on` and `off` as truth values; where a word is asked for they are words."""
    return ("off", "on")[value] if isinstance(value, bool) else value


Word = BeforeValidator(as_word)


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
