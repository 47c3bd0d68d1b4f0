use rule decode as discrete_sjd_coupled with:
    pathvars:
        kind="discrete",
        method="sjd_coupled",
