"""Equality: does a decoder draw from its model's distribution? Tested on models whose distribution is known.

REQUIRED INPUTS  decoders
OUTPUTS          results/equality/<kind>/<method>-<key>.json           rows on enumerable models, and on long ones

Each test is a row. The layers that look at a cell's own model and samples are part of the rules measure_<kind>.
"""

ROWS = sorted(
    {paths.layers(c) for c in CELLS if layers.select_layers(EXPERIMENT, LAYERS, c)}
    | {paths.tests(EXPERIMENT, *pair) for pair in TESTED.values()}
)


def find_tested(wildcards):
    """Find the name of the decoder that a job tests on models whose distribution is known."""
    return next(v for v in TESTED[wildcards.kind, wildcards.key] if v).method


def digest_testing(wildcards):
    """Digest what the tests of a method on models of known distributions are named by; one coupled to plain decoding is
    compared with it."""
    kind = wildcards.kind
    exact, _ = TESTED[kind, wildcards.key]
    modules = ["parity.equality.exact", f"parity.equality.targets.{kind}", name_module(kind, find_tested(wildcards))]
    if exact and options.is_coupled(kind, exact.method, exact.options):
        modules += ["parity.equality.pathwise", name_module(kind, options.find_plain_method(kind))]
    return digest_code(*modules)


def dump_test_spec(wildcards):
    """Write the settings of the exact tests and of the long ones, each if the method has such a test."""
    exact, long = TESTED[wildcards.kind, wildcards.key]
    shared = {"seeds": EXPERIMENT.equality.seeds[:2], "alpha": EXPERIMENT.equality.alpha}
    pair = {name: v for name, v in (("exact", exact), ("long", long)) if v}
    spec = {name: {"options": v.options, "claim": v.claim, "n": v.n, **shared} for name, v in pair.items()}
    if long and long.longest:  # images are longer than the longest model else would be
        spec["long"]["longest"] = long.longest
    if exact:  # a decoder coupled to plain decoding by shared noise must also return its very tokens
        coupled = options.is_coupled(exact.kind, exact.method, exact.options)
        spec["exact"] |= {"models": EXPERIMENT.equality.models, "pathwise": coupled}
    return dump_canonical(spec)


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
