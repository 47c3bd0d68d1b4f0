"""Papers: every table and figure of a paper by one command, and a page with the printed numbers beside ours.

READS    workflow/experiments/*.yaml whose heads name the paper, workflow/published
OUTPUTS  results/<experiment>/    of each such file, by a run of its own
         results/papers/<paper>.html, .csv
         logs/papers/<paper>.log      what these runs say on the terminal

    snakemake sjd --cores all --resources gpu=1                     or gsd, vvs, cspd, assd; `papers` for all five
    snakemake gsd --cores all --config stand_in=true                on small random networks

The job of a paper runs Snakemake once for each of its files, one after another, with the flags of this command: each has
its own plan and record, so that a run which was stopped continues. A file that fails is named in the end; the others go
on, and the exit code is not 0. The job is local, and needs no lock of this run: those it starts have their own.
"""

from functools import partial

for target, keys in PAPER_TARGETS.items():

    rule:
        name:
            target
        log:
            f"logs/papers/{target}.log",
        localrule: True
        conda:
            "../../envs/parity.yaml"
        threads: 1
        params:
            papers=keys,
            experiments=partial(list_paper_files, keys),
            published=find_shipped("workflow/published"),
            snakefile=workflow.main_snakefile,
            words=list_flags,
            config=dump_canonical(command_line),
        message:
            "make the tables and figures of " + ", ".join(keys)
        shell:
            r"""
            python -m parity.report.paper --papers {params.papers} --experiments {params.experiments:q} \
                --published {params.published:q} --snakefile {params.snakefile:q} --words {params.words:q} \
                --config {params.config:q} --out results/papers 2> >(tee -i {log:q} >&2)
            """
