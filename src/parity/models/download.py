"""Files from the network: a file or a folder of a pinned commit on the Hugging Face hub, or a plain address.

What was begun is gone on with, progress is shown, and nothing half written passes for whole: files take their place
when they are complete, and their digests are checked by whoever asked for them. Errors are one line that says what to
do.
"""

import errno
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from parity.base.digests import INDICES, KINDS, check, parts
from parity.base.errors import ParityError
from parity.experiment.config_types import PINNED

T = TypeVar("T")
BESIDE = (  # what stands beside a folder's weights and is read: configuration and tokenizer
    "config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json", "tokenizer*",
    "vocab*", "merges.txt", "spiece.model", "*.tiktoken", "special_tokens_map.json", "added_tokens.json",
)  # fmt: skip
FILES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".json", ".model")  # any other name is a folder's
SPARE = 1 << 28  # bytes that are left free on a disk
LARGEST = 1 << 38  # bytes of a file from a plain address
FINAL = {400, 401, 403, 404, 410, 416}  # answers that the next try gets too


def download(repo: str, revision: str, file: str, attempts: int = 5) -> Path:
    """One file of a pinned commit; network errors and 5xx are tried again, the last one is shown with its cause."""
    from huggingface_hub import constants, hf_hub_download

    def get() -> Path:
        told = hf_hub_download(repo, file, revision=revision, dry_run=True)
        room(
            (told.file_size or 0) if told.will_download else 0,
            Path(constants.HF_HUB_CACHE),
            f"{repo}/{file}",
            "HF_HOME",
        )
        return Path(hf_hub_download(repo, file, revision=revision))

    return tried(f"{repo}/{file}", revision[:8], attempts, get)


def snapshot(repo: str, revision: str, part: str = ".", attempts: int = 5) -> Path:
    """A folder of a pinned commit, "." or below it: weights (*.safetensors, or where there are none,
    pytorch_model*.bin), configuration, tokenizer. ParityError for one without weights, or for which the disk has no
    room."""
    from huggingface_hub import HfApi, constants, snapshot_download

    def listed() -> dict[str, int]:
        said = HfApi().model_info(repo, revision=revision, files_metadata=True)
        return {f.rfilename: f.size or 0 for f in said.siblings or []}

    below = "" if part in ("", ".", "./") else f"{part.strip('/')}/"
    here = Path(constants.HF_HUB_CACHE)
    got = here / f"models--{repo.replace('/', '--')}/snapshots" / revision
    try:
        every = tried(f"{repo}/{below}", revision[:8], attempts, listed)
    except ParityError:
        with suppress(ParityError):
            parts(got / below)  # a machine without a network has it already; its digest is checked as always
            return got / below
        raise
    names = chosen([name.removeprefix(below) for name in every if name.startswith(below)])
    if not any(fnmatch(name, kind) for name in names for kind in KINDS):
        raise ParityError(
            f"models: {repo}/{below} at {revision[:8]} holds no *.safetensors or pytorch_model*.bin; allowed: the name"
            " of a file, or a folder with weights"
        )
    room(sum(every[below + n] for n in names if not (got / below / n).is_file()), here, f"{repo}/{below}", "HF_HOME")
    wanted: dict[str, Any] = {"allow_patterns": [below + name for name in names], "max_workers": 4}
    get = lambda: Path(snapshot_download(repo, revision=revision, **wanted)) / below  # noqa: E731
    return tried(f"{repo}/{below}", revision[:8], attempts, get)


def at_hand(where: str, sha256: str, folder: Path, repo: str = "", revision: str = "") -> Path:
    """A part by what a configuration says of where it is: an address, `hub:owner/name@commit[:path]`, a path in `repo`
    (a folder unless its name ends as one of FILES), or, without one, a path here."""
    if where.startswith(("https://", "http://")):
        return address(where, sha256, folder / "downloads")
    if other := PINNED.fullmatch(where):
        repo, revision, where = other["repo"], other["commit"], other["path"] or ""
    elif not repo:
        return Path(where)
    if Path(where).suffix not in FILES or where.endswith("/"):
        return snapshot(repo, revision, where)
    return download(repo, revision, where)


def chosen(names: Iterable[str]) -> list[str]:
    """Of the names in a folder, those of weights of the first kind that is there, of its index, and of what is read
    beside them; subfolders are none of it."""
    flat = [name for name in names if "/" not in name]
    found = [[name for name in flat if fnmatch(name, kind)] for kind in KINDS]
    which = next((i for i, some in enumerate(found) if some), 0)
    beside = [name for name in flat if any(fnmatch(name, pattern) for pattern in (*BESIDE, INDICES[which]))]
    return sorted({*found[which], *beside})


def address(url: str, sha256: str, folder: Path, attempts: int = 5, largest: int = LARGEST) -> Path:
    """A file at a plain address, of a known digest, into `folder`; begun again where it broke off. ParityError for what
    is not http or https (nor led to it), or larger than `largest` bytes."""
    said = urlsplit(url)
    if said.scheme not in ("http", "https") or not said.hostname or said.username:
        raise ParityError(f"models: {url!r}: allowed: https://host/file, without a name or password")
    name = Path(said.path).name or "file"
    file = folder / f"{sha256[:16]}-{name[-120:]}"
    if file.is_file():
        check(file, sha256, f"models: {url}")
        return file
    folder.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.part")
    tried(url, "its address", attempts, lambda: fetched(url, part, largest))
    try:
        check(part, sha256, f"models: {url}")
    except ParityError:
        part.unlink()  # whatever it is, the next try begins anew
        raise
    os.replace(part, file)
    return file


def fetched(url: str, part: Path, largest: int) -> None:
    """Go on with `part` where it ends, by a request for the rest; from the start where the server knows no rest."""
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils import get_session, tqdm

    begun = part.stat().st_size if part.is_file() else 0
    asked = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={begun}-"} if begun else {})
    limit = float(os.environ.get("HF_HUB_DOWNLOAD_TIMEOUT") or 30)
    with get_session().stream("GET", url, headers=asked, timeout=limit, follow_redirects=True) as answer:
        if answer.status_code == 416 and begun:  # nothing is left, or another file is there now: the digest will say
            return
        if answer.status_code >= 400:
            raise HfHubHTTPError(f"{answer.status_code} {answer.reason_phrase}", response=answer)
        if answer.status_code != 206:
            begun = 0
        rest = int(answer.headers.get("Content-Length") or -1)
        if begun + rest > largest:
            raise ParityError(f"models: {url}: {begun + rest} bytes; allowed: at most {largest}")
        room(max(rest, 0), part.parent, url, "the folder of results")
        total = begun + rest if rest > 0 else None
        bar = tqdm(total=total, initial=begun, unit="B", unit_scale=True, desc=part.name[-40:])
        with part.open("ab" if begun else "wb") as out, bar:
            for block in answer.iter_raw():
                out.write(block)
                bar.update(len(block))
                if out.tell() > largest:
                    raise ParityError(f"models: {url}: more than {largest} bytes; allowed: no more")
            if rest >= 0 and out.tell() != begun + rest:
                raise ConnectionError(f"{out.tell()} of {begun + rest} bytes came")


def room(size: int, folder: Path, what: str, moved_by: str) -> None:
    """ParityError unless the disk of a folder, or of where it will be, has room for so many bytes."""
    there = next((f for f in (folder, *folder.parents) if f.exists()), Path("/"))
    free = shutil.disk_usage(there).free
    if size and size + SPARE > free:
        raise ParityError(
            f"models: {what} needs {size / 1e9:.1f} GB, and {folder} has {max(free - SPARE, 0) / 1e9:.1f} GB free;"
            f" make room there, or set {moved_by} to a larger disk"
        )


def tried(what: str, revision: str, attempts: int, get: Callable[[], T]) -> T:
    """What `get` gives, asked again after errors that may pass; ParityError with the last one's cause."""
    cause: Exception | None = None
    for attempt in range(attempts):
        try:
            return get()
        except ParityError:
            raise
        except Exception as error:  # the hub's client raises several families here; most of them mean "not now"
            cause = error
            if final(error):
                break
            told = error.__cause__ or error
            said = str(told).strip().splitlines() or [type(told).__name__]
            print(f"{what}: try {attempt + 1} of {attempts} failed: {said[0]}", file=sys.stderr, flush=True)
            time.sleep(2**attempt)
    assert cause is not None
    raise ParityError(refused(what, revision, cause))


def final(error: Exception) -> bool:
    """Whether an error would come again: refused, not there, or no room."""
    from huggingface_hub import errors

    kinds = (
        errors.GatedRepoError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError,
        errors.RemoteEntryNotFoundError, errors.HFValidationError,
    )  # fmt: skip
    led_astray = type(error).__name__ in ("UnsupportedProtocol", "TooManyRedirects", "InvalidURL")  # httpx's
    return isinstance(error, kinds) or status(error) in FINAL or no_room(error) or led_astray


def status(error: BaseException | None) -> int:
    """The HTTP status that an error, or what caused it, says; 0 if none does."""
    while error is not None:
        answer = getattr(error, "response", None)
        if code := getattr(answer, "status_code", None):
            return int(code)
        error = error.__cause__
    return 0


def no_room(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__
    return False


def refused(what: str, revision: str, error: Exception) -> str:
    """Why something was not given, in one line that says what to do where that is known."""
    from huggingface_hub import errors

    token = "is refused" if os.environ.get("HF_TOKEN") else "is not set"
    hint = {
        errors.GatedRepoError: "accept its terms on its page, then set HF_TOKEN to a token of that account"
        f" (HF_TOKEN {token})",
        errors.RepositoryNotFoundError: f"no such repository, or a private one: set HF_TOKEN (which {token})",
        errors.RevisionNotFoundError: "no such revision: take a commit from its page",
        errors.EntryNotFoundError: "no such file in it",
        errors.HFValidationError: "a repository is owner/name",
    }
    by_status = {
        401: f"it wants a token: set HF_TOKEN (which {token})",
        403: f"access is refused: set HF_TOKEN to a token that may read it (HF_TOKEN {token})",
        404: "no such file there",
        429: "too many requests: wait, or set HF_TOKEN",
    }
    said = next((text for kind, text in hint.items() if isinstance(error, kind)), by_status.get(status(error), ""))
    if status(error) and isinstance(error, errors.LocalEntryNotFoundError):
        said = by_status.get(status(error), "try again later")
    if no_room(error):
        said = "no room on the disk: make room, or set HF_HOME to a larger one"
    told = getattr(error, "__cause__", None) or error
    cause = next(iter(str(told).strip().splitlines()), "")
    return f"models: {what} at {revision} cannot be had: {type(error).__name__}: {cause}{said and f'; {said}'}"
