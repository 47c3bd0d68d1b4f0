"""The field: public implementations under judgement, a folder each (field/README.md says what stands in one).

    python field/frame.py models --out DIR                  tiny checkpoints and distributions, by this Python (torch)
    python field/frame.py environment NAME --out FILE       its virtual environment and its clone, made once
    python field/frame.py judge NAME --environment FILE --models DIR --out FILE      every case, its reproduction

An implementation runs in an environment of its own. What cannot be installed, crashes or hangs is a row that says so.
"""

import argparse
import hashlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import yaml

FIELD = Path(__file__).resolve().parent
ROOT = FIELD.parent
KEYS = {
    "title", "url", "claim", "level", "python", "packages", "repository", "commit", "minutes", "cases", "where", "note",
    "environment", "released", "alone", "older", "setup",
}  # fmt: skip
LEVELS = ("sampler", "verifier", "speculation", "texts", "design")
CLAIMS = ("lossless", "lossy")
LARGEST = 0.1  # a larger bound is called consistent on the pages, whatever the margin of its case
INSTALLING = 3600  # seconds that an installation may take
CERTIFIER = ["numpy", "scipy"]  # what parity_certify needs; its code is found by PYTHONPATH


class FieldError(Exception):
    """An error in a folder of the field, in one line."""


def read_field(folder: Path) -> dict[str, Any]:
    """Read a folder's field.yaml and fill in the defaults, also of each case. Raises FieldError that names the key."""
    try:
        about = yaml.safe_load((folder / "field.yaml").read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise FieldError(f"{folder.name}: field.yaml: {' '.join(str(error).split())}") from None
    if not isinstance(about, dict) or (unknown := set(about) - KEYS):
        raise FieldError(f"{folder.name}: keys {sorted(unknown)}; allowed: {sorted(KEYS)}")
    about = {"title": folder.name, "url": "", "packages": [], "minutes": 5, "cases": {"default": {}}} | about
    about = {"note": "", "where": "", "repository": "", "commit": "", "environment": {}, "claim": "lossless"} | about
    about = {"alone": [], "older": False, "setup": ""} | about
    if type(about.setdefault("released", None)) not in (date, type(None)):
        raise FieldError(f"{folder.name}: released {about['released']!r}; allowed: a date such as 2026-05-01")
    about["python"] = str(about.get("python") or f"{sys.version_info.major}.{sys.version_info.minor}")
    for name, case in about["cases"].items():
        case = {"level": about.get("level"), "claim": about["claim"], "options": {}} | (case or {})
        about["cases"][name] = case
        for key, allowed in {"level": LEVELS, "claim": CLAIMS}.items():
            if case[key] not in allowed:
                raise FieldError(f"{folder.name}: {name}: {key} {case[key]!r}; allowed: {', '.join(allowed)}")
    if bool(about["repository"]) != bool(about["commit"]):
        raise FieldError(f"{folder.name}: repository and commit: one of them; allowed: both, or neither")
    return about


def digest_packages(about: dict[str, Any]) -> str:
    """Digest the Python version and packages to 8 hex digits: folders with the same share an environment."""
    parts = [about["python"], about["packages"], *([about["alone"]] if about["alone"] else [])]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]


def run(command: list[str], log: Path, seconds: float, **settings: Any) -> str:
    """Run a command, appending it and its output to the log. Returns "", or what went wrong in one line."""
    with log.open("ab") as stream:
        stream.write(f"\n$ {' '.join(command)}\n".encode())
        stream.flush()
        try:
            code = subprocess.run(
                command, stdout=stream, stderr=stream, timeout=seconds, check=False, **settings
            ).returncode
        except subprocess.TimeoutExpired:
            return f"stopped after {seconds / 60:.1f} minutes"
        except OSError as error:
            return str(error)
    return "" if code == 0 else f"exit code {code}: {find_last_error(log)}"


def find_last_error(log: Path) -> str:
    """Return the last of a log's final 40 lines that names an error, else the last line, cut to 300 characters."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines[-40:] if "error" in line.lower()]
    return (errors or lines or [""])[-1][:300]


def make_environment(about: dict[str, Any], folder: Path, log: Path) -> str:
    """Make the virtual environment in `folder`, by uv if it exists, unless it is whole. Returns "" or the problem."""
    if (folder / "whole").exists():
        return ""
    shutil.rmtree(folder, ignore_errors=True)
    python, packages = folder / "bin/python", [*about["packages"], *CERTIFIER]
    uv = shutil.which("uv")
    if uv:
        commands = [[uv, "venv", "-q", "--python", about["python"], str(folder)]]
        commands += [[uv, "pip", "install", "-q", "--no-config", "--python", str(python), *packages]]
    else:
        interpreter = shutil.which(f"python{about['python']}") or sys.executable
        commands = [[interpreter, "-m", "venv", str(folder)], [str(python), "-m", "pip", "install", "-q", *packages]]
    if about["alone"]:
        commands.append([*commands[-1][: -len(packages)], "--no-deps", *about["alone"]])
    for command in commands:
        if problem := run(command, log, INSTALLING):
            return problem
    (folder / "whole").touch()
    return ""


def clone(about: dict[str, Any], folder: Path, log: Path) -> str:
    """Clone the repository at its commit into `folder`, unless that is complete. Returns "" or the problem."""
    if (folder / ".git/whole").exists():
        return ""
    shutil.rmtree(folder, ignore_errors=True)
    commands = [["git", "clone", "-q", "--no-checkout", about["repository"], str(folder)]]
    commands += [["git", "-C", str(folder), "checkout", "-q", about["commit"]]]
    for command in commands:
        if problem := run(command, log, INSTALLING):
            return problem
    (folder / ".git/whole").touch()
    return ""


def prepare(name: str, out: Path) -> dict[str, Any]:
    """Make the environment and the clone of an implementation, beside the folder of `out`, where the log goes. Returns
    the paths of its Python, repository and log, the minutes, and the "error" ("" for none)."""
    about, start, log = read_field(get_folder(name)), time.monotonic(), out.with_suffix(".log")
    out.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    result: dict[str, Any] = {"python": sys.executable, "repository": "", "error": "", "log": str(log)}
    if about["packages"]:
        folder = out.parent.parent / "environments" / digest_packages(about)
        result["python"] = str((folder / "bin/python").absolute())
        result["error"] = make_environment(about, folder, log)
    if about["repository"] and not result["error"]:
        folder = out.parent.parent / "repositories" / f"{Path(name).name}-{about['commit'][:8]}"
        result["repository"] = str(folder.absolute())
        result["error"] = clone(about, folder, log)
    return result | {"minutes": (time.monotonic() - start) / 60}


def get_folder(name: str) -> Path:
    """Return the folder of an implementation, in PARITY_FIELD if that variable is set."""
    return Path(os.environ.get("PARITY_FIELD", FIELD)) / name


def make_process_settings(environment: dict[str, Any], about: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Make `env` and `cwd` of an implementation's process: one thread, no GPU, no hub, its own packages and ours."""
    paths = [str(ROOT / "certify/src"), environment["repository"]]
    variables = {"PYTHONPATH": os.pathsep.join(p for p in paths if p), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    variables |= {"REPOSITORY": environment["repository"], "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "CONDA"))}
    return {"env": inherited | variables | {k: str(v) for k, v in about["environment"].items()}, "cwd": folder}


def judge_case(
    name: str, case: str, about: dict[str, Any], environment: dict[str, Any], models: Path, out: Path
) -> dict:
    """Judge one case by field/case.py in the implementation's environment, into files beside `out`. Returns its row,
    with an "error" in place of a verdict if it was not installed, failed, or took too long."""
    settings, start = about["cases"][case], time.monotonic()
    plain = re.sub(r"[^\w.-]+", "-", case)
    log, result = out.with_name(f"{plain}.log"), out.with_name(f"{plain}.json")
    log.write_bytes(b"")
    result.unlink(missing_ok=True)
    row = {"case": case, "log": str(log)} | {k: settings[k] for k in ("level", "claim", "options")}
    error = environment["error"] and f"not installed: {environment['error']}"
    if not error:
        command = [environment["python"], str(FIELD / "case.py"), str(get_folder(name).resolve()), json.dumps(settings)]
        command += [str(models.resolve()), str(result.resolve())]
        work = out.parent.resolve() / "work"
        work.mkdir(exist_ok=True)
        seconds = 60 * settings.get("minutes", about["minutes"])
        error = run(command, log, seconds, **make_process_settings(environment, about, work))
        if not error and not result.exists():
            error = "no result was written"
    row |= {"error": error, "minutes": round((time.monotonic() - start) / 60, 2)}
    return row | ({} if error else json.loads(result.read_text()))


def reproduce(name: str, about: dict[str, Any], environment: dict[str, Any], out: Path) -> dict[str, Any]:
    """Run the stand-alone reproduction. Returns whether the fault shows (exit code 1), the last line printed, and the
    log; {} if there is no script or no environment."""
    script, log = get_folder(name).resolve() / "reproduce.py", out.with_name("reproduce.log")
    if not script.exists() or environment["error"]:
        return {}
    log.write_bytes(b"")
    settings = make_process_settings(environment, about, out.parent)
    settings["env"]["PYTHONPATH"] = environment["repository"]  # the reproduction may use no code of ours
    problem = run([environment["python"], str(script)], log, 60 * about["minutes"], **settings)
    printed = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-1][:400]
    return {"shows": problem.startswith("exit code 1"), "prints": printed, "log": str(log)}


def judge(name: str, environment: dict[str, Any], models: Path, out: Path) -> dict[str, Any]:
    """Judge all cases of an implementation and run its reproduction; returns the content of verdict.json."""
    about = read_field(get_folder(name))
    out.parent.mkdir(parents=True, exist_ok=True)
    rows = [judge_case(name, case, about, environment, models, out) for case in about["cases"]]
    result = {k: about[k] for k in ("title", "url", "packages", "repository", "commit", "where", "note")}
    versions = next((row["versions"] for row in rows if "versions" in row), {})
    result |= {"name": name, "date": date.today().isoformat(), "versions": versions, "rows": rows}
    for row in rows:
        row.pop("versions", None)
    result["environment"] = {k: environment[k] for k in ("error", "log")}
    return result | {"reproduction": reproduce(name, about, environment, out)}


def write_models(out: Path) -> None:
    """Write a tiny Llama, unless it exists, two draft models (one with its own tokenizer), and the Llama's distribution
    of 3 tokens after two prompts of 3 and of 10 tokens; also "square", whose heads together are as wide as its layers,
    with its distribution, and "mamba", which has a recurrent state."""
    import numpy as np
    from parity_certify import models
    from parity_certify.adapters import transformers

    made = {"llama": {"head_dim": 32}, "square": {"head_dim": 32, "hidden_size": 64}, "mamba": {}}
    for name, sizes in made.items():
        if not (out / name / "config.json").is_file():
            models.write_model("mamba" if name == "mamba" else "llama", out / name, **sizes)
            models.write_speculators(out / name, out)
        write_logits(out, name)
    prompts = np.random.default_rng(0)
    for length in (3, 10):
        chosen = prompts.integers(4, size=(2, length))
        for name in ("llama", "square"):
            distribution = transformers.compute_distribution(transformers.load_model(out / name), chosen, 3)
            np.savez(out / f"{name}-law-{length}.npz", prompts=chosen, tables=distribution.tables)


def write_logits(out: Path, name: str) -> None:
    """Write the logits of a tiny model and of its draft model after all prefixes of the default design."""
    import numpy as np
    from parity_certify import design
    from parity_certify.adapters import transformers

    files = {"logits": name, "draft_logits": f"{name}-assistant"}
    compute = {key: transformers.make_logits(transformers.load_model(out / file)) for key, file in files.items()}
    rows = [
        np.array([[*prompt, *tokens] for tokens in itertools.product(range(4), repeat=t)])
        for options in design.DESIGN
        for prompt in design.make_prompts(options, 4)
        for t in range(options["length"])
    ]
    prefixes = ["".join(map(str, row)) for block in rows for row in block.tolist()]
    logits = {key: np.concatenate([f(block) for block in rows]) for key, f in compute.items()}
    np.savez(out / f"{name}-logits.npz", prefixes=prefixes, **logits)


def write_json(out: Path, value: Any) -> None:
    """Write a value as JSON, with the folders that are missing."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def main() -> None:
    """Run one step from the command line; FieldErrors are printed as one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("models", "environment", "judge"))
    parser.add_argument("name", nargs="?")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--environment", type=Path)
    parser.add_argument("--models", type=Path, default=Path("results/field/models"))
    a = parser.parse_args()
    try:
        if a.step == "models":
            write_models(a.out)
        elif a.step == "environment":
            write_json(a.out, prepare(a.name, a.out))
        else:
            write_json(a.out, judge(a.name, json.loads(a.environment.read_text()), a.models, a.out))
    except FieldError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
