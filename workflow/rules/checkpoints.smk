"""Checkpoints: get a model's files, verify them by SHA-256, convert what is pickled.

REQUIRED INPUTS  the `models` section of the configuration; for the embedded model src/parity/embedded/weights
OUTPUTS          results/checkpoints/<model>-<revision>/manifest.json: where each file is, and its digest

The only rule that may use the network, and only for `source: hub`. A pinned commit, a digest for every file.
"""


rule checkpoint:
    input:
        weights=ancient(weights),
    output:
        "results/checkpoints/{model}-{revision}/manifest.json",
    log:
        "logs/checkpoints/{model}-{revision}.log",
    wildcard_constraints:
        model="[a-z0-9][a-z0-9_.-]*",
        revision="[0-9a-z]{8,9}",
    retries: 2
    conda:
        "../../envs/parity.yaml"
    threads: 1
    params:
        spec=lambda w: canonical(EXPERIMENT.models[w.model].model_dump(exclude_unset=True)),
    shell:
        r"""
        python -m parity.checkpoints \
            --name {wildcards.model} \
            --spec {params.spec:q} \
            --out {output:q} \
            >{log:q} 2>&1
        """
