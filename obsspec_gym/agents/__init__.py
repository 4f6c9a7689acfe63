"""Who thinks: policies, engines and world models. Knows histories and values, nothing of environments.

::

    history.py       what was seen and done, as an immutable sequence
    generation.py    the handle on a completion under way
    policy.py        the protocol, and plain Python callables as policies
    lm_policy.py     a language model as a policy
      dialogue.py      the compact dialogue, whose completion is the command
      tool_calls.py    the tokenizer's own chat template, with a bash tool
      tokens.py        text into tokens that nobody can forge
      loading.py       local model directories
    engine/          token ids in, generations out
    world_model/     what will the tool answer?
    fakes.py         scripted policies and world models, for tests
    shipped/         the tiny pair that comes with the package
"""
