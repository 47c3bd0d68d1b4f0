"""Files from the network: of a pinned commit on the Hugging Face hub, or at a plain address.

huggingface_hub resumes and caches; the caller checks digests. Errors are one line that says what to do. What may pass,
a connection that breaks or a server that is busy, is tried again (`retry_request`); an answer that stands is not.
"""

import time
from collections.abc import Callable
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.error import URLError
from urllib.parse import urlsplit

from parity.base.digests import INDEX, parts, read_index, select_weights
from parity.base.errors import ParityError

T = TypeVar("T")
PAUSES = (1, 4)  # a request that failed is made again after each of these seconds
BESIDE = (  # these files, configuration and tokenizer, are downloaded with a folder's weights
    "config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json", "tokenizer*",
    "vocab*", "merges.txt", "spiece.model", "*.tiktoken", "special_tokens_map.json", "added_tokens.json", f"*{INDEX}",
)  # fmt: skip


class Listed(NamedTuple):
    """A repository at a commit: the SHA-256 of its files by path, "" where the hub does not tell it; their bytes."""

    repo: str
    commit: str
    files: dict[str, str]
    bytes: dict[str, int]


@cache
def list_files(repo: str, revision: str | None) -> Listed:
    """List the files of a repository on the hub at a revision, None for the newest commit."""
    from huggingface_hub import HfApi

    listing = explain_errors(repo, revision, lambda: HfApi().model_info(repo, revision=revision, files_metadata=True))
    files = listing.siblings or []
    digests = {f.rfilename: f.lfs.sha256 if f.lfs else "" for f in files}
    return Listed(repo, str(listing.sha), digests, {f.rfilename: f.size or 0 for f in files})


def download(repo: str, revision: str, file: str) -> Path:
    """Download one file of a repository at a revision, or find it in the cache; return its path there."""
    from huggingface_hub import hf_hub_download

    return explain_errors(f"{repo}/{file}", revision, lambda: Path(hf_hub_download(repo, file, revision=revision)))


def folder_prefix(path: str) -> str:
    """Return how the names of a folder's files begin in a repository: "folder/", or "" for all of it ("", ".")."""
    return "" if path in ("", ".", "./") else f"{path.strip('/')}/"


def select_remote_weights(repo: str, revision: str, start: str, names: list[str]) -> list[str]:
    """Select the files of weights (`digests.select_weights`) among `names`, the files of a repository's folder; `start`
    is its prefix. An index among them is downloaded."""
    try:
        return select_weights(names, lambda index: read_index(download(repo, revision, start + index)))
    except ParityError as error:
        raise ParityError(f"{repo}/{start} at {revision[:8]}: {error}") from None


def download_folder(repo: str, revision: str, path: str = ".", weights: bool = True) -> Path:
    """Download a folder of a repository: configuration, tokenizer and weights of one format (`digests.KINDS`); without
    a network, look in the cache. Return its path. Raises ParityError if it has no weights. weights=False: without
    them."""
    from huggingface_hub import HfApi, snapshot_download

    label = f"{repo}/{folder_prefix(path)}"
    start = folder_prefix(path)
    fetch = lambda **options: Path(snapshot_download(repo, revision=revision, **options), start)  # noqa: E731
    try:
        all_names = explain_errors(label, revision, lambda: HfApi().list_repo_files(repo, revision=revision))
    except ParityError as error:
        try:  # without a network, the folder is read from the cache
            folder = fetch(local_files_only=True, allow_patterns=[])
            if weights:
                parts(folder)
            return folder
        except Exception:
            raise error from None
    names = [name.removeprefix(start) for name in all_names if name.startswith(start)]
    flat = [name for name in names if "/" not in name]
    selected = select_remote_weights(repo, revision, start, flat) if weights else []
    if weights and not selected:
        raise ParityError(
            f"models: {label} at {revision[:8]} holds no *.safetensors or pytorch_model*.bin; allowed: the name of a"
            " file, or a folder with weights"
        )
    selected += [name for name in flat if any(fnmatch(name, pattern) for pattern in BESIDE)]
    return explain_errors(label, revision, lambda: fetch(allow_patterns=[start + name for name in selected]))


def download_address(url: str, sha256: str, folder: Path) -> Path:
    """Download a file from a plain address into `folder`, unless it is there already, and return its path. Raises
    ParityError unless the address is http or https and the content has the digest `sha256`."""
    file = folder / f"{sha256[:16]}-{(Path(urlsplit(url).path).name or 'file')[-120:]}"
    if not file.is_file():
        download_to(url, sha256, file)
    return file


def download_to(url: str, sha256: str, file: Path) -> None:
    """Download a plain address to `file`, which is there whole or not at all. Raises ParityError unless the address is
    http or https and the content has the digest `sha256`, or any if that is ""."""
    from torch.hub import download_url_to_file

    parsed = urlsplit(url)
    if parsed.scheme not in ("http", "https") or not parsed.hostname or parsed.username:
        raise ParityError(f"{url!r}: allowed: https://host/file, without a name or password")
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        retry_request(lambda: download_url_to_file(url, str(file), hash_prefix=sha256 or None))
    except (OSError, RuntimeError, ValueError) as error:  # the download was refused, broken off, or is another file
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ParityError(f"{url} cannot be had: {cause}") from None


def may_pass(error: Exception) -> bool:
    """Return whether the same request may succeed later: there was no answer, or the server is busy or broken."""
    from httpx2 import TransportError  # huggingface_hub uses this client
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

    code = getattr(error, "code", None) or getattr(getattr(error, "response", None), "status_code", None)
    if code is not None:
        return code >= 500 or code in (408, 429)
    unreachable = (ConnectionError, TimeoutError, URLError, TransportError, LocalEntryNotFoundError)
    return isinstance(error, unreachable) and not isinstance(error, OfflineModeIsEnabled)


def retry_request(get: Callable[[], T]) -> T:
    """Return the result of `get`, which is called again after each of PAUSES if it raises an error that may pass."""
    for pause in PAUSES:
        try:
            return get()
        except Exception as error:  # the clients raise several families of errors
            if not may_pass(error):
                raise
            time.sleep(pause)
    return get()


def explain_errors(name: str, revision: str | None, get: Callable[[], T]) -> T:
    """Return what `get()` returns, retried as with `retry_request`. Any error becomes a ParityError of one line:
    `name`, `revision`, the hub's reason and, for known errors, what to do."""
    try:
        return retry_request(get)
    except Exception as error:  # the hub's client raises several families of errors
        from huggingface_hub import errors

        hints = {
            errors.GatedRepoError: "accept its terms on its page, then set HF_TOKEN to a token of that account",
            errors.RepositoryNotFoundError: "no such repository, or a private one: set HF_TOKEN",
            errors.RevisionNotFoundError: "no such revision: take a commit from its page",
            errors.RemoteEntryNotFoundError: "no such file in it",
            errors.HFValidationError: "a repository is owner/name",
            errors.HfHubHTTPError: "set HF_TOKEN to a token that may read it, or wait",
        }
        hint = next((f"; {text}" for kind, text in hints.items() if isinstance(error, kind)), "")
        cause = next(iter(str(error.__cause__ or error).strip().splitlines()), "")
        commit = (revision or "main")[:8]
        raise ParityError(f"models: {name} at {commit} cannot be had: {type(error).__name__}: {cause}{hint}") from None
