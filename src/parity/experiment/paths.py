"""Where everything lies under results/: names that the rules and the report agree on."""

from typing import Any

from parity.experiment.config import Config, coupled, digest, prompt_digest, revision

Cell = dict[str, Any]
# on models of four or five positions a window of 16 would be the whole sequence, and a fourth step after its end
SMALL = {"window": 3, "interval": 2, "ahead": 1, "depth": 2, "total": 12}


def prompt_set(config: Config, prompts: list[str]) -> str:
    return f"{prompt_digest(prompts)}-{config.prompts.repeats}x{config.prompts.shards}"


def manifest(config: Config, model: str) -> str:
    return f"results/checkpoints/{model}-{revision(config.models[model])}/manifest.json"


def encoded(config: Config, prompts: list[str], model: str, shard: int | str) -> str:
    """Encoded prompts of a shard, for a model."""
    return f"results/prompts/{prompt_set(config, prompts)}/{model}-{revision(config.models[model])}/{shard}.npz"


def folder(cell: Cell) -> str:
    return f"results/cells/{cell['cell']}"


def pieces(config: Config, cell: Cell, kind: str) -> list[str]:
    """A cell's files of one kind ("shards" or "images"), in order."""
    n = config.prompts.shards
    return [f"{folder(cell)}/{kind}/{k}-of-{n}.npz" for k in range(n)]


def small(options: dict[str, Any]) -> dict[str, Any]:
    """A variant's options for an enumerable model: those that count positions cut to a few, so that a method is what it is on larger ones."""
    return {k: min(v, SMALL[k]) if k in SMALL else v for k, v in options.items()}


def exact_key(config: Config, spec: dict[str, Any]) -> str:
    e = config.equality
    return digest([spec["method"], small(spec["options"]), e.n, e.models, e.seeds])


def reference_of(cell: Cell, cells: list[Cell]) -> Cell:
    """The plain sampling that a cell is compared with: same model, same sampling settings, the reference seed."""
    same = ("model", "sampling", "prompts", "repeats", "dtype")
    return next(c for c in cells if c["role"] == "reference" and all(c["spec"][k] == cell["spec"][k] for k in same))


def exact(config: Config, cell: Cell) -> str:
    return f"results/equality/exact/{cell['spec']['method']}-{exact_key(config, cell['spec'])}.json"


def teacher_forced(cell: Cell) -> str:
    return f"results/equality/teacher-forced/{cell['cell']}.json"


def laws(cell: Cell) -> str:
    """What the target gave a cell's tokens: their log-probabilities, and the largest probability at each position."""
    return f"results/equality/teacher-forced/{cell['cell']}.npz"


def paired(cell: Cell, cells: list[Cell]) -> str:
    return f"results/equality/paired/{cell['cell']}-{reference_of(cell, cells)['key']}.json"


def pathwise(cell: Cell) -> str:
    return f"results/equality/pathwise/{cell['cell']}.json"


def equality(config: Config, cell: Cell, cells: list[Cell]) -> list[str]:
    """Every file of equality rows of a cell."""
    found = [exact(config, cell), teacher_forced(cell)]
    if cell["role"] != "reference":
        found.append(paired(cell, cells))
    if coupled(cell["spec"]["method"], cell["spec"]["options"]):
        found.append(pathwise(cell))
    return found


def tables(config: Config) -> dict[str, str]:
    """Files that belong to the experiment, not to a cell."""
    e = config.equality
    kinds = {"continuous": e.continuous, "anyorder": e.anyorder, "mutants": e.mutants, "calibration": e.calibration}
    return {kind: f"results/equality/{kind}-{n}.json" for kind, n in kinds.items()}


def text_task(spec: dict[str, Any]) -> str:
    """The file of a text cell's task."""
    return f"results/text/tasks/{spec['kind']}-{spec['task']}.npz"


def text_cell(cell: Cell) -> str:
    return f"results/text/cells/{cell['cell']}.npz"


def text_small(options: dict[str, Any]) -> dict[str, Any]:
    """A text method's options for models of four missing tokens: blocks of three, four steps."""
    most = {"k": 3, "steps": 4, "orders": 4}
    return {name: min(value, most[name]) if name in most else value for name, value in options.items()}


def text_exact_key(config: Config, spec: dict[str, Any]) -> str:
    e = config.equality
    return digest([spec["method"], text_small(spec["options"]), e.n, e.seeds[:2]])


def text_exact(key: str, spec: dict[str, Any]) -> str:
    return f"results/text/exact/{spec['method']}-{key}.json"


def continuous_cell(cell: Cell) -> str:
    return f"results/continuous/cells/{cell['cell']}.npz"


def continuous_forced(cell: Cell) -> str:
    return f"results/continuous/forced/{cell['cell']}.json"


def continuous_exact(key: str, variant: dict[str, Any]) -> str:
    return f"results/continuous/exact/{variant['method']}-{key}.json"
