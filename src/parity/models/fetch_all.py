"""Fetch all that an experiment on published networks reads: commits, files in data/, checkpoints, networks that judge.

snakemake --cores 1 fetch --configfile workflow/experiments/sjd-table1.yaml

So a login node can fetch what compute nodes read. What is here is left as it is: pins, files in data/, and files of
checkpoints, which are compared with their digests again when a run starts.
"""

import shutil
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from parity.base.digests import digest_file
from parity.base.errors import ParityError
from parity.base.files import publish
from parity.experiment import catalogue, cells, checks, paths, pins, weights
from parity.experiment.config_overlay import add_networks, replace_absent_data
from parity.models import fetch, hub, pin

WORK = ".fetch"  # folder in data/ of unfinished downloads, each in a folder of its own
DATA = "data:"  # prefix of a downloaded file of data/, in names of pins
Tell = Callable[[str], None]


def take_member(archive: Path, member: str, folder: Path) -> Path:
    """Unpack a file of a .zip, or a folder, into `folder`, and return its path there. Raises ParityError if the archive
    is damaged or has no such member."""
    try:
        with zipfile.ZipFile(archive) as opened:
            names = [name for name in opened.namelist() if name == member or name.startswith(f"{member.rstrip('/')}/")]
            opened.extractall(folder, names)
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise ParityError(f"{archive.name}: no .zip that can be read ({error})") from None
    if not names:
        raise ParityError(f"{archive.name}: holds no {member}")
    return folder / member


def fetch_data(name: str, entry: catalogue.Entry, folder: Path, pinned: str, tell: Tell = print) -> str:
    """Download a file or folder of the catalogue to `folder`, whole or not at all, and return the SHA-256 of what was
    downloaded; "" if it is there already. Raises ParityError if it cannot be had, or has another digest than the
    catalogue says or, without one there, than `pinned`."""
    target = folder / name
    if target.exists():
        tell(f"{target}: is here")
        return ""
    work = folder / WORK / name
    shutil.rmtree(work, ignore_errors=True)  # of a download that was killed
    work.mkdir(parents=True)
    tell(f"{target}: {entry.address} ({entry.licence})")
    try:
        downloaded = work / "download"
        hub.download_to(entry.address, entry.sha256 or pinned, downloaded)
        digest = digest_file(downloaded)
        taken = take_member(downloaded, entry.member, work / "unpacked") if entry.member else downloaded
        if not target.exists():  # another process may have put it there
            taken.rename(target)
    finally:
        shutil.rmtree(work)
        with suppress(OSError):  # another download is under way
            (folder / WORK).rmdir()
    return digest


def fetch_all_data(raw: Mapping[str, Any], known: catalogue.Catalogue, out: Path, tell: Tell = print) -> list[str]:
    """Download the files in data/ that a configuration names, and keep in `out`, the file of pins, the digests that the
    catalogue does not have. Returns a line for each file that must be asked for."""
    requests = []
    for name in catalogue.list_named(raw, known):
        entry = known[name]
        if entry.ask:
            if not Path(catalogue.FOLDER, name).exists():
                requests.append(catalogue.explain_asking(name, entry))
            continue
        pinned = pins.read(out)
        key = f"{DATA}{name}"
        digest = fetch_data(name, entry, Path(catalogue.FOLDER), str(pinned.get(key, {}).get("sha256", "")), tell)
        if digest and entry.sha256 is None and key not in pinned:
            pinned[key] = {**pins.NONE, "sha256": digest}
            publish(out, yaml.safe_dump(pinned, width=120).encode())
    return requests


def fetch_networks(raw: Mapping[str, Any], out: Path, tell: Tell = print) -> None:
    """Fetch the files of all published models of a configuration, and of the networks that judge, to the places where
    a run looks for them: the hub's cache, and for plain addresses beside the manifest."""
    present, _ = replace_absent_data(dict(raw))
    config = checks.make_config(pins.fill_pins(present, pins.make_pin_reader(out)))
    places = {name: Path(manifest).parent for name, manifest in paths.manifests(config).items()}
    for kind in cells.kinds(config):
        for name, spec in weights.list_models(config, kind).items():
            if spec.source != "embedded" and not spec.folder:
                tell(f"models.{name}: {', '.join(spec.files)}")
                fetch.fetch_parts(name, spec, places[f"{kind}/{name}"])
    for name, judge in config.networks.list_named().items():
        if f"networks/{name}" in places:
            tell(f"networks.{name}: {judge.repo or judge.file}")
            key = f"networks.{name}.file"
            fetch.locate(judge.file, judge.sha256, places[f"networks/{name}"], judge.repo, judge.revision, key=key)


def fetch_all(raw: dict[str, Any], known: catalogue.Catalogue, out: Path = pins.FILE, tell: Tell = print) -> None:
    """Fetch all that a configuration needs and this machine lacks. Raises ParityError, after everything else was
    fetched, for data that must be asked for."""
    raw = add_networks(raw)
    if raw.get("stand_in"):
        tell("stand_in: nothing to fetch")
        return
    requests = fetch_all_data(raw, known, out, tell)
    pin.write_pins(raw, str(raw.get("experiment", "the experiment")), out, tell)
    fetch_networks(raw, out, tell)
    if requests:
        raise ParityError("; ".join(requests))
