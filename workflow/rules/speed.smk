"""Speed: what passes cost on this machine, how fast each method should be, and how fast the best are.

REQUIRED INPUTS  specification and records of every cell that is compared with one reference, the checkpoint manifest
OUTPUTS          results/speed/<kind>/<model>-<key>.json    by cell: predicted and measured speeds, times plain decoding's

The job computes with one thread, and no other job runs beside it: it takes all cores of this machine, and on Slurm a node
to itself (`--exclusive`). On Kubernetes others may share its node.
"""


rule speed:
    input:
        cells=lambda w: [
            f"{paths.folder(c)}/{name}" for c in find_group(w) for name in ("spec.json", "records.parquet")
        ],
        inputs=lambda w: paths.inputs(EXPERIMENT, PROMPTS, find_group(w)[0], 0),
        drafts=lambda w: sorted({c.spec["own_draft"] for c in find_group(w) if "own_draft" in c.spec}),
        checkpoint=find_manifest,
    output:
        "results/speed/{kind}/{model}-{key}.json",
    log:
        "logs/speed/{kind}/{model}-{key}.log",
    wildcard_constraints:
        **PATTERNS,
    priority: -1  # other jobs first, as long as there are any
    conda:
        "../../envs/parity.yaml"
    threads: workflow.cores if workflow.local_exec and not workflow.remote_exec else 1
    resources:
        gpu=gpu,
        mem_mb=memory,
        runtime=runtime,
        slurm_extra="--exclusive",
    params:
        # where the files of the cells are: here, or where Snakemake puts what it fetched from a storage
        folders=lambda w, input: list(dict.fromkeys(str(Path(file).parent) for file in input.cells)),
        inputs=lambda w, input: format_flag("inputs", input.inputs),
        batch=lambda w: find_group(w)[0].spec.get("batch") or EXPERIMENT.image.batch,
        named=dump_canonical(EXPERIMENT.timing.methods),
        seconds=EXPERIMENT.timing.seconds,
        compile=EXPERIMENT.compile,
        capture=EXPERIMENT.capture,
        code=lambda w: digest_timing(find_group(w), w),
    message:
        "time the methods of {wildcards.model} in turns"
    shell:
        r"""
        python -m parity.tune.speed --kind {wildcards.kind} --cells {params.folders:q} {params.inputs} \
            --checkpoint {input.checkpoint:q} --batch {params.batch} --named {params.named:q} --seconds {params.seconds} \
            --compile {params.compile} --capture {params.capture} --device {resources.gpu} --out {output:q} >{log:q} 2>&1
        """
