"""Report: write the page and the tables of the experiment.

REQUIRED INPUTS  records, metrics and equality rows of every cell; the papers' figures in workflow/published
OUTPUTS          results/<experiment>/index.html    the verdicts, and the way to the rest
                 results/<experiment>/report.html   one self-contained page, a part for each kind of model
                 results/<experiment>/{summary,equality,published}.csv, records.parquet, figures/
                 results/<experiment>/<section>/    the same of one section alone (targets image, text, continuous)
"""

import os
import sys

os.environ.setdefault(machine.COMMAND, machine.redact_command(["snakemake", *sys.argv[1:]]))  # shown on the page


rule report:
    input:
        measured=list_page_inputs,
        manifests=list(MANIFESTS.values()),
        published=local(PUBLISHED),
        extra=list_observations,
        prompts=local(prompt_files.source(EXPERIMENT.image.prompts) if EXPERIMENT.image else []),
    output:
        declare_page("report.html", "page", "Report"),
        declare_page("index.html", "page", "Report"),
        declare_page("summary.csv", "summary", "Tables"),
        declare_page("equality.csv", "equality", "Tables"),
        declare_page("published.csv", "published", "Tables"),
        f"{RESULT}/{{part}}records.parquet",
    log:
        f"logs/{EXPERIMENT.experiment}/{{part}}report.log",
    wildcard_constraints:
        part="(image/|text/|continuous/)?",
    conda:
        "../../envs/parity.yaml"
    threads: 1
    resources:
        mem_mb=lambda w, attempt: attempt * 4000,
    params:
        config=EXPERIMENT.model_dump_json(exclude_unset=True),
        # the folder that a job finds its inputs below: this one, or where Snakemake puts what it fetched from a storage
        root=lambda w, input: str(input.manifests[0]).removesuffix(next(iter(MANIFESTS.values()))) or ".",
        folder=subpath(output[0], parent=True),
        kinds=select_kinds,
        code=digest_code("parity.report"),
    message:
        "write the report {output[0]}"
    shell:
        r"""
        python -m parity.job report --config {params.config:q} --kinds {params.kinds} \
            --published {input.published:q} --extra {input.extra:q} --root {params.root:q} \
            --threads {threads} --out {params.folder:q} >{log:q} 2>&1
        """
