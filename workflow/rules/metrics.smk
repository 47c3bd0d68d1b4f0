"""Metrics: the figures of a cell's samples, and the equality layers that test them.

REQUIRED INPUTS  shards and inputs of a cell, the checkpoint manifest; of another cell, the features that it is compared with
OUTPUTS          results/reference/...npz                                        images to compare with, and features
                 results/cells/<kind>/<model>/<method>-<key>/spec.json           what was asked for
                 results/cells/<kind>/<model>/<method>-<key>/images/<k>.npz      ids and pixels
                 results/cells/<kind>/<model>/<method>-<key>/probs.npz           what the target gave the cell's tokens
                 results/cells/<kind>/<model>/<method>-<key>/metrics.json        speed, likelihood, quality
                 results/cells/<kind>/<model>/<method>-<key>/features.npz        a row per image, for the paired tests
                 results/cells/<kind>/<model>/<method>-<key>/records.parquet     a row per image or text
                 results/cells/<kind>/<model>/<method>-<key>/equality.json       rows of the layers that look at it
                 results/accuracy/<task kind>-<key>.json                         last-word and multiple-choice accuracy
                 results/drafting/<model>/<cell>/{similarity,staleness}.json     figures of experiments that skip verification

A layer is a module of src/parity/equality/layers/<kind>: it declares which cells it looks at and what it reads. Plain
decoding goes through every layer like any other decoder: the null row.
"""


rule reference:
    input:
        prompts=list_reference_prompts,
        checkpoint=find_manifest,
    output:
        "results/reference/{kind}/{set}/{model}-{revision}.npz",
    log:
        "logs/reference/{kind}/{set}/{model}-{revision}.log",
    wildcard_constraints:
        **PATTERNS,
    priority: 1  # an image that cannot be read ends the run early
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        gpu=gpu,
        mem_mb=memory,
        runtime=runtime,
    params:
        prompts=lambda w, input: format_flag("prompts", input.prompts),
        folder=lambda w: paths.reference_images(EXPERIMENT, w.kind, published=False)[0],
        number=lambda w: paths.reference_images(EXPERIMENT, w.kind, published=False)[1],
        state=lambda w: digest_reference(w.kind, published=False),
        code=lambda w: digest_code("parity.metrics.images", f"parity.metrics.samples.{w.kind}", name_family(w)),
    message:
        "images to compare {wildcards.model} with"
    shell:
        r"""
        python -m parity.job metrics reference --kind {wildcards.kind} {params.prompts} --folder={params.folder:q} \
            --count {params.number} --checkpoint {input.checkpoint:q} \
            --threads {threads} --device {resources.gpu} --out {output:q} >{log:q} 2>&1
        """


rule reference_features:
    input:
        anew=local(ANEW),
        networks=[m for name, m in MANIFESTS.items() if name.startswith("networks/")],
    output:
        "results/reference/{kind}/{key}.npz",
    log:
        "logs/reference/{kind}/{key}.log",
    wildcard_constraints:
        **PATTERNS,
    priority: 1  # an image that cannot be read ends the run early
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        gpu=gpu,
        mem_mb=memory,
        runtime=30,
    params:
        reference=lambda w: paths.reference_images(EXPERIMENT, w.kind, published=True)[0],
        number=lambda w: paths.reference_images(EXPERIMENT, w.kind, published=True)[1],
        state=lambda w: digest_reference(w.kind, published=True),
        protocol=EXPERIMENT.protocol,
        code=digest_code("parity.metrics.images"),
    message:
        "images to compare published models with"
    shell:
        r"""
        python -m parity.job metrics reference-features --networks {input.networks:q} --reference={params.reference:q} \
            --count {params.number} --protocol {params.protocol} \
            --threads {threads} --device {resources.gpu} --out {output:q} >{log:q} 2>&1
        """


for model_kind in KINDS:

    rule:
        name:
            f"measure_{model_kind}"
        input:
            shards=lambda w: paths.pieces(EXPERIMENT, find_cell(w), "shards"),
            inputs=lambda w: paths.inputs(EXPERIMENT, PROMPTS, find_cell(w)),
            baseline=list_baseline_files,
            reference=lambda w: [paths.reference(EXPERIMENT, PROMPTS, find_cell(w))] if has_images(w.kind) else [],
            networks=lambda w: list(paths.judges(EXPERIMENT, find_cell(w))),
            draft=list_draft,
            checkpoint=find_manifest,
        output:
            list_measured_files(model_kind),
        log:
            "logs/measure/{kind}/{name}.log",
        wildcard_constraints:
            **PATTERNS | {"kind": model_kind},
        conda:
            "../../envs/parity.yaml"
        threads: 1
        resources:
            gpu=gpu,
            mem_mb=memory,
            runtime=runtime,
        params:
            spec=lambda w: dump_canonical(find_cell(w).asked),
            layers=lambda w: dump_canonical(layers.layer_settings(EXPERIMENT, LAYERS, find_cell(w))),
            cell=subpath(output[0], parent=True),
            shards=lambda w, input: format_flag("shards", input.shards),
            inputs=lambda w, input: format_flag("inputs", input.inputs),
            baseline=lambda w, input: format_flag("baseline", [str(Path(f).parent) for f in input.baseline[-1:]]),
            reference=lambda w, input: format_flag("reference", input.reference),
            judged=lambda w: f"--protocol {EXPERIMENT.protocol}" if paths.is_judged(EXPERIMENT, find_cell(w)) else "",
            render=lambda w: (
                f"--render-batch {getattr(EXPERIMENT, options.KINDS[w.kind]).render_batch}"
                if has_images(w.kind)
                else ""
            ),
            run_code=lambda w: "--run-code" if w.kind == "anysubset" and EXPERIMENT.text.run_generated_code else "",
            code=digest_measuring,
        message:
            "measure {wildcards.name}"
        shell:
            r"""
            python -m parity.job measure --kind {wildcards.kind} --spec {params.spec:q} --layers {params.layers:q} \
                --cell {params.cell:q} {params.shards} {params.inputs} {params.baseline} {params.reference} \
                {params.render} {params.run_code} --networks {input.networks:q} {params.judged} --checkpoint {input.checkpoint:q} \
                --threads {threads} --device {resources.gpu} >{log:q} 2>&1
            """


rule accuracy:
    input:
        data=list_task_data,
        checkpoint=find_manifest,
    output:
        "results/accuracy/{task_kind}-{key}.json",
    log:
        "logs/accuracy/{task_kind}-{key}.log",
    wildcard_constraints:
        **PATTERNS,
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        gpu=gpu,
        mem_mb=memory,
        runtime=runtime,
    params:
        settings=lambda w: dump_canonical(TASKS[w.key]["settings"]),
        code=digest_code("parity.metrics.accuracy", "parity.models.anysubset.xlnet"),
    message:
        "accuracy on {wildcards.task_kind}-{wildcards.key}"
    shell:
        r"""
        python -m parity.job metrics accuracy --task-kind {wildcards.task_kind} --settings {params.settings:q} \
            --checkpoint {input.checkpoint:q} \
            --threads {threads} --device {resources.gpu} --out {output:q} >{log:q} 2>&1
        """


rule drafted_trees:
    input:
        spec="results/cells/discrete/{name}/spec.json",
        shards=lambda w: paths.pieces(EXPERIMENT, find_cell(w), "shards"),
        inputs=lambda w: paths.inputs(EXPERIMENT, PROMPTS, find_cell(w)),
        checkpoint=find_manifest,
    output:
        "results/drafting/{name}/similarity.json",
        "results/drafting/{name}/staleness.json",
    log:
        "logs/drafting/{name}.log",
    wildcard_constraints:
        **PATTERNS,
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        gpu=gpu,
        mem_mb=memory,
        runtime=runtime,
    params:
        cell=subpath(input.spec, parent=True),
        inputs=lambda w, input: format_flag("inputs", input.inputs),
        shards=lambda w, input: format_flag("shards", input.shards),
        code=lambda w: digest_code("parity.metrics.drafted_trees", name_family(w)),
    message:
        "drafted trees of {wildcards.name}"
    shell:
        r"""
        python -m parity.job metrics drafted-trees --cell {params.cell:q} {params.inputs} {params.shards} \
            --checkpoint {input.checkpoint:q} \
            --threads {threads} --device {resources.gpu} --out {output:q} >{log:q} 2>&1
        """
