"""Seeds as hashes of names, so that no order of events can change them.

A seed depends on *what* is sampled (run, policy step, task, sample, turn), never on where or when: not on an
environment's index, a rank, or which episode finished first.
"""

from __future__ import annotations

import hashlib

from obsspec_gym.types import EpisodeId


def derive_seed(*parts: int | str) -> int:
    """Hashes names and numbers into one seed.

    Args:
        *parts: Anything that tells this use of randomness from every other; the order counts.

    Returns:
        An integer in [0, 2**63).

    Raises:
        TypeError: If a part is neither an int nor a str.

    Example:
        >>> derive_seed("latency", 1) == derive_seed("latency", 1)
        True
        >>> derive_seed("a", "b") == derive_seed("ab")
        False
    """
    content = b"".join([_field(part) for part in parts])
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little") >> 1


def _field(part: int | str) -> bytes:
    if isinstance(part, bool) or not isinstance(part, int | str):
        raise TypeError(f"seed parts are ints and strings, got {type(part).__name__}")
    if isinstance(part, str):
        kind, encoded = b"s", part.encode("utf-8", "surrogatepass")
    else:
        kind, encoded = b"i", b"%d" % part
    return kind + len(encoded).to_bytes(8, "little") + encoded


def turn_seed(run_seed: int, policy_step: int, episode: EpisodeId, turn: int) -> int:
    """The seed of one turn's generation (DESIGN invariant *Seeds*).

    Args:
        run_seed: The user's seed for the run.
        policy_step: Optimiser steps the policy's weights have had; 0 outside training.
        episode: Task and sample.
        turn: Index of the turn within the episode, from 0.

    Returns:
        An integer in [0, 2**63).
    """
    return derive_seed("turn", run_seed, policy_step, episode.task_id, episode.sample, turn)
