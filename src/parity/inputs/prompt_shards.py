"""Prompt shards: which images a decoding job makes."""

from itertools import pairwise
from pathlib import Path

from parity.base.files import write_json
from parity.experiment.prompt_files import read_prompts
from parity.experiment.schema import PromptSpec


def images(prompts: list[str], repeats: int) -> list[dict[str, str]]:
    """One entry per image: an id that names prompt and repeat, and the caption. The id keys the image's noise."""
    return [{"id": f"{i:05d}/{r:03d}", "caption": prompt} for i, prompt in enumerate(prompts) for r in range(repeats)]


def shard(entries: list[dict[str, str]], shards: int) -> list[list[dict[str, str]]]:
    """Contiguous pieces whose sizes differ by one at most."""
    bounds = [len(entries) * k // shards for k in range(shards + 1)]
    return [entries[a:b] for a, b in pairwise(bounds)]


def write(spec: PromptSpec, folder: Path) -> None:
    """<k>.json in `folder` for each shard of a prompt set."""
    for k, piece in enumerate(shard(images(read_prompts(spec), spec.repeats), spec.shards)):
        write_json(folder / f"{k}.json", piece)
