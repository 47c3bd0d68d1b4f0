"""Quality and cost of a cell: one module a metric.

A metric is a module of this folder that declares KINDS, the kinds of model whose samples it measures, and MEASURES,
its figures by name: (label, unit, direction). Nothing lists the metrics; a module with neither is a helper. It has

    measure(sample) -> dict     figures, those with an error as an `Estimate`. {} where the metric does not apply
    rows(sample) -> dict        if it has columns of the records, a value a row: what `measure` finds in `sample.rows`
    arrays(sample) -> dict      if it keeps arrays for the pages and the paired tests

`sample` is of `parity.metrics.samples`.

metrics.json holds every figure that a metric of the cell's kind declares, as far as it applies, `<figure>_se` where it
has a standard error, and beside them
    n, batch, batches, device, dtype    rows, rows decoded at once, batches, and where
    seconds_per_image, ms_per_forward, tokens_per_second, each also _q1, _median and _q3;
        network_share
    discrete     step_compression_low and _high; reference_n of FID; acceptance_by_slot, JSON
    published    protocol and the digest of its recipe; <figure>_why of what could not be measured; clip_cut; manifold_n
    anysubset    accepted_drafts; passed_why: why unit tests were not run
    continuous   drafted, accepted_drafts, is_sd, test_seconds, target_network_seconds, target_head_seconds,
                 real_accuracy, reference_n
features.npz holds ids and, as far as the cell has them: discrete captions, features, cosine, logp; anysubset logp;
continuous features, by_place and by_cell (share of drafts accepted). The report compares cells with each other."""
