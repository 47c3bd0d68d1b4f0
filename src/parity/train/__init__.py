"""Training of speculators: drafters, heads and draft models of a checkpoint, from its own samples."""


def format_log(log: list[dict[str, float]]) -> list[str]:
    """Format a training log as lines of Markdown: a list of what was measured after training (entries without a step),
    then a table of about eight rows of the log."""
    rows = [r for r in log if "step" in r]
    shown = [r for i, r in enumerate(rows) if i % max(1, len(rows) // 8) == 0 or i == len(rows) - 1]
    columns = list(dict.fromkeys(k for r in rows for k in r))
    table = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    table += ["| " + " | ".join(f"{r[c]:.4g}" if c in r else "" for c in columns) + " |" for r in shown]
    results = [f"- {k}: {v:.4g}" for r in log if "step" not in r for k, v in r.items()]
    return [*results, "", *table, ""]
