"""Where what is made once is kept on this machine."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """``$XDG_CACHE_HOME/obsspec_gym``.

    Without ``XDG_CACHE_HOME`` it is in ``~/.cache``, and for root in ``/var/cache``: sandboxes that root starts run as
    nobody, who cannot look into root's home.
    """
    given = os.environ.get("XDG_CACHE_HOME", "")
    default = Path("/var/cache") if os.geteuid() == 0 else Path.home() / ".cache"
    return (Path(given) if given.startswith("/") else default) / "obsspec_gym"
