"""Are two folders of results the same? Tokens, passes, figures, equality rows and verdicts, cell by cell.

    python benchmarks/same_results.py OLD NEW [--common]

Either folder may be of the layout with a folder a kind (results/cells/<kind>/...) or of the one before it
(results/cells, results/text, results/continuous). Cells are matched by what they are of (kind, model, method, options,
seed, settings), for keys and paths change where layouts do. Numbers must be equal to the last bit; times, and ratios of
times, are not compared. Exit code 1 if anything differs, or if NEW lacks what OLD has (`--common` forgives that).
"""

import argparse
import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

KINDS = ("discrete", "anysubset", "continuous")
TIMES = re.compile("second|ms_per|speedup|latency|head_share|test_share")
UNSAID = ("key", "cell", "provenance", "kind", "checksum")  # names and places of files, machines and versions
LABELS = ("variant", "settings", "guidance", "sampler", "images")  # of a page: what a cell's specification says
RENAMED = {"loop": "step"}  # columns of text cells
SHOWN = 5  # differences shown of one table or group of rows
OLD_TESTS = {"mutants": "faults-discrete", "anyorder": "faults-anysubset", "continuous": "faults-continuous"}
Row = dict[str, Any]


@dataclass
class Results:
    """A folder of results, whatever its layout. Cells by `identity`; `names` gives the identity of a key."""

    names: dict[str, str] = field(default_factory=dict)
    arrays: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)  # (identity, column)
    figures: dict[tuple[str, str], Any] = field(default_factory=dict)  # (identity or file, figure)
    rows: dict[tuple[str, str], list[Row]] = field(default_factory=lambda: defaultdict(list))  # (cell or test, layer)
    exact: dict[tuple[str, str], list[list[Row]]] = field(default_factory=lambda: defaultdict(list))  # (kind, variant)


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def identity(kind: str, spec: dict[str, Any]) -> str:
    """What a cell is of, in the words of the newer layout."""
    said = {k: v for k, v in spec.items() if k not in ("prompt", "checksum")}
    if kind == "anysubset" and "kind" in said:
        said |= {"task_kind": said.pop("kind"), "revision": said["model"], "model": "xlnet"}
    if kind == "continuous" and "weights" in said:
        said["revision"] = said.pop("weights")
    return canonical({"kind": kind} | said)


def shown(name: str) -> str:
    """A cell in a line: kind, model, method, options and seed."""
    if not name.startswith("{"):
        return name
    said = json.loads(name)
    options = ", ".join(f"{k} {v}" for k, v in said["options"].items())
    task = f" {said['task_kind']}" if "task_kind" in said else ""
    return f"{said['kind']}{task} {said['model']} {said['method']} ({options}) seed {said['seed']}"


def plain(array: np.ndarray, name: str) -> np.ndarray:
    """An array as it is compared: whole numbers, floats and text of one width each."""
    if name == "ids" and array.dtype.kind == "U" and np.char.isdigit(array).all():
        array = array.astype(np.int64)
    if name == "kept":  # padded to the slowest row of the shards that were read together
        array = array[:, : int((array != 0).any(0).nonzero()[0].max(initial=-1)) + 1]
    return array.astype({"f": np.float64, "U": np.str_}.get(array.dtype.kind, np.int64))


def read_arrays(files: Iterable[Path]) -> dict[str, np.ndarray]:
    """Columns of .npz files, end to end, rows in order of their ids."""
    parts = []
    for file in files:
        with np.load(file) as data:
            parts.append({RENAMED.get(k, k): data[k] for k in data.files if k not in UNSAID and not TIMES.search(k)})
    if not parts:
        return {}
    if "kept" in parts[0]:
        wide = max(p["kept"].shape[1] for p in parts)
        for p in parts:
            p["kept"] = np.pad(p["kept"], ((0, 0), (0, wide - p["kept"].shape[1])))
    whole = {k: plain(np.concatenate([p[k] for p in parts]), k) for k in parts[0]}
    order = np.argsort(whole["ids"], kind="stable") if "ids" in whole else slice(None)
    return {k: v[order] for k, v in whole.items()}


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every figure of a JSON value with the way to it; times and provenance aside."""
    last = path.rpartition(".")[2]
    if last in UNSAID or TIMES.search(last):
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, f"{path}.{key}".strip("."))
    else:
        yield path, value


def stripped(row: Row) -> Row:
    """A row without its key, times and what is not said."""
    said = {k: v for k, v in row.items() if k not in UNSAID and not TIMES.search(k)}
    return {k: v for k, v in said.items() if v is not None and v != "" and v == v}


class Reader:
    """Reads a folder of either layout into `found`."""

    def __init__(self, folder: Path):
        self.folder, self.found = folder, Results()
        if any((folder / "cells" / kind).is_dir() for kind in KINDS):
            self.cells_by_kind()
        else:
            self.cells_before()
        self.tables()

    def add_cell(self, kind: str, spec: dict[str, Any], key: str, arrays: dict[str, np.ndarray]) -> str:
        name = identity(kind, spec)
        self.found.names[key] = name
        self.found.arrays |= {(name, k): v for k, v in arrays.items()}
        return name

    def add_folder(self, kind: str, folder: Path, pictures: str, laws: Path) -> None:
        """A cell that is a folder: shards, pictures, features, figures, and the target's laws."""
        spec, key = json.loads((folder / "spec.json").read_text()), folder.name[-8:]
        if not list(folder.glob("shards/*.npz")):
            return
        name = self.add_cell(kind, spec, key, read_arrays(sorted(folder.glob("shards/*.npz"))))
        for what, files in (
            ("picture", sorted(folder.glob(f"{pictures}/*.npz"))),
            ("feature", [f for f in [folder / "features.npz"] if f.exists()]),
            ("law", [f for f in [laws] if f.exists()]),
        ):
            self.found.arrays |= {(name, f"{what} {k}"): v for k, v in read_arrays(files).items()}
        if (folder / "metrics.json").exists():
            self.add_figures(name, folder / "metrics.json")

    def add_figures(self, name: str, file: Path) -> None:
        said = json.loads(file.read_text())
        self.found.figures |= {(name, k): v for k, v in flat(said)}

    def add_rows(self, file: Path, layer: str, key: str) -> None:
        """Rows of a layer that looked at a cell; of a cell that is not here, under the file's name."""
        name = self.found.names.get(key, str(file.relative_to(self.folder)))
        self.found.rows[name, layer] += json.loads(file.read_text())["rows"]

    def add_exact(self, kind: str, file: Path) -> None:
        """Rows of a variant. Its options are in the file's key alone: by method and n."""
        rows = json.loads(file.read_text())["rows"]
        method = f"{file.stem.rpartition('-')[0]}, n = {max(row['n'] for row in rows):,}"
        self.found.exact[kind, method].append(rows)

    def add_test(self, name: str, file: Path) -> None:
        """A test of the tests: its rows, and what else it says."""
        said = json.loads(file.read_text())
        self.found.rows[name, "rows"] += said.pop("rows", [])
        self.found.figures |= {(name, k): v for k, v in flat(said)}

    def cells_by_kind(self) -> None:
        for kind in KINDS:
            for spec in sorted((self.folder / "cells" / kind).glob("*/*/spec.json")):
                cell = spec.parent
                laws = self.folder / "equality/teacher-forced" / kind / cell.parent.name / f"{cell.name}.npz"
                self.add_folder(kind, cell, "pictures", laws)
            for file in sorted((self.folder / "equality").glob(f"*/{kind}/*/*.json")):
                self.add_rows(file, file.relative_to(self.folder / "equality").parts[0], file.stem[-8:])
            for file in sorted((self.folder / "equality/exact" / kind).glob("*.json")):
                self.add_exact(kind, file)
        for file in sorted((self.folder / "equality").glob("*.json")):
            self.add_test(file.stem, file)
        for file in sorted((self.folder / "accuracy").glob("*.json")):
            self.add_figures(f"accuracy {file.stem}", file)

    def cells_before(self) -> None:
        equality, text, continuous = (self.folder / n for n in ("equality", "text", "continuous"))
        for spec in sorted((self.folder / "cells").glob("*/*/spec.json")):
            cell = spec.parent
            laws = equality / "teacher-forced" / cell.parent.name / f"{cell.name}.npz"
            self.add_folder("discrete", cell, "images", laws)
        for kind, folder in (("anysubset", text), ("continuous", continuous)):
            for file in sorted((folder / "cells").glob("*.npz")):
                with np.load(file) as data:
                    spec = json.loads(str(data["provenance"]))["spec"]
                self.add_cell(kind, spec, file.stem[-8:], read_arrays([file]))
        for kind, folder in (("discrete", equality), ("anysubset", text), ("continuous", continuous)):
            for file in sorted((folder / "exact").glob("*.json")):
                self.add_exact(kind, file)
        for layer in ("teacher-forced", "pathwise", "paired"):
            for file in sorted((equality / layer).glob("*/*.json")):
                stem = file.stem[:-9] if layer == "paired" else file.stem  # the baseline's key is last
                self.add_rows(file, layer, stem[-8:])
        for file in sorted((continuous / "forced").glob("*.json")):
            self.add_rows(file, "teacher-forced", file.stem[-8:])
        for file in sorted(equality.glob("*.json")):
            test, _, n = file.stem.rpartition("-")
            self.add_test(f"{OLD_TESTS.get(test, test)}-{n}", file)
        for file in sorted((text / "laws").glob("*.json")):
            self.add_figures(f"accuracy {file.stem}", file)
        for file in sorted(self.folder.glob("*/continuous-thumbnails.npz")):
            with np.load(file) as data:
                cells = [(self.found.names[k[-8:]], data[k]) for k in data.files if k[-8:] in self.found.names]
            self.found.arrays |= {(cell, "picture pixels"): plain(pixels, "pixels") for cell, pixels in cells}
        for file in sorted(self.folder.glob("*/text-teacher-forced.json")):
            for row in json.loads(file.read_text())["rows"]:
                rows = self.found.rows[self.found.names.get(row["key"], row["key"]), row["layer"]]
                rows += [row] if row not in rows else []  # two experiments may name one cell

    def tables(self) -> None:
        """What the experiments' pages say of each cell: figures, verdicts, and rows that are made there."""
        for folder in sorted(p.parent for p in self.folder.glob("*/equality.csv")):
            where = folder.name
            for name in ("summary", "text", "continuous"):
                file = folder / f"{name}.csv"
                for row in pd.read_csv(file).to_dict("records") if file.exists() else []:
                    key = str(row.get("key", row.get("cell")))[-8:]
                    cell = f"{where}: {shown(self.found.names.get(key, key))}"
                    self.found.figures |= {(cell, k): v for k, v in stripped(row).items() if k not in LABELS}
            for name in ("equality", "self_tests", "text-equality", "continuous-equality"):
                file = folder / f"{name}.csv"
                for row in pd.read_csv(file, low_memory=False).to_dict("records") if file.exists() else []:
                    self.found.rows[f"{where}: {row['method']}", str(row["layer"])].append(row)


def array_differences(old: Results, new: Results) -> Iterator[str]:
    for (cell, column), mine in old.arrays.items():
        if (cell, "tokens") not in new.arrays:
            continue  # said once, by `missing`
        theirs = new.arrays.get((cell, column))
        if theirs is not None and column.startswith("picture"):
            theirs = theirs[: len(mine)]  # of continuous cells the first few alone were kept
        if theirs is None:
            yield f"{shown(cell)}: {column}: only in OLD"
        elif mine.shape != theirs.shape:
            yield f"{shown(cell)}: {column}: shape {mine.shape} against {theirs.shape}"
        elif hashlib.sha256(mine.tobytes()).digest() != hashlib.sha256(theirs.tobytes()).digest():
            differ = (mine != theirs) & ~((mine != mine) & (theirs != theirs))
            if differ.any():
                at = tuple(int(i[0]) for i in differ.nonzero())
                one, other = mine[at], theirs[at]
                yield f"{shown(cell)}: {column}: {differ.sum()} of {mine.size} differ, first at {at}: {one} and {other}"


def figure_differences(old: Results, new: Results) -> Iterator[str]:
    here = {cell for cell, _ in new.figures}
    for (cell, name), value in old.figures.items():
        if cell not in here:
            continue
        if (cell, name) not in new.figures:
            yield f"{shown(cell)}: {name}: only in OLD ({str(value)[:60]})"
        elif (other := new.figures[cell, name]) != value and not (value != value and other != other):
            yield f"{shown(cell)}: {name}: {str(value)[:80]} and {str(other)[:80]}"


def row_differences(old: list[Row], new: list[Row]) -> list[str]:
    """What rows say differently in OLD's columns, those of one test, target and seed beside each other."""
    columns = {k for row in old for k in row}
    kept = ([{k: v for k, v in stripped(r).items() if k in columns} for r in rows] for rows in (old, new))
    one, other = (Counter(map(canonical, rows)) for rows in kept)
    left, right = ([json.loads(r) for r in more.elements()] for more in (one - other, other - one))
    lines = []
    for row in left:
        same = [r for r in right if all(r.get(k) == row.get(k) for k in ("test", "model", "method", "seed", "repeat"))]
        if same:
            right.remove(same[0])
            differ = [k for k in {**row, **same[0]} if row.get(k) != same[0].get(k)]
            said = ", ".join(f"{k} {row.get(k)} and {same[0].get(k)}" for k in differ)
            lines.append(f"{row.get('test')}, {row.get('model')}, seed {row.get('seed')}: {said}")
        else:
            lines.append(f"{row.get('test')}, {row.get('model')}, seed {row.get('seed')}: only in OLD")
    return lines + [f"{r.get('test')}, {r.get('model')}, seed {r.get('seed')}: only in NEW" for r in right]


def cut(where: str, lines: list[str]) -> Iterator[str]:
    yield from (f"{where}: {line}" for line in lines[:SHOWN])
    if len(lines) > SHOWN:
        yield f"{where}: and {len(lines) - SHOWN} more"


def equality_differences(old: Results, new: Results) -> Iterator[str]:
    for (cell, layer), rows in old.rows.items():
        if (cell, layer) in new.rows:
            yield from cut(f"{shown(cell)}: {layer}", row_differences(rows, new.rows[cell, layer]))
    for (kind, method), files in old.exact.items():
        for rows in files:  # compared with the file that is most alike, for two may differ in their options
            others = [row_differences(rows, theirs) for theirs in new.exact.get((kind, method), [])]
            if others:
                yield from cut(f"exact {kind} {method}", min(others, key=len))


def missing(old: Results, new: Results) -> Iterator[str]:
    """Cells, tables and layers that OLD has and NEW has not."""
    here = {cell for cell, _ in [*new.arrays, *new.figures]}
    for cell in dict.fromkeys(cell for cell, _ in [*old.arrays, *old.figures]):
        if cell not in here:
            yield f"{shown(cell)}: only in OLD"
    for cell, layer in old.rows:
        if (cell, layer) not in new.rows:
            yield f"{shown(cell)}: {layer}: rows only in OLD"
    for kind, method in old.exact:
        if (kind, method) not in new.exact:
            yield f"exact {kind} {method}: rows only in OLD"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--common", action="store_true", help="compare what both have")
    a = parser.parse_args()
    old, new = Reader(a.old).found, Reader(a.new).found
    differences = [] if a.common else list(missing(old, new))
    for find in (array_differences, figure_differences, equality_differences):
        differences += find(old, new)
    for line in differences:
        print(line)
    both = {cell for cell, what in old.arrays if what == "tokens" and (cell, what) in new.arrays}
    counted = Counter(json.loads(cell)["kind"] for cell in both)
    cells = ", ".join(f"{counted[k]} {k}" for k in KINDS)
    figures = sum(key in new.figures for key in old.figures)
    rows = sum(len(r) for key, r in old.rows.items() if key in new.rows)
    exact = sum(len(r) for key, files in old.exact.items() if key in new.exact for r in files)
    print(f"compared: cells {cells}; {figures} figures, {rows} equality rows and {exact} of the exact layer")
    print(f"differences: {len(differences)}")
    raise SystemExit(1 if differences else 0)


if __name__ == "__main__":
    main()
