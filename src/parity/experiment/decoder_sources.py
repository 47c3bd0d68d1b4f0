"""The place where a decoder's name becomes its module: one of ours, a file's, or an installed package's.

    sjd                   a module of decoders/src/parity_decoders/<kind>
    path/to/mine.py:mine  a function of a file; relative to the folder that a command runs in, or the workflow's
    mine                  an entry point `parity.decoders` of an installed package, mine = "package.module:function"

A module of others declares what ours do (`parity.experiment.options.Declaration`), and KIND unless it decodes image
tokens. A file imports no other file beside it; a decoder of several files is a package. Planning imports none of them,
and no torch.
"""

import importlib.metadata
import importlib.util
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from parity.base.errors import ConfigError
from parity.base.text_files import describe_missing
from parity.experiment import code_digest
from parity.experiment.module_metadata import Outline, find_folder, modules, parse_outline

GROUP = "parity.decoders"
NAME = re.compile("[a-z][a-z0-9_]*")
DEFAULT_KIND = "discrete"


class Source(NamedTuple):
    """Where a decoder is."""

    module: str  # its name, or the path of the file
    function: str
    file: Path
    owner: str  # "parity", the path of the file, or the package with its version

    @property
    def label(self) -> str:
        """The file, as messages name it."""
        own = f"decoders/src/{self.module.replace('.', '/')}.py"
        return own if self.owner == "parity" else self.module if self.module.endswith(".py") else str(self.file)


def get_short_name(method: str) -> str:
    """Return a decoder's name without the file that it is in: it names folders, and rows of a report."""
    return method.rpartition(":")[2]


def is_own(kind: str, method: str) -> bool:
    """Return whether a decoder is one of ours."""
    return bool(NAME.fullmatch(method)) and (find_folder(f"decoders/{kind}") / f"{method}.py").is_file()


@cache
def list_installed() -> dict[str, tuple[importlib.metadata.EntryPoint, ...]]:
    """List the entry points of installed packages by name; a name should have one."""
    found: dict[str, tuple[importlib.metadata.EntryPoint, ...]] = {}
    for entry in importlib.metadata.entry_points(group=GROUP):
        found[entry.name] = (*found.get(entry.name, ()), entry)
    return found


def describe_package(entry: importlib.metadata.EntryPoint) -> str:
    """Name the package of an entry point with its version."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value


def find_module_file(entry: importlib.metadata.EntryPoint) -> Path | None:
    """Find the file of an entry point's module without importing it or the packages that contain it; None if there is
    none. What was installed with it can be digested from then on (`code_digest`)."""
    module = entry.module
    top = module.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.origin:
        return None
    root = Path(spec.origin).parents[1 if spec.submodule_search_locations else 0]
    installed = (entry.dist.files if entry.dist else None) or ()
    code_digest.add_root(top, root, [Path(str(f.locate())) for f in installed if f.suffix == ".py"])
    return code_digest.find_file(module)


def find_source(kind: str, method: str) -> Source:
    """Find a decoder by its name. Raises ConfigError for one that does not exist, a name that several have, and a
    module of another kind."""
    entries = list_installed().get(method, ())
    packages = ["parity"] * is_own(kind, method) + [describe_package(entry) for entry in entries]
    if len(packages) > 1:
        raise ConfigError(f"a decoder of several packages ({', '.join(packages)}); allowed: a name that one has")
    if is_own(kind, method):
        module = f"parity_decoders.{kind}.{method}"
        return Source(module, method, find_folder(f"decoders/{kind}") / f"{method}.py", "parity")
    if entries:
        source = find_entry(entries[0])
    elif ".py:" in method:
        source = find_in_file(method)
    else:
        allowed = ", ".join(list_decoders(kind))
        raise ConfigError(f"unknown method; allowed: {allowed}, or FILE.py:FUNCTION")
    if not NAME.fullmatch(get_short_name(method)):
        raise ConfigError(f"{get_short_name(method)!r}: allowed: a name of lower-case letters, digits and _")
    if (has := read_kind(source)) != kind:
        raise ConfigError(f"{source.label}: KIND = {has!r}; allowed here: KIND = {kind!r}")
    return source


def find_entry(entry: importlib.metadata.EntryPoint) -> Source:
    """Find the decoder of an entry point. Raises ConfigError if its module does not exist."""
    file = find_module_file(entry)
    if file is None:
        raise ConfigError(f"{describe_package(entry)}: entry point {entry.name} = {entry.value!r}: no such module")
    return Source(entry.module, entry.attr, file, describe_package(entry))


def find_in_file(method: str) -> Source:
    """Find the decoder that FILE.py:FUNCTION names. Raises ConfigError if there is no such file."""
    name, _, function = method.rpartition(":")
    if not Path(name).is_file():
        raise ConfigError(f"{name}: {describe_missing(Path(name))}")
    return Source(name, function, Path(name), name)


def read_source(source: Source) -> Outline:
    """Read what a decoder's module declares. Raises ConfigError for a file that is no Python."""
    try:
        return parse_outline(source.file)
    except (SyntaxError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"{source.label}: no Python: {error}") from None


def read_kind(source: Source) -> str:
    """Read the kind of model that a decoder of others declares."""
    return str(read_source(source).values.get("KIND", DEFAULT_KIND))


def read_decoder(kind: str, method: str) -> Outline:
    """Read what a decoder's module declares, without importing it. Raises ConfigError: see `find_source`."""
    return read_source(find_source(kind, method))


def list_decoders(kind: str) -> list[str]:
    """List the names of the decoders of a kind, ours and those of installed packages that can be read."""
    others = []
    for name, entries in list_installed().items():
        file = find_module_file(entries[0])
        if file is not None and read_kind(find_entry(entries[0])) == kind:
            others.append(name)
    return [*modules(f"decoders/{kind}"), *sorted(others)]


def digest_source(kind: str, method: str) -> str:
    """Digest the code of a decoder of others, its file or all of its package: 12 hex digits. "" for ours, of which an
    edit makes no other cell."""
    source = find_source(kind, method)
    if source.owner == "parity":
        return ""
    return code_digest.digest_module(source.module)[:12]
