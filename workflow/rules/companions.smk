"""Companions: train heads, draft models and drafters of image models, each from its model's own samples.

REQUIRED INPUTS  the model's manifest, the prompts
OUTPUTS          results/companions/<model>-<revision>/<companion>-<key>: weights, a card, and an experiment that uses them
                 target `companions`: all that `image.companions` names, for each model of the section

                 results/drafts/<model>-<revision>/<method>-<key>/weights: the draft network that a decoder of others trains

A killed job continues from its own rows and checkpoint, which lie in the same folder. `parity train` does the same for
one companion.
"""


rule companion:
    input:
        prompts=prompt_files.source(EXPERIMENT.image.prompts) if EXPERIMENT.image else [],
        checkpoint=lambda w: MANIFESTS[f"discrete/{w.model}"],
    output:
        weights="results/companions/{model}-{revision}/{companion}-{key}/{companion}.safetensors",
        card="results/companions/{model}-{revision}/{companion}-{key}/{companion}.md",
        experiment="results/companions/{model}-{revision}/{companion}-{key}/{companion}.yaml",
    log:
        "logs/companions/{model}-{revision}/{companion}-{key}.log",
    wildcard_constraints:
        **PATTERNS,
        companion="heads|draft|drafter",
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
        code=lambda w: digest_code("parity.train.companions", name_family(w), measured=False),
    message:
        "train {wildcards.companion} of {wildcards.model}"
    shell:
        r"""
        python -m parity.train {wildcards.companion} --config {params.config:q} --model {wildcards.model} \
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


rule companions:
    input:
        paths.companions(EXPERIMENT, PROMPTS),
