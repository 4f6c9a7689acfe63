"""The embedded engine's inside: a synchronous core with ``step()``, and the drivers that turn it.

::

    requests.py   what goes in and comes out, and the state of a request
    shape.py      what must be known of a model
    weights.py    a Hugging Face model's weights, fused and laid out for speed
    batch.py      the rows of one step, packed
    model.py      one lean forward pass over them
    kv.py         rows that running requests compute in, by size class
    prefix.py     the tree of what was computed before
    sampler.py    addressed noise, and the pick
    scheduler.py  who takes part in the next step
    core.py       step(): schedule, run, sample, postprocess
    drivers.py    who calls step(): the event loop, a thread
    process.py    ... or a process of its own, in which worker.py runs
    inbox.py      who awaits what
    settings.py   how an engine runs, and the driver that makes it so
"""
