"""Field: which public implementations draw from the model's law? Only its targets `field` and `reports` ask for this.

REQUIRED INPUTS  field/<name>/field.yaml and adapter.py (field/README.md); the network, for packages and repositories
OUTPUTS          results/field/<name>/environment.json    its environment and clone, or why there is none
                 results/field/<name>/verdict.json        a row a case, its reproduction
                 results/field/field.html                 the page; rows not run here are those of field/<name>/verdict.json

                 results/field/reports/reports.md         others' bug reports, of field/reports: what was found of each

    snakemake field                               every implementation
    snakemake field --config only=mlx-lm            one again (several: only=mlx-lm,transformers)
    snakemake reports                             every report; one of whose code cannot be fetched is a row that says so
"""

FIELD = sorted(file.parent.name for file in (ROOT / "field").glob("*/field.yaml"))
REPORTS = sorted(f"reports/{file.parent.name}" for file in (ROOT / "field/reports").glob("*/field.yaml"))
ASKED, ASKED_REPORTS = ([n for n in names if not ONLY or Path(n).name in ONLY] for names in (FIELD, REPORTS))
NAMES = [Path(name).name for name in (*FIELD, *REPORTS)]
if unknown := set(ONLY) - set(NAMES):
    refuse(f"only: {', '.join(sorted(unknown))}; allowed: {', '.join(NAMES)}")


rule field_models:
    output:
        directory("results/field/models"),
    log:
        "logs/field/models.log",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    params:
        code=digest_code("parity_certify.models", "parity_certify.design"),
    message:
        "make the tiny models of the field"
    shell:
        "python field/frame.py models --out {output:q} >{log:q} 2>&1"


rule field_environment:
    input:
        "field/{name}/field.yaml",
    output:
        "results/field/{name}/environment.json",
    log:
        "logs/field/{name}/environment.log",
    wildcard_constraints:
        name="|".join([*FIELD, *REPORTS]),
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        field_installing=1,
    message:
        "install {wildcards.name}"
    shell:
        "python field/frame.py environment {wildcards.name} --out {output:q} >{log:q} 2>&1"


rule field_judge:
    input:
        collect("field/{{name}}/{file}", file=("field.yaml", "adapter.py")),
        collect("field/{file}.py", file=("case", "borrowed")),
        environment="results/field/{name}/environment.json",
        models="results/field/models",
        reproduction=lambda w: list_existing(f"field/{w.name}/reproduce.py"),
    output:
        "results/field/{name}/verdict.json",
    log:
        "logs/field/{name}/verdict.log",
    wildcard_constraints:
        name="|".join([*FIELD, *REPORTS]),
    conda:
        "../../envs/parity.yaml"
    threads: 1
    params:
        code=digest_code("parity_certify.design", "parity_certify.speculation"),
    message:
        "judge {wildcards.name}"
    shell:
        "python field/frame.py judge {wildcards.name} --environment {input.environment:q} --models {input.models:q}"
        " --out {output:q} >{log:q} 2>&1"


rule field_page:
    input:
        "field/page.py",
        collect("results/field/{name}/verdict.json", name=ASKED),
        list_existing(*(f"field/{name}/verdict.json" for name in FIELD if name not in ASKED)),
    output:
        "results/field/field.html",
    log:
        "logs/field/page.log",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    message:
        "write the page of the field"
    shell:
        "python field/page.py --out {output:q} >{log:q} 2>&1"


rule field:
    input:
        "results/field/field.html",


rule reports:
    input:
        collect("results/field/{name}/verdict.json", name=ASKED_REPORTS),
        page="field/reports/page.py",
        listed="field/reports/reports.yaml",
    output:
        "results/field/reports/reports.md",
    log:
        "logs/field/reports.log",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    message:
        "write what was found of others' bug reports"
    shell:
        "python {input.page:q} --results results/field/reports --out {output:q} >{log:q} 2>&1"
