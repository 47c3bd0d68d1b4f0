"""Training: make the embedded models anew. Nothing asks for this but the target `train_embedded`; the weights ship with the package.

REQUIRED INPUTS  the recipes and the Scenes generator in src/parity/embedded
OUTPUTS          results/training/<model>.safetensors and .json (the log)
                 src/parity/embedded/weights: weights (fp16), SHA256SUMS and a model card each
                 src/parity/embedded/weights/words: the same of the text models (target `train_words`)
                 src/parity/embedded/weights/continuous: and of the continuous ones (target `train_continuous`)

Takes about five hours on two cores. Seeded; every recipe resumes from its own checkpoint, so a killed run loses minutes.
"""

STEPS = {  # steps, batch
    "vq": (2800, 48),
    "text": (1200, 128),
    "clip": (450, 128),
    "llamagen": (6500, 32),
    "draft": (2000, 32),
    "drafter": (500, 32),
    "llamagen8": (1500, 32),
}

WORDS = {"xlnet": ("train_anysubset", 3000, 16), "judge": ("train_judge", 600, 16)}  # recipe, steps, batch

CONTINUOUS_RECIPES = {  # steps, batch
    "kl": (4300, 48),
    "classifier": (1000, 96),
    "mar": (5450, 64),
    "mar-draft": (1800, 64),
    "gmm": (2500, 64),
    "gmm-draft": (1500, 64),
    "xar": (5000, 32),
    "xar-draft": (2500, 32),
    "harmon": (6000, 32),
    "harmon-draft": (2000, 32),
}


rule train_vq:
    input:
        code=[
            "src/parity/embedded/train_vq.py",
            "src/parity/embedded/scenes.py",
            "src/parity/models/vq.py",
        ],
    output:
        weights="results/training/vq.safetensors",
        log="results/training/vq.json",
    log:
        "logs/training/vq.log",
    conda:
        "../../envs/parity.yaml"
    threads: 2
    params:
        steps=STEPS["vq"][0],
        batch=STEPS["vq"][1],
    shell:
        "python -m parity.embedded.recipe vq --work results/training --steps {params.steps}"
        " --batch {params.batch} --threads {threads} > {log:q} 2>&1"


rule train_clip:
    input:
        code=[
            "src/parity/embedded/train_clip.py",
            "src/parity/embedded/clip.py",
            "src/parity/embedded/scenes.py",
        ],
    output:
        weights="results/training/clip.safetensors",
        log="results/training/clip.json",
    log:
        "logs/training/clip.log",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    params:
        steps=STEPS["clip"][0],
        batch=STEPS["clip"][1],
    shell:
        "python -m parity.embedded.recipe clip --work results/training --steps {params.steps}"
        " --batch {params.batch} --threads {threads} > {log:q} 2>&1"


rule train_text:
    input:
        code=[
            "src/parity/embedded/train_text.py",
            "src/parity/embedded/text.py",
            "src/parity/embedded/scenes.py",
        ],
    output:
        weights="results/training/text.safetensors",
        log="results/training/text.json",
    log:
        "logs/training/text.log",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    params:
        steps=STEPS["text"][0],
        batch=STEPS["text"][1],
    shell:
        "python -m parity.embedded.recipe text --work results/training --steps {params.steps}"
        " --batch {params.batch} --examples 20000 --threads {threads} > {log:q} 2>&1"


rule train_llamagen:
    input:
        vq="results/training/vq.safetensors",
        text="results/training/text.safetensors",
        code=[
            "src/parity/embedded/train_llamagen.py",
            "src/parity/models/llamagen.py",
            "src/parity/embedded/text.py",
        ],
    output:
        weights="results/training/llamagen.safetensors",
        text="results/training/t5.safetensors",
        log="results/training/llamagen.json",
    log:
        "logs/training/llamagen.log",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    params:
        steps=STEPS["llamagen"][0],
        batch=STEPS["llamagen"][1],
    shell:
        "python -m parity.embedded.recipe llamagen --work results/training --steps {params.steps}"
        " --batch {params.batch} --threads {threads} > {log:q} 2>&1"


rule train_draft:
    input:
        vq="results/training/vq.safetensors",
        text="results/training/text.safetensors",
        code=[
            "src/parity/embedded/train_llamagen.py",
            "src/parity/models/llamagen.py",
            "src/parity/embedded/text.py",
        ],
    output:
        weights="results/training/draft.safetensors",
        log="results/training/draft.json",
    log:
        "logs/training/draft.log",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    params:
        steps=STEPS["draft"][0],
        batch=STEPS["draft"][1],
    shell:
        "python -m parity.embedded.recipe draft --work results/training --steps {params.steps}"
        " --batch {params.batch} --threads {threads} > {log:q} 2>&1"


rule train_drafter:
    input:
        vq="results/training/vq.safetensors",
        target="results/training/llamagen.safetensors",
        text="results/training/t5.safetensors",
        code=[
            "src/parity/embedded/train_drafter.py",
            "src/parity/models/eagle.py",
            "src/parity/embedded/text.py",
        ],
    output:
        weights="results/training/drafter.safetensors",
        log="results/training/drafter.json",
    log:
        "logs/training/drafter.log",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    params:
        steps=STEPS["drafter"][0],
        batch=STEPS["drafter"][1],
    shell:
        "python -m parity.embedded.recipe drafter --work results/training --steps {params.steps}"
        " --batch {params.batch} --threads {threads} > {log:q} 2>&1"


rule train_llamagen8:
    input:
        vq="results/training/vq.safetensors",
        text="results/training/text.safetensors",
        code=[
            "src/parity/embedded/train_llamagen.py",
            "src/parity/models/llamagen.py",
            "src/parity/embedded/text.py",
        ],
    output:
        weights="results/training/llamagen8.safetensors",
        log="results/training/llamagen8.json",
    log:
        "logs/training/llamagen8.log",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    params:
        steps=STEPS["llamagen8"][0],
        batch=STEPS["llamagen8"][1],
    shell:
        "python -m parity.embedded.recipe llamagen8 --work results/training --steps {params.steps}"
        " --batch {params.batch} --threads {threads} > {log:q} 2>&1"


rule train_embedded:
    input:
        rules.train_vq.output,
        rules.train_text.output,
        rules.train_clip.output,
        rules.train_llamagen.output,
        rules.train_draft.output,
        rules.train_drafter.output,
        rules.train_llamagen8.output,
    log:
        "logs/training/install.log",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    shell:
        "python -m parity.embedded.recipe install --work results/training > {log:q} 2>&1"


rule train_text_model:
    input:
        code=lambda w: [
            f"src/parity/embedded/{WORDS[w.model][0]}.py",
            "src/parity/embedded/stories.py",
            "src/parity/embedded/training.py",
            "src/parity/anysubset/xlnet.py",
        ],
    output:
        weights="results/training/{model}.safetensors",
        log="results/training/{model}.json",
    log:
        "logs/training/{model}.log",
    wildcard_constraints:
        model="xlnet|judge",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    params:
        steps=lambda w: WORDS[w.model][1],
        batch=lambda w: WORDS[w.model][2],
    shell:
        "python -m parity.embedded.recipe_words {wildcards.model} --work results/training --steps {params.steps}"
        " --batch {params.batch} --threads {threads} > {log:q} 2>&1"


rule train_words:
    input:
        collect("results/training/{model}.{kind}", model=WORDS, kind=("safetensors", "json")),
    log:
        "logs/training/install-words.log",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    shell:
        "python -m parity.embedded.recipe_words install --work results/training > {log:q} 2>&1"


rule train_continuous_model:
    input:
        kl=lambda w: [] if w.model == "kl" else "results/training/kl.safetensors",
        code=lambda w: [
            f"src/parity/embedded/train_{w.model.removesuffix('-draft')}.py",
            f"src/parity/{'embedded' if w.model == 'classifier' else 'models'}/{w.model.removesuffix('-draft')}.py",
            "src/parity/embedded/scenes.py",
            "src/parity/embedded/training.py",
        ],
    output:
        weights="results/training/{model}.safetensors",
        log="results/training/{model}.json",
    log:
        "logs/training/{model}.log",
    wildcard_constraints:
        model="|".join(CONTINUOUS_RECIPES),
    conda:
        "../../envs/parity.yaml"
    threads: 1
    params:
        steps=lambda w: CONTINUOUS_RECIPES[w.model][0],
        batch=lambda w: CONTINUOUS_RECIPES[w.model][1],
    shell:
        "python -m parity.embedded.recipe_continuous {wildcards.model} --work results/training --steps {params.steps}"
        " --batch {params.batch} --threads {threads} > {log:q} 2>&1"


rule train_continuous:
    input:
        collect("results/training/{model}.{kind}", model=CONTINUOUS_RECIPES, kind=("safetensors", "json")),
    log:
        "logs/training/install-continuous.log",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    shell:
        "python -m parity.embedded.recipe_continuous install --work results/training > {log:q} 2>&1"
