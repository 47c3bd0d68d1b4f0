"""Prompts: normalise the prompt file, split it into shards, encode the captions once for all methods.

REQUIRED INPUTS  prompts.file of the configuration (UTF-8 text, one prompt a line); the checkpoint manifest, for the text encoder
OUTPUTS          results/prompts/<digest>-<repeats>x<shards>/<k>.json                      image ids and captions
                 results/prompts/<digest>-<repeats>x<shards>/<model>-<revision>/<k>.npz    and their embeddings
"""


rule shard_prompts:
    input:
        EXPERIMENT.prompts.file,
    output:
        collect("results/prompts/{set}/{shard}.json", set=PROMPT_SET, shard=range(SHARDS)),
    log:
        f"logs/prompts/{PROMPT_SET}.log",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    params:
        folder=subpath(output[0], parent=True),
        limit=len(PROMPTS),
        repeats=EXPERIMENT.prompts.repeats,
        shards=SHARDS,
        max_words=EXPERIMENT.prompts.max_words,
    shell:
        r"""
        python -m parity.prompts \
            --file {input:q} \
            --limit {params.limit} \
            --repeats {params.repeats} \
            --shards {params.shards} \
            --max-words {params.max_words} \
            --out {params.folder:q} \
            >{log:q} 2>&1
        """


rule encode:
    input:
        prompts="results/prompts/{set}/{shard}.json",
        checkpoint="results/checkpoints/{model}/manifest.json",
        code=["src/parity/encode.py", "src/parity/embedded/text.py"],
    output:
        "results/prompts/{set}/{model}/{shard}.npz",
    log:
        "logs/prompts/{set}/{model}/{shard}.log",
    wildcard_constraints:
        shard="[0-9]+",
        set="[^/]+",
        model="[^/]+",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        gpu=GPU,
    params:
        device=device,
    shell:
        r"""
        python -m parity.encode \
            --prompts {input.prompts:q} \
            --checkpoint {input.checkpoint:q} \
            --threads {threads} \
            --device {params.device} \
            --out {output:q} \
            >{log:q} 2>&1
        """
