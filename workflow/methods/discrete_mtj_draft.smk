use rule decode as discrete_mtj_draft with:
    pathvars:
        kind="discrete",
        method="mtj_draft",
