"""Python on a disk with a fault; nobody else sees that disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,bind,ro,nosuid,nodev,noexec "$0"'
FORBIDDEN = (
    'chmod a-w "$0" && set -- setpriv --inh-caps=-dac_override --bounding-set=-dac_override "$@"'
)
"""The disk could be written to, but this user must not; being root is of no use."""
FULL = (
    'mount -t tmpfs -o size=1m none "$0" && cp "$0.content"/* "$0" '
    '&& { dd if=/dev/zero of="$0/fill" bs=4k 2>/dev/null || true; }'
)
"""A disk with the files of the folder `$0.content`, and then to the brim with zeros."""


def python_on(mount: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`python …`, once the shell command `mount` has been done to the folder ($0)."""
    alone = ["unshare", "--mount"]
    if sys.platform != "linux":
        pytest.skip("a mount of one's own is Linux's")
    if os.geteuid() != 0:
        alone += ["--user", "--map-root-user"]
    command = [*alone, "sh", "-c", f'{mount} && exec "$@"', folder]
    try:
        subprocess.run([*command, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"nothing can be mounted here: {error}")
    return subprocess.run(
        [*command, sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
