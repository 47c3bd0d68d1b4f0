"""What lossless decoders are predicted to gain for image models that people wait for, beside the seconds they report.

    python benchmarks/gains.py [--page docs/results/gains.md]

Nothing is measured here: tables of docs/figures and published numbers are multiplied, and shapes are counted on tensors
without memory. Writes the predictions, docs/figures/gains.csv, and each block of the page.
"""

import argparse
import csv
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from parity_decoders.slots import SlotNetwork

from parity.base.command import run_command
from parity.base.files import publish

FIGURES = Path(__file__).parents[1] / "docs/figures"
Range = tuple[float, float]
NETWORK = "Lumina-mGPT 7B"  # the measured network nearest in size; its full names in older runs begin so
METHODS = {"sjd_coupled": 32, "mtj": 64}  # tokens of a pass of each decoder at its defaults, as it was timed
# Fields that GlmImageConfig of transformers 5.23 leaves out, without which its own forward fails
ROTARY = {"rope_theta": 10000.0, "rope_type": "default", "mrope_section": [8, 12, 12], "partial_rotary_factor": 0.5}


BLOCK = re.compile(r"(<!-- gains: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Report:
    """Seconds of an image that somebody reported: of the tokens, and of all."""

    model: str
    device: str
    thread: str
    tokens: int
    drawing: float
    whole: float


REPORTS = [
    Report("GLM-Image, two source images", "A800", "zai-org/GLM-Image/issues/6", 32 * 32 + 1, 50.28, 90),
    Report("Emu3", "H100", "baaivision/Emu3/issues/18", 90 * 91 + 2, 300, 300),
    Report("Emu3", "A100", "baaivision/Emu3/issues/18", 90 * 91 + 2, 600, 600),
    Report("Emu3.5, source images", "two, not named", "baaivision/Emu3.5/issues/33", 64 * 65 + 1, 410.1, 410.1),
]


def read_expected() -> dict[tuple[str, str], Range]:
    """Read how many tokens a pass is expected to draw, the least and the most, by network of the SJD paper and method
    (benchmarks/gain_by_network.py)."""
    with (FIGURES / "gain-expected.csv").open() as lines:
        rows = [(*row["label"].split(", "), row) for row in csv.DictReader(lines)]
    return {(network, method): (float(row["low"]), float(row["high"])) for network, method, row in rows}


def read_tokens_a_pass(method: str) -> Range:
    """Read how many tokens a pass of a method is expected to draw on all networks of the SJD paper."""
    ends = [end for (_, name), ends in read_expected().items() if name == method for end in ends]
    return min(ends), max(ends)


def compare_times(method: str) -> dict[str, list[float]]:
    """Compare the milliseconds of a method's pass with those of plain decoding: of passes that the host launches one
    kernel at a time, and of captured ones, which wait for memory. There the network's own pass counts too."""
    parts = {
        name: part["rows"] for name, part in json.loads((FIGURES / "gpu-captured.json").read_text())["parts"].items()
    }
    older = json.loads((FIGURES / "gpu-passes.json").read_text())["decoders"]
    eager = [{r["method"]: r["eager ms"] for r in parts["steps"] if r["network"] == NETWORK}]
    for name in {r["network"] for r in older if "7B" in r["network"]}:
        eager.append({r["method"]: r["ms a pass"] for r in older if r["network"] == name})
    captured = []
    for networks, steps, key in (
        ("networks", "steps", "captured ms"),
        ("compiled", "compiled steps", "compiled, captured ms"),
    ):
        own = {(r["pass"], r["tokens"]): r[key] for r in parts[networks] if r["network"] == NETWORK}
        passes = {r["method"]: r["captured ms"] for r in parts[steps] if r["network"] == NETWORK}
        one = own["window", 1]
        captured += [passes[method] / passes["ar"], passes[method] / one]
        kind = "tree and keep" if method == "mtj" else "window"
        captured.append(own[kind, METHODS[method]] / one)
    return {"host": [ms[method] / ms["ar"] for ms in eager], "memory": captured}


def predict(report: Report, method: str) -> dict[str, Any]:
    """Predict the passes and seconds of a reported image, the least and the most: the best of all ratios together, and
    the worst together. "whole": in either case, with what is not drawn by tokens."""
    (worst, best), times = read_tokens_a_pass(method), compare_times(method)
    row: dict[str, Any] = {"label": f"{report.model}, {report.device}, {method}", "tokens": report.tokens}
    row |= {"reported": report.drawing, "reported whole": report.whole}
    for end, choose, share in (("least", min, 1 / best), ("most", max, 1 / worst)):
        row[f"passes, {end}"] = report.tokens * share
        seconds = {case: report.drawing * share * choose(ratios) for case, ratios in times.items()}
        row |= {f"{case}, {end}": value for case, value in seconds.items()}
        row[f"whole, {end}"] = report.whole - report.drawing + choose(seconds.values())
    return row


def make_models() -> dict[str, tuple[Any, int, int]]:
    """Make GLM-Image, and the language model of Emu3, of published sizes without memory: the model, rows an image, and
    tokens of a prompt and its image."""
    from transformers import Emu3ForCausalLM, Emu3TextConfig, GlmImageConfig, GlmImageForConditionalGeneration

    with torch.device("meta"):
        glm = GlmImageForConditionalGeneration(GlmImageConfig(text_config={"rope_parameters": ROTARY}))
        emu = Emu3ForCausalLM(Emu3TextConfig())
    models = {"GLM-Image": (glm, 1, 64 + 1281), "Emu3": (emu, 2, 1024 + 90 * 91 + 2)}
    return {name: (model.to(torch.bfloat16).eval(), *sizes) for name, (model, *sizes) in models.items()}


@torch.no_grad()
def measure_cache(model: Any, rows: int, slots: int, window: int = 16) -> int:
    """Run a pass over a window on tensors without memory; return the bytes of the cache. Its prompt has one token, and
    the others of `slots` count as new, for a longer prompt is read at once. Shapes are asserted."""
    config = model.config.get_text_config(decoder=True)
    glm = model.config.model_type == "glm_image"
    with torch.device("meta"):
        ids = torch.zeros(rows, 1, dtype=torch.long)
        places = torch.zeros(3, rows, slots, dtype=torch.long) if glm else None
        network = SlotNetwork(
            model, ids, torch.ones_like(ids, dtype=torch.bool), slots - 1, static=True, position_ids=places
        )
        positions = torch.arange(window).expand(rows, -1)
        logits = network.logits(torch.zeros_like(positions), positions)
    assert logits.shape == (rows, window, model.lm_head.out_features)
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    stores = [store for layer in network.cache.layers for store in (layer.keys, layer.values)]
    size = network.cache.on.shape[1]
    assert {store.shape for store in stores} == {(rows, size, config.num_key_value_heads, head)}
    assert len(stores) == 2 * config.num_hidden_layers
    return sum(store.numel() * store.itemsize for store in stores)


def format_memory() -> str:
    """Count parameters and bytes of each model, and format them. Logits are of one image."""
    lines = []
    for name, (model, rows, slots) in make_models().items():
        count = sum(p.numel() for p in model.parameters())
        layers = [p.numel() for p in model.model.get_decoder().layers.parameters()]
        read = 2 * (sum(layers) + model.lm_head.weight.numel())
        cache = measure_cache(model, rows, slots) / 1e9
        logits = 4 * rows * 16 * model.lm_head.out_features / 1e6
        lines.append(
            f"- {name}: {count / 1e9:.2f} billion parameters, {2 * count / 1e9:.1f} GB in bfloat16, of which a pass "
            f"reads {read / 1e9:.1f}; {cache:.2f} GB for the cache of an image and its prompt, {slots:,} tokens; "
            f"{logits:,.1f} MB for the logits of 16 tokens in float32."
        )
    return "\n".join(lines) + "\n"


def span(values: Any, digits: int = 0) -> str:
    """Format the smallest and largest of values."""
    return f"{min(values):,.{digits}f} to {max(values):,.{digits}f}"


def format_factors() -> str:
    """Format the factors of the predictions, and where they were counted and timed."""
    rows: list[tuple[str, list[list[float]], str]] = [
        ("tokens a pass", [[*read_tokens_a_pass(m)] for m in METHODS], "[the gain by network](gain.md)"),
    ]
    for case, bound in (("host", "host-bound"), ("memory", "memory-bound")):
        rows.append((f"a pass, in plain calls, {bound}", [compare_times(m)[case] for m in METHODS], "[GPU](gpu.md)"))
    table = f"| factor | {' | '.join(f'`{m}`' for m in METHODS)} | from |\n|---|---|---|---|\n"
    for name, values, source in rows:
        table += f"| {name} | {' | '.join(span(v, 2) for v in values)} | {source} |\n"
    study = json.loads((FIGURES / "gain-by-network.json").read_text())
    runs = json.loads((FIGURES / "gpu-captured.json").read_text())["parts"]
    timed = [runs[part]["how"] for part in ("networks", "steps")]
    commits = dict.fromkeys(f"commit {how['commit'][:8]}, {how['date']}" for how in timed)
    counted = f"commit {study['commit']}, {study['date']}, {study['cpu']}"
    return f"{table}\n*Counted: {counted}. Timed: NVIDIA H200, {'; '.join(commits)}; H100, 2026-11-25.*\n"


def format_predicted(predicted: list[dict[str, Any]]) -> str:
    """Format the predictions of the first of METHODS beside the reports, of each model on the fastest GPU that was
    reported; the others stand in the file."""
    heads = ["model and GPU", "reported s", "tokens", "passes", "s, host-bound", "s, memory-bound"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row, (report, method) in zip(predicted, [(r, m) for r in REPORTS for m in METHODS], strict=True):
        fastest = min(other.drawing for other in REPORTS if other.model == report.model)
        if report.drawing > fastest or method != next(iter(METHODS)):
            continue
        ends = [(row[f"{key}, least"], row[f"{key}, most"]) for key in ("passes", "host", "memory")]
        told = f"{report.drawing:.0f}" + f" of {report.whole:.0f}" * (report.whole > report.drawing)
        thread = f"[{told}](https://github.com/{report.thread})"
        cells = [f"{report.model}, {report.device}", thread, f"{report.tokens:,}", *map(span, ends)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the table of predictions, and the blocks of the page anew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, default=FIGURES.parent / "results/gains.md")
    parser.add_argument("--table", type=Path, default=FIGURES / "gains.csv")
    a = parser.parse_args()
    predicted = [predict(report, method) for report in REPORTS for method in METHODS]
    with a.table.open("w", newline="") as lines:
        table = csv.DictWriter(lines, predicted[0], lineterminator="\n")
        table.writeheader()
        table.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in predicted)
    blocks = {"factors": format_factors(), "predicted": format_predicted(predicted), "memory": format_memory()}
    text = BLOCK.sub(lambda m: m[1] + blocks[m[2]] + m[4], a.page.read_text())
    publish(a.page, text.encode())


if __name__ == "__main__":
    run_command(main)
