"""Report: bring everything of the experiment together.

REQUIRED INPUTS  records, metrics and equality rows of every cell; the papers' figures in workflow/published; figures made elsewhere
OUTPUTS          results/<experiment>/report.html   one self-contained page
                 results/<experiment>/{summary,equality,published}.csv, records.parquet, figures/
"""

PUBLISHED = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "workflow/published").glob("*.csv"))


rule gather:
    input:
        shards=[f for c in CELLS for kind in ("shards", "images") for f in layout.pieces(EXPERIMENT, c, kind)],
        metrics=[f"{layout.folder(c)}/{name}" for c in CELLS for name in ("metrics.json", "features.npz")],
        laws=[layout.laws(c) for c in CELLS if c["role"] != "again"],
        equality=sorted({f for c in CELLS for f in layout.equality(EXPERIMENT, c, CELLS)}),
        tables=list(layout.tables(EXPERIMENT).values()),
        manifests=[layout.manifest(EXPERIMENT, model) for model in EXPERIMENT.models],
        published=PUBLISHED,
        extra=DRAFTING,
        prompts=EXPERIMENT.prompts.file,
        code=[
            "src/parity/gather.py",
            "src/parity/layout.py",
            "src/parity/study.py",
            *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "src/parity/report").glob("*.*")),
            "src/parity/equality/verdict.py",
        ],
    output:
        report(REPORT, caption="../report/page.rst", category="Report"),
        report(f"{RESULT}/summary.csv", caption="../report/summary.rst", category="Tables"),
        report(f"{RESULT}/equality.csv", caption="../report/equality.rst", category="Tables"),
        report(f"{RESULT}/published.csv", caption="../report/published.rst", category="Tables"),
        f"{RESULT}/records.parquet",
    log:
        f"logs/{EXPERIMENT.experiment}/gather.log",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    params:
        config=lambda w: EXPERIMENT.model_dump_json(exclude_unset=True),
        folder=subpath(output[0], parent=True),
    shell:
        r"""
        python -m parity.gather \
            --config {params.config:q} \
            --published {input.published:q} \
            --extra {input.extra:q} \
            --threads {threads} \
            --out {params.folder:q} \
            >{log:q} 2>&1
        """
