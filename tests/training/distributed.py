"""Modules run on several ranks, as ``torchrun`` does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

QUIET = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def launch(module: str, words: Sequence[object], *, ranks: int = 2, timeout: float = 500) -> str:
    """Runs ``python -m module words...`` on several ranks of this machine, over gloo.

    Args:
        module: What to run; its ranks meet through ``torch.distributed`` as usual.
        words: Its arguments.
        ranks: How many.
        timeout: Seconds.

    Returns:
        What they printed.
    """
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    done = subprocess.run(
        [*torchrun, f"--nproc-per-node={ranks}", "-m", module, *map(str, words)],
        env={**os.environ, **QUIET, "GLOO_SOCKET_IFNAME": "lo"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout
