"""Parity: does a fast decoder still draw from the same distribution, how much faster is it, and what does it cost?

    snakemake --cores all --resources gpu=1                                          the default experiment
    snakemake --cores all --configfile workflow/experiments/sjd-window.yaml          one of the papers' studies
    snakemake --cores 1 fetch --configfile workflow/experiments/sjd-table1.yaml      what it needs of the network, downloaded; nothing run
    snakemake --cores all equality                                                   its equality tests alone
    snakemake --cores all image                                                      one section: image, text or continuous
    snakemake sjd --cores all --resources gpu=1                                      all of a paper: sjd, gsd, vvs, cspd, assd; or papers
    snakemake --cores all --config scale=0.1                                         the same with a tenth of the images
    snakemake --cores all --config 'prompts={limit: 4}' text=null                    any key of it, as YAML; null takes one out
    snakemake --cores all --until decode                                             one rule and all that leads to it; --until takes one name
    snakemake --cores all speculators                                                 image.speculators trained (docs/howto/speculator.md)
    snakemake -s field/Snakefile --cores all                                         public implementations judged (docs/results/field.md)
    snakemake -s field/Snakefile --cores all reports                                 others' bug reports put to the certifier (docs/results/reports.md)
    snakemake --cores all train_embedded                                             train the embedded models anew
                                                                                     (text: train_words, continuous: train_continuous)

This page is the table of contents; each file in workflow/rules opens with what it reads and writes.
"""

from snakemake.utils import min_version

min_version("9.22")


include: "workflow/rules/common.smk"
include: "workflow/rules/functions.smk"
include: "workflow/rules/checkpoints.smk"
include: "workflow/rules/inputs.smk"
include: "workflow/rules/decode.smk"
include: "workflow/rules/metrics.smk"
include: "workflow/rules/speed.smk"
include: "workflow/rules/equality.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/speculators.smk"
include: "workflow/rules/run.smk"


if MAIN and (ROOT / "workflow/experiments").is_dir():

    include: "workflow/rules/papers.smk"


if (ROOT / "recipes").is_dir():

    include: "workflow/rules/training.smk"


for file in sorted((ROOT / "workflow/methods").glob("*.smk")):

    include: f"workflow/methods/{file.name}"


report: "workflow/report/workflow.rst"


rule all:
    default_target: True
    input:
        list_page_files(),


rule equality:
    input:
        ROWS,


for section in options.KINDS.values():

    rule:
        name:
            section
        input:
            list_page_files(section),
