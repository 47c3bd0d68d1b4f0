"""Prompts: normalise the prompt file and split it into shards.

REQUIRED INPUTS  prompts.file of the configuration (UTF-8 text, one prompt a line)
OUTPUTS          results/prompts/<digest>-<repeats>x<shards>/<k>.json: image ids and captions
"""


rule shard_prompts:
    input:
        EXPERIMENT.prompts.file,
    output:
        collect(
            "results/prompts/{set}/{shard}.json", set=PROMPT_SET, shard=range(SHARDS)
        ),
    log:
        f"logs/prompts/{PROMPT_SET}.log",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    params:
        folder=f"results/prompts/{PROMPT_SET}",
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
            > {log:q} 2>&1
        """
