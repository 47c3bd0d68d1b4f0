"""Which recipes there are and how large their runs are, as their modules declare it; imports no torch.

A module of this folder that assigns a literal RUN holds a recipe for each of RUN's names, which its function
`recipe(job)` gives (`training.recipe`). Adding one is adding a module. Its literals:

    RUN       recipe to (steps, batch), unless the command asks for others
    KIND      of model: where `install` puts the weights
    DATA      what it learns from, one of SAID_OF_DATA, and EXAMPLES of it
    CARDS     recipe to what its weights are, for their model card
    READS     recipes whose weights it needs (none)
    THREADS   of its job (1)
    INSTALLED recipe to the name of its weights in the package, where that is another
"""

from dataclasses import dataclass
from functools import cache

from parity.base.errors import ConfigError
from parity.experiment.module_metadata import constant, modules, require

INSTALLS = {"discrete": "train_embedded", "anysubset": "train_words", "continuous": "train_continuous"}  # targets
HELD_OUT = "captions whose hash is 0 modulo 8 held out"
SAID_OF_DATA = {
    "scenes": f"Scenes, {{:,}} procedural pictures (src/parity/embedded/scenes.py); {HELD_OUT}",
    "classes": f"class-conditional Scenes, {{:,}} procedural pictures (src/parity/embedded/classes.py); {HELD_OUT}",
    "texts": "Stories and Snippets, {:,} procedural texts of 128 words (src/parity/embedded/stories.py); pairs"
    " (happening, thing) and (first step, second step) whose hash is 0 modulo 8 held out",
}


@dataclass(frozen=True)
class Run:
    """What a recipe declares: `installed` is the name of its weights in the package."""

    name: str
    module: str
    kind: str
    data: str
    card: str
    installed: str
    steps: int
    batch: int
    examples: int
    threads: int
    reads: tuple[str, ...]


def declared(module: str) -> list[Run]:
    """The runs of a module; ConfigError that names its file and what it lacks, or what there is not."""
    declaration = require("training", module, ("RUN", "KIND", "DATA", "EXAMPLES", "CARDS"), ("recipe",))
    for key, allowed in (("KIND", INSTALLS), ("DATA", SAID_OF_DATA)):
        if declaration[key] not in allowed:
            where = f"src/parity/training/{module}.py: {key}"
            raise ConfigError(f"{where} = {declaration[key]!r}; allowed: {', '.join(allowed)}")
    if bare := [name for name in declaration["RUN"] if name not in declaration["CARDS"]]:
        raise ConfigError(f"src/parity/training/{module}.py: CARDS: has no {bare[0]}, which RUN names")
    reads, threads = constant("training", module, "READS", ()), constant("training", module, "THREADS", 1)
    installed = constant("training", module, "INSTALLED", {})
    return [
        Run(
            *(
                name,
                module,
                declaration["KIND"],
                declaration["DATA"],
                declaration["CARDS"][name],
                installed.get(name, name),
            ),
            *(steps, batch, declaration["EXAMPLES"], threads, reads),
        )
        for name, (steps, batch) in declaration["RUN"].items()
    ]


@cache
def runs() -> dict[str, Run]:
    """Every recipe's run by its name."""
    own = [m for m in modules("training") if constant("training", m, "RUN") is not None]
    return {run.name: run for module in own for run in declared(module)}


def of_kind(kind: str) -> list[Run]:
    """The runs whose weights are installed together."""
    return [run for run in runs().values() if run.kind == kind]
