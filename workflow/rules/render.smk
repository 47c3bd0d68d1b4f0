"""Render: tokens to pictures.

REQUIRED INPUTS  a shard of tokens, the checkpoint manifest (for the image tokenizer)
OUTPUTS          results/cells/<model>/<method>-<key>/images/<k>-of-<n>.npz: ids and pixels
"""


rule render:
    input:
        shard="results/cells/{model}/{cell}/shards/{shard}.npz",
        checkpoint=lambda w: layout.manifest(EXPERIMENT, w.model),
        code=["src/parity/render.py", "src/parity/models/vq.py"],
    output:
        "results/cells/{model}/{cell}/images/{shard}.npz",
    log:
        "logs/render/{model}/{cell}/{shard}.log",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        gpu=GPU,
    params:
        device=device,
    shell:
        r"""
        python -m parity.render \
            --shard {input.shard:q} \
            --checkpoint {input.checkpoint:q} \
            --threads {threads} \
            --device {params.device} \
            --out {output:q} \
            >{log:q} 2>&1
        """
