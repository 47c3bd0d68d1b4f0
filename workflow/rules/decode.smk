"""Decode: every shard of every cell, whatever the kind of model.

REQUIRED INPUTS  a cell's inputs, the checkpoint manifest
OUTPUTS          results/cells/<kind>/<model>/<method>-<key>/shards/<k>-of-<n>.npz  tokens, and one record per image or text

One rule runs all methods, modules of decoders/src/parity_decoders/<kind> and those of others, except those that have a
rule of their own in workflow/methods, with other threads, resources or another environment. Tokens made elsewhere are
taken, not decoded.
Finished shards are also kept in results/store under a digest of all they depend on. A job that finds its shards there
decodes none of them, so neither a killed run nor an option changed and changed back decodes anything twice. If there are
more shards than jobs, each job decodes several, one after another, to one file. A job of images has inputs of its own; of
texts and vectors it takes its part of all rows.
"""


rule decode:
    input:
        inputs=lambda w: paths.inputs(EXPERIMENT, PROMPTS, find_cell(w), int(w.shard)),
        draft=list_draft,
        checkpoint=find_manifest,
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
        kind=lambda w: find_cell(w).kind,
        spec=lambda w: dump_canonical(find_cell(w).asked),
        inputs=lambda w, input: format_flag("inputs", input.inputs),
        part=lambda w: "" if w.kind == "discrete" else f"--part {w.shard} {w.shards}",
        batch=lambda w: find_cell(w).spec["batch"] if "batch" in find_cell(w).spec else EXPERIMENT.image.batch,
        shards=lambda w: paths.shards_of_a_job(EXPERIMENT, find_cell(w).kind),
        compile=EXPERIMENT.compile,
        capture=EXPERIMENT.capture,
        refill=EXPERIMENT.refill,
        digest=lambda w: digest_decoding(w).split()[0],
        code=digest_decoding,
    message:
        "decode {wildcards.model}/{wildcards.method}-{wildcards.key}, part {wildcards.shard} of {wildcards.shards}"
    shell:
        r"""
        python -m parity.job decode --kind {params.kind} --spec {params.spec:q} {params.inputs} {params.part} \
            --checkpoint {input.checkpoint:q} --code {params.digest} --store results/store \
            --batch {params.batch} --shards {params.shards} --compile {params.compile} --capture {params.capture} \
            --refill {params.refill} \
            --threads {threads} --device {resources.gpu} --out {output:q} >{log:q} 2>&1
        """


rule take_made:
    input:
        tokens=lambda w: local([find_made(w)["tokens"]]),
        inputs=lambda w: paths.inputs(EXPERIMENT, PROMPTS, find_cell(w)),
    output:
        "results/cells/{kind}/{model}/{method}-{key}/shards/{shard}-of-{shards}.npz",
    log:
        "logs/decode/{kind}/{model}/{method}-{key}/{shard}-of-{shards}.log",
    wildcard_constraints:
        **PATTERNS | {"kind": made.KIND, "method": made.MADE},
    priority: 1  # a file that does not fit ends the run early
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        spec=lambda w: dump_canonical(find_cell(w).asked),
        sizes=lambda w: dump_canonical(weights.list_code_sizes(weights.list_models(EXPERIMENT, w.kind)[w.model])),
        inputs=lambda w, input: format_flag("inputs", input.inputs),
        seconds=lambda w: " ".join(format_flag(flag, [file]) for flag, file in find_made(w)["seconds"].items()),
        code=digest_decoding,
    message:
        "take the tokens of {wildcards.model}/{wildcards.method}-{wildcards.key} that were made elsewhere"
    shell:
        r"""
        python -m parity.job decode.made --spec {params.spec:q} --sizes {params.sizes:q} --tokens {input.tokens:q} \
            {params.inputs} {params.seconds} --part {wildcards.shard} {wildcards.shards} --out {output:q} >{log:q} 2>&1
        """


ruleorder: take_made > decode
