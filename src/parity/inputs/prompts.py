"""Prompt shards: which images a generation job makes.

python -m parity.prompts --file prompts/scenes.txt --limit 64 --repeats 1 --shards 2 --out results/prompts/0123abcd
"""

import argparse
from itertools import pairwise
from pathlib import Path

from parity.base.command import one_line
from parity.base.files import write_json
from parity.experiment.config import PromptSpec, read_prompts


def images(prompts: list[str], repeats: int) -> list[dict[str, str]]:
    """One entry per image: an id that names prompt and repeat, and the caption. The id keys the image's noise."""
    return [{"id": f"{i:05d}/{r:03d}", "caption": prompt} for i, prompt in enumerate(prompts) for r in range(repeats)]


def shard(entries: list[dict[str, str]], shards: int) -> list[list[dict[str, str]]]:
    """Contiguous pieces whose sizes differ by one at most."""
    bounds = [len(entries) * k // shards for k in range(shards + 1)]
    return [entries[a:b] for a, b in pairwise(bounds)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--file", required=True)
    for name in ("limit", "repeats", "shards", "max-words"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder: <k>.json for each shard")
    a = parser.parse_args()
    spec = PromptSpec(file=a.file, limit=a.limit, repeats=a.repeats, shards=a.shards, max_words=a.max_words)
    for k, piece in enumerate(shard(images(read_prompts(spec), spec.repeats), spec.shards)):
        write_json(a.out / f"{k}.json", piece)


if __name__ == "__main__":
    one_line(main)
