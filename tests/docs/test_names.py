"""Every file, module, name and flag that docs, docstrings and comments name exists."""

import ast
import io
import re
import subprocess
import tokenize
from functools import cache
from pathlib import Path

import pytest

from tests.workflow.conftest import ROOT

FOLDERS = {
    "parity": "src/parity",
    "parity_certify": "certify/src/parity_certify",
    "parity_decoders": "decoders/src/parity_decoders",
}
BELOW = ("", "src", "src/parity", "decoders/src", "decoders/src/parity_decoders", "certify", "certify/src", "field")
START = r"(?<![\w./*<>{}:@-])"  # no part of an address, a pattern or a longer path
PATH = re.compile(START + r"[\w.-]+(?:/[\w.-]+)*/[\w.-]+\.(?:py|smk|yaml|toml|md|csv|txt|json|j2|bib)\b(?!\.\w)")
FILE = re.compile(START + r"[\w-]+\.(?:py|smk|md)\b(?!/)")
MODULE = re.compile(rf"{START}(?:{'|'.join(FOLDERS)})(?:\.\w+)+")
NAME = re.compile(r"`([A-Za-z_][\w.]*)(?:\([^`]*\))?`")  # a name or a call in backticks, of code or of a configuration
CALL = re.compile(r"(?<![\w.`])(?:[a-z_]\w*\.)*([a-z_]\w+)\(")  # in an example, or a formula
HELD = re.compile(r"`([\w/<>.-]+\.(?:py|smk))` \(((?:`\w+`(?:, )?)+)\)")  # a file, and in brackets what is in it
FLAG = re.compile(r"(?<![\w-])--([a-z][\w-]+)")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)
TOLD = (".md", ".py", ".smk", "Snakefile", ".bib", ".toml")  # what these files name is checked
READ = (*TOLD, ".yaml", ".yml", ".j2", ".js")  # these have names of their own
LEFT_OUT = ("CHANGELOG.md", "docs/results/field.md", "docs/results/reports.md", "field/")  # history, others' code
WRITTEN = re.compile(r"results/|NAME|FOLDER|FILE|mine\b|own\b|path/|/distinct|speculators/|lossless/|data/|tried/")
THEIRS = re.compile(r"vllm/|samd|\w+/modeling_|models/drafters/|language/t5|evaluation/|Tree/")
# files of readers, and of repositories whose behaviour is followed
FILES = {
    "anole_hf.py", "arm.md", "dog.py", "fill_in.py", "fox.py", "fox_hf.py", "make_tokens.py", "pixels.py", "s.py",
    "sjd_tokens.py", "test_lossless.py", "verify_fox.py",
    "BLIP_vqa.py", "compute_dpg_bench.py", "convert_chameleon_weights_to_hf.py", "eval_coding.py",
    "eval_prec_recall.py", "evaluate_images.py", "evaluation_metrics.py", "packed_dataset.py", "summary_scores.py",
}  # fmt: skip
# names of transformers, diffusers, vLLM, Slurm and S3 that no code of ours has, of formulas, and parts of our names
NAMES = {
    "target_to_assistant_input_ids", "_assisted_decoding", "_expand_kernel_impl", "_ensure_int64", "stop_strings",
    "apply_top_k_only", "expand_batch_to_tokens", "StopStringCriteria", "slurmdbd", "scancel", "sha256sum",
    "SNAKEMAKE_STORAGE_S3_ACCESS_KEY", "SNAKEMAKE_STORAGE_S3_SECRET_KEY", "HF_HOME", "HTTPS_PROXY", "replicate_...",
    "_median", "_q3",
    "parity.decoders",  # the group of entry points of decoders in installed packages
    "image_sizes", "prior_token_ids", "enable_model_cpu_offload", "pipe.enable_model_cpu_offload",
    "enable_sequential_cpu_offload",
    "ln", "p_i", "p_j", "sigmoid", "test_lossless",
}  # fmt: skip
FLAGS = {"slurm-no-account", "slurm-status-command"}  # of a plugin that is not installed here


@cache
def list_tracked():
    """List the files of the repository."""
    command = ["git", "-C", str(ROOT), "ls-files"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@cache
def list_file_names():
    """List the names of the repository's files, without their folders."""
    return {Path(name).name for name in list_tracked()}


@cache
def split_text(name):
    """Split a file into what it says to a reader, of Python docstrings and comments, of others all, and its code."""
    text = (ROOT / name).read_text(encoding="utf-8")
    if not name.endswith(".py"):
        return text, "" if name.endswith((".md", ".bib")) else text
    prose, lines = [], text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            prose.append(token.string)
            lines[token.start[0] - 1] = lines[token.start[0] - 1][: token.start[1]]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and (docstring := ast.get_docstring(node)) is not None:
            prose.append(docstring)
            first, last = node.body[0].lineno - 1, node.body[0].end_lineno
            lines[first:last] = [""] * (last - first)
    return "\n".join(prose), "\n".join(lines)


@cache
def list_words():
    """List the words, with and without hyphens, of all code but this test's, and of the names of files."""
    code = [split_text(name)[1] for name in list_tracked() if name.endswith(READ) and ROOT / name != Path(__file__)]
    text = " ".join([*code, *list_tracked()])
    return set(re.findall(r"\w+", text)) | {word.lstrip("-") for word in re.findall(r"[\w-]+", text)}


def is_file_here(path, page):
    """Return whether a path is a file below the repository or a package, or is a link of a page that leads to one."""
    return any((ROOT / folder / path).exists() for folder in (*BELOW, Path(page).parent))


def is_name_here(name):
    """Return whether a dotted name is a module, or stands in the module before it."""
    package, *parts = name.split(".")
    folder = ROOT / FOLDERS[package]
    for i, part in enumerate(parts):
        if (folder / part).is_dir():
            folder = folder / part
            continue
        file = folder / f"{part}.py"
        module, rest = (file, parts[i + 1 :]) if file.is_file() else (folder / "__init__.py", parts[i:])
        return not rest or bool(re.search(rf"\b{rest[0]}\b", module.read_text(encoding="utf-8")))
    return True


def find_absent(text, page=""):
    """List the files, modules, names in backticks and flags of a text that do not exist; `page`: where it stands."""
    words, files = list_words(), list_file_names() | FILES
    absent = [name for name in PATH.findall(text) if not THEIRS.search(name) and not is_file_here(name, page)]
    absent += [name for name in FILE.findall(text) if name not in files]
    absent = [name for name in absent if not WRITTEN.search(name)]
    absent += [name for name in MODULE.findall(text) if name not in NAMES and not is_name_here(name)]
    for name in [*NAME.findall(text), *(CALL.findall(text) if page.endswith(".py") else [])]:
        is_known = name in NAMES or FILE.fullmatch(name) or words.issuperset(filter(None, name.split(".")))
        absent += [] if is_known else [name]
    unknown = (flag for flag in FLAG.findall(text) if words.isdisjoint({flag, flag.replace("-", "_")}))
    return absent + [f"--{flag}" for flag in unknown if flag not in FLAGS]


@pytest.mark.parametrize(
    "text",
    [
        "models/discrete/gone.py", "`models/discrete/gone.py`", "see `python benchmarks/gone.py --keep x`", "gone.py",
        "parity.report.gone", "`parity.report.cost.gone_one`", "`rank_gone_one`", "`image.gone_one`", "--gone-one",
        "an example: slots.gone_one(draft)",
    ],
)  # fmt: skip
def test_a_name_that_is_gone_is_found(text):
    assert find_absent(f"See {text}.", "src/parity/some.py")


def test_every_file_module_name_and_flag_that_is_named_exists():
    names = [name for name in list_tracked() if name.endswith(TOLD) and not name.startswith(LEFT_OUT)]
    assert {name: found for name in names if (found := find_absent(split_text(name)[0], name))} == {}


def find_not_held(text):
    """List "file: name" for each name in brackets after a file of a text that the file does not have."""
    absent = []
    for file, names in HELD.findall(text):
        if "<" not in file:
            path = next(ROOT / folder / file for folder in BELOW if (ROOT / folder / file).is_file())
            words = re.findall(r"\w+", path.read_text(encoding="utf-8"))
            absent += [f"{file}: {name}" for name in re.findall(r"\w+", names) if name not in words]
    return absent


def test_a_name_in_another_file_is_found():
    assert find_not_held("`report/order.py` (`rank_row`, `make_columns`)") == ["report/order.py: make_columns"]


def test_files_have_what_the_page_says_that_they_have():
    text = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
    assert len(HELD.findall(text)) > 20
    assert find_not_held(text) == []


MEASURED = ["results/*.md", "explanation/lossless.md", "explanation/heads.md"]


@pytest.mark.parametrize(
    "page", [str(p.relative_to(ROOT)) for pattern in MEASURED for p in sorted((ROOT / "docs").glob(pattern))]
)
def test_a_page_of_measurements_says_where_and_when(page):
    """A commit, a date, and the machine, or that it was not recorded."""
    text = " ".join((ROOT / page).read_text().split())
    assert re.search(r"commits? (?:before )?[0-9a-f]{8,10}", text)
    assert re.search(r"20\d\d-\d\d-\d\d", text)
    assert re.search(r"AMD EPYC|NVIDIA H[12]00|machine not recorded|machine \(not recorded\)", text)
