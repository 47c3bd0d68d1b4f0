"""Files from the network: a file or a folder of a pinned commit on the Hugging Face hub, or a plain address.

huggingface_hub goes on with what was begun and shows progress; Snakemake tries a failed job again. Digests are checked
by whoever asked for the files. Errors are one line that says what to do.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from parity.base.digests import INDICES, KINDS, parts
from parity.base.errors import ParityError
from parity.experiment.schema import PINNED

T = TypeVar("T")
BESIDE = (  # what stands beside a folder's weights and is read: configuration and tokenizer
    "config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json", "tokenizer*",
    "vocab*", "merges.txt", "spiece.model", "*.tiktoken", "special_tokens_map.json", "added_tokens.json",
)  # fmt: skip
FILES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".json", ".model")  # any other name is a folder's


def at_hand(where: str, sha256: str, folder: Path, repo: str = "", revision: str = "") -> Path:
    """A part of a model, located by what the configuration gives: an address, `hub:owner/name@commit[:path]`, a path in
    `repo` (a folder unless its name ends as one of FILES), or, without `repo`, a path on this machine."""
    if where.startswith(("https://", "http://")):
        return download_address(where, sha256, folder / "downloads")
    if other := PINNED.fullmatch(where):
        repo, revision, where = other["repo"], other["commit"], other["path"] or ""
    elif not repo:
        return Path(where)
    if Path(where).suffix not in FILES or where.endswith("/"):
        return snapshot(repo, revision, where)
    return download(repo, revision, where)


def download(repo: str, revision: str, file: str) -> Path:
    """One file of a pinned commit."""
    from huggingface_hub import hf_hub_download

    return explained(f"{repo}/{file}", revision, lambda: Path(hf_hub_download(repo, file, revision=revision)))


def snapshot(repo: str, revision: str, part: str = ".") -> Path:
    """A folder of a pinned commit, "." or below it: weights (*.safetensors, or where there are none,
    pytorch_model*.bin), configuration, tokenizer. ParityError for one without weights."""
    from huggingface_hub import HfApi, constants, snapshot_download

    below = "" if part in ("", ".", "./") else f"{part.strip('/')}/"
    cached = Path(constants.HF_HUB_CACHE, f"models--{repo.replace('/', '--')}", "snapshots", revision, below)
    try:
        every = explained(f"{repo}/{below}", revision, lambda: HfApi().list_repo_files(repo, revision=revision))
    except ParityError:
        with suppress(ParityError):
            parts(cached)  # a machine without a network has it already; its digest is checked as always
            return cached
        raise
    names = chosen([name.removeprefix(below) for name in every if name.startswith(below)])
    if not any(fnmatch(name, kind) for name in names for kind in KINDS):
        raise ParityError(
            f"models: {repo}/{below} at {revision[:8]} holds no *.safetensors or pytorch_model*.bin; allowed: the name"
            " of a file, or a folder with weights"
        )
    wanted = [below + name for name in names]
    fetch = lambda: snapshot_download(repo, revision=revision, allow_patterns=wanted)  # noqa: E731
    return Path(explained(f"{repo}/{below}", revision, fetch), below)


def chosen(names: Iterable[str]) -> list[str]:
    """Of the names in a folder: the weights of the first kind that exists, their index, and the configuration files;
    without subfolders."""
    flat = [name for name in names if "/" not in name]
    found = [[name for name in flat if fnmatch(name, kind)] for kind in KINDS]
    which = next((i for i, some in enumerate(found) if some), 0)
    beside = [name for name in flat if any(fnmatch(name, pattern) for pattern in (*BESIDE, INDICES[which]))]
    return sorted({*found[which], *beside})


def download_address(url: str, sha256: str, folder: Path) -> Path:
    """A file at a plain address, of a known digest, into `folder`. ParityError for what is not http or https, and for
    other content."""
    from torch.hub import download_url_to_file

    parsed = urlsplit(url)
    if parsed.scheme not in ("http", "https") or not parsed.hostname or parsed.username:
        raise ParityError(f"models: {url!r}: allowed: https://host/file, without a name or password")
    file = folder / f"{sha256[:16]}-{(Path(parsed.path).name or 'file')[-120:]}"
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        try:
            download_url_to_file(url, str(file), hash_prefix=sha256)
        except (OSError, RuntimeError, ValueError) as error:  # refused, broken off, or of another digest
            cause = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ParityError(f"models: {url} cannot be had: {cause}") from None
    return file


def explained(what: str, revision: str, get: Callable[[], T]) -> T:
    """What `get` gives; ParityError that explains why it gives nothing."""
    try:
        return get()
    except Exception as error:  # the hub's client raises several families
        raise ParityError(refused(what, revision[:8], error)) from None


def refused(what: str, revision: str, error: Exception) -> str:
    """Why the hub did not give something, in one line that says what to do where that is known."""
    from huggingface_hub import errors

    token = "is refused" if os.environ.get("HF_TOKEN") else "is not set"
    hints = {
        errors.GatedRepoError: "accept its terms on its page, then set HF_TOKEN to a token of that account"
        f" (HF_TOKEN {token})",
        errors.RepositoryNotFoundError: f"no such repository, or a private one: set HF_TOKEN (which {token})",
        errors.RevisionNotFoundError: "no such revision: take a commit from its page",
        errors.RemoteEntryNotFoundError: "no such file in it",
        errors.HFValidationError: "a repository is owner/name",
    }
    hint = next((text for kind, text in hints.items() if isinstance(error, kind)), "")
    status = getattr(getattr(error, "response", None), "status_code", None)
    if not hint and status in (401, 403, 429):
        hint = (
            f"set HF_TOKEN to a token that may read it (HF_TOKEN {token})" if status != 429 else "wait, or set HF_TOKEN"
        )
    cause = next(iter(str(error.__cause__ or error).strip().splitlines()), "")
    return f"models: {what} at {revision} cannot be had: {type(error).__name__}: {cause}{hint and f'; {hint}'}"
