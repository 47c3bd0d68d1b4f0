"""Speculators: train heads, draft models and drafters of image models, each from its model's own samples.

REQUIRED INPUTS  the model's manifest, the prompts
OUTPUTS          results/speculators/<model>-<revision>/<speculator>-<key>: weights, a card, and an experiment that uses them
                 target `speculators`: all that `image.speculators` names, for each model of the section

                 results/drafts/<model>-<revision>/<method>-<key>/weights: the draft network that a decoder of others trains

A killed job continues from its own rows and checkpoint, which lie in the same folder. `parity train` does the same for
one speculator.
"""


rule speculator:
    input:
        prompts=prompt_files.source(EXPERIMENT.image.prompts) if EXPERIMENT.image else [],
        checkpoint=lambda w: MANIFESTS[f"discrete/{w.model}"],
    output:
        weights="results/speculators/{model}-{revision}/{speculator}-{key}/{speculator}.safetensors",
        card="results/speculators/{model}-{revision}/{speculator}-{key}/{speculator}.md",
        experiment="results/speculators/{model}-{revision}/{speculator}-{key}/{speculator}.yaml",
    log:
        "logs/speculators/{model}-{revision}/{speculator}-{key}.log",
    wildcard_constraints:
        **PATTERNS,
        speculator="heads|draft|drafter",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        gpu=gpu,
        mem_mb=memory,
        runtime=runtime,
    params:
        config=dump_training_config,
        flags=format_training_flags,
        folder=lambda w, output: Path(output.weights).parent,
        code=lambda w: digest_code("parity.train.speculators", name_family(w), measured=False),
    message:
        "train {wildcards.speculator} of {wildcards.model}"
    shell:
        r"""
        python -m parity.train {wildcards.speculator} --config {params.config:q} --model {wildcards.model} \
            --checkpoint {input.checkpoint:q} {params.flags} --out {params.folder:q} --threads {threads} \
            --device {resources.gpu} >{log:q} 2>&1
        """


rule draft:
    input:
        prompts=prompt_files.source(EXPERIMENT.image.prompts) if EXPERIMENT.image else [],
        checkpoint=lambda w: MANIFESTS[f"discrete/{w.model}"],
    output:
        weights="results/drafts/{model}-{revision}/{method}-{key}/weights",
    log:
        "logs/drafts/{model}-{revision}/{method}-{key}.log",
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
        config=dump_training_config,
        method=name_draft_method,
        code=lambda w: digest_code(
            "parity.train.own", name_module("discrete", name_draft_method(w)), name_family(w), measured=False
        ),
    message:
        "train the draft network of {params.method} for {wildcards.model}"
    shell:
        r"""
        python -m parity.train own --method {params.method:q} --config {params.config:q} --model {wildcards.model} \
            --checkpoint {input.checkpoint:q} --out {output.weights:q} --threads {threads} \
            --device {resources.gpu} >{log:q} 2>&1
        """


rule speculators:
    input:
        paths.speculators(EXPERIMENT, PROMPTS),
