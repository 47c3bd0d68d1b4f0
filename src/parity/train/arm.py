"""Train an any-subset model of text: fine-tune an XLNet, or train one from scratch, to fill in any part of a text.

    parity train arm corpus.jsonl --from xlnet-base-cased --out arm           the schedule of Guo & Ermon for text
    parity train arm src/ --code --from xlnet-base-cased --out arm            their schedule for code
    parity train arm notes.txt --from scratch --layers 3 --width 128 --heads 4 --steps 2000 --batch 16 --out arm
    parity train arm embedded --from scratch --out arm                        the grammar and model of this package

A killed command goes on where it was. OUT gets the network and its tokenizer as a folder of transformers' format, a
card, and an experiment that decodes it.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from parity_certify.seeding import check_seed
from pydantic import Field

from parity.base.command import add_arguments, add_own_device, pin_threads
from parity.base.devices import take_device
from parity.base.errors import ParityError
from parity.base.files import publish, read_json, sums
from parity.embedded import WEIGHTS
from parity.experiment.schema import Strict, validate
from parity.train import format_log
from parity.train.texts import EMBEDDED

HELD_OUT, HELD_OUT_EMBEDDED = 64, 128  # rows, at most (E.2); as many as measure the model that ships
EXAMPLES = 30_000  # rows of the embedded grammar
SCRATCH = "scratch"
AT_ONCE = 16  # rows in a pass, as on each of the paper's devices


class Schedule(Strict):
    """How an any-subset model is trained. Rates of masking are shares of a row's tokens."""

    steps: int = Field(75_000, ge=1, le=10_000_000, description="in all")
    batch: int = Field(320, ge=1, le=65_536, description="rows a step")
    length: int = Field(512, ge=8, le=65_536, description="tokens of a row")
    rate: float = Field(1e-4, gt=0, le=1, description="learning rate at its peak")
    warmup: int = Field(5_000, ge=1, description="steps in which the learning rate rises; by default in proportion")
    decay: Literal["linear", "cosine"] = Field("linear", description="how the learning rate falls after that")
    average: float = Field(0.0, ge=0, lt=1, description="decay of the mean of the weights, which is kept; 0: the last")
    start: float = Field(0.15, gt=0, lt=1, description="masking rate of the first step")
    low: float = Field(0.90, gt=0, lt=1, description="lowest masking rate in the end")
    high: float = Field(0.99, gt=0, lt=1, description="highest masking rate in the end")
    masking_warmup: int = Field(5_000, ge=0, description="steps in which the masking rates move; 0: none")
    permutations: float = Field(0.0, ge=0, le=1, description="share of rows in any order, not the lattice's")
    independent: bool = Field(False, description="each row's masking rate is drawn by itself, not stratified")
    every: int = Field(500, ge=1, description="steps between two measurements on held-out rows")


SCHEDULES: dict[str, dict[str, Any]] = {
    "text": {},  # section 6, E.2
    "code": {  # E.6
        "steps": 83_333, "batch": 384, "rate": 1.2e-4, "warmup": 20_000, "start": 0.05, "low": 0.15,
        "masking_warmup": 20_000,
    },
    # of the model that ships: without a pretrained network it learns both orders at once (recipe `xlnet`)
    EMBEDDED: {
        "steps": 3_000, "batch": 16, "length": 128, "rate": 2e-3, "warmup": 300, "decay": "cosine", "average": 0.99,
        "start": 0.05, "low": 0.15, "masking_warmup": 300, "permutations": 0.5, "every": 250,
    },
}  # fmt: skip


def make_schedule(name: str, given: dict[str, Any]) -> Schedule:
    """Make a named schedule with some fields given; warm-ups that are not given keep their share of the steps. Raises
    ParityError for a value that is not allowed."""
    base = Schedule(**SCHEDULES[name])
    fields = base.model_dump() | given
    if isinstance(steps := given.get("steps"), int):
        for key in {"warmup", "masking_warmup"} - given.keys():
            fields[key] = max(1, round(fields[key] * steps / base.steps))
    try:
        schedule = validate(Schedule, fields, "")
    except ParityError as error:
        raise ParityError(f"--{str(error).replace('_', '-')}") from None
    if schedule.low > schedule.high:
        raise ParityError(f"--low {schedule.low}: allowed: at most --high, {schedule.high}")
    return schedule


@dataclass
class Start:
    """The network that training starts with, and its tokenizer."""

    net: Any
    pieces: Any
    name: str  # what the card and the checkpoint call it


def load_embedded(component: str, device: str = "cpu") -> Any:
    """Load "xlnet" or "judge" of the model that ships with the package."""
    from parity.models.anysubset.load import load

    file = WEIGHTS / f"anysubset/{component}.safetensors"
    sha256 = {component: sums(file.parent)[file.name]}
    manifest = {"family": "xlnet", "source": EMBEDDED, "files": {component: str(file)}, "sha256": sha256}
    return load(manifest, device)


def load_start(a: argparse.Namespace, files: list[Path], device: str) -> Start:
    """Load or make the network that training starts with. Raises ParityError if it cannot be read, or for flags that do
    not belong to it."""
    import torch

    from parity.embedded import stories
    from parity.models.anysubset.load import load
    from parity.models.anysubset.vocabulary import Pieces, read_pieces
    from parity.models.anysubset.xlnet import xlnet
    from parity.train.texts import count_words, make_word_tokenizer, read_documents

    sizes = {key: value for key in ("layers", "width", "heads") if (value := getattr(a, key)) is not None}
    if a.start_from != SCRATCH and sizes:
        raise ParityError(f"--{next(iter(sizes))}: allowed with --from {SCRATCH} alone; others have their own sizes")
    if a.start_from == EMBEDDED:
        if a.tokenizer:
            raise ParityError(f"--tokenizer {a.tokenizer}: allowed: none, for --from {EMBEDDED} has its own words")
        net = load_embedded("xlnet", device).subset_network
        return Start(net, Pieces(make_word_tokenizer(stories.list_words())), EMBEDDED)
    if a.start_from == SCRATCH:
        if a.tokenizer:
            pieces = read_pieces(a.tokenizer)
        else:
            words = list(stories.list_words()) if not files else count_words(read_documents(files))
            pieces = Pieces(make_word_tokenizer(words))
        sizes = {"width": 128, "layers": 3, "heads": 4} | sizes
        if sizes["width"] % (2 * sizes["heads"]):
            raise ParityError(f"--width {sizes['width']}: allowed: a multiple of twice --heads {sizes['heads']}")
        torch.manual_seed(a.seed)
        net = xlnet(pieces.vocab, **sizes).to(device)  # type: ignore[arg-type]
        return Start(net, pieces, f"{SCRATCH}, {json.dumps(sizes)}")
    folder = Path(a.start_from)
    if not (folder / "config.json").is_file():
        raise ParityError(
            f"--from {folder}: no config.json; allowed: a folder of XLNetLMHeadModel, {EMBEDDED} or {SCRATCH}"
        )
    if (kind := read_json(folder / "config.json").get("model_type")) != "xlnet":
        raise ParityError(f"--from {folder}: model_type = {kind!r}; allowed: 'xlnet'")
    pieces = read_pieces(a.tokenizer or folder)
    loaded = load({"family": "xlnet", "source": "files", "files": {"xlnet": str(folder)}}, device)
    return Start(loaded.subset_network, pieces, str(folder.resolve()))


def check_pieces(start: Start) -> None:
    """Raise ParityError if the tokenizer has no mask or separator, or more pieces than the network has entries."""
    pieces, vocab = start.pieces, start.net.config.vocab_size
    for mark in ("mask", "separator"):
        if getattr(pieces, mark) is None:
            raise ParityError(f"--tokenizer: has no {mark}; allowed: XLNet's, or one with a mask and a separator")
    if pieces.vocab > vocab:
        raise ParityError(f"--tokenizer: has {pieces.vocab} pieces, the network {vocab}; allowed: the network's own")


def read_rows(a: argparse.Namespace, files: list[Path], pieces: Any, schedule: Schedule) -> tuple[Any, Any, str]:
    """Read the rows to learn from, and held-out rows: int32 [n, N] and [h, N]; and a digest of both. Raises ParityError
    if the texts are too short for one of each."""
    from parity.train import texts

    # a tab's mark in source code is the separator of texts
    separator = pieces.tokenizer.eos_token_id if a.code and pieces.marked else pieces.separator
    encode = pieces.encode_code if a.code else pieces.encode
    length = schedule.length

    def read(files: list[Path]) -> tuple[Any, str]:
        name = texts.digest_places(files, pieces, length, a.code, separator)

        def make() -> Any:
            print(f"reading {len(files)} files", flush=True)
            return texts.pack(texts.read_documents(files), encode, separator, length)

        return texts.keep_rows(a.out / f"rows-{name}.npy", make), name

    if not files:
        numbers, count = pieces.tokenizer.get_vocab(), a.examples or EXAMPLES
        file = a.out / f"rows-{EMBEDDED}-{count}-{length}.npy"
        try:
            rows = texts.keep_rows(file, lambda: texts.draw_rows(numbers, count, length))
            return rows, texts.draw_rows(numbers, HELD_OUT_EMBEDDED, length, True), file.stem
        except KeyError as error:
            raise ParityError(f"{EMBEDDED}: its word {error} is not in the vocabulary; allowed: a file") from None
    rows, digest = read(files)
    if a.held_out:
        held_out, other = read(texts.list_files(a.held_out, "--held-out"))
        held_out, digest = held_out[:HELD_OUT], f"{digest}, {other}"
    else:  # rows evenly apart, which are not learned from
        apart = max(16, -(-len(rows) // HELD_OUT))
        is_held_out = [i % apart == 0 for i in range(len(rows))] if len(rows) > 1 else []
        held_out, rows = rows[is_held_out], rows[[not one for one in is_held_out]]
    rows = rows[: a.examples]
    for label, found in (("text", rows), ("--held-out", held_out)):
        if not len(found):
            raise ParityError(f"{label}: too short for a row of {length} tokens; allowed: more text, or less --length")
    return rows, held_out, digest


def write_folder(net: Any, pieces: Any, folder: Path) -> None:
    """Write a network and its tokenizer as a folder of transformers' format, each file whole or not at all."""
    import tempfile

    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as partial:
        net.save_pretrained(partial)
        pieces.tokenizer.save_pretrained(partial)
        for file in sorted(Path(partial).iterdir()):
            file.replace(folder / file.name)


def write_judge(pieces: Any, folder: Path) -> None:
    """Write the judge that ships with the package as a folder of transformers' format."""
    write_folder(load_embedded("judge").gpt2, pieces, folder)


def write_experiment(a: argparse.Namespace, schedule: Schedule, judge: str) -> Path:
    """Write an experiment that decodes the network, beside it; returns the path."""
    files = {"xlnet": str((a.out / "xlnet").resolve()), "judge": judge}
    content = {
        "experiment": "arm",
        "models": {"arm": {"family": "xlnet", "source": "files", "files": files}},
        "text": {
            "methods": {"sequential": [{}], "assd": [{}], "assd_quadratic": [{}]},
            "tasks": {"infilling": [{"length": schedule.length, "masked": 0.95}]},
        },
    }
    out: Path = a.out / "arm.yaml"
    publish(out, yaml.safe_dump(content, sort_keys=False, width=120).encode())
    return out


def write_card(start: Start, schedule: Schedule, record: dict[str, Any], places: list[str]) -> str:
    """Write the card of the trained network as Markdown."""
    orders = f"{schedule.permutations:.0%} of rows in any order, the others in the lattice's"
    facts = [
        "# any-subset XLNet",
        "",
        f"- from: {start.name}; {record['parameters']:,} parameters",
        f"- data: {record['examples']:,} rows of {schedule.length} tokens of {', '.join(places)}",
        f"- training: {record['log'][-2]['step']:,} steps of batch {schedule.batch}; seed {record['seed']}; on"
        f" {record['device']}",
        f"- masking: {schedule.start:.0%} at first, after {schedule.masking_warmup:,} steps {schedule.low:.0%} to"
        f" {schedule.high:.0%}; {orders}",
        "- held_out: nats a token on held-out rows, 95 % of each masked",
    ]
    return "\n".join([*facts, *format_log(record["log"])])


def train(a: argparse.Namespace, schedule: Schedule) -> None:
    """Train the network that is asked for, unless OUT has a checkpoint to go on from, and write it, its card and an
    experiment."""
    import torch

    from parity.base.weights import count_parameters
    from parity.train import loop, texts
    from parity.train.joint import JointLesson, Scheme

    device = take_device(a.device)
    is_embedded = [str(place) for place in a.text] == [EMBEDDED]
    files = [] if is_embedded else texts.list_files(a.text, "text")
    start = load_start(a, files, device)
    check_pieces(start)
    rows, held_out, digest = read_rows(a, files, start.pieces, schedule)
    s = schedule
    scheme = Scheme(s.start, s.low, s.high, s.masking_warmup, s.permutations, s.independent)
    net = start.net.train()
    tests = torch.as_tensor(held_out[:]).long()
    lesson = JointLesson(net, rows, tests, scheme, s.batch, a.at_once, start.pieces.mask, device, a.seed)
    settings = schedule.model_dump() | {"from": start.name, "rows": digest, "at_once": a.at_once}
    job = loop.Job(
        "arm", a.out, schedule.steps, schedule.batch, len(rows), a.seed, a.threads, device, settings, a.minutes
    )

    def measure() -> dict[str, float]:
        return {"held_out": lesson.measure()}

    recipe = loop.Recipe(
        *(net, lesson.compute_loss, lambda: (measure(), {}), (7,)),
        peak=schedule.rate,
        average=schedule.average,
        warmup=schedule.warmup,
        weight_decay=0.01,
        linear=schedule.decay == "linear",
        held_out=measure,
        held_out_every=schedule.every,
        log_every=min(50, schedule.every),
    )
    a.out.mkdir(parents=True, exist_ok=True)
    count = count_parameters(net)
    print(f"{count:,} parameters, {len(rows):,} rows of {schedule.length} tokens, on {device}", flush=True)
    loop.train(recipe, job, lambda module, file, config: write_folder(module, start.pieces, file.parent / "xlnet"))
    record = read_json(job.out.with_suffix(".json")) | {"parameters": count}
    publish(a.out / "arm.md", write_card(start, schedule, record, [str(place) for place in a.text]).encode())
    judge = a.judge
    if not judge and is_embedded:
        write_judge(start.pieces, a.out / "judge")
        judge = a.out / "judge"
    experiment = write_experiment(a, schedule, str(judge.resolve()) if judge else "gpt2-large")
    print(f"written: {a.out / 'xlnet'}, its card, and {experiment}")


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(
        prog="parity train arm", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", nargs="+", type=Path, help=f"files, folders, or {EMBEDDED}")
    parser.add_argument(
        "--from",
        dest="start_from",
        required=True,
        help=f"a folder of XLNetLMHeadModel, {EMBEDDED}, or {SCRATCH}: new weights",
    )
    parser.add_argument("--out", type=Path, default=Path("arm"), help="a folder (%(default)s)")
    parser.add_argument("--code", action="store_true", help="the text is source code: white space is kept by marks")
    parser.add_argument("--schedule", choices=list(SCHEDULES), help="text; code with --code; embedded of that")
    parser.add_argument("--held-out", type=Path, nargs="+", help="files to measure on (one row of 16, at most 64)")
    parser.add_argument("--tokenizer", type=Path, help="a folder (that of --from; of scratch the words of the text)")
    parser.add_argument("--judge", type=Path, help="a folder of GPT-2 for the experiment (gpt2-large)")
    parser.add_argument("--examples", type=int, help=f"rows to learn from, at most (all; of {EMBEDDED} {EXAMPLES:,})")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="rows in a pass, at most (%(default)s)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="training ends after this time")
    for size, default in (("layers", 3), ("width", 128), ("heads", 4)):
        parser.add_argument(f"--{size}", type=int, help=f"of the network from {SCRATCH} ({default})")
    for name, field in Schedule.model_fields.items():
        flag = f"--{name.replace('_', '-')}"
        if field.annotation is bool:
            parser.add_argument(flag, action="store_const", const=True, help=field.description)
        else:
            kind = {int: int, float: float}.get(field.annotation, str)  # type: ignore[arg-type]
            parser.add_argument(flag, type=kind, help=f"{field.description} ({field.default})")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    add_arguments(parser, "threads")
    add_own_device(parser)
    a = parser.parse_args()
    for name in ("examples", "at_once", "layers", "width", "heads", "minutes"):
        value = getattr(a, name)
        if value is not None and value <= 0:
            raise ParityError(f"--{name.replace('_', '-')} {value}: allowed: above 0")
    is_embedded = str(a.text[0]) == EMBEDDED
    if is_embedded and (len(a.text) > 1 or a.code or a.held_out):
        raise ParityError(f"text {EMBEDDED}: allowed: alone, without --code and --held-out")
    given = {name: value for name in Schedule.model_fields if (value := getattr(a, name)) is not None}
    schedule = make_schedule(a.schedule or ("code" if a.code else EMBEDDED if is_embedded else "text"), given)
    check_seed(a.seed, "--seed")
    pin_threads(a.threads)
    train(a, schedule)
