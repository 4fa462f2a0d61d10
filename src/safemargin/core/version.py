"""The version of this package, and of the libraries that its numbers may depend on."""

from __future__ import annotations

import sys

__version__ = "0.1.0"


def versions_in_use() -> dict[str, str]:
    """Return the versions of Python and of the libraries that the numbers may depend on."""
    import platform  # here, so that importing the package stays quick
    from importlib import metadata

    names = ("numpy", "gymnasium", "ale-py", "mujoco", "onnxruntime", "torch", "stable-baselines3")
    versions = {"safemargin": __version__, "python": platform.python_version()}
    versions["platform"] = sys.platform
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
