"""Checkpoints: get a model's files, verify them by SHA-256, convert what is pickled.

REQUIRED INPUTS  the models of every section of the configuration; for embedded ones src/parity/embedded/weights
OUTPUTS          results/checkpoints/<kind>/<model>-<revision>/manifest.json: where each file is, and its digest
                 target `plan`: says what the experiment will need, and makes nothing
                 target `fetch`: downloads what it will need and is not here, and makes nothing else: pins.yaml,
                 files of workflow/data.yaml in data/, checkpoints, networks that judge

The only rules that may use the network. A pinned commit, a digest for every file.
"""


rule checkpoint:
    input:
        local(ANEW),
    output:
        "results/checkpoints/{kind}/{model}-{revision}/manifest.json",
    log:
        "logs/checkpoints/{kind}/{model}-{revision}.log",
    wildcard_constraints:
        **PATTERNS,
    localrule: True
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        mem_mb=memory,
        disk_mb=40000,
    params:
        spec=dump_model_spec,
        code=digest_code("parity.models.fetch", measured=False),
    message:
        "check the files of {wildcards.model}"
    shell:
        r"""
        python -m parity.job models --kind {wildcards.kind} --name {wildcards.model} --spec {params.spec:q} \
            --out {output:q} >{log:q} 2>&1
        """


rule plan:
    log:
        f"logs/{EXPERIMENT.experiment}/plan.log",
    localrule: True
    conda:
        "../../envs/parity.yaml"
    threads: 1
    params:
        config=EXPERIMENT.model_dump_json(exclude_unset=True),
        absent=dump_canonical([*ABSENT, *dict.fromkeys(UNPINNED)]),
    message:
        "what {EXPERIMENT.experiment} will need"
    shell:
        "python -m parity.models plan --config {params.config:q} --absent {params.absent:q} | tee {log:q}"


rule fetch:
    log:
        f"logs/{EXPERIMENT.experiment}/fetch.log",
    localrule: True
    conda:
        "../../envs/parity.yaml"
    threads: 1
    params:
        config=dump_canonical(AS_GIVEN),
        catalogue=CATALOGUE,
    message:
        "fetch what {EXPERIMENT.experiment} needs"
    shell:
        """
        python -m parity.models fetch --config {params.config:q} --catalogue {params.catalogue:q} 2>&1 | tee {log:q}
        """
