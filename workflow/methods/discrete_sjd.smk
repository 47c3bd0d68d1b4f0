use rule decode as discrete_sjd with:
    pathvars:
        kind="discrete",
        method="sjd",
