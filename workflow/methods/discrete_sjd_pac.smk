use rule decode as discrete_sjd_pac with:
    pathvars:
        kind="discrete",
        method="sjd_pac",
