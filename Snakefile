"""Parity: does a fast decoder still draw from the same distribution, how much faster is it, and what does it cost?

    snakemake --cores all --resources gpu=1                                          the default experiment
    snakemake --cores all --configfile workflow/experiments/sjd-window.yaml          one of the papers' studies
    snakemake --cores all equality                                                   its equality tests alone
    snakemake --cores all text                                                       its any-subset text section alone
    snakemake --cores all continuous                                                 its section on continuous tokens alone
    snakemake --cores all train_embedded                                             train the embedded models anew (text: train_words, continuous: train_continuous)

This page is the table of contents; each file in workflow/rules opens with what it reads and writes.
"""

from snakemake.utils import min_version

min_version("9.22")


if "methods" not in config:  # an experiment given with --configfile stands alone

    configfile: "config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/checkpoints.smk"
include: "workflow/rules/prompts.smk"
include: "workflow/rules/generate.smk"
include: "workflow/rules/render.smk"
include: "workflow/rules/metrics.smk"
include: "workflow/rules/equality.smk"
include: "workflow/rules/drafting.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/text.smk"
include: "workflow/rules/continuous.smk"
include: "workflow/rules/training.smk"


for method in METHODS:

    include: f"workflow/methods/{method}.smk"


report: "workflow/report/workflow.rst"


rule all:
    default_target: True
    input:
        REPORT,
        TEXT_REPORT if TEXT else [],
        CONTINUOUS_REPORT if CONTINUOUS else [],


rule equality:
    input:
        EQUALITY_FILES,


rule text:
    input:
        TEXT_REPORT if TEXT else [],


rule continuous:
    input:
        CONTINUOUS_REPORT if CONTINUOUS else [],


onsuccess:
    announce(REPORT)
    announce(TEXT_REPORT)
    announce(CONTINUOUS_REPORT)
