"""Equality: does a decoder draw from its model's distribution? Tested on models whose distribution is known.

REQUIRED INPUTS  decoders
OUTPUTS          results/equality/<kind>/<method>-<key>.json           rows on enumerable models, and on long ones

Each test is a row. The layers that look at a cell's own model and samples are part of the rules measure_<kind>.
"""

ROWS = sorted(
    {paths.layers(c) for c in CELLS if layers.select_layers(EXPERIMENT, LAYERS, c)}
    | {paths.tests(EXPERIMENT, *pair) for pair in TESTED.values()}
)


rule test_method:
    input:
        local(ANEW),
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
        mem_mb=lambda w, attempt: attempt * 4000,
        runtime=lambda w, attempt: attempt * 240,
    params:
        spec=dump_test_spec,
        method=find_tested,
        code=digest_testing,
    message:
        "test {wildcards.method} on models whose distribution is known ({wildcards.kind})"
    shell:
        r"""
        python -m parity.job equality tests --kind {wildcards.kind} --method {params.method:q} --spec {params.spec:q} \
            --threads {threads} --out {output:q} >{log:q} 2>&1
        """
