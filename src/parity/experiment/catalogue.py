"""workflow/data.yaml: where the files in data/ come from that experiments name."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from parity.base.errors import ConfigError
from parity.experiment.config_overlay import DATA, iter_values, read_experiment
from parity.experiment.schema import Hex64, Strict

FOLDER = "data/"
ADDRESS = r"^https?://[^/@\s]+/\S+$"


class Entry(Strict):
    """A file or folder in data/: an address from which it is downloaded, or where to ask for it."""

    address: str = Field("", pattern=rf"^$|{ADDRESS}")
    sha256: Hex64 | None = None  # of what is downloaded
    member: str = ""  # the file or folder of a downloaded .zip; "" if the download itself is the file
    ask: str = Field("", pattern=rf"^$|{ADDRESS}")
    licence: str = Field(min_length=1)


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]
Catalogue = Mapping[str, Entry]  # entries by name in data/


def read(file: Path) -> dict[str, Entry]:
    """Read a catalogue. Raises ConfigError for an entry with an unknown key, or without one of address and ask."""
    try:
        entries = TypeAdapter(dict[Name, Entry]).validate_python(read_experiment(file))
    except ValidationError as problem:
        error = problem.errors()[0]
        raise ConfigError(f"{file}: {'.'.join(map(str, error['loc']))}: {error['msg']}") from None
    for name, entry in entries.items():
        if bool(entry.address) == bool(entry.ask):
            raise ConfigError(f"{file}: {name}: needs an address, or where to ask for it")
    return entries


def list_named(raw: Mapping[str, Any], catalogue: Catalogue) -> Iterator[str]:
    """Yield the names in the catalogue of the files in data/ that a configuration names."""
    named = (value for pattern in DATA for _, value in iter_values(raw, pattern.split(".")))
    for value in dict.fromkeys(value for value in named if isinstance(value, str)):
        match = re.fullmatch(rf"(\./)?{FOLDER}(?P<name>[^/]+)/?", value)
        if match and match["name"] in catalogue:
            yield match["name"]


def explain_asking(name: str, entry: Entry) -> str:
    """Explain where to ask for a file that is not downloaded, because it needs a form or is part of a large one."""
    return f"{FOLDER}{name}: not here, and not fetched ({entry.licence}); ask for it at {entry.ask} and put it there"


def check(raw: Mapping[str, Any], catalogue: Catalogue, command: str) -> None:
    """Raise ConfigError of one line for the first file in data/ that a configuration names and this folder lacks.
    command: what fetches it."""
    for name in [name for name in list_named(raw, catalogue) if not Path(FOLDER, name).exists()]:
        entry = catalogue[name]
        if entry.ask:
            raise ConfigError(explain_asking(name, entry))
        raise ConfigError(f"{FOLDER}{name}: not here; `{command}` fetches it ({entry.licence})")
