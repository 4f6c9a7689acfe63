"""The inner parts of :class:`~obsspec_gym.agents.engine.server.ServerEngine`.

::

    protocol.py   what is sent to a server and what it streams back, as values
    client.py     one server over HTTP
    probe.py      what a server can do, found out by asking it
    routing.py    which of several servers gets a request
    gate.py       who is sent to a server next: committed requests before speculative ones
    requests.py   a request and what of it has arrived
    pool.py       requests to their ends: retried elsewhere when a server is lost
    reload.py     new weights, by way of a directory that the servers read
    loop.py       the event loop all this runs on, in a thread of its own
"""
