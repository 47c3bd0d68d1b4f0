"""Decode: every shard of every cell, whatever the kind of model.

REQUIRED INPUTS  a cell's inputs, the checkpoint manifest
OUTPUTS          results/cells/<kind>/<model>/<method>-<key>/shards/<k>-of-<n>.npz  tokens, and one record per image or text

One rule runs every method, a module of src/parity/decoders/<kind>, but those with a rule of their own
(workflow/methods/<kind>_<method>.smk).
Finished shards are also kept in results/store under a digest of all they depend on: a job that finds its shards there
decodes none of them, so neither a killed run nor an option changed and changed back decodes anything twice. Where there
are more shards than jobs, each job decodes some, one after another, to one file.
"""


rule decode:
    input:
        inputs=lambda w: paths.inputs(EXPERIMENT, PROMPTS, BY_KEY[w.key], int(w.shard)),
        checkpoint=lambda w: paths.checkpoint(EXPERIMENT, BY_KEY[w.key]),
    output:
        "results/cells/{kind}/{model}/{method}-{key}/shards/{shard}-of-{shards}.npz",
    log:
        "logs/decode/{kind}/{model}/{method}-{key}/{shard}-of-{shards}.log",
    wildcard_constraints:
        kind=kinds_but(OWN_RULES),
        model="[a-z0-9][a-z0-9_.-]*",
        method="[a-z0-9_]+",
        key="[0-9a-f]{8}",
        shard="[0-9]+",
        shards="[0-9]+",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        gpu=gpu,
        mem_mb=memory,
        runtime=runtime,
    params:
        kind=lambda w: BY_KEY[w.key].kind,
        spec=lambda w: canonical(BY_KEY[w.key].spec),
        inputs=lambda w, input: flag_files("inputs", input.inputs),
        batch=lambda w: batch(BY_KEY[w.key]),
        shards=lambda w: paths.shards_of_a_job(EXPERIMENT, BY_KEY[w.key].kind),
        compile=EXPERIMENT.compile,
        refill=EXPERIMENT.refill,
        digest=lambda w: code_digest.digest(*decoding_code(BY_KEY[w.key])),
        code=lambda w: code_parameter(*decoding_code(BY_KEY[w.key])),
    message:
        "decode {wildcards.model}/{wildcards.method}-{wildcards.key}, part {wildcards.shard} of {wildcards.shards}"
    shell:
        r"""
        python -m parity.decode \
            --kind {params.kind} \
            --spec {params.spec:q} \
            {params.inputs} \
            --checkpoint {input.checkpoint:q} \
            --code {params.digest} \
            --store results/store \
            --batch {params.batch} \
            --shards {params.shards} \
            --threads {threads} \
            --device {resources.gpu} \
            --compile {params.compile} \
            --refill {params.refill} \
            --out {output:q} \
            >{log:q} 2>&1
        """
