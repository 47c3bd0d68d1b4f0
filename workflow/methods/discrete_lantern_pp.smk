use rule decode as discrete_lantern_pp with:
    pathvars:
        kind="discrete",
        method="lantern_pp",
