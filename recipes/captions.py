"""Write a prompt set of one kind: held-out captions of plain scenes, or of detailed ones.

    python -m recipes.captions plain --count 100 --out prompts/plain.txt
    python -m recipes.captions detailed --count 100 --out prompts/detailed.txt

The counterpart of SJD's two kinds of prompt (Teng et al. 2024, Fig. 9): simple patterns and images full of detail.
Both sets follow the grammar of the training captions and are held out from training.
"""

import argparse
from pathlib import Path

from parity.base.command import run_command
from parity.base.errors import ParityError
from parity.base.files import publish
from parity.embedded.scenes import Scene, draw_scene


def is_plain(scene: Scene) -> bool:
    """Tell whether a scene is a single thing without a texture on a plain background."""
    return not scene.relation and not scene.count and scene.background == "plain" == scene.things[0].texture


def is_detailed(scene: Scene) -> bool:
    """Tell whether a scene has a relation between things, all of them textured, and a background that is not plain."""
    return bool(scene.relation) and scene.background != "plain" and all(t.texture != "plain" for t in scene.things)


KINDS = {"plain": is_plain, "detailed": is_detailed}
TRIES = 200_000  # number of seeds to try; enough, as 127 held-out captions are plain and one draw in 36 is plain


def find_captions(kind: str, count: int) -> list[str]:
    """Find `count` distinct held-out captions of a kind, in the order of seeds. Raises ParityError if fewer exist."""
    chosen: dict[str, None] = {}
    for seed in range(TRIES):
        scene, _ = draw_scene(seed, test=True)
        if KINDS[kind](scene):
            chosen[scene.caption] = None
            if len(chosen) == count:
                return list(chosen)
    raise ParityError(f"count = {count}: {len(chosen)} held-out captions are {kind}; allowed: at most that")


def main() -> None:
    """Parse the command line and write the captions of the chosen kind to the file `--out`, one a line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args()
    publish(a.out, ("\n".join(find_captions(a.kind, a.count)) + "\n").encode())


if __name__ == "__main__":
    run_command(main)
