"""Training: train the embedded models anew. Only its targets ask for this; the weights ship with the package.

REQUIRED INPUTS  what a recipe reads of others, as recipes/runs.py says
OUTPUTS          results/training/<recipe>.safetensors and .json (the log)
                 src/parity/embedded/weights/<kind>: weights (fp16), SHA256SUMS and a model card each, one target a kind:
                 train_embedded (discrete), train_words (anysubset), train_continuous

Run it in the folder of a clone, with `--resources gpu=1`: recipe `llamagen` took 4 minutes on a GPU, and an eighth of
its images took three hours on one core. Seeded. Every recipe continues from its own checkpoint, so a killed run loses
minutes.
"""

from recipes.runs import INSTALLS, ON_DEVICES, RUNS, list_runs


rule train:
    input:
        lambda w: [f"results/training/{recipe}.safetensors" for recipe in RUNS[w.recipe].reads],
    output:
        weights="results/training/{recipe}.safetensors",
        log="results/training/{recipe}.json",
    log:
        "logs/training/{recipe}.log",
    wildcard_constraints:
        recipe="|".join(RUNS),
    conda:
        "../../envs/parity.yaml"
    threads: lambda w: RUNS[w.recipe].threads
    resources:
        gpu=lambda w: gpu(w) if w.recipe in ON_DEVICES else 0,
    params:
        run=lambda w: "--steps {0.steps} --batch {0.batch} --examples {0.examples}".format(RUNS[w.recipe]),
        code=lambda w: digest_code(f"recipes.{RUNS[w.recipe].kind}", measured=False),
    message:
        "train {wildcards.recipe}"
    shell:
        """
        python -m recipes {wildcards.recipe} --work results/training {params.run} --threads {threads} \
            --device {resources.gpu} >{log:q} 2>&1
        """


for model_kind, target in INSTALLS.items():

    rule:
        name:
            target
        input:
            collect("results/training/{run.name}.{part}", run=list_runs(model_kind), part=("safetensors", "json")),
        log:
            f"logs/training/install-{model_kind}.log",
        conda:
            "../../envs/parity.yaml"
        threads: 1
        params:
            kind=model_kind,
        message:
            "install the weights of {params.kind} models"
        shell:
            "python -m recipes install {params.kind} --work results/training >{log:q} 2>&1"
