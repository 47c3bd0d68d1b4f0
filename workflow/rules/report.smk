"""Report: write the page and the tables of the experiment.

REQUIRED INPUTS  records, metrics and equality rows of every cell; the papers' figures in workflow/published
OUTPUTS          results/<experiment>/index.html    the verdicts, and the way to the rest
                 results/<experiment>/report.html   one self-contained page, a part for each kind of model
                 results/<experiment>/{summary,equality,published}.csv, records.parquet, figures/
                 results/<experiment>/<section>/    the same of one section alone (targets image, text, continuous)
"""

import os
import sys

os.environ.setdefault(machine.COMMAND, machine.redact_command(["snakemake", *sys.argv[1:]]))  # shown on the page


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


rule report:
    input:
        measured=list_page_inputs,
        manifests=list(MANIFESTS.values()),
        published=local(PUBLISHED),
        extra=list_observations,
        prompts=local(prompt_files.source(EXPERIMENT.image.prompts) if EXPERIMENT.image else []),
    output:
        declare_page("report.html", "page", "Report"),
        declare_page("index.html", "page", "Report"),
        declare_page("summary.csv", "summary", "Tables"),
        declare_page("equality.csv", "equality", "Tables"),
        declare_page("published.csv", "published", "Tables"),
        f"{RESULT}/{{part}}records.parquet",
    log:
        f"logs/{EXPERIMENT.experiment}/{{part}}report.log",
    wildcard_constraints:
        part="(image/|text/|continuous/)?",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        mem_mb=lambda w, attempt: attempt * 4000,
    params:
        config=EXPERIMENT.model_dump_json(exclude_unset=True),
        # the folder that a job finds its inputs below: this one, or where Snakemake puts what it fetched from a storage
        root=lambda w, input: str(input.manifests[0]).removesuffix(next(iter(MANIFESTS.values()))) or ".",
        folder=subpath(output[0], parent=True),
        kinds=select_kinds,
        code=digest_code("parity.report"),
    message:
        "write the report {output[0]}"
    shell:
        r"""
        python -m parity.job report --config {params.config:q} --kinds {params.kinds} \
            --published {input.published:q} --extra {input.extra:q} --root {params.root:q} \
            --threads {threads} --out {params.folder:q} >{log:q} 2>&1
        """
