"""Functions of the rules: what a job reads, and which code it runs. No rules, no configuration.

Most take a job's wildcards; a cell's are `kind` and `name`, "<model>/<method>-<key>".
"""

import shlex
import shutil
import time

BEGAN = time.time()

# Cells


def kinds_but(own_rules):
    """A pattern of `kind` in a shard's path that leaves out the methods with a rule of their own."""
    places = "|".join(f"{kind}/[^/]+/{method}-" for kind, method in own_rules)
    return f"(?!{places})[a-z]+" if places else "[a-z]+"


def code_parameter(*modules):
    """What a parameter says of code: the digest of all that `modules` import, and their names."""
    return " ".join([code_digest.digest(*modules), *modules])


def code(*modules):
    """A parameter: the code that a job of these modules runs. Wildcards may stand in a name."""
    return lambda w: code_parameter(*(module.format(**w) for module in modules))


def cell(wildcards):
    return CELL[wildcards.kind, wildcards.name]


def of_cell(find):
    """An input that is found by a rule's cell."""
    return lambda w: find(cell(w))


def checkpoint(wildcards):
    """The manifest of a cell's model."""
    return paths.checkpoint(EXPERIMENT, cell(wildcards))


def family(kind, model):
    """The modules that load a model: its kind's, and its family."""
    return f"parity.models.{kind}.load", f"parity.models.{kind}.{weights.models(EXPERIMENT, kind)[model].family}"


def decoder(kind, method):
    return f"parity.decoders.{kind}.{method}"


def batch(cell):
    """Rows decoded at once; part of the specification where speed at several sizes is compared."""
    return cell.spec["batch"] if "batch" in cell.spec else EXPERIMENT.image.batch


def decoding_code(cell):
    """The modules that a cell's samples depend on, plain decoding's among them, for it is timed beside."""
    kind, method, model = cell.kind, cell.spec["method"], cell.spec["model"]
    plain = decoder(kind, options.plain_method(kind))
    return ["parity.decode.__main__", f"parity.decode.{kind}", decoder(kind, method), plain, *family(kind, model)]


def flag_files(flag, files):
    """`--flag file`, of several that differ in their number alone `--flag 'folder/*-of-2.npz'`, of none nothing.

    A command line has room for a thousand names, not for ten thousand.
    """
    return f"--{flag} {shlex.quote(paths.together(files))}" if files else ""


def flag_list(flag, files):
    """`--flag file file ...`, of none nothing."""
    return " ".join([f"--{flag}", *map(shlex.quote, files)]) if files else ""


def section_page(section):
    """The page of one section alone; nothing where the experiment has no such section."""
    return page_files(f"{section}/") if getattr(EXPERIMENT, section) else []


def page_files(part):
    """All files of a page, so that a missing one is made again. part: "" or the section's folder with a slash."""
    names = ("report.html", "index.html", *(f"{t}.csv" for t in ("summary", "equality", "self_tests", "published")))
    return [f"{RESULT}/{part}{name}" for name in (*names, "records.parquet")]


def lock_folder():
    """One run at a time in a folder, until this process ends."""
    global RUN_LOCK
    try:
        RUN_LOCK = machine.hold(Path(".snakemake").absolute())
    except ParityError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


def announce(*pages):
    """Say what came out of this run, last of all: the verdicts, and where the pages are."""
    made = [Path(page).resolve() for page in pages if Path(page).exists() and Path(page).stat().st_mtime >= BEGAN]
    summary = made[0].with_name("summary.csv") if made else Path()
    told = [verdicts.table(summary, shutil.get_terminal_size((120, 24)).columns)] if summary.is_file() else []
    for text in [*told, *(f"Report: {page}" for page in made)]:
        logger.info(text, extra={"result": True})


# Resources


def gpu(wildcards):
    """CUDA devices of a job that can use one: on one machine as many as it has, 0 or 1; of another machine one, whatever
    this one has. The job gets the number that it was given, and decides where it runs; `gpu=0` sends it to the CPU."""
    return machine.gpu() if workflow.local_exec and not workflow.remote_exec else 1


def cell_of_job(wildcards):
    """The cell that a job is about, by its key or by its name; None for a job that is about a model."""
    if "key" in wildcards.keys() and wildcards.key in BY_KEY:
        return BY_KEY[wildcards.key]
    return CELL[wildcards.get("kind", "discrete"), wildcards.name] if "name" in wildcards.keys() else None


def memory(wildcards, attempt):
    """MB of a job that loads a model, and of its pictures, where it reads all of a cell's."""
    found = cell_of_job(wildcards)
    if found:
        whole = "name" in wildcards.keys() and pictured(found.kind)
        held = (
            job_resources.samples(EXPERIMENT, len(PROMPTS), found) * job_resources.tokens(EXPERIMENT, found)
            if whole
            else 0
        )
        return job_resources.memory(EXPERIMENT, found.kind, found.spec["model"], held, attempt)
    if "model" not in wildcards.keys():
        return job_resources.memory(EXPERIMENT, "anysubset", TASKS[wildcards.key]["model"], 0, attempt)
    kind = wildcards.get("kind", "discrete")
    model = wildcards.model if "kind" in wildcards.keys() else wildcards.model.rpartition("-")[0]
    return job_resources.memory(EXPERIMENT, kind, model, 0, attempt)


def runtime(wildcards, attempt):
    """Minutes that a job may take before a cluster ends it: one that decodes, or one that looks at what was decoded."""
    found = cell_of_job(wildcards)
    if found and "shard" in wildcards.keys():
        return job_resources.minutes(EXPERIMENT, len(PROMPTS), found, attempt)
    return job_resources.minutes_beside(EXPERIMENT, len(PROMPTS), found, attempt) if found else 20 * attempt


def runtime_of_draws(wildcards, attempt):
    """Minutes of a test on models whose law is known: by its draws."""
    return (60 + EQUALITY.n // 10_000) * attempt


# Checkpoints


def model_spec(wildcards):
    """What the configuration says of a model with every default filled in, so that two ways to write it are one."""
    if wildcards.kind == "networks":
        return canonical(getattr(EXPERIMENT.networks, wildcards.model).model_dump())
    model = weights.models(EXPERIMENT, wildcards.kind)[wildcards.model]
    spec = model.model_dump(exclude=None if model.source == "embedded" else {"grid"})
    captions = parity_cells.captions(EXPERIMENT, wildcards.kind)
    return canonical(spec | ({"captions": captions.model_dump()} if captions else {}))


def text_model(wildcards):
    """The manifest of the model that a text task is for."""
    model = TASKS[wildcards.key]["model"]
    return paths.manifests(EXPERIMENT)[f"anysubset/{model}"]


# Inputs


def prompt_spec(wildcards):
    """What the configuration says of the prompts, and how many there are; as many parts as jobs."""
    shared = {"limit": len(PROMPTS), "shards": paths.jobs(EXPERIMENT, "discrete")}
    return canonical(EXPERIMENT.image.prompts.model_dump(exclude={"jobs", "max_words"}) | shared)


def caption_code(wildcards):
    model = wildcards.model.rpartition("-")[0]
    return code_parameter(
        "parity.base.command", "parity.base.devices", "parity.inputs.prompts", *family("discrete", model)
    )


def task_data(wildcards):
    """The data file of a task, where it has one."""
    data = TASKS[wildcards.key]["settings"]["data"]
    return [data] if data and Path(data).is_file() else []


# Metrics


def pictured(kind):
    """Whether a kind's tokens are pictures."""
    return kind != "anysubset"


def reference_prompts(wildcards):
    """The captions that reference pictures are drawn of."""
    shards = range(paths.jobs(EXPERIMENT, "discrete")) if wildcards.kind == "discrete" else []
    return [f"results/inputs/discrete/{PROMPT_SET}/{k}.json" for k in shards]


def measured_files(kind):
    """What measuring a cell leaves in its folder."""
    folder, n = "results/cells/{kind}/{name}", paths.jobs(EXPERIMENT, kind)
    names = {"spec": "spec.json", "metrics": "metrics.json", "features": "features.npz"}
    names |= {"records": "records.parquet", "rows": "equality.json"}
    if any("laws" in said["WRITES"] for said in LAYERS[kind].values()):
        names["laws"] = "laws.npz"
    found = {name: f"{folder}/{file}" for name, file in names.items()}
    if pictured(kind):
        found["pictures"] = [f"{folder}/pictures/{k}-of-{n}.npz" for k in range(n)]
    return found


def baseline_files(cell):
    """Of the plain decoding that a cell is compared with, where one of its layers reads it."""
    asked = layers.of(EXPERIMENT, LAYERS, cell)
    read = any("baseline" in LAYERS[cell.kind][layer]["READS"] for layer in asked)
    return layers.baseline(EXPERIMENT, CELLS, cell) if read else []


def measure_code(wildcards):
    """What draws pictures, the layers that look at the cell, and every metric that takes figures of its kind."""
    kind, model, c = wildcards.kind, wildcards.name.partition("/")[0], cell(wildcards)
    metrics = [f"parity.metrics.{name}" for name in study.metrics(kind)]
    asked = [f"parity.equality.layers.{kind}.{name}" for name in layers.of(EXPERIMENT, LAYERS, c)]
    drawn = [decoder(kind, c.spec["method"])] if asked else []
    return code_parameter(
        "parity.measure.__main__", f"parity.metrics.samples.{kind}", *metrics, *asked, *family(kind, model), *drawn
    )


# Equality


def test_spec(wildcards):
    """The settings of the exact tests and of the long ones, each where the method has such a test."""
    exact, long = TESTED[wildcards.kind, wildcards.key]
    seeds, spec = EXPERIMENT.equality.seeds[:2], {}
    for name, v in (("exact", exact), ("long", long)):
        if v:
            spec[name] = {"options": v.options, "claim": v.claim, "n": v.n, "seeds": seeds}
    if exact:  # a decoder coupled to plain decoding by shared noise must also return its very tokens
        coupled = options.coupled(exact.kind, exact.method, exact.options)
        spec["exact"] |= {"models": EXPERIMENT.equality.models, "pathwise": coupled}
    return canonical(spec)


def test_code(wildcards):
    """A decoder coupled to plain decoding by shared noise is compared with it token for token."""
    kind, (exact, _) = wildcards.kind, TESTED[wildcards.kind, wildcards.key]
    asked = ["parity.equality.__main__", "parity.equality.exact", f"parity.equality.targets.{kind}"]
    if exact and options.coupled(kind, exact.method, exact.options):
        asked += ["parity.equality.pathwise", decoder(kind, options.plain_method(kind))]
    return code_parameter(*asked, decoder(kind, wildcards.method))


def faults_code(wildcards):
    """The faults that short sequences do not show ("long<kind>"; "long": discrete) are in the module of their kind."""
    kind = wildcards.kind.removeprefix("long") or "discrete"
    return code_parameter("parity.equality.__main__", f"parity.equality.faults.{kind}")


# Report


def fetched_to(file, name):
    """The folder that a job finds its inputs below, given one of them under its `name` here: the current one, or where
    Snakemake puts what it fetched from a storage."""
    return str(file).removesuffix(name) or "."


def kinds_of(wildcards):
    """Kinds of model that a page is about: one section's, or all."""
    section = wildcards.part.rstrip("/")
    return [kind for kind in KINDS if section in ("", options.KINDS[kind])]


def observed(wildcards):
    """Figures of what a method rests on, made along plain decoding's images: drafted trees, for methods that skip."""
    of = [c for c in CELLS if c.kind in kinds_of(wildcards) and c.kind == "discrete"]
    wanted = any(options.declaration(c.kind, c.spec["method"]).RESTS_ON == "drafted_trees" for c in of)
    plain = [c for c in of if wanted and c.role == "reference"]
    return [f"results/drafting/{c.name}/{name}.json" for c in plain for name in ("similarity", "staleness")]


def measured(wildcards):
    """What a page of these kinds of model reads."""
    kinds = kinds_of(wildcards)
    of = [c for c in CELLS if c.kind in kinds]
    found = {f"{paths.folder(c)}/{name}" for c in of for name in ("metrics.json", "features.npz", "records.parquet")}
    found |= {p for p in map(paths.benchmarks, of) if Path(p).is_file()}
    found |= {p for c in of for p in paths.pieces(EXPERIMENT, c, "shards")}
    found |= {p for c in of if pictured(c.kind) for p in paths.pieces(EXPERIMENT, c, "pictures")}
    found |= {paths.layers(c) for c in of}
    found |= {
        paths.laws(c) for c in of if c.kind == "discrete" and "teacher_forced" in layers.of(EXPERIMENT, LAYERS, c)
    }
    found |= {paths.tests(EXPERIMENT, *pair) for (kind, _), pair in TESTED.items() if kind in kinds}
    found |= set(paths.self_tests(EXPERIMENT, kinds).values())
    if "anysubset" in kinds:
        found |= {paths.accuracy(t["kind"], t["key"]) for t in TASKS.values() if t["kind"] in paths.ASKED}
    return sorted(found)


def page(name, caption, category):
    """A file of the page of all sections (`part` is empty) or of one."""
    return report(f"{RESULT}/{{part}}{name}", caption=f"../report/{caption}.rst", category=category)
