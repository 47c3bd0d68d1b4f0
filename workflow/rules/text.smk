"""Text: any-subset decoders side by side, their laws, their cost, and the tasks they are measured on. Only with a `text` section.

REQUIRED INPUTS  the `text` section of the configuration; src/parity/embedded/weights/words, or the folders it names; data files
OUTPUTS          results/text/tasks/<kind>-<key>.npz          known and missing words
                 results/text/cells/<method>-<key>.npz        filled-in rows, and one record per row
                 results/text/laws/<kind>-<key>.json          last-word and multiple-choice accuracy
                 results/text/exact/<method>-<key>.json       on models whose law can be written down
                 results/<experiment>/text.html               the page, with text.csv, text-equality.csv, text-published.csv, text-records.parquet

The chain: task -> decode (per method) -> measure -> report, with exact beside it. `snakemake text` makes this page alone.
"""

from parity.anysubset import readers as text_readers

TEXT = EXPERIMENT.text
TEXT_REPORT = f"{RESULT}/text.html"
TEXT_PUBLISHED = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "workflow/published/text").glob("*.csv"))
TEXT_CODE = [
    f"src/parity/{name}.py"
    for name in (
        "noise",
        "verification",
        "anysubset/__main__",
        "anysubset/infilling",
        "anysubset/steps",
        "anysubset/words",
        "anysubset/xlnet",
        "anysubset/causal",
    )
]

try:
    TEXT_TASKS = {t["key"]: t for t in parity_config.text_tasks(TEXT)} if TEXT else {}
    TEXT_CELLS = parity_config.text_cells(EXPERIMENT)
    for task in TEXT_TASKS.values():
        text_readers.check(task["kind"], task["settings"], embedded=not TEXT.model.xlnet)
except parity_config.ConfigError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(1)

TEXT_SPECS = {c["key"]: c["spec"] for c in TEXT_CELLS}
TEXT_EXACT = {layout.text_exact_key(EXPERIMENT, c["spec"]): c["spec"] for c in TEXT_CELLS if c["spec"]["method"] != "gpt2"}
TEXT_MODEL = canonical(TEXT.model.model_dump()) if TEXT else ""
TEXT_DATA = [t["settings"]["data"] for t in TEXT_TASKS.values() if t["settings"]["data"] and Path(t["settings"]["data"]).is_file()]


rule text_task:
    input:
        code=["src/parity/anysubset/tasks.py", "src/parity/anysubset/readers.py", "src/parity/embedded/stories.py"],
        data=lambda w: [d for d in TEXT_DATA if d == TEXT_TASKS[w.key]["settings"]["data"]],
    output:
        "results/text/tasks/{kind}-{key}.npz",
    log:
        "logs/text/tasks/{kind}-{key}.log",
    wildcard_constraints:
        kind="[a-z_]+",
        key="[0-9a-f]{8}",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    params:
        settings=lambda w: canonical(TEXT_TASKS[w.key]["settings"]),
        model=TEXT_MODEL,
    shell:
        r"""
        python -m parity.anysubset task \
            --kind {wildcards.kind} \
            --settings {params.settings:q} \
            --model {params.model:q} \
            --threads {threads} \
            --out {output:q} \
            >{log:q} 2>&1
        """


rule text_decode:
    input:
        task=lambda w: layout.text_task(TEXT_SPECS[w.key]),
        code=lambda w: [*TEXT_CODE, f"src/parity/anysubset/decoders/{w.method}.py"],
    output:
        "results/text/cells/{method}-{key}.npz",
    log:
        "logs/text/cells/{method}-{key}.log",
    wildcard_constraints:
        method="[a-z0-9_]+",
        key="[0-9a-f]{8}",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        gpu=GPU,
    params:
        spec=lambda w: canonical(TEXT_SPECS[w.key]),
        model=TEXT_MODEL,
        device=device,
    shell:
        r"""
        python -m parity.anysubset decode \
            --spec {params.spec:q} \
            --task {input.task:q} \
            --model {params.model:q} \
            --threads {threads} \
            --device {params.device} \
            --out {output:q} \
            >{log:q} 2>&1
        """


rule text_laws:
    input:
        task="results/text/tasks/{kind}-{key}.npz",
        code=TEXT_CODE,
    output:
        "results/text/laws/{kind}-{key}.json",
    log:
        "logs/text/laws/{kind}-{key}.log",
    wildcard_constraints:
        kind="last_word|choice",
        key="[0-9a-f]{8}",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        gpu=GPU,
    params:
        model=TEXT_MODEL,
        device=device,
    shell:
        r"""
        python -m parity.anysubset laws \
            --kind {wildcards.kind} \
            --task {input.task:q} \
            --model {params.model:q} \
            --threads {threads} \
            --device {params.device} \
            --out {output:q} \
            >{log:q} 2>&1
        """


rule text_exact:
    input:
        code=lambda w: [
            "src/parity/noise.py",
            "src/parity/verification.py",
            "src/parity/anysubset/infilling.py",
            "src/parity/anysubset/steps.py",
            "src/parity/anysubset/tabular.py",
            "src/parity/equality/anyorder.py",
            f"src/parity/anysubset/decoders/{w.method}.py",
        ],
    output:
        "results/text/exact/{method}-{key}.json",
    log:
        "logs/text/exact/{method}-{key}.log",
    wildcard_constraints:
        method="[a-z0-9_]+",
        key="[0-9a-f]{8}",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    params:
        options=lambda w: canonical(layout.text_small(TEXT_EXACT[w.key]["options"])),
        n=EQUALITY.n,
        seeds=canonical(EQUALITY.seeds[:2]),
    shell:
        r"""
        python -m parity.anysubset exact \
            --method {wildcards.method} \
            --options {params.options:q} \
            --n {params.n} \
            --seeds {params.seeds:q} \
            --threads {threads} \
            --out {output:q} \
            >{log:q} 2>&1
        """


rule text_measure:
    input:
        cells=[layout.text_cell(c) for c in TEXT_CELLS],
        tasks=sorted({layout.text_task(c["spec"]) for c in TEXT_CELLS}),
        code=[*TEXT_CODE, "src/parity/anysubset/score.py", "src/parity/anysubset/sandbox.py", "src/parity/equality/teacher_forced.py"],
    output:
        records=f"{RESULT}/text-records.parquet",
        equality=f"{RESULT}/text-teacher-forced.json",
    log:
        f"logs/{EXPERIMENT.experiment}/text-measure.log",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        gpu=GPU,
    params:
        tasks=[layout.text_task(c["spec"]) for c in TEXT_CELLS],
        model=TEXT_MODEL,
        run_code="--run-code" if TEXT and TEXT.run_generated_code else "",
        device=device,
    shell:
        r"""
        python -m parity.anysubset measure \
            --cells {input.cells:q} \
            --tasks {params.tasks:q} \
            --model {params.model:q} \
            {params.run_code} \
            --threads {threads} \
            --device {params.device} \
            --equality {output.equality:q} \
            --out {output.records:q} \
            >{log:q} 2>&1
        """


rule text_report:
    input:
        records=f"{RESULT}/text-records.parquet",
        equality=f"{RESULT}/text-teacher-forced.json",
        exact=[layout.text_exact(key, spec) for key, spec in TEXT_EXACT.items()],
        laws=[f"results/text/laws/{t['kind']}-{t['key']}.json" for t in TEXT_TASKS.values() if t["kind"] in ("last_word", "choice")],
        published=TEXT_PUBLISHED,
        code=[
            "src/parity/anysubset/report.py",
            "src/parity/anysubset/text.html.j2",
            "src/parity/report/plain.html.j2",
            "src/parity/equality/verdict.py",
        ],
    output:
        page=report(TEXT_REPORT, caption="../report/text.rst", category="Report"),
        table=report(f"{RESULT}/text.csv", caption="../report/text.rst", category="Tables"),
        tests=report(f"{RESULT}/text-equality.csv", caption="../report/text.rst", category="Tables"),
        published=report(f"{RESULT}/text-published.csv", caption="../report/text.rst", category="Tables"),
    log:
        f"logs/{EXPERIMENT.experiment}/text-report.log",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    params:
        config=lambda w: EXPERIMENT.model_dump_json(exclude_unset=True),
    shell:
        r"""
        python -m parity.anysubset report \
            --config {params.config:q} \
            --records {input.records:q} \
            --equality {input.equality:q} \
            --exact {input.exact:q} \
            --laws {input.laws:q} \
            --published {input.published:q} \
            --threads {threads} \
            --out {output.page:q} \
            >{log:q} 2>&1
        """
