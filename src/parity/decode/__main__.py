"""Decode some shards of one cell to one file.

python -m parity.decode --kind discrete --spec JSON --inputs 0.npz --checkpoint manifest.json --code 0123abcd \
    --store results/store --batch 32 --threads 1 --device cpu --out 0-of-1.npz
"""

import argparse
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from parity.base.command import add_arguments, pin_threads, provenance, run_command
from parity.base.devices import take_device
from parity.base.digests import read_manifest
from parity.base.errors import ParityError
from parity.decode import loop
from parity.decode.loop import Rows
from parity.decode.shard_io import is_whole, link, lock_shard, read_rows, read_shards, shard_file, write_shard
from parity.experiment.cells import complete
from parity.experiment.decoders import count_draft_parameters
from parity.experiment.options import KINDS

KEPT = 4  # batches after which a job keeps what it decoded, if no number of shards is asked for


def split_rows(rows: Rows, count: int) -> list[Rows]:
    """Split rows into `count` contiguous shards whose sizes differ by one at most; empty ones are left out."""
    n = len(rows["ids"])
    bounds = [n * k // count for k in range(count + 1)]
    return [{k: v[first:end] for k, v in rows.items()} for first, end in pairwise(bounds) if first < end]


def find_rows(kind: str, spec: dict[str, Any], inputs: Path | None, part: tuple[int, int]) -> Rows:
    """Find the rows of a job: part k of n, of almost equal size, of those of an input file, or of the numbered images
    of a specification: `images` of them, from the number `first`. Raises ParityError if there are none."""
    if inputs is None and "images" not in spec:
        raise ParityError(f"--inputs: none; needed for {kind} models, whose images are not numbered")
    first = spec.get("first", 0)
    numbered = np.array([str(first + i) for i in range(spec.get("images", 0))])
    rows = read_rows(inputs) if inputs else {"ids": numbered}
    k, n = part
    if not 0 <= k < n <= len(rows["ids"]):
        raise ParityError(f"--part {k} {n}: allowed: a number from 0 to n - 1, and n from 1 to {len(rows['ids'])} rows")
    return split_rows(rows, n)[k]


def main() -> None:
    """Decode the rows of the command line's inputs and write them to the file --out. Shards that the store holds whole
    are taken from it; the others are decoded and stored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=list(KINDS), required=True)
    parser.add_argument("--code", required=True, help="digest of the sources that the samples depend on")
    parser.add_argument(
        "--compile", choices=["auto", "on", "off"], default="auto", help="whether passes are; auto: on CUDA alone"
    )
    parser.add_argument("--capture", choices=["auto", "off"], default="auto", help="whether passes are, on CUDA alone")
    parser.add_argument(
        "--refill",
        choices=["auto", "on", "off"],
        default="auto",
        help="whether the next row of the shard takes the place of a row that is done; auto: on CUDA alone",
    )
    parser.add_argument(
        "--part", type=int, nargs=2, default=(0, 1), metavar=("K", "N"), help="decode part K of N, from 0, of the rows"
    )
    parser.add_argument(
        "--shards",
        type=int,
        default=1,
        help=f"parts in which the rows are decoded and stored; 0: each of {KEPT} batches at most",
    )
    parser.add_argument("--spec", type=json.loads, required=True, help="JSON: the cell's specification")
    add_arguments(parser, "inputs?", "checkpoint", "store", "out", "batch", "threads", "device")
    a = parser.parse_args()
    pin_threads(a.threads)
    rows = find_rows(a.kind, a.spec, a.inputs, a.part)
    count = a.shards or -(-len(rows["ids"]) // (KEPT * a.batch))
    shards = [(piece, shard_file(a.store, a.kind, a.spec, a.code, piece)) for piece in split_rows(rows, count)]
    missing = [(piece, stored) for piece, stored in shards if not is_whole(stored)]
    if len(missing) < len(shards):
        print(f"{len(shards) - len(missing)} of {len(shards)} shards: whole and of this specification; not decoded")
    if missing:
        manifest = read_manifest(a.checkpoint)
        spec = complete(a.kind, a.spec, manifest["family"])
        device = take_device(a.device, spec.get("dtype", "float32"))
        cuda = device.startswith("cuda")
        fast, refill = (choice == "on" or (choice == "auto" and cuda) for choice in (a.compile, a.refill))
        loaded = loop.load(a.kind, manifest, spec, device, fast, cuda and a.capture == "auto")
        origin = {**provenance(device, spec.get("dtype", "float32"), a.threads), "spec": spec, "code": a.code}
        for piece, stored in missing:
            with lock_shard(stored):
                if not is_whole(stored):  # another job may have decoded it meanwhile
                    shard = loop.decode(a.kind, loaded, spec, piece, a.batch, refill)
                    made = {"parameters": loop.import_kind(a.kind).parameters(loaded) | count_draft_parameters()}
                    made["captured"] = bool(np.isnan(shard.network_seconds).any())
                    write_shard(stored, shard.columns, origin | made)
    if len(shards) == 1:
        link(shards[0][1], a.out)
    else:
        joined = read_shards(stored for _, stored in shards)
        write_shard(a.out, joined.columns, joined.provenance)


if __name__ == "__main__":
    run_command(main)
