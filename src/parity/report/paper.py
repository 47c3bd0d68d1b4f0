"""Run all experiment files of papers, one after another, and write a page for each paper. The job of the targets
`sjd`, `gsd`, `vvs`, `cspd`, `assd` and `papers`.

    python -m parity.report.paper --papers gsd --experiments workflow/experiments/gsd-table1.yaml --out results/papers \
        --published workflow/published --snakefile Snakefile --words '["--cores", "1"]' --config '{}'
"""

import argparse
import json
import sys

from parity.base.command import add_arguments, run_command
from parity.experiment.config_overlay import overlay_config
from parity.experiment.nested_runs import find_results, run_files
from parity.experiment.papers import read_experiment_file
from parity.report.paper_page import write_paper


def main() -> None:
    """Run the files, then write the pages of their papers to the folder `--out`; exit with 1 if a run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--papers", nargs="+", required=True, help="keys of papers")
    parser.add_argument("--words", type=json.loads, default=[], help="JSON: flags of each run of snakemake")
    parser.add_argument("--config", type=json.loads, default={}, help="JSON: what --config says of every file")
    parser.add_argument("--snakefile", required=True)
    add_arguments(parser, "experiments+", "published", "out")
    a = parser.parse_args()
    is_trial = overlay_config({}, a.config).get("stand_in")
    published = [file for file in a.experiments if read_experiment_file(file).is_published]
    codes = run_files(a.experiments, a.words, a.snakefile, [] if is_trial else published)
    for key in a.papers:
        files = [file for file in a.experiments if read_experiment_file(file).paper == key]
        results = {file: find_results(file, a.config) for file in files}
        failed = [file.stem for file in files if codes[file]]
        page = a.out / f"{key}.html"
        write_paper(key, a.published, results, failed, page)
        print(f"Report: {page.resolve()}", file=sys.stderr)
    if any(codes.values()):
        sys.exit(1)


if __name__ == "__main__":
    run_command(main)
