"""For adapters: functions of repositories and packages without their imports, and a table in place of a network."""

import __future__

import ast
import os
import sys
from importlib import util
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np


def find_file(path: str) -> Path:
    """Find a file of the repository, or of an installed package. Raises FileNotFoundError."""
    for folder in (os.environ["REPOSITORY"], *sys.path):
        if folder and (file := Path(folder, path)).is_file():
            return file
    raise FileNotFoundError(path)


def load_module(path: str, **stubs: Any) -> Any:
    """Import one file of the repository or of a package, for functions whose source is read, as Triton does. `stubs`
    stand in place of modules that it imports, a dot as two lines: vllm__logger=None; None: anything can be called."""
    for dotted, stub in stubs.items():
        sys.modules[dotted.replace("__", ".")] = mock.MagicMock() if stub is None else stub
    name = path.removesuffix(".py").replace("/", ".")
    spec = util.spec_from_file_location(name, find_file(path))
    sys.modules[name] = module = util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def functions(path: str, *names: str, replace: dict[str, str] | None = None, **scope: Any) -> list[Any]:
    """Compile functions, classes and methods of one file of the repository from its lines, without the file's imports,
    and return them in order.

    `scope`: what they find as globals, modules and stubs. `replace`: texts of the file and what is put in their place:
    the name of a device that is missing here, or a mend. KeyError: the file has no such name; ValueError: no such text.
    """
    text = find_file(path).read_text(encoding="utf-8")
    for old, new in (replace or {}).items():
        if old not in text:
            raise ValueError(f"{path}: no text {old!r}")
        text = text.replace(old, new)
    tree = ast.parse(text)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    nodes = {node.name: node for c in classes for node in c.body if isinstance(node, ast.FunctionDef)}  # of methods
    nodes |= {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    module = ast.Module([nodes[name] for name in names], [])
    exec(compile(module, path, "exec", flags=__future__.annotations.compiler_flag), scope)
    return [scope[name] for name in names]


def draw_rows(draw: Any, logits: Any, prompts: np.ndarray, length: int) -> np.ndarray:
    """Draw tokens [n, length] after prompts [n, P], one for all rows by each call of draw(logits [n, V], tokens [n, t])
    -> tokens [n]. logits: a function of prefixes [n, t]."""
    out = np.array(prompts)
    for _ in range(length):
        tokens = np.asarray(draw(logits(out), out)).reshape(len(out), 1)
        out = np.concatenate([out, tokens], 1)
    return out[:, prompts.shape[1] :]


def look_up_distributions(table: np.ndarray, prefixes: np.ndarray) -> np.ndarray:
    """Look up the distributions [n, V] after prefixes [n, L] in a table by prefix: the empty one, then those of one
    token, of two, ...; uniform after prefixes that are longer than the table's."""
    n, length = prefixes.shape
    V = table.shape[1]
    if V**length > len(table):
        return np.full((n, V), 1 / V)
    code = np.zeros(n, dtype=np.int64)
    for token in prefixes.T:
        code = code * V + token
    return table[(V**length - 1) // (V - 1) + code]


def list_paths(parents: np.ndarray) -> list[list[int]]:
    """List the nodes on the path from below the root to each leaf of a tree. `parents` [N]: -1 is the root."""
    leaves = [i for i in range(len(parents)) if i not in set(parents.tolist())]
    paths = []
    for leaf in leaves:
        path = [leaf]
        while parents[path[0]] >= 0:
            path.insert(0, int(parents[path[0]]))
        paths.append(path)
    return paths


def eagle_tree(tokens: np.ndarray, parents: np.ndarray, q: np.ndarray, p: np.ndarray) -> dict[str, Any]:
    """Convert a tree, D tokens deep, to what EAGLE and its like hand to `evaluate_posterior`; the root is token 0.

    candidates, cart_candidates_prob [paths, D + 1]; logits [paths, D + 1, V]; op: draft probs of each depth's
    parents; p_indices: which of them a node was drawn from; b_indices: its earlier siblings; tree_candidates
    [1, N + 1].
    """
    import torch

    paths = list_paths(parents)
    nodes = torch.tensor(paths)
    depth_of = {node: d for path in paths for d, node in enumerate(path)}
    drawn_from: list[list[int]] = [[] for _ in paths[0]]  # for each depth the parents, in the order of their children
    for node in range(len(tokens)):
        if (parent := int(parents[node])) not in drawn_from[depth_of[node]]:
            drawn_from[depth_of[node]].append(parent)
    first = {
        int(parent): int((parents == parent).argmax()) for parent in parents
    }  # its distribution is not reduced yet
    siblings = [[i + 1 for i in range(node) if parents[i] == parents[node]] for node in range(len(tokens))]
    root = torch.zeros((len(paths), 1), dtype=torch.long)
    chance = torch.tensor(q[np.arange(len(tokens)), tokens]).float()
    return {
        "candidates": torch.cat([root, torch.tensor(tokens)[nodes]], 1),
        "cart_candidates_prob": torch.cat([root + 1.0, chance[nodes]], 1),
        "logits": torch.tensor(p).float().log()[torch.cat([root, nodes + 1], 1)],
        "op": [torch.tensor(np.stack([q[first[up]] for up in layer])).float() for layer in drawn_from],
        "p_indices": [[0, *(drawn_from[d].index(int(parents[i])) for d, i in enumerate(path))] for path in paths],
        "b_indices": [[[], *(torch.tensor(siblings[i], dtype=torch.long) for i in path)] for path in paths],
        "tree_candidates": torch.tensor([[0, *tokens.tolist()]]),
    }


GT = "gt_logits = logits[best_candidate, accept_length - 1]"
EAGLE_MEND = {GT: f"gt_logits = logits_processor(None, {GT[12:]}[None])[0]"}


def eagle_verifier(path: str, temperature: float, mend: bool, certain: bool = True) -> Any:
    """Make a verifier of a tree by the `evaluate_posterior` of a fork of EAGLE, with the processor of a temperature.

    mend: hand the logits after the last accepted draft to the processor too (EAGLE_MEND). certain: its drafts are
    certain, as in EAGLE-2, else drawn.
    """
    import random
    import typing

    import torch
    from transformers import TemperatureLogitsWarper

    scope = {"torch": torch, "random": random, **vars(typing)}
    (evaluate,) = functions(path, "evaluate_posterior", replace=EAGLE_MEND if mend else {}, **scope)
    warp = TemperatureLogitsWarper(temperature)

    def verify(tokens: np.ndarray, parents: np.ndarray, q: np.ndarray, p: np.ndarray) -> list[int]:
        """Verify a tree of drafts; returns the accepted ones and the token after them."""
        tree = eagle_tree(tokens, parents, q, p)
        tree["logits"] = tree["logits"] * temperature
        arguments = {key: tree[key] for key in ("candidates", "logits")} if certain else tree
        best, length, distribution = evaluate(logits_processor=warp, **arguments)
        return [*tree["candidates"][best, 1 : length + 1].tolist(), int(torch.multinomial(distribution, 1))]

    return verify


class TableModel:
    """A table in place of a causal network of transformers, with `outputs.logits` and a cache that holds the tokens.

    Tokens are those of the table plus `shift`; smaller ones are never drawn. `skip`: tokens in front that the table
    does not read; `calls`: passes so far.
    """

    device = "cpu"

    def __init__(self, table: np.ndarray, skip: int, shift: int = 0) -> None:
        self.table, self.skip, self.shift, self.calls = table, skip, shift, 0

    def logits_behind(self, tokens: Any) -> Any:
        """Compute logits [n, V + shift] after tokens [n, L]."""
        import torch

        distributions = look_up_distributions(self.table, tokens[:, self.skip :].numpy() - self.shift)
        low = torch.full((len(tokens), self.shift), -torch.inf)
        return torch.cat([low, torch.tensor(distributions).float().log()], 1)

    def __call__(self, input_ids: Any, past_key_values: Any = None, **_: Any) -> SimpleNamespace:
        """Compute logits [n, S, V + shift] after each of input_ids [n, S], which follow the tokens in the cache."""
        import torch

        self.calls += 1
        cached = past_key_values[0][0][:, 0, :, 0] if past_key_values else input_ids[:, :0]
        tokens = torch.cat([cached, input_ids], 1)
        ends = range(cached.shape[1] + 1, tokens.shape[1] + 1)
        logits = [self.logits_behind(tokens[:, : max(end, self.skip)]) for end in ends]
        cache = tokens[:, None, :, None]
        return SimpleNamespace(logits=torch.stack(logits, 1), past_key_values=((cache, cache),))
