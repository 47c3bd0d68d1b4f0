"""Equality: does a decoder draw from the law it was to draw from?

REQUIRED INPUTS  decoders (exact layer); samples, checkpoint and features of cells (teacher-forced and paired layers)
OUTPUTS          results/equality/exact/<method>-<key>.json         on enumerable models, against the exact joint
                 results/equality/mutants-<n>.json                  planted faults: what the exact layer detects
                 results/equality/calibration-<replicates>.json     sizes of the tests under the null
                 results/equality/{continuous,anyorder}-<n>.json    the same for continuous and any-subset decoders
                 results/equality/teacher-forced/<model>/<cell>.json, .npz (log- and top-1 probabilities, for metrics and report)
                 results/equality/pathwise/<model>/<cell>.json   (coupled decoders)
                 results/equality/paired/<model>/<cell>-<baseline>.json

Each file is a list of rows, one per test. Plain sampling goes through every layer like any other decoder: the null row of every table.
"""

EQUALITY = EXPERIMENT.equality
EXACT = {layout.exact_key(EXPERIMENT, cell["spec"]): cell["spec"] for cell in CELLS}
EQUALITY_CODE = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "src/parity/equality").glob("*.py"))

EQUALITY_FILES = sorted(
    {file for cell in CELLS for file in layout.equality(EXPERIMENT, cell, CELLS)} | set(layout.tables(EXPERIMENT).values())
)


rule exact:
    input:
        code=lambda w: [*CORE, f"src/parity/decoders/{w.method}.py", "src/parity/models/tabular.py", "src/parity/equality/exact.py"],
    output:
        "results/equality/exact/{method}-{key}.json",
    log:
        "logs/equality/exact/{method}-{key}.log",
    wildcard_constraints:
        method="[a-z0-9_]+",
        key="[0-9a-f]{8}",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    params:
        options=lambda w: canonical(layout.small(EXACT[w.key]["options"])),
        claim=lambda w: parity_config.claim(w.method, EXACT[w.key]["options"]),
        # a decoder coupled to plain sampling by shared noise must also return its very tokens
        pathwise=lambda w: "--pathwise" if parity_config.coupled(w.method, EXACT[w.key]["options"]) else "",
        # what is lossy by its own claim is found out with less than a certificate needs
        n=lambda w: EQUALITY.n if parity_config.claim(w.method, EXACT[w.key]["options"]) == "lossless" else max(10_000, EQUALITY.n // 5),
        models=EQUALITY.models,
        seeds=canonical(EQUALITY.seeds),
    shell:
        r"""
        python -m parity.equality exact \
            --method {wildcards.method} \
            --options {params.options:q} \
            --claim {params.claim} \
            --n {params.n} \
            --models {params.models} \
            --seeds {params.seeds:q} \
            {params.pathwise} \
            --threads {threads} \
            --out {output:q} \
            >{log:q} 2>&1
        """


rule mutants:
    input:
        code=EQUALITY_CODE,
    output:
        "results/equality/mutants-{n}.json",
    log:
        "logs/equality/mutants-{n}.log",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    shell:
        "python -m parity.equality mutants --n {wildcards.n} --threads {threads} --out {output:q} > {log:q} 2>&1"


rule calibration:
    input:
        code=EQUALITY_CODE,
    output:
        "results/equality/calibration-{replicates}.json",
    log:
        "logs/equality/calibration-{replicates}.log",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    shell:
        "python -m parity.equality calibration --replicates {wildcards.replicates} --out {output:q} > {log:q} 2>&1"


rule other_decoders:
    input:
        code=EQUALITY_CODE,
    output:
        "results/equality/{kind}-{n}.json",
    log:
        "logs/equality/{kind}-{n}.log",
    wildcard_constraints:
        kind="continuous|anyorder",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    shell:
        "python -m parity.equality {wildcards.kind} --n {wildcards.n} --threads {threads} --out {output:q} > {log:q} 2>&1"


rule teacher_forced:
    input:
        spec="results/cells/{model}/{cell}/spec.json",
        prompts=encoded_prompts,
        shards=lambda w: [f"results/cells/{w.model}/{w.cell}/shards/{k}-of-{SHARDS}.npz" for k in range(SHARDS)],
        checkpoint=lambda w: layout.manifest(EXPERIMENT, w.model),
        code=["src/parity/compare.py", "src/parity/equality/teacher_forced.py", "src/parity/metrics/likelihood.py"],
    output:
        rows="results/equality/teacher-forced/{model}/{cell}.json",
        logp="results/equality/teacher-forced/{model}/{cell}.npz",
    log:
        "logs/equality/teacher-forced/{model}/{cell}.log",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        gpu=GPU,
    params:
        cell=subpath(input.spec, parent=True),
        seeds=EQUALITY.seeds,
        device=device,
    shell:
        r"""
        python -m parity.compare teacher-forced \
            --cell {params.cell:q} \
            --prompts {input.prompts:q} \
            --shards {input.shards:q} \
            --checkpoint {input.checkpoint:q} \
            --seeds {params.seeds} \
            --threads {threads} \
            --device {params.device} \
            --out {output.rows:q} \
            --logp {output.logp:q} \
            >{log:q} 2>&1
        """


rule pathwise:
    input:
        spec="results/cells/{model}/{cell}/spec.json",
        prompts=encoded_prompts,
        checkpoint=lambda w: layout.manifest(EXPERIMENT, w.model),
        code=lambda w: [*CORE, f"src/parity/decoders/{w.cell.rsplit('-', 1)[0]}.py", "src/parity/compare.py"],
    output:
        "results/equality/pathwise/{model}/{cell}.json",
    log:
        "logs/equality/pathwise/{model}/{cell}.log",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        gpu=GPU,
    params:
        cell=subpath(input.spec, parent=True),
        images=EQUALITY.pathwise,
        device=device,
    shell:
        r"""
        python -m parity.compare pathwise \
            --cell {params.cell:q} \
            --prompts {input.prompts:q} \
            --checkpoint {input.checkpoint:q} \
            --images {params.images} \
            --threads {threads} \
            --device {params.device} \
            --out {output:q} \
            >{log:q} 2>&1
        """


rule paired:
    input:
        features="results/cells/{model}/{cell}/features.npz",
        baseline="results/cells/{model}/ar-{baseline}/features.npz",
        reference=reference_file,
        code=["src/parity/pair.py", "src/parity/equality/paired.py"],
    output:
        "results/equality/paired/{model}/{cell}-{baseline}.json",
    log:
        "logs/equality/paired/{model}/{cell}-{baseline}.log",
    wildcard_constraints:
        cell="[a-z0-9_]+-[0-9a-f]{8}",
        baseline="[0-9a-f]{8}",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    params:
        cell=subpath(input.features, parent=True),
        against=subpath(input.baseline, parent=True),
        seeds=EQUALITY.seeds,
        clip=EQUALITY.margin_clip,
        logp=EQUALITY.margin_logp,
        swaps=EQUALITY.swaps,
    shell:  # Snakemake sets OMP_NUM_THREADS to `threads`, which is all that numpy and scipy read
        r"""
        python -m parity.pair \
            --cell {params.cell:q} \
            --baseline {params.against:q} \
            --reference {input.reference:q} \
            --seeds {params.seeds} \
            --margin-clip {params.clip} \
            --margin-logp {params.logp} \
            --swaps {params.swaps} \
            --out {output:q} \
            >{log:q} 2>&1
        """
