"""Inputs: prompts in shards, their captions encoded once for all methods, and texts with missing words.

REQUIRED INPUTS  image.prompts.file (lines, tsv, csv, jsonl, COCO captions, labels); data files of text tasks; checkpoint manifests
OUTPUTS          results/inputs/discrete/<digest>-<repeats>x<shards>/<k>.json                     ids and captions
                 results/inputs/discrete/<digest>-<repeats>x<shards>/<model>-<revision>/<k>.npz   their embeddings
                 results/inputs/anysubset/<task kind>-<key>.npz                                   known and missing words

Images of continuous models are numbered, and need no file.
"""

if EXPERIMENT.image:
    PROMPT_SET = paths.prompt_set(EXPERIMENT, PROMPTS)

    rule shard_prompts:
        input:
            local(prompt_files.source(EXPERIMENT.image.prompts) + ANEW),
        output:
            collect(
                "results/inputs/discrete/{set}/{k}.json", set=PROMPT_SET, k=range(paths.jobs(EXPERIMENT, "discrete"))
            ),
        log:
            f"logs/inputs/{PROMPT_SET}.log",
        localrule: True
        conda:
            "../../envs/parity.yaml"
        threads: 1
        params:
            folder=subpath(output[0], parent=True),
            spec=dump_prompt_spec,
            digest=parity_cells.digest_prompts(PROMPTS),
            code=digest_code("parity.inputs.prompts", measured=False),
        message:
            "read the prompts"
        shell:
            r"""
            python -m parity.job inputs prompts --spec {params.spec:q} --digest {params.digest} \
                --out {params.folder:q} >{log:q} 2>&1
            """


rule captions:
    input:
        prompts="results/inputs/discrete/{set}/{shard}.json",
        checkpoint=find_manifest,
    output:
        "results/inputs/discrete/{set}/{model}-{revision}/{shard}.npz",
    log:
        "logs/inputs/{set}/{model}-{revision}/{shard}.log",
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
        code=lambda w: digest_code("parity.inputs.prompts", name_family(w), measured=False),
    message:
        "encode the captions for {wildcards.model}, part {wildcards.shard}"
    shell:
        r"""
        python -m parity.job inputs captions --prompts {input.prompts:q} --checkpoint {input.checkpoint:q} \
            --threads {threads} --device {resources.gpu} --out {output:q} >{log:q} 2>&1
        """


rule task:
    input:
        checkpoint=find_manifest,
        data=list_task_data,
    output:
        "results/inputs/anysubset/{task_kind}-{key}.npz",
    log:
        "logs/inputs/anysubset/{task_kind}-{key}.log",
    wildcard_constraints:
        **PATTERNS,
    localrule: True
    conda:
        "../../envs/parity.yaml"
    threads: 1
    params:
        settings=lambda w: dump_canonical(TASKS[w.key]["settings"]),
        code=digest_code("parity.inputs.tasks", measured=False),
    message:
        "make the texts of {wildcards.task_kind}-{wildcards.key}"
    shell:
        r"""
        python -m parity.job inputs task --task-kind {wildcards.task_kind} --settings {params.settings:q} \
            --checkpoint {input.checkpoint:q} --threads {threads} --out {output:q} >{log:q} 2>&1
        """
