use rule decode as discrete_zipar with:
    pathvars:
        kind="discrete",
        method="zipar",
