"""Metrics: figures of each cell, with their errors.

REQUIRED INPUTS  shards, images and log-probabilities (rule teacher_forced) of a cell, the checkpoint manifest, the reference pictures
OUTPUTS          results/reference/<prompts>-<n>/<model>.npz              pictures to compare with, and features
                 results/cells/<model>/<method>-<key>/metrics.json        speed, likelihood, FID, KID, CLIP-score, precision, recall
                 results/cells/<model>/<method>-<key>/features.npz        a row per image, for the paired tests
"""


rule reference:
    input:
        prompts=collect("results/prompts/{{set}}/{shard}.json", shard=range(SHARDS)),
        checkpoint="results/checkpoints/{model}/manifest.json",
        code=["src/parity/reference.py", "src/parity/embedded/scenes.py"],
    output:
        "results/reference/{set}-{pictures}/{model}.npz",
    log:
        "logs/reference/{set}-{pictures}/{model}.log",
    wildcard_constraints:
        pictures="[0-9]+",
        model="[^/]+",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    params:
        folder=EXPERIMENT.reference_folder,
    shell:
        r"""
        python -m parity.reference \
            --prompts {input.prompts:q} \
            --count {wildcards.pictures} \
            --folder={params.folder:q} \
            --checkpoint {input.checkpoint:q} \
            --threads {threads} \
            --out {output:q} \
            >{log:q} 2>&1
        """


rule measure:
    input:
        shards=lambda w: [f"results/cells/{w.model}/{w.cell}/shards/{k}-of-{SHARDS}.npz" for k in range(SHARDS)],
        logp="results/equality/teacher-forced/{model}/{cell}.npz",
        images=lambda w: [f"results/cells/{w.model}/{w.cell}/images/{k}-of-{SHARDS}.npz" for k in range(SHARDS)],
        checkpoint=lambda w: layout.manifest(EXPERIMENT, w.model),
        reference=reference_file,
        code=["src/parity/measure.py", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "src/parity/metrics").glob("*.py"))],
    output:
        metrics="results/cells/{model}/{cell}/metrics.json",
        features="results/cells/{model}/{cell}/features.npz",
    log:
        "logs/measure/{model}/{cell}.log",
    wildcard_constraints:
        cell="[a-z0-9_]+-[0-9a-f]{8}",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        gpu=GPU,
    params:
        device=device,
    shell:
        r"""
        python -m parity.measure \
            --shards {input.shards:q} \
            --images {input.images:q} \
            --logp {input.logp:q} \
            --checkpoint {input.checkpoint:q} \
            --reference {input.reference:q} \
            --threads {threads} \
            --device {params.device} \
            --out {output.metrics:q} \
            --features {output.features:q} \
            >{log:q} 2>&1
        """
