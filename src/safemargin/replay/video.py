"""MP4 files that any browser plays: H.264, written by the ffmpeg that imageio-ffmpeg bundles."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from safemargin.core.files import written_whole
from safemargin.errors import InvalidInput, MissingExtra
from safemargin.replay.pictures import Picture


def find_ffmpeg() -> str:
    """Return the path of the ffmpeg program; MissingExtra where there is none."""
    try:
        from imageio_ffmpeg import get_ffmpeg_exe

        return str(get_ffmpeg_exe())
    except (ImportError, RuntimeError) as error:
        raise MissingExtra("writing videos", extra="video") from error


def write_video(path: Path, pictures: Sequence[Picture], *, fps: float) -> None:
    """Write pictures of one size, with even sides, as one clip."""
    height, width = pictures[0].shape[:2]
    if height % 2 or width % 2:
        raise InvalidInput(f"a video needs even sides, got {width} × {height}")
    # yuv420p and the index in front (faststart) are what browsers want.
    source = f"-f rawvideo -pix_fmt rgb24 -s {width}x{height} -r {fps:g} -i -"
    result = "-an -c:v libx264 -crf 20 -pix_fmt yuv420p -movflags +faststart -f mp4"
    command = [find_ffmpeg(), "-y", "-loglevel", "error", *source.split(), *result.split()]
    pixels = b"".join(picture.tobytes() for picture in pictures)
    try:
        with written_whole(path) as temporary:
            # Not imageio_ffmpeg.write_frames: it neither looks at ffmpeg's exit status nor keeps
            # what ffmpeg says, so a clip that a full disk cut short would pass for written.
            done = subprocess.run([*command, temporary], input=pixels, capture_output=True)
            if done.returncode:
                said = done.stderr.decode(errors="replace").strip()
                reason = said.splitlines()[-1] if said else f"exit status {done.returncode}"
                raise InvalidInput(f"{path} cannot be written: ffmpeg says {reason}")
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error}") from error
