"""Begin a decoder or a metric: one file, and its test.

    parity new decoder NAME [--kind discrete] [--like sjd] [--rule]
    parity new decoder NAME [--kind discrete] [--like sjd | --draft] --outside FOLDER
    parity new metric NAME [--kind discrete]

A decoder begins as plain decoding in a few lines, or as a copy of another of its kind; --rule gives it a Snakemake rule
too, for threads, memory and an environment of its own. --outside writes it as a package that can be installed anywhere,
with --draft as one with a draft network of its own. A metric counts the distinct tokens of an image or text. Both
work as they stand.
"""

import argparse
import ast
import importlib.util
import keyword
import re
from pathlib import Path

import jinja2

from parity.base.command import run_command
from parity.base.errors import ParityError
from parity.base.files import publish
from parity.experiment.module_metadata import PACKAGE, find_folder, modules
from parity.experiment.options import KINDS, methods

ROOT = PACKAGE.parents[1]
TEMPLATES = Path(__file__).parent / "templates"
# The test of a new decoder plants a fault: it replaces a name that the decoder's module imports.
SAMPLE = {
    "wrong": "sample_token", "source": "parity_decoders.verification",
    "call": "sample_token(weights.sqrt(), noise)", "arguments": "weights, noise",
}  # fmt: skip
PATH = {
    "wrong": "make_path_noise", "source": "parity_decoders.protocols.continuous",
    "call": "lambda *asked: 1.5 * make_path_noise(*given)(*asked)", "arguments": "*given",
}  # fmt: skip
FAULTS = {"discrete": SAMPLE, "anysubset": SAMPLE, "continuous": PATH}


def fill(template: str, **values: str) -> str:
    """Fill in a template of the folder `templates`, named without `.j2`."""
    loader = jinja2.FileSystemLoader(TEMPLATES)
    environment = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    return environment.get_template(f"{template}.j2").render(values)


def copy_decoder(name: str, kind: str, like: str) -> str:
    """Make the source of a copy of the decoder `like`, renamed, without PLAIN, as a kind has one plain decoding."""
    text = (find_folder(f"decoders/{kind}") / f"{like}.py").read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    for node in reversed(ast.parse(text).body):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == "PLAIN":
            del lines[node.lineno - 1 : node.end_lineno]
    head = f'"""{name}, begun as a copy of `{like}`: say here what differs, and the paper and section it is from.\n\n'
    text = "".join(lines).replace('"""', head, 1)
    return re.sub(rf"^def {like}\(", f"def {name}(", text, count=1, flags=re.MULTILINE)


def check_name(name: str) -> None:
    """Raise ParityError for a name that no module can have."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ParityError(f"NAME = {name!r}: allowed: a Python name of lower-case letters, digits and _")


def check_place(name: str, package: str) -> None:
    """Raise ParityError for a name that no module can have or that `package` has, or where there is no clone."""
    check_name(name)
    if name in modules(package) or (find_folder(package) / name).exists():
        folder = find_folder(package).relative_to(ROOT)
        raise ParityError(f"NAME = {name!r}: {folder} has it already; allowed: another name")
    if not (ROOT / "Snakefile").is_file():
        raise ParityError(f"{PACKAGE}: not in a clone of the project; allowed: run it by a clone's `uv run parity new`")


def check_like(like: str, kind: str) -> None:
    """Raise ParityError for a decoder to copy that the kind does not have; "" copies none."""
    if like and like not in methods(kind):
        raise ParityError(f"--like {like}: no decoder of kind {kind}; allowed: {', '.join(methods(kind))}")


def write(files: dict[Path, str]) -> None:
    """Write new files by their paths, with their folders, and print their names."""
    for path, text in files.items():
        publish(path, text.encode())
        print(f"wrote {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}")


def write_decoder(name: str, kind: str, like: str, rule: bool = False) -> None:
    """Write a decoder, its test unless it copies `like`, and a rule if wanted. Raises ParityError for a wrong name."""
    package = f"decoders/{kind}"
    check_like(like, kind)
    check_place(name, package)
    file, rules = find_folder(package) / f"{name}.py", ROOT / f"workflow/methods/{name}.smk"
    if rule and rules.exists():
        raise ParityError(f"--rule: {rules.relative_to(ROOT)} exists already; allowed: another NAME")
    if like:
        files = {file: copy_decoder(name, kind, like)}
    else:
        test = fill("test_decoder.py", name=name, kind=kind, **FAULTS[kind])
        files = {file: fill(f"{kind}.py", name=name), ROOT / f"tests/decoders/test_{name}.py": test}
    if rule:
        files[rules] = fill("rule.smk", name=name, kind=kind)
    write(files)
    print(
        f"beside other methods: snakemake --cores all --configfile workflow/experiments/ci.yaml --config"
        f" '{KINDS[kind]}={{methods: {{{name}: [{{}}]}}}}'\nits test: pytest tests/contracts tests/decoders -k {name}"
    )


def write_package(name: str, kind: str, like: str, draft: bool, folder: Path) -> None:
    """Write a package with a decoder and, unless it copies `like`, its test. Raises ParityError for a wrong name, and a
    folder that has a package."""
    check_name(name)
    check_like(like, kind)
    if draft and (like or kind != "discrete"):
        raise ParityError("--draft: allowed: of a decoder of kind discrete, without --like")
    if importlib.util.find_spec(name) is not None:
        raise ParityError(f"NAME = {name!r}: a module of this name is installed; allowed: another name")
    module, project = folder / f"{name}.py", folder / "pyproject.toml"
    for file in (module, project):
        if file.exists():
            raise ParityError(f"--outside {folder}: {file.name} is there already; allowed: another folder")
    source = copy_decoder(name, kind, like) if like else fill("drafted.py" if draft else f"{kind}.py", name=name)
    if kind != "discrete":
        source = source.replace("\nCLAIM = ", f'\nKIND = "{kind}"\nCLAIM = ', 1)
    source = source.replace("import torch\n\nfrom parity", "import torch\nfrom parity", 1)  # both are others' there
    files = {project: fill("pyproject.toml", name=name), module: source}
    if not like:
        test = "test_certified.py" if kind == "discrete" else "test_package.py"
        files[folder / f"test_{name}.py"] = fill(test, name=name, kind=kind, **FAULTS[kind])
    write(files)
    print(
        f"installed: pip install --no-deps {folder}\nor without: FILE.py:{name} is its name, as"
        f" {module}:{name}\nits test: pytest {folder}"
    )


def write_metric(name: str, kind: str) -> None:
    """Write a metric's file and its test. Raises ParityError for a wrong name."""
    check_place(name, "metrics")
    source, test = PACKAGE / f"metrics/{name}.py", ROOT / f"tests/metrics/test_{name}.py"
    write({source: fill("metric.py", name=name, kind=kind), test: fill("test_metric.py", name=name)})
    print(f"its figures: a column of summary.csv in the next run\nits test: pytest tests/metrics/test_{name}.py")


def main() -> None:
    """Write what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="parity new", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("decoder", "metric"))
    parser.add_argument("name")
    parser.add_argument("--kind", choices=list(KINDS), default="discrete", help="of model")
    parser.add_argument("--like", default="", help="a decoder to copy; a few lines of plain decoding if none is named")
    parser.add_argument("--rule", action="store_true", help="of a decoder: a Snakemake rule of its own, too")
    parser.add_argument("--outside", type=Path, metavar="FOLDER", help="of a decoder: a package of its own")
    parser.add_argument("--draft", action="store_true", help="with --outside: with a draft network of its own")
    a = parser.parse_args()
    if a.outside and (a.rule or a.what != "decoder"):
        raise ParityError("--outside: allowed: with decoder, without --rule")
    if a.draft and not a.outside:
        raise ParityError("--draft: allowed: with --outside")
    if a.rule and a.what != "decoder":
        raise ParityError(f"--rule: a {a.what} has no rule; allowed: with decoder")
    if a.outside:
        write_package(a.name, a.kind, a.like, a.draft, a.outside)
    elif a.what == "decoder":
        write_decoder(a.name, a.kind, a.like, a.rule)
    else:
        write_metric(a.name, a.kind)


if __name__ == "__main__":
    run_command(main)
