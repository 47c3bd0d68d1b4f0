use rule decode as continuous_spec_head with:
    pathvars:
        kind="continuous",
        method="spec_head",
