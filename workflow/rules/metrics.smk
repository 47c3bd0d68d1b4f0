"""Metrics: pictures, figures of each cell with their errors, a record per image or text.

REQUIRED INPUTS  shards, inputs and laws (layer teacher-forced) of a cell, the checkpoint manifest
OUTPUTS          results/reference/...npz                                        pictures to compare with, and features
                 results/cells/<kind>/<model>/<method>-<key>/pictures/<k>.npz    ids and pixels
                 results/cells/<kind>/<model>/<method>-<key>/metrics.json        speed, likelihood, quality
                 results/cells/<kind>/<model>/<method>-<key>/features.npz        a row per image, for the paired tests
                 results/cells/<kind>/<model>/<method>-<key>/records.parquet     a row per image or text
                 results/accuracy/<task kind>-<key>.json                         last-word and multiple-choice accuracy
                 results/drafting/<model>/<cell>/{similarity,staleness}.json     figures of experiments that skip verification
"""


rule render:
    input:
        shard="results/cells/{kind}/{name}/shards/{piece}.npz",
        checkpoint=checkpoint,
    output:
        "results/cells/{kind}/{name}/pictures/{piece}.npz",
    log:
        "logs/render/{kind}/{name}/{piece}.log",
    wildcard_constraints:
        kind="discrete|continuous",
        name=NAME,
        piece="[0-9]+-of-[0-9]+",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        gpu=gpu,
        mem_mb=memory,
        runtime=runtime,
    params:
        code=lambda w: told(
            "parity.metrics.__main__", "parity.metrics.render", *family(w.kind, w.name.partition("/")[0])
        ),
    message:
        "pictures of {wildcards.name}, part {wildcards.piece}"
    shell:
        r"""
        python -m parity.metrics render \
            --kind {wildcards.kind} \
            --shard {input.shard:q} \
            --checkpoint {input.checkpoint:q} \
            --threads {threads} \
            --device {resources.gpu} \
            --out {output:q} \
            >{log:q} 2>&1
        """


rule reference:
    input:
        prompts=reference_prompts,
        checkpoint=lambda w: paths.manifest(w.kind, w.model, w.revision),
    output:
        "results/reference/{kind}/{set}/{model}-{revision}.npz",
    log:
        "logs/reference/{kind}/{set}/{model}-{revision}.log",
    wildcard_constraints:
        kind="discrete|continuous",
        set="[^/]+",
        model="[a-z0-9][a-z0-9_.-]*",
        revision="[0-9a-z]{8,9}",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        gpu=gpu,
        mem_mb=memory,
        runtime=runtime,
    params:
        prompts=lambda w, input: given("prompts", input.prompts),
        folder=lambda w: EXPERIMENT.image.reference if w.kind == "discrete" else "",
        number=lambda w: EXPERIMENT.image.reference_images if w.kind == "discrete" else paths.REAL,
        code=lambda w: told(
            "parity.metrics.__main__",
            "parity.metrics.reference",
            f"parity.metrics.samples.{w.kind}",
            *family(w.kind, w.model),
        ),
    message:
        "pictures to compare {wildcards.model} with"
    shell:
        r"""
        python -m parity.metrics reference \
            --kind {wildcards.kind} \
            {params.prompts} \
            --folder={params.folder:q} \
            --count {params.number} \
            --checkpoint {input.checkpoint:q} \
            --threads {threads} \
            --device {resources.gpu} \
            --out {output:q} \
            >{log:q} 2>&1
        """


rule compared:
    input:
        networks=[m for name, m in paths.manifests(EXPERIMENT).items() if name.startswith("networks/")],
    output:
        "results/reference/{kind}/{key}.npz",
    log:
        "logs/reference/{kind}/{key}.log",
    wildcard_constraints:
        kind="discrete|continuous",
        key="[0-9a-f]{8}",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        gpu=gpu,
        mem_mb=memory,
        runtime=runtime,
    params:
        networks=lambda w, input: listed("networks", input.networks),
        reference=lambda w: paths.asked_reference(EXPERIMENT, w.kind)[0],
        number=lambda w: paths.asked_reference(EXPERIMENT, w.kind)[1],
        protocol=EXPERIMENT.protocol,
        code=code("parity.metrics.__main__", "parity.metrics.compared"),
    message:
        "pictures to compare published models with"
    shell:
        r"""
        python -m parity.metrics compared \
            {params.networks} \
            --reference={params.reference:q} \
            --count {params.number} \
            --protocol {params.protocol} \
            --threads {threads} \
            --device {resources.gpu} \
            --out {output:q} \
            >{log:q} 2>&1
        """


rule measure:
    input:
        spec="results/cells/{kind}/{name}/spec.json",
        shards=of_cell(lambda c: paths.pieces(EXPERIMENT, c, "shards")),
        pictures=of_cell(lambda c: paths.pieces(EXPERIMENT, c, "pictures") if pictured(c.kind) else []),
        laws=of_cell(lambda c: [paths.laws(c)] if "teacher_forced" in LAYERS[c.kind] else []),
        inputs=of_cell(lambda c: paths.inputs(EXPERIMENT, PROMPTS, c)),
        reference=of_cell(lambda c: [paths.reference(EXPERIMENT, PROMPTS, c)] if pictured(c.kind) else []),
        networks=of_cell(lambda c: list(paths.judges(EXPERIMENT, c))),
        checkpoint=checkpoint,
    output:
        metrics="results/cells/{kind}/{name}/metrics.json",
        features="results/cells/{kind}/{name}/features.npz",
        records="results/cells/{kind}/{name}/records.parquet",
    log:
        "logs/measure/{kind}/{name}.log",
    wildcard_constraints:
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
        shards=lambda w, input: given("shards", input.shards),
        pictures=lambda w, input: given("pictures", input.pictures),
        laws=lambda w, input: given("laws", input.laws),
        inputs=lambda w, input: given("inputs", input.inputs),
        reference=lambda w, input: given("reference", input.reference),
        judged=of_cell(lambda c: f"--protocol {EXPERIMENT.protocol}" if paths.judged(EXPERIMENT, c) else ""),
        networks=lambda w, input: listed("networks", input.networks),
        run_code=lambda w: "--run-code" if w.kind == "anysubset" and EXPERIMENT.text.run_generated_code else "",
        code=metric_code,
    message:
        "measure {wildcards.name}"
    shell:
        r"""
        python -m parity.metrics measure \
            --kind {wildcards.kind} \
            --cell {params.cell:q} \
            {params.shards} {params.pictures} {params.laws} {params.inputs} {params.reference} {params.run_code} \
            {params.networks} {params.judged} \
            --checkpoint {input.checkpoint:q} \
            --threads {threads} \
            --device {resources.gpu} \
            --out {output.metrics:q} \
            --features {output.features:q} \
            --records {output.records:q} \
            >{log:q} 2>&1
        """


rule accuracy:
    input:
        task="results/inputs/anysubset/{task_kind}-{key}.npz",
        checkpoint=[m for name, m in paths.manifests(EXPERIMENT).items() if name.startswith("anysubset/")],
    output:
        "results/accuracy/{task_kind}-{key}.json",
    log:
        "logs/accuracy/{task_kind}-{key}.log",
    wildcard_constraints:
        task_kind="last_word|choice",
        key="[0-9a-f]{8}",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        gpu=gpu,
        mem_mb=memory,
        runtime=runtime,
    params:
        code=code("parity.metrics.__main__", "parity.metrics.accuracy", "parity.models.anysubset.xlnet"),
    message:
        "accuracy on {wildcards.task_kind}-{wildcards.key}"
    shell:
        r"""
        python -m parity.metrics accuracy \
            --task-kind {wildcards.task_kind} \
            --inputs {input.task:q} \
            --checkpoint {input.checkpoint:q} \
            --threads {threads} \
            --device {resources.gpu} \
            --out {output:q} \
            >{log:q} 2>&1
        """


rule drafted_trees:
    input:
        spec="results/cells/discrete/{name}/spec.json",
        shards=lambda w: paths.pieces(EXPERIMENT, CELL["discrete", w.name], "shards"),
        inputs=lambda w: paths.inputs(EXPERIMENT, PROMPTS, CELL["discrete", w.name]),
        checkpoint=lambda w: paths.checkpoint(EXPERIMENT, CELL["discrete", w.name]),
    output:
        "results/drafting/{name}/similarity.json",
        "results/drafting/{name}/staleness.json",
    log:
        "logs/drafting/{name}.log",
    wildcard_constraints:
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
        inputs=lambda w, input: given("inputs", input.inputs),
        shards=lambda w, input: given("shards", input.shards),
        code=lambda w: told(
            "parity.metrics.__main__", "parity.metrics.drafted_trees", *family("discrete", w.name.partition("/")[0])
        ),
    message:
        "drafted trees of {wildcards.name}"
    shell:
        r"""
        python -m parity.metrics drafted-trees \
            --cell {params.cell:q} \
            {params.inputs} {params.shards} \
            --checkpoint {input.checkpoint:q} \
            --threads {threads} \
            --device {resources.gpu} \
            --out {output:q} \
            >{log:q} 2>&1
        """
