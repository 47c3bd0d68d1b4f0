"""Interruptions of runs: what a run promises when it is killed, its disk is full or its results are damaged, tried.

Not the planted faults of decoders (`parity.equality.faults`), which tests must find. A *fault* here is one interruption
of one small run, or one damage to its results, and what followed. The promises, after every fault:

    the next run finishes without a manual step, or ends with one line that says what to do, and then it finishes
    every token is that of a run nobody disturbed
    one shard at most was decoded to its end twice

`place` holds a run's folder and starts runs in it, `kinds` what can happen to it, `verdict` whether the promises held.
"""
