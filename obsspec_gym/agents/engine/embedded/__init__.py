"""The embedded engine's inside: a synchronous core with ``step()``, and the drivers that turn it.

::

    requests.py   what goes in and comes out, and the state of a request
    weights.py    a Hugging Face model's weights, fused and laid out for speed
    model.py      one lean forward pass over a packed batch
    kv.py         rows that running requests compute in, by size class
    prefix.py     the tree of what was computed before
    sampler.py    addressed noise, and the pick
    scheduler.py  who takes part in the next step
    core.py       step(): schedule, run, sample, postprocess
    drivers.py    who calls step(): the event loop, a thread
    process.py    ... or a process of its own, in which worker.py runs
    inbox.py      who awaits what
"""
