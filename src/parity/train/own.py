"""Train the draft network of a decoder of others on rows that the target draws.

    parity train own --method path/to/mine.py:mine --configfile mine.yaml

The decoder's file names the network's class as DRAFT; its `train(drawn, file)` gets the rows and writes the file. A run
of the workflow trains what its decoders need by itself; this command is for `parity generate` and `parity verify`,
which find the file where it is written. A killed command keeps the rows that were drawn.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from parity_certify.seeding import check_seed
from torch import Tensor

from parity.base.command import add_arguments, add_own_device, pin_threads
from parity.base.errors import ParityError
from parity.base.files import replace_whole
from parity.experiment.cells import name_draft
from parity.experiment.decoders import find_source, import_source
from parity.experiment.options import check_decoder, declaration, trains_draft
from parity.generate import Generator
from parity.train.samples import Samples

AT_ONCE = 32  # rows that are drawn together


class Drawn:
    """Rows that the target drew, for a draft network to learn from.

    captions  of each row
    tokens    [n, L] int64
    """

    def __init__(self, generator: Generator, samples: Samples, method: str):
        self.generator, self.samples, self.method = generator, samples, method
        self.captions = [str(text) for batch in samples.batches for text in batch["captions"]]
        self.tokens: Tensor = samples.select(range(len(self.captions)))[1]

    def make_model(self, rows: list[int]) -> Any:
        """Make the target for some rows, by number, whose prompts it has read: a `TokenModel` whose logits are those of
        the distribution that is sampled."""
        inputs, _ = self.samples.select(rows)
        loaded = self.generator.load_networks(self.method)
        columns = {name: column.cpu().numpy() for name, column in inputs.items()}
        return loaded.model(columns, self.generator.case.setting["sampling"])


def train(generator: Generator, method: str, prompts: list[str], file: Path, seed: int = 0) -> None:
    """Draw rows for the prompts, let the decoder's network learn from them, and write its file. Raises ParityError if
    it writes none."""
    declared = declaration("discrete", method)
    source = find_source("discrete", method)
    network = getattr(import_source(source), declared.DRAFT)
    at_once = min(AT_ONCE, declared.DRAFT_ROWS)
    samples = Samples(generator, file.parent / "rows", prompts, at_once, plain=generator.device == "cpu")
    samples.take(declared.DRAFT_ROWS)
    torch.manual_seed(seed)
    drawn = Drawn(generator, samples, method)
    with replace_whole(file) as temporary:
        network.train(drawn, temporary)
        if not temporary.stat().st_size:
            raise ParityError(f"{source.label}: {declared.DRAFT}.train wrote no file; allowed: one at the path it gets")


def main() -> None:
    """Train the network of the command line's decoder for a model of the configuration."""
    from parity.train.__main__ import read_all_prompts, read_generator

    parser = argparse.ArgumentParser(
        prog="parity train own", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--method", required=True, help="FILE.py:FUNCTION, or a decoder of an installed package")
    parser.add_argument("--model", default="", help="of the configuration (its first of image tokens)")
    parser.add_argument("--configfile", type=Path, default=Path("config.yaml"), help="the experiment (%(default)s)")
    parser.add_argument("--config", type=json.loads, help="JSON: the experiment, in place of a file")
    parser.add_argument("--checkpoint", type=Path, help="the model's manifest, if the workflow has made it")
    parser.add_argument("--prompts", help="a file of them (the experiment's)")
    parser.add_argument("--out", type=Path, help="the file (where `parity generate` looks for it)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    add_arguments(parser, "threads")
    add_own_device(parser)
    a = parser.parse_args(sys.argv[1:])
    check_seed(a.seed, "--seed")
    pin_threads(a.threads)
    check_decoder("discrete", a.method)
    if not trains_draft("discrete", a.method):
        raise ParityError(f"--method {a.method}: trains no draft network; allowed: one whose DRAFT has a `train`")
    generator = read_generator(a)
    file = a.out or Path(name_draft(generator.config, "discrete", a.method, generator.case.model))
    train(generator, a.method, read_all_prompts(a, generator), file, a.seed)
    print(f"written: {file}")
