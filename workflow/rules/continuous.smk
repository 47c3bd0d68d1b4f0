"""Continuous tokens: MAR, xAR, Harmon and mixtures, the target alone and continuous speculative decoding. Only with a `continuous` section.

REQUIRED INPUTS  the `continuous` section of the configuration; src/parity/embedded/weights/continuous
OUTPUTS          results/continuous/cells/<model>-<method>-<key>.npz    images of a cell, and one record per image
                 results/continuous/exact/<method>-<key>.json          on mixtures whose law is known
                 results/continuous/forced/<cell>.json                 the law of one token against the target's
                 results/<experiment>/continuous.html                  the page, with continuous.csv, continuous-equality.csv and records

The chain: decode (per cell) -> measure -> report, with exact and forced beside it. `snakemake continuous` makes this page alone.
"""

from parity.continuous import cells as continuous

CONTINUOUS = EXPERIMENT.continuous
CONTINUOUS_REPORT = f"{RESULT}/continuous.html"
CONTINUOUS_PUBLISHED = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "workflow/published/continuous").glob("*.csv"))
CONTINUOUS_CELLS = continuous.continuous_cells(EXPERIMENT)
CONTINUOUS_WEIGHTS = continuous.folder(CONTINUOUS) if CONTINUOUS else continuous.WEIGHTS
CONTINUOUS_SPECS = {c["key"]: c["spec"] for c in CONTINUOUS_CELLS}
CONTINUOUS_FORCED = continuous.forced_cells(EXPERIMENT)
CONTINUOUS_EXACT = continuous.exact_variants(EXPERIMENT)


rule continuous_decode:
    input:
        weights=lambda w: sorted(map(local, CONTINUOUS_WEIGHTS.glob(f"{w.model}*.safetensors"))),
        code=lambda w: continuous.sources(w.method, w.model),
    output:
        "results/continuous/cells/{model}-{method}-{key}.npz",
    log:
        "logs/continuous/cells/{model}-{method}-{key}.log",
    wildcard_constraints:
        model="[a-z]+",
        method="[a-z0-9_]+",
        key="[0-9a-f]{8}",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        gpu=GPU,
    params:
        spec=lambda w: canonical(CONTINUOUS_SPECS[w.key]),
        weights=local(CONTINUOUS_WEIGHTS),
        device=device,
    shell:
        r"""
        python -m parity.continuous decode \
            --spec {params.spec:q} \
            --weights {params.weights:q} \
            --threads {threads} \
            --device {params.device} \
            --out {output:q} \
            >{log:q} 2>&1
        """


rule continuous_exact:
    input:
        code=lambda w: [
            *continuous.sources(w.method),
            "src/parity/models/gmm.py",
            "src/parity/equality/continuous.py",
            "src/parity/equality/discrete.py",
        ],
    output:
        "results/continuous/exact/{method}-{key}.json",
    log:
        "logs/continuous/exact/{method}-{key}.log",
    wildcard_constraints:
        method="[a-z0-9_]+",
        key="[0-9a-f]{8}",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    params:
        options=lambda w: canonical(CONTINUOUS_EXACT[w.key]["options"]),
        n=EQUALITY.n,
        seeds=canonical(EQUALITY.seeds[:2]),
    shell:
        r"""
        python -m parity.continuous exact \
            --method {wildcards.method} \
            --options {params.options:q} \
            --n {params.n} \
            --seeds {params.seeds:q} \
            --threads {threads} \
            --out {output:q} \
            >{log:q} 2>&1
        """


rule continuous_forced:
    input:
        reference=lambda w: layout.continuous_cell(continuous.reference_of({"spec": CONTINUOUS_SPECS[w.key]}, CONTINUOUS_CELLS)),
        code=lambda w: [*continuous.sources(w.method, w.model), "src/parity/continuous/forced.py"],
    output:
        "results/continuous/forced/{model}-{method}-{key}.json",
    log:
        "logs/continuous/forced/{model}-{method}-{key}.log",
    wildcard_constraints:
        model="[a-z]+",
        method="[a-z0-9_]+",
        key="[0-9a-f]{8}",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        gpu=GPU,
    params:
        spec=lambda w: canonical(CONTINUOUS_SPECS[w.key]),
        weights=local(CONTINUOUS_WEIGHTS),
        n=CONTINUOUS.forced if CONTINUOUS else 0,
        conditions=CONTINUOUS.conditions if CONTINUOUS else 0,
        device=device,
    shell:
        r"""
        python -m parity.continuous forced \
            --spec {params.spec:q} \
            --weights {params.weights:q} \
            --key {wildcards.key} \
            --reference {input.reference:q} \
            --n {params.n} \
            --conditions {params.conditions} \
            --threads {threads} \
            --device {params.device} \
            --out {output:q} \
            >{log:q} 2>&1
        """


rule continuous_measure:
    input:
        cells=[layout.continuous_cell(c) for c in CONTINUOUS_CELLS],
        code=["src/parity/continuous/__main__.py", "src/parity/embedded/classifier.py", "src/parity/models/kl.py"],
    output:
        records=f"{RESULT}/continuous-records.parquet",
        figures=f"{RESULT}/continuous-figures.json",
        thumbnails=f"{RESULT}/continuous-thumbnails.npz",
    log:
        f"logs/{EXPERIMENT.experiment}/continuous-measure.log",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        gpu=GPU,
    params:
        weights=local(CONTINUOUS_WEIGHTS),
        device=device,
    shell:
        r"""
        python -m parity.continuous measure \
            --cells {input.cells:q} \
            --weights {params.weights:q} \
            --threads {threads} \
            --device {params.device} \
            --figures {output.figures:q} \
            --thumbnails {output.thumbnails:q} \
            --out {output.records:q} \
            >{log:q} 2>&1
        """


rule continuous_report:
    input:
        records=f"{RESULT}/continuous-records.parquet",
        figures=f"{RESULT}/continuous-figures.json",
        thumbnails=f"{RESULT}/continuous-thumbnails.npz",
        exact=[layout.continuous_exact(key, v) for key, v in CONTINUOUS_EXACT.items()],
        forced=[layout.continuous_forced(c) for c in CONTINUOUS_FORCED],
        published=CONTINUOUS_PUBLISHED,
        code=[
            "src/parity/continuous/report.py",
            "src/parity/continuous/continuous.html.j2",
            "src/parity/report/plain.html.j2",
            "src/parity/equality/verdict.py",
        ],
    output:
        page=report(CONTINUOUS_REPORT, caption="../report/continuous.rst", category="Report"),
        table=report(f"{RESULT}/continuous.csv", caption="../report/continuous.rst", category="Tables"),
        tests=report(f"{RESULT}/continuous-equality.csv", caption="../report/continuous.rst", category="Tables"),
    log:
        f"logs/{EXPERIMENT.experiment}/continuous-report.log",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    params:
        config=lambda w: EXPERIMENT.model_dump_json(exclude_unset=True),
    shell:
        r"""
        python -m parity.continuous report \
            --config {params.config:q} \
            --records {input.records:q} \
            --figures {input.figures:q} \
            --thumbnails {input.thumbnails:q} \
            --exact {input.exact:q} \
            --forced {input.forced:q} \
            --published {input.published:q} \
            --threads {threads} \
            --out {output.page:q} \
            >{log:q} 2>&1
        """
