"""``obsspec image``: the file systems that sandboxes are made from."""

from __future__ import annotations

import json
import os
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

app = typer.Typer(help="Build the file systems that sandboxes are made from.", rich_markup_mode=None)

Name = Annotated[str, typer.Argument(help="base, or a directory with packages.txt, files/ and configure.sh.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]


@app.command("build")
def build(
    name: Name = "base",
    out: Annotated[Path | None, typer.Option(help="A new directory for the tree, not the cache.")] = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Replace the one that is in the cache.")] = False,
    as_json: Json = False,
) -> None:
    """Build an image from the Debian archive; no registry and no root needed. Done once: it is kept in the cache."""
    from obsspec_gym.envs.images import build_image, find_definition

    began = time.monotonic()
    console = Console(stderr=True, quiet=as_json)
    with console.status("") if console.is_terminal else nullcontext() as status:

        def say(step: str) -> None:
            line = f"{time.monotonic() - began:5.1f} s  {step}"
            if status is None:
                console.print(line, highlight=False, markup=False)
            else:
                status.update(line)

        tree = build_image(name, out=out, rebuild=rebuild, say=say)
    result = {
        "name": name,
        "digest": find_definition(name).digest,
        "tree": str(tree),
        "seconds": round(time.monotonic() - began, 1),
        "mib": round(_size(tree) / 2**20),
    }
    _report(result, f"{tree}: {result['mib']} MiB in {result['seconds']} s", as_json)


@app.command("tar")
def tar(
    name: Name = "base",
    out: Annotated[Path | None, typer.Option(help="Where to, if not beside the tree in the cache.")] = None,
    as_json: Json = False,
) -> None:
    """Write a built image as a tar, for docker import."""
    from obsspec_gym.envs.images import image_tar, image_tree
    from obsspec_gym.envs.images.cache import write_tar

    if out is None:
        path = image_tar(name)
    else:
        path = out
        write_tar(image_tree(name), path)
    _report({"name": name, "tar": str(path), "mib": round(path.stat().st_size / 2**20)}, str(path), as_json)


def _report(result: dict[str, Any], text: str, as_json: bool) -> None:
    print(json.dumps(result) if as_json else text, flush=True)


def _size(tree: Path) -> int:
    """Bytes of what is in a tree, each file once."""
    sizes: dict[int, int] = {}
    for directory, _, names in os.walk(tree):
        for entry in (os.lstat(os.path.join(directory, name)) for name in names):
            sizes[entry.st_ino] = entry.st_size
    return sum(sizes.values())
