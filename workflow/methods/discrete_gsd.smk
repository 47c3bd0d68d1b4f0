use rule decode as discrete_gsd with:
    pathvars:
        kind="discrete",
        method="gsd",
