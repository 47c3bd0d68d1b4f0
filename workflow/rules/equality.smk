"""Equality: does a decoder draw from the law it was to draw from? On models whose law is known.

REQUIRED INPUTS  decoders
OUTPUTS          results/equality/<kind>/<method>-<key>.json           rows on enumerable models, and on long ones
                 results/equality/faults-<kind>-<n>.json               planted faults: what the tests detect
                 results/equality/calibration-<replicates>.json        sizes of the tests under the null

Rows are one a test. The layers that look at a cell's own model and samples are a part of rule measure.
"""

ROWS = sorted(
    {paths.layers(c) for c in CELLS if layers.select_layers(EXPERIMENT, LAYERS, c)}
    | {paths.tests(EXPERIMENT, *pair) for pair in TESTED.values()}
    | set(paths.self_tests(EXPERIMENT).values())
)


rule test_method:
    output:
        "results/equality/{kind}/{method}-{key}.json",
    log:
        "logs/equality/{kind}/{method}-{key}.log",
    wildcard_constraints:
        **PATTERNS,
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        runtime=lambda w, attempt: (60 + EXPERIMENT.equality.n // 10_000) * attempt,
    params:
        spec=test_spec,
        code=testing_code,
    message:
        "test {wildcards.method} on models whose law is known ({wildcards.kind})"
    shell:
        r"""
        python -m parity.equality tests --kind {wildcards.kind} --method {wildcards.method} --spec {params.spec:q} \
            --threads {threads} --out {output:q} >{log:q} 2>&1
        """


rule faults:
    output:
        "results/equality/faults-{kind}-{n}.json",
    log:
        "logs/equality/faults-{kind}-{n}.log",
    wildcard_constraints:
        **PATTERNS,
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        runtime=lambda w, attempt: (60 + EXPERIMENT.equality.n // 10_000) * attempt,
    params:
        code=faults_code,
    message:
        "look for planted faults ({wildcards.kind})"
    shell:
        "python -m parity.equality faults --kind {wildcards.kind} --n {wildcards.n}"
        " --threads {threads} --out {output:q} >{log:q} 2>&1"


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
        "python -m parity.equality calibration --replicates {wildcards.replicates} --out {output:q} >{log:q} 2>&1"
