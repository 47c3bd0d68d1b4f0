"""Generate: decode every shard of every cell.

REQUIRED INPUTS  a cell's specification, an encoded prompt shard, the checkpoint manifest, the sources the method depends on
OUTPUTS          results/cells/<model>/<method>-<key>/spec.json              what was asked for
                 results/cells/<model>/<method>-<key>/shards/<k>-of-<n>.npz  tokens, and one record per image

`generate` is the rule that every method inherits (workflow/methods/<method>.smk); by itself nothing asks for it. Finished shards are also
kept in results/store under a digest of all they depend on: a job that finds its shard there links it, so neither a killed run nor an
option changed and changed back decodes anything twice.
"""


rule specification:
    output:
        "results/cells/{model}/{method}-{key}/spec.json",
    log:
        "logs/spec/{model}/{method}-{key}.log",
    wildcard_constraints:
        key="[0-9a-f]{8}",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    params:
        spec=lambda w: canonical(SPECS[w.key]),
    shell:
        "printf '%s\\n' {params.spec:q} > {output:q}.part 2> {log:q} && mv {output:q}.part {output:q}"


rule generate:
    input:
        spec="results/cells/{model}/<method>-{key}/spec.json",
        prompts=lambda w: layout.encoded(EXPERIMENT, PROMPTS, w.model, w.shard),
        checkpoint=lambda w: layout.manifest(EXPERIMENT, w.model),
        code=[*CORE, "src/parity/decoders/<method>.py"],
    output:
        "results/cells/{model}/<method>-{key}/shards/{shard}-of-{shards}.npz",
    log:
        "logs/generate/{model}/<method>-{key}/{shard}-of-{shards}.log",
    benchmark:
        "results/benchmarks/generate/{model}/<method>-{key}/{shard}-of-{shards}.jsonl"
    pathvars:
        method="abstract",
    wildcard_constraints:
        key="[0-9a-f]{8}",
        shard="[0-9]+",
        shards="[0-9]+",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        gpu=GPU,
    params:
        batch=EXPERIMENT.batch,
        device=device,
        code=lambda w, input: code_digest(input.code),
    shell:
        r"""
        python -m parity.generate \
            --spec {input.spec:q} \
            --prompts {input.prompts:q} \
            --checkpoint {input.checkpoint:q} \
            --code {params.code} \
            --store results/store \
            --batch {params.batch} \
            --threads {threads} \
            --device {params.device} \
            --out {output:q} \
            >{log:q} 2>&1
        """
