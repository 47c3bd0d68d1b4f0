"""Whether a decoder draws what plain decoding draws, on any model of a configuration: `parity verify`.

A decoder that shares plain decoding's random numbers is compared with it token by token, in the dtype that the model
has. Of others, the tokens that they draw are tested by the layers that test a run's cells (`parity.equality.layers`),
each token by its distribution given those before it.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from parity_certify.result_rows import Row
from parity_certify.seeding import check_seed
from parity_decoders.leads import (
    LEVEL,
    Draws,
    Verification,
    follow_plain,
    judge,
    judge_tests,
    measure_leads,
    measure_rounding,
    place_leads,
)
from parity_decoders.verification import make_probs

from parity.base.errors import ParityError
from parity.base.machine import limit_rows
from parity.decode import discrete, loop
from parity.equality.layers import CellFiles, run_layer
from parity.experiment.cells import describe_source
from parity.experiment.layers import read_layers
from parity.experiment.options import (
    claim,
    declaration,
    find_plain_method,
    has_drafts,
    is_coupled,
    make_plain_options,
)
from parity.generate import Generator
from parity.metrics.likelihood import teacher_forced_logits

# Settings of the layers: a correct decoder's tokens are rejected once in a thousand times. Where tokens are drawn again
# one by one, a rejection at .05 has to repeat.
SETTINGS: dict[str, dict[str, Any]] = {
    "anysubset": {"alpha": LEVEL},
    "discrete": {"alpha": LEVEL},
    "continuous": {"forced": 256, "conditions": 4, "pathwise": 2},
}


def verify(
    generator: Generator, prompts: Sequence[str], method: str, n: int = 8, seed: int = 0, **given: Any
) -> Verification:
    """Decode `n` images or texts of the prompts by a method, with options `given`, and judge them. Prompts are
    repeated if there are fewer than n. Raises ParityError for plain decoding itself."""
    seed = check_seed(seed)
    method, options = generator.choose_method(method, given)
    plain = find_plain_method(generator.kind)
    if method == plain:
        raise ParityError(f"--method {method}: plain decoding itself; allowed: another decoder")
    repeats = -(-n // len(prompts))
    rows = loop.slice_rows(generator.make_rows(list(prompts[:n]), repeats), slice(n))
    loaded = generator.load_networks(method)
    spec = {**generator.case.setting, "seed": seed, "method": method, "options": options}
    spec |= {"discrete": {"dtype": generator.dtype}, "anysubset": {"task_kind": "infilling"}}.get(generator.kind, {})
    spec |= describe_source(generator.config, generator.kind, method, generator.case.model)
    if generator.reads_given_captions:
        loaded = replace(loaded, manifest={**generator.manifest, "captions": list(prompts)})
    if generator.kind == "discrete":
        found = compare_with_plain(loaded, spec, rows)
        if found is not None:
            return found
    others = {"method": plain, "options": make_plain_options(generator.kind)}
    return check_tokens(generator, loaded, spec, spec | others, rows)


@torch.inference_mode()
def compare_with_plain(loaded: Any, spec: dict[str, Any], rows: loop.Rows) -> Verification | None:
    """Decode rows of image tokens plainly, and compare the distributions that drew them with those of one pass over
    each row; then by the method of `spec` if it is coupled, and judge where its tokens differ. Returns None for a
    method that is not coupled, and no fault."""
    noise = loop.noise_of(rows, loaded, spec)
    begin = discrete.make_starter(loaded, spec)
    model, start = begin(rows, noise)
    leads: list[tuple[torch.Tensor, torch.Tensor]] = []
    plain = discrete.record(model, start, follow_plain(model, start, noise=noise, leads=leads)).tokens
    is_drawn = (model.forced < 0).expand(plain.shape)
    at_once = limit_rows(len(plain), model.length, model.vocab)
    positions = torch.arange(model.length, device=start.device)[None]

    def look(tokens: torch.Tensor) -> Draws:
        """Compute the leads of tokens [B, L] by the distributions of one pass over each whole row."""
        of_rows = []
        for chosen in torch.arange(len(tokens), device=start.device).split(at_once):
            some, some_noise = tokens[chosen], noise.take(chosen)
            fresh, _ = begin({name: column[chosen.cpu().numpy()] for name, column in rows.items()}, some_noise)
            e = some_noise.exponential("sample", positions, model.vocab)
            of_rows.append(measure_leads(make_probs(teacher_forced_logits(fresh, some)), e, some))
        return Draws(tokens, is_drawn, torch.cat(of_rows).double())

    looked = look(plain)
    dtype, guidance = getattr(torch, spec["dtype"]), spec["sampling"].get("guidance", 1.0)
    rounding = measure_rounding(looked, place_leads(leads, model.length), dtype, guidance)
    if is_coupled("discrete", spec["method"], spec["options"]):
        model, start, steps = loop.start_decoding("discrete", loaded, spec)(rows, noise)
        decoded = discrete.record(model, start, steps)
        found = judge(spec["method"], looked, look(decoded.tokens), rounding)
        return replace(found, per_pass=count_per_pass(decoded))
    line = rounding.find_fault()
    return Verification(line, True, len(plain), int(is_drawn.sum())) if line else None


def check_tokens(
    generator: Generator, loaded: Any, spec: dict[str, Any], plain: dict[str, Any], rows: loop.Rows
) -> Verification:
    """Decode rows by a method, and test its tokens by the layers of its kind that need no images. plain: the
    specification of plain decoding, which some of them read."""
    kind = generator.kind

    def decode(chosen: dict[str, Any], **more: Any) -> CellFiles:
        """Make a cell of the rows, decoded by a specification; more: what layers read of it beside that."""
        settings = {**SETTINGS[kind], "seeds": [chosen["seed"]]}
        cell = CellFiles(kind, Path(f"{chosen['method']}-verify"), settings, device=generator.device)
        shards = loop.decode(kind, loaded, chosen, rows, len(rows["ids"]))
        # what a cell would read of its files is given to it
        vars(cell).update(spec=chosen, inputs=rows, manifest=loaded.manifest, shards=shards, **more)
        return cell

    found: list[Row] = []
    layers = list_layers(kind, spec)
    baseline = decode(plain) if any("baseline" in layer["READS"] for layer in layers.values()) else None
    with tempfile.TemporaryDirectory() as folder:
        cell = decode(spec, baseline=baseline, probs_file=Path(folder, "probs.npz"))
        for name in layers:
            found += run_layer(name, cell)["rows"]
    lossless = claim(kind, spec["method"], spec["options"]) == "lossless"
    judged = judge_tests(spec["method"], found, lossless, len(rows["ids"]))
    return replace(judged, per_pass=count_per_pass(cell.shards)) if kind == "discrete" else judged


def count_per_pass(decoded: Any) -> float:
    """Count the tokens that a pass drew, the mean of all passes of image rows that were decoded."""
    return float(decoded.kept.sum() / decoded.nfe.sum())


def list_layers(kind: str, spec: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """List the layers that look at a method's tokens alone, with their declarations."""
    method, options = spec["method"], spec["options"]
    needs_test = {"always": True, "coupled": is_coupled(kind, method, options)}
    needs_test["drafted"] = has_drafts(kind, method) or declaration(kind, method).TARGETS == "walks"
    layers = read_layers(kind).items()
    return {name: layer for name, layer in layers if needs_test[layer["WHEN"]] and "features" not in layer["READS"]}
