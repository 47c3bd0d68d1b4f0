"""Functions of rules: a job's cell, model and code, what it asks of a cluster. No rules, as Snakemake's linter wants it.

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


# Of checkpoints.smk


def dump_model_spec(wildcards):
    """Write what the configuration says of a model or a network, every default filled in."""
    if wildcards.kind == "networks":
        return dump_canonical(getattr(EXPERIMENT.networks, wildcards.model).model_dump())
    return dump_canonical(parity_cells.dump_model(EXPERIMENT, wildcards.kind, wildcards.model))


# Of decode.smk


def digest_decoding(wildcards):
    """Digest what a cell's samples are named by: the decoder's module and the family's."""
    c = find_cell(wildcards)
    return digest_code(name_module(c.kind, c.spec["method"]), name_family(wildcards), measured=False)


def find_made(wildcards):
    """Find the files of a cell of tokens made elsewhere: `tokens`, of the repetition `again`, and `seconds`, by flag. The
    seconds are of the first tokens alone."""
    c = find_cell(wildcards)
    chosen = c.spec["options"]
    if c.role == "again":
        return {"tokens": chosen["again"], "seconds": {}}
    flags = {"seconds": chosen["seconds"], "plain-seconds": chosen["plain_seconds"]}
    return {"tokens": chosen["tokens"], "seconds": {flag: file for flag, file in flags.items() if file}}


# Of equality.smk


def find_tested(wildcards):
    """Find the name of the decoder that a job tests on models whose distribution is known."""
    return next(v for v in TESTED[wildcards.kind, wildcards.key] if v).method


def digest_testing(wildcards):
    """Digest what the tests of a method on models of known distributions are named by; one coupled to plain decoding is
    compared with it."""
    kind = wildcards.kind
    exact, _ = TESTED[kind, wildcards.key]
    modules = ["parity.equality.exact", f"parity.equality.targets.{kind}", name_module(kind, find_tested(wildcards))]
    if exact and options.is_coupled(kind, exact.method, exact.options):
        modules += ["parity.equality.pathwise", name_module(kind, options.find_plain_method(kind))]
    return digest_code(*modules)


def dump_test_spec(wildcards):
    """Write the settings of the exact tests and of the long ones, each if the method has such a test."""
    exact, long = TESTED[wildcards.kind, wildcards.key]
    shared = {"seeds": EXPERIMENT.equality.seeds[:2], "alpha": EXPERIMENT.equality.alpha}
    pair = {name: v for name, v in (("exact", exact), ("long", long)) if v}
    spec = {name: {"options": v.options, "claim": v.claim, "n": v.n, **shared} for name, v in pair.items()}
    if long and long.longest:  # images are longer than the longest model else would be
        spec["long"]["longest"] = long.longest
    if exact:  # a decoder coupled to plain decoding by shared noise must also return its very tokens
        coupled = options.is_coupled(exact.kind, exact.method, exact.options)
        spec["exact"] |= {"models": EXPERIMENT.equality.models, "pathwise": coupled}
    return dump_canonical(spec)


# Of inputs.smk


def dump_prompt_spec(wildcards):
    """Write what the configuration says of the prompts, how many there are, and in how many parts: as many as jobs."""
    shared = {"limit": len(PROMPTS), "shards": paths.jobs(EXPERIMENT, "discrete")}
    return dump_canonical(EXPERIMENT.image.prompts.model_dump(exclude={"jobs", "max_words"}) | shared)


# Of metrics.smk


def list_reference_prompts(wildcards):
    """List the files of the captions that reference images are drawn for."""
    shards = range(paths.jobs(EXPERIMENT, "discrete")) if wildcards.kind == "discrete" else []
    return [f"results/inputs/discrete/{PROMPT_SET}/{k}.json" for k in shards]


def digest_reference(kind, published):
    """Digest the state of the images that a model's are compared with, so that others under the same path are read
    again; "" where they are drawn."""
    path, _ = paths.reference_images(EXPERIMENT, kind, published)
    if not path:
        return ""
    from parity.inputs import image_files

    return image_files.digest_state(Path(path))


def list_baseline_files(wildcards):
    """List the files of the plain decoding that a cell is compared with, if one of its layers reads it."""
    c = find_cell(wildcards)
    reads = any("baseline" in LAYERS[c.kind][layer]["READS"] for layer in layers.select_layers(EXPERIMENT, LAYERS, c))
    if not reads:
        return []
    baseline = parity_cells.find_reference(c, CELLS)
    return [*paths.pieces(EXPERIMENT, baseline, "shards"), f"{paths.folder(baseline)}/features.npz"]


def list_measuring_modules(cell):
    """List the modules of what measures and tests a cell's samples: its kind's, every metric, and layers of tests."""
    tests = layers.select_layers(EXPERIMENT, LAYERS, cell)
    modules = [f"parity.metrics.samples.{cell.kind}", *(f"parity.metrics.{name}" for name in study.metrics(cell.kind))]
    return modules + [f"parity.equality.layers.{cell.kind}.{name}" for name in tests]


def digest_measuring(wildcards):
    """Digest what a cell's rows are named by: metrics and tests, its decoder, and the family, which draws its images."""
    c = find_cell(wildcards)
    return digest_code(*list_measuring_modules(c), name_module(c.kind, c.spec["method"]), name_family(wildcards))


# Of papers.smk


def list_paper_files(keys, wildcards):
    """List the experiment files of papers as names relative to the current folder, in the order of their tables."""
    folder = ROOT / "workflow/experiments"
    files = [experiment.file for key in keys for experiment in parity_papers.list_experiments(folder, key)]
    return [find_shipped(f"workflow/experiments/{file.name}") for file in files]


def list_flags(wildcards):
    """Write the words of this command without its targets."""
    from parity.experiment import nested_runs

    return dump_canonical(nested_runs.remove_targets(sys.argv[1:], list(workflow.dag_settings.targets)))


# Of report.smk


def declare_page(name, caption, category):
    """Declare a file of the page of all sections (`part` is empty) or of one."""
    return report(f"{RESULT}/{{part}}{name}", caption=f"../report/{caption}.rst", category=category)


def list_page_files(section=""):
    """List all files of the whole page, or of a section's, so that a missing one is made again; none for a section that
    the experiment does not have."""
    if section and not getattr(EXPERIMENT, section):
        return []
    tables = [f"{name}.csv" for name in ("summary", "equality", "published")]
    return [str(Path(RESULT, section, name)) for name in ("report.html", "index.html", *tables, "records.parquet")]


def select_kinds(wildcards):
    """Select the kinds of model that a page is about: one section's, or all."""
    section = wildcards.part.rstrip("/")
    return [kind for kind in KINDS if section in ("", options.KINDS[kind])]


def list_observations(wildcards):
    """List the figures of what a method rests on, made along plain decoding's images: drafted trees, for methods that
    skip."""
    if "discrete" not in select_kinds(wildcards):
        return []
    images = [c for c in CELLS if c.kind == "discrete"]
    if not any(options.declaration("discrete", c.spec["method"]).RESTS_ON == "drafted_trees" for c in images):
        return []
    plain = [c.name for c in images if c.role == "reference"]
    return collect("results/drafting/{name}/{figure}.json", name=plain, figure=("similarity", "staleness"))


def list_page_inputs(wildcards):
    """List what a page of these kinds of model reads."""
    kinds = select_kinds(wildcards)
    files = set()
    for c in (c for c in CELLS if c.kind in kinds):
        files |= {*list_measured_files(c.kind, paths.folder(c)), *paths.pieces(EXPERIMENT, c, "shards")}
        files |= {*list_existing(paths.benchmarks(c))}
    files |= {path for path, group in GROUPS.items() if group[0].kind in kinds}
    files |= {paths.tests(EXPERIMENT, *pair) for (kind, _), pair in TESTED.items() if kind in kinds}
    if "anysubset" in kinds:
        files |= {paths.accuracy(t["kind"], t["key"]) for t in TASKS.values() if t["kind"] in schema.ASKED}
    return sorted(files)


# Of speculators.smk


def name_draft_method(wildcards):
    """Name the decoder whose draft network a job trains."""
    return DRAFTS[f"results/drafts/{wildcards.model}-{wildcards.revision}/{wildcards.method}-{wildcards.key}/weights"]


def dump_training_config(wildcards):
    """Write the part of the experiment that training a speculator reads, so that no other change of it trains anew."""
    image = EXPERIMENT.image.model_dump(mode="json", exclude_unset=True, include={"prompts", "sampling", "dtype"})
    image["methods"] = {"ar": [{}]}
    model = weights.list_models(EXPERIMENT, "discrete")[wildcards.model]
    return dump_canonical({"models": {wildcards.model: model.model_dump(exclude_unset=True)}, "image": image})


def format_training_flags(wildcards):
    """Write how a speculator is trained as flags."""
    training = EXPERIMENT.image.speculators[wildcards.speculator].model_dump(exclude_unset=True)
    return " ".join(f"--{name} {value}" for name, value in training.items())


# Of speed.smk


def find_group(wildcards):
    """Find the cells whose methods a job times, the reference first."""
    return GROUPS[f"results/speed/{wildcards.kind}/{wildcards.model}-{wildcards.key}.json"]


def digest_timing(group, wildcards):
    """Digest what times of a group of cells are named by: their decoders and the family."""
    return digest_code(*sorted({name_module(c.kind, c.spec["method"]) for c in group}), name_family(wildcards))
