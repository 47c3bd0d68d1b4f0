"""Drafting: what drafted trees and the target's features are like, the observations that verification skipping rests on.

REQUIRED INPUTS  plain sampling's shards, encoded prompts, the checkpoint manifest with its drafter
OUTPUTS          results/drafting/<model>/<cell>/{similarity,staleness}.json   figures for the report

Runs in experiments that skip verification (method vvs).
"""

DRAFTING = [
    f"results/drafting/{cell['cell']}/{name}.json"
    for cell in CELLS
    if "vvs" in EXPERIMENT.methods and cell["role"] == "reference"
    for name in ("similarity", "staleness")
]


rule drafting:
    input:
        spec="results/cells/{model}/{cell}/spec.json",
        prompts=encoded_prompts,
        shards=lambda w: [f"results/cells/{w.model}/{w.cell}/shards/{k}-of-{SHARDS}.npz" for k in range(SHARDS)],
        checkpoint=lambda w: layout.manifest(EXPERIMENT, w.model),
        code=["src/parity/drafting_study.py", "src/parity/candidates.py", "src/parity/models/eagle.py"],
    output:
        "results/drafting/{model}/{cell}/similarity.json",
        "results/drafting/{model}/{cell}/staleness.json",
    log:
        "logs/drafting/{model}/{cell}.log",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        gpu=GPU,
    params:
        cell=subpath(input.spec, parent=True),
        device=device,
    shell:
        r"""
        python -m parity.drafting_study \
            --cell {params.cell:q} \
            --prompts {input.prompts:q} \
            --shards {input.shards:q} \
            --checkpoint {input.checkpoint:q} \
            --threads {threads} \
            --device {params.device} \
            --out {output:q} \
            >{log:q} 2>&1
        """
