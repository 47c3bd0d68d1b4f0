"""Decode one shard of one cell: the job that every method's rule runs.

python -m parity.decode --kind discrete --spec spec.json --inputs 0.npz --checkpoint manifest.json --code 0123abcd \
    --store results/store --batch 32 --threads 1 --device cpu --out 0-of-1.npz
"""

import argparse

import numpy as np

from parity.base.command import arguments, one_line, pin_threads, provenance
from parity.base.devices import check, own
from parity.base.errors import ParityError
from parity.base.files import read_json
from parity.decode import loop
from parity.decode.records import is_whole, read_rows, write_shard
from parity.decode.store import link, stored
from parity.experiment.options import KINDS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=list(KINDS), required=True)
    parser.add_argument("--code", required=True, help="digest of the sources that the samples depend on")
    parser.add_argument("--compile", choices=["auto", "off"], default="auto", help="auto: passes on CUDA alone")
    arguments(parser, "spec", "inputs?", "checkpoint", "store", "out", "batch", "threads", "device")
    a = parser.parse_args()
    pin_threads(a.threads)
    spec = read_json(a.spec)
    if a.inputs is None and "images" not in spec:
        raise ParityError(f"--inputs: none; needed for {a.kind} models, whose images are not numbered")
    numbered = np.array([str(i) for i in range(spec.get("images", 0))])
    rows = read_rows(a.inputs) if a.inputs else {"ids": numbered}
    kept = stored(a.store, a.kind, spec, a.code, rows)
    if is_whole(kept):
        print(f"{kept}: whole and of this specification; not decoded again")
    else:
        check(a.device, spec.get("dtype", "float32"))
        device = own(a.device)
        fast = a.compile == "auto" and device.startswith("cuda")
        loaded = loop.load(a.kind, read_json(a.checkpoint), spec, device, fast)
        shard = loop.decode(a.kind, loaded, spec, rows, a.batch, loop.leaf(a.kind).PACED)
        how = {**provenance(device, spec.get("dtype", "float32"), a.threads), "spec": spec, "code": a.code}
        write_shard(kept, shard.columns, how)
    link(kept, a.out)


if __name__ == "__main__":
    one_line(main)
