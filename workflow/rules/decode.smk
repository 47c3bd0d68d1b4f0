"""Decode: every shard of every cell, whatever the kind of model.

REQUIRED INPUTS  a cell's inputs, the checkpoint manifest
OUTPUTS          results/cells/<kind>/<model>/<method>-<key>/shards/<k>-of-<n>.npz  tokens, and one record per image or text

One rule runs every method, a module of decoders/src/parity_decoders/<kind>; a file of workflow/methods may come before it for a
method that wants other threads, resources or another environment.
Finished shards are also kept in results/store under a digest of all they depend on: a job that finds its shards there
decodes none of them, so neither a killed run nor an option changed and changed back decodes anything twice. Where there
are more shards than jobs, each job decodes some, one after another, to one file.
"""


rule decode:
    input:
        inputs=lambda w: paths.inputs(EXPERIMENT, PROMPTS, cell(w), int(w.shard)),
        checkpoint=checkpoint,
    output:
        "results/cells/{kind}/{model}/{method}-{key}/shards/{shard}-of-{shards}.npz",
    log:
        "logs/decode/{kind}/{model}/{method}-{key}/{shard}-of-{shards}.log",
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
        kind=lambda w: cell(w).kind,
        spec=lambda w: dump_canonical(cell(w).spec),
        inputs=lambda w, input: flag_files("inputs", input.inputs),
        batch=lambda w: cell(w).spec["batch"] if "batch" in cell(w).spec else EXPERIMENT.image.batch,
        shards=lambda w: paths.shards_of_a_job(EXPERIMENT, cell(w).kind),
        compile=EXPERIMENT.compile,
        refill=EXPERIMENT.refill,
        digest=lambda w: decoding_code(w).split()[0],
        code=decoding_code,
    message:
        "decode {wildcards.model}/{wildcards.method}-{wildcards.key}, part {wildcards.shard} of {wildcards.shards}"
    shell:
        r"""
        python -m parity.decode --kind {params.kind} --spec {params.spec:q} {params.inputs} \
            --checkpoint {input.checkpoint:q} --code {params.digest} --store results/store \
            --batch {params.batch} --shards {params.shards} --compile {params.compile} --refill {params.refill} \
            --threads {threads} --device {resources.gpu} --out {output:q} >{log:q} 2>&1
        """
