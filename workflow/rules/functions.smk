"""Functions that several files of rules have: a job's cell, model and code, what it asks of a cluster. No rules.

Most take a job's wildcards. A job is about a cell if they hold its `key`, or its `name`, "<model>/<method>-<key>".
"""

import shlex

PATTERNS = {  # of wildcards that several rules have
    "kind": "[a-z]+",
    "model": "[a-z0-9][a-z0-9_.-]*",
    "revision": "[0-9a-z]{8,9}",
    "method": "[a-z0-9_]+",
    "key": "[0-9a-f]{8}",
    "name": "[a-z0-9][a-z0-9_.-]*/[a-z0-9_]+-[0-9a-f]{8}",
    "task_kind": "[a-z_]+",
    "set": "[^/]+",
    "shard": "[0-9]+",
    "shards": "[0-9]+",
}

# Cells and models


def find_cell(wildcards):
    """Find the cell that a job is about; None for a job about a model or a task."""
    return CELL.get(wildcards.get("key") or wildcards.get("name", "").rpartition("-")[2])  # a name ends in the key


def find_kind_and_model(wildcards):
    """Find kind and name of the model that a job loads."""
    if c := find_cell(wildcards):
        return c.kind, c.spec["model"]
    if "model" in wildcards.keys():
        return wildcards.get("kind", "discrete"), wildcards.model
    return "anysubset", TASKS[wildcards.key]["model"]


def find_manifest(wildcards):
    """Find the manifest of the model that a job loads."""
    return MANIFESTS["/".join(find_kind_and_model(wildcards))]


def has_images(kind):
    """Return whether a kind's tokens are images."""
    return kind != "anysubset"


# Code


def digest_code(*modules, measured=True):
    """Write the code that a job's results are named by: the digest of these modules and of the numbers of shared code, and
    the modules' names. measured: False for what is no figure, test or time."""
    return " ".join([code_digest.digest(*modules, measured=measured), *modules])


def name_module(kind, method):
    """Name the module of a decoder, or its file."""
    return "parity.decode.made" if made.is_made(kind, method) else decoder_sources.find_source(kind, method).module


def list_draft(wildcards):
    """List the draft network of a cell's decoder, if it trains one of its own."""
    c = find_cell(wildcards)
    return [c.spec["own_draft"]] if "own_draft" in c.spec else []


def name_family(wildcards):
    """Name the module of the family of a job's model."""
    kind, model = find_kind_and_model(wildcards)
    return f"parity.models.{kind}.{weights.list_models(EXPERIMENT, kind)[model].family}"


# Flags of a command


def format_flag(flag, files):
    """Write `--flag FILE`; for files that differ in their number alone `--flag 'folder/*-of-2.npz'`, since a command
    line has no room for thousands; empty if there are no files."""
    if not files:
        return ""
    first = Path(files[0])
    numbered = first.with_name(f"*{first.name.lstrip('0123456789')}")
    return f"--{flag} {shlex.quote(str(numbered if len(files) > 1 else first))}"


# Resources, which bear their names: rules of workflow/methods use them


def gpu(wildcards):
    """Count the CUDA devices for a job that can use one: 0 or 1, as many as this machine has; 1 on another machine. The
    job gets the number that it was given, and decides where it runs; `gpu=0` sends it to the CPU."""
    return machine.gpu() if workflow.local_exec and not workflow.remote_exec else 1


def by_device(on_cpu, on_gpu):
    """Make a resource of a job: one number on a CPU, another on a GPU, and as much again at each further attempt."""
    return lambda wildcards, attempt: attempt * (on_gpu if gpu(wildcards) else on_cpu)


# MiB and minutes of a job that loads networks: embedded ones take 1 to 2 GiB; 8 billion parameters in bfloat16, or an
# encoder of 3 billion in float32, 20 GiB while they are read. `--set-resources decode:mem_mb=80000` asks for more.
memory, runtime = by_device(4000, 32000), by_device(240, 480)


# Files and settings


def list_existing(*files):
    """List the files that exist."""
    return [file for file in files if Path(file).exists()]


def list_task_data(wildcards):
    """List the data file of a text task, if it has one."""
    data = TASKS[wildcards.key]["settings"]["data"]
    return local([data] if data and Path(data).is_file() else [])


def list_measured_files(kind, folder="results/cells/{kind}/{name}"):
    """List what measuring a cell leaves in its folder."""
    n = paths.jobs(EXPERIMENT, kind)
    names = ["spec.json", "metrics.json", "features.npz", "records.parquet", "equality.json"]
    names += ["probs.npz"] if any("probs" in layer["WRITES"] for layer in LAYERS[kind].values()) else []
    names += [f"images/{k}-of-{n}.npz" for k in range(n)] if has_images(kind) else []
    return [f"{folder}/{name}" for name in names]
