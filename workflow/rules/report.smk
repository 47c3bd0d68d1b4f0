"""Report: bring everything of the experiment together.

REQUIRED INPUTS  records, metrics and equality rows of every cell; the papers' figures in workflow/published
OUTPUTS          results/<experiment>/report.html   one self-contained page, a part for each kind of model
                 results/<experiment>/{summary,equality,published}.csv, records.parquet, figures/
                 results/<experiment>/<section>/    the same of one section alone (targets image, text, continuous)
"""


def kinds_of(wildcards):
    """Kinds of model that a page is about: one section's, or all."""
    section = wildcards.part.rstrip("/")
    return [kind for kind in KINDS if section in ("", options.KINDS[kind])]


def observed(wildcards):
    """Figures of what a method rests on, made along plain decoding's images: drafted trees, for methods that skip."""
    of = [c for c in CELLS if c.kind in kinds_of(wildcards) and c.kind == "discrete"]
    wanted = any(options.rests_on(c.kind, c.spec["method"]) == "drafted_trees" for c in of)
    plain = [c for c in of if wanted and c.role == "reference"]
    return [f"results/drafting/{c.name}/{name}.json" for c in plain for name in ("similarity", "staleness")]


def measured(wildcards):
    """What a page of these kinds of model reads."""
    kinds = kinds_of(wildcards)
    of = [c for c in CELLS if c.kind in kinds]
    found = {f"{paths.folder(c)}/{name}" for c in of for name in ("metrics.json", "features.npz", "records.parquet")}
    found |= {p for c in of for p in paths.pieces(EXPERIMENT, c, "shards")}
    found |= {p for c in of if pictured(c.kind) for p in paths.pieces(EXPERIMENT, c, "pictures")}
    found |= {paths.layer(layer, c) for c in of for layer in layers.of(EXPERIMENT, LAYERS, c)}
    found |= {paths.exact(EXPERIMENT, v) for (kind, _), v in VARIANTS.items() if kind in kinds}
    found |= {file for name, file in paths.self_tests(EXPERIMENT).items() if name.partition("-")[2] in ("", *kinds)}
    if "anysubset" in kinds:
        found |= {paths.accuracy(t["kind"], t["key"]) for t in TASKS.values() if t["kind"] in paths.ASKED}
    return sorted(found)


def page(name, caption, category):
    """A file of the page of all sections (`part` is empty) or of one."""
    return report(f"{RESULT}/{{part}}{name}", caption=f"../report/{caption}.rst", category=category)


rule report:
    input:
        measured=measured,
        manifests=[ancient(m) for m in paths.manifests(EXPERIMENT).values()],
        published=PUBLISHED,
        extra=observed,
        prompts=[EXPERIMENT.image.prompts.file] if EXPERIMENT.image else [],
    output:
        page("report.html", "page", "Report"),
        page("summary.csv", "summary", "Tables"),
        page("equality.csv", "equality", "Tables"),
        page("published.csv", "published", "Tables"),
        f"{RESULT}/{{part}}records.parquet",
    log:
        f"logs/{EXPERIMENT.experiment}/{{part}}report.log",
    wildcard_constraints:
        part="(image/|text/|continuous/)?",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    params:
        config=EXPERIMENT.model_dump_json(exclude_unset=True),
        folder=subpath(output[0], parent=True),
        kinds=kinds_of,
        code=lambda w: told("parity.report.__main__", *(f"parity.report.{kind}" for kind in kinds_of(w))),
    shell:
        r"""
        python -m parity.report \
            --config {params.config:q} \
            --kinds {params.kinds} \
            --published {input.published:q} \
            --extra {input.extra:q} \
            --threads {threads} \
            --out {params.folder:q} \
            >{log:q} 2>&1
        """
