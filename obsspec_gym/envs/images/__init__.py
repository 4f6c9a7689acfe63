"""Images: whole file systems for sandboxes, built from the Debian archive without a registry.

An image is a directory tree in the user's cache, made by ``obsspec image build`` from a definition (packages, small
files, a script). Bubblewrap takes the tree as its root, Docker imports it as a tar.
"""

from __future__ import annotations

from obsspec_gym.envs.images.build import build_image
from obsspec_gym.envs.images.cache import image_tar, image_tree
from obsspec_gym.envs.images.definition import Definition, find_definition

__all__ = ["Definition", "build_image", "find_definition", "image_tar", "image_tree"]
