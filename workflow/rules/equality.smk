"""Equality: does a decoder draw from the law it was to draw from?

REQUIRED INPUTS  decoders (exact layer); samples, checkpoint and features of cells (the other layers)
OUTPUTS          results/equality/exact/<kind>/<method>-<key>.json                on enumerable models, against their law
                 results/equality/long/<kind>/<method>-<key>.json                 on long models, at its own options
                 results/equality/<layer>/<kind>/<model>/<method>-<key>.json      of a layer that looks at a cell
                 results/equality/teacher-forced/<kind>/<model>/<method>-<key>.npz   what the target gave a cell's tokens
                 results/equality/faults-<kind>-<n>.json                          planted faults: what the exact layer detects
                 results/equality/calibration-<replicates>.json                   sizes of the tests under the null

Each JSON file is a list of rows, one per test. A layer is a module of src/parity/equality/layers/<kind>: it declares
which cells it looks at and what it reads. Plain decoding goes through every layer like any other decoder: the null row.
"""

EQUALITY = EXPERIMENT.equality
ROWS = sorted(
    {paths.layer(layer, c) for c in CELLS for layer in layers.of(EXPERIMENT, LAYERS, c)}
    | {paths.exact(EXPERIMENT, v) for v in VARIANTS.values()}
    | {paths.long(EXPERIMENT, v) for v in LONG.values()}
    | set(paths.self_tests(EXPERIMENT).values())
)


rule exact:
    output:
        "results/equality/exact/{kind}/{method}-{key}.json",
    log:
        "logs/equality/exact/{kind}/{method}-{key}.log",
    wildcard_constraints:
        kind="[a-z]+",
        method="[a-z0-9_]+",
        key="[0-9a-f]{8}",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        runtime=runtime_of_draws,
    params:
        options=lambda w: canonical(VARIANTS[w.kind, w.key].options),
        claim=lambda w: VARIANTS[w.kind, w.key].claim,
        n=lambda w: VARIANTS[w.kind, w.key].n,
        # a decoder coupled to plain decoding by shared noise must also return its very tokens
        pathwise=lambda w: "--pathwise" if coupled(w) else "",
        models=EQUALITY.models,
        seeds=canonical(EQUALITY.seeds[:2]),
        code=exact_code,
    message:
        "test {wildcards.method} on models whose law is known ({wildcards.kind}, {params.n} sequences each)"
    shell:
        r"""
        python -m parity.equality exact \
            --kind {wildcards.kind} \
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


rule long:
    output:
        "results/equality/long/{kind}/{method}-{key}.json",
    log:
        "logs/equality/long/{kind}/{method}-{key}.log",
    wildcard_constraints:
        kind="[a-z]+",
        method="[a-z0-9_]+",
        key="[0-9a-f]{8}",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        runtime=runtime_of_draws,
    params:
        options=lambda w: canonical(LONG[w.kind, w.key].options),
        claim=lambda w: LONG[w.kind, w.key].claim,
        n=lambda w: LONG[w.kind, w.key].n,
        seeds=canonical(EQUALITY.seeds[:2]),
        code=long_code,
    message:
        "test {wildcards.method} on long sequences whose likelihood is known ({wildcards.kind})"
    shell:
        r"""
        python -m parity.equality long \
            --kind {wildcards.kind} \
            --method {wildcards.method} \
            --options {params.options:q} \
            --claim {params.claim} \
            --n {params.n} \
            --seeds {params.seeds:q} \
            --threads {threads} \
            --out {output:q} \
            >{log:q} 2>&1
        """


rule faults:
    output:
        "results/equality/faults-{kind}-{n}.json",
    log:
        "logs/equality/faults-{kind}-{n}.log",
    wildcard_constraints:
        kind="[a-z]+",
        n="[0-9]+",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        runtime=runtime_of_draws,
    params:
        code=code("parity.equality.__main__", "parity.equality.faults.{kind}"),
    message:
        "look for planted faults ({wildcards.kind})"
    shell:
        "python -m parity.equality faults --kind {wildcards.kind} --n {wildcards.n}"
        " --threads {threads} --out {output:q} > {log:q} 2>&1"


rule calibration:
    output:
        "results/equality/calibration-{replicates}.json",
    log:
        "logs/equality/calibration-{replicates}.log",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    params:
        code=code("parity.equality.__main__", "parity.equality.calibration"),
    message:
        "sizes of the tests under the null"
    shell:
        "python -m parity.equality calibration --replicates {wildcards.replicates} --out {output:q} > {log:q} 2>&1"


rule layer:
    input:
        spec="results/cells/{kind}/{name}/spec.json",
        shards=reads("shards", lambda c: paths.pieces(EXPERIMENT, c, "shards")),
        inputs=reads("inputs", lambda c: paths.inputs(EXPERIMENT, PROMPTS, c)),
        features=reads("features", lambda c: [f"{paths.folder(c)}/features.npz"]),
        baseline=reads("baseline", lambda c: layers.baseline(EXPERIMENT, CELLS, c)),
        reference=reads("reference", lambda c: [paths.reference(EXPERIMENT, PROMPTS, c)]),
        checkpoint=reads("checkpoint", lambda c: [paths.checkpoint(EXPERIMENT, c)]),
    output:
        rows="results/equality/{layer}/{kind}/{name}.json",
    log:
        "logs/equality/{layer}/{kind}/{name}.log",
    wildcard_constraints:
        layer=writing(laws=False),
        kind="[a-z]+",
        name=NAME,
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        gpu=gpu,
        mem_mb=memory,
        runtime=runtime,
    params:
        cell=subpath(input.spec, parent=True),
        settings=lambda w: canonical(layers.settings(EXPERIMENT, said(w))),
        files=layer_files,
        laws="",
        code=layer_code,
    message:
        "test {wildcards.name}, layer {wildcards.layer}"
    shell:
        r"""
        python -m parity.equality layer {wildcards.layer} \
            --kind {wildcards.kind} \
            --cell {params.cell:q} \
            --settings {params.settings:q} \
            {params.files} {params.laws} \
            --threads {threads} \
            --device {resources.gpu} \
            --out {output.rows:q} \
            >{log:q} 2>&1
        """


use rule layer as layer_with_laws with:
    output:
        rows="results/equality/{layer}/{kind}/{name}.json",
        laws="results/equality/{layer}/{kind}/{name}.npz",
    wildcard_constraints:
        layer=writing(laws=True),
        kind="[a-z]+",
        name=NAME,
    params:
        laws=lambda w, output: f"--laws {output.laws}",
