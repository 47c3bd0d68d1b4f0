use rule decode as discrete_spec with:
    pathvars:
        kind="discrete",
        method="spec",
