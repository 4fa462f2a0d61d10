"""MP4 files that any browser plays: H.264 through the ffmpeg that imageio-ffmpeg carries."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from safemargin.core.files import written_whole
from safemargin.errors import InvalidInput, MissingExtra
from safemargin.replay.pictures import Picture


def find_ffmpeg() -> str:
    """The program that writes videos; MissingExtra where there is none."""
    try:
        from imageio_ffmpeg import get_ffmpeg_exe

        return str(get_ffmpeg_exe())
    except (ImportError, RuntimeError) as error:
        raise MissingExtra("writing videos", extra="video") from error


def write_video(path: Path, pictures: Iterable[Picture], *, fps: float) -> None:
    """Write pictures of one size, with even sides, as one clip."""
    rest = iter(pictures)
    first = next(rest)
    height, width = first.shape[:2]
    if height % 2 or width % 2:
        raise InvalidInput(f"a video needs even sides, got {width} × {height}")
    # yuv420p and the index in front (faststart) are what browsers want.
    source = f"-f rawvideo -pix_fmt rgb24 -s {width}x{height} -r {fps:g} -i -"
    result = "-an -c:v libx264 -crf 20 -pix_fmt yuv420p -movflags +faststart -f mp4"
    command = [find_ffmpeg(), "-y", "-loglevel", "error", *source.split(), *result.split()]
    try:
        with written_whole(path) as place:
            _feed([*command, str(place)], first, rest, path)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error}") from error


def _feed(command: list[str], first: Picture, rest: Iterable[Picture], path: Path) -> None:
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        if process.stdin is None or process.stderr is None:
            raise OSError("ffmpeg cannot be talked to")
        try:
            process.stdin.write(np.ascontiguousarray(first).tobytes())
            for picture in rest:
                process.stdin.write(np.ascontiguousarray(picture).tobytes())
            process.stdin.close()
        except BrokenPipeError:
            pass  # it says below why it left
        except BaseException:
            process.kill()
            raise
        said = process.stderr.read().decode(errors="replace").strip()
    if process.returncode:
        reason = said.splitlines()[-1] if said else f"exit status {process.returncode}"
        raise InvalidInput(f"{path} cannot be written: ffmpeg says {reason}")
