"""Pictures of whole episodes, filmed in the background and kept up to a number of bytes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from itertools import chain

from safemargin.errors import NoPictures, SafemarginError, describe_error
from safemargin.replay.pictures import Camera, encode
from safemargin.replay.recordings import Recording

PIECE = 24
"""This many pictures are taken before checking again what is wanted most."""

BEFORE = 8
"""This many pictures before a wanted one are filmed as well: people step back to see why."""


class Reel:
    """The pictures of one recording that are filmed so far."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.pictures: list[bytes | None] = [None] * (recording.episode.steps + 1)
        self.taken = self.size = 0
        self.fault: str | None = None

    def missing_from(self, step: int) -> int | None:
        """Return the first missing picture from a step on, else of all; None: no more will come."""
        if self.taken == len(self.pictures) or self.fault is not None:
            return None
        steps = chain(range(step, len(self.pictures)), range(step))
        return next((each for each in steps if self.pictures[each] is None), None)


class Films:
    """Films what is asked for, and then the rest of the same episode."""

    def __init__(self, make_camera: Callable[[], Camera], *, most_bytes: int = 256_000_000) -> None:
        self._make_camera = make_camera
        self._most_bytes = most_bytes
        self._reels: OrderedDict[str, Reel] = OrderedDict()  # the last used one at the end
        self._wanted: tuple[Reel, int] | None = None
        self._looking_at = 0
        self._changed = threading.Condition()
        self._closed = False
        self.fault: str | None = None
        """Why there are no pictures at all."""
        self.action_names: list[str] = []
        self.ready = False
        """Whether `fault` and `action_names` are known."""
        self._thread = threading.Thread(target=self._work, name="films", daemon=True)
        self._thread.start()

    def picture(self, recording: Recording, step: int, *, seconds: float = 60.0) -> bytes:
        """Return the picture at a step as JPEG; wait for it where it is not filmed yet."""
        deadline = time.monotonic() + seconds
        with self._changed:
            reel = self._reel(recording)
            while (found := reel.pictures[step]) is None:
                if self.fault is not None or reel.fault is not None:
                    raise NoPictures(self.fault or reel.fault or "")
                if self._closed:
                    raise NoPictures("no pictures: the explorer is closed")
                if time.monotonic() > deadline:
                    raise NoPictures(f"the picture of step {step} took longer than {seconds:g} s")
                self._wanted, self._looking_at = (reel, step), step
                self._changed.notify_all()
                self._changed.wait(0.5)
            self._looking_at = step
            return found

    def begin(self, recording: Recording, step: int = 0) -> None:
        """Start filming a recording from a step on, without waiting for it."""
        with self._changed:
            self._wanted, self._looking_at = (self._reel(recording), step), step
            self._changed.notify_all()

    def taken(self, recording: Recording) -> tuple[int, str | None]:
        """Return how many pictures of a recording there are, and why there will be no more."""
        with self._changed:
            reel = self._reels.get(recording.name)
            if reel is None:
                return 0, self.fault
            return reel.taken, self.fault or reel.fault

    def stop(self) -> None:
        """Stop filming; whoever waits for a picture gets NoPictures."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def close(self, *, seconds: float = 5.0) -> bool:
        """Stop filming; return whether it has ended within this many seconds."""
        self.stop()
        self._thread.join(timeout=seconds)
        return not self._thread.is_alive()

    def _reel(self, recording: Recording) -> Reel:
        reel = self._reels.get(recording.name)
        if reel is None:
            reel = self._reels[recording.name] = Reel(recording)
        self._reels.move_to_end(recording.name)
        return reel

    def _work(self) -> None:
        try:
            with contextlib.closing(self._make_camera()) as camera:
                self.action_names, self.ready = camera.action_names, True
                while (following := self._await_next(camera)) is not None:
                    self._film(camera, *following)
        except Exception as error:  # noqa: BLE001 — whoever waits must learn of it
            known = isinstance(error, SafemarginError)
            with self._changed:
                self.fault = str(error) if known else f"no pictures: {describe_error(error)}"
                self.ready = True
                self._changed.notify_all()

    def _await_next(self, camera: Camera) -> tuple[Reel, int] | None:
        """Wait for something to film; None: the end."""
        with self._changed:
            while not self._closed:
                if (following := self._next(camera)) is not None:
                    return following
                self._changed.wait()
        return None

    def _next(self, camera: Camera) -> tuple[Reel, int] | None:
        """Return the reel to film next, and from which step."""
        wanted, self._wanted = self._wanted, None
        if wanted is not None:
            reel, step = wanted
            begin = max(0, step - BEFORE) if camera.jumps else 0
            if (missing := reel.missing_from(begin)) is not None:
                return reel, missing
        if not self._reels:
            return None
        reel = next(reversed(self._reels.values()))
        if reel.size >= self._most_bytes:  # too large: film only what is asked for
            return None
        missing = reel.missing_from(self._looking_at if camera.jumps else 0)
        return None if missing is None else (reel, missing)

    def _film(self, camera: Camera, reel: Reel, first: int) -> None:
        for step in range(first, min(first + PIECE, len(reel.pictures))):
            if reel.pictures[step] is not None:
                continue
            try:
                picture = encode(camera.look(reel.recording, step))
            except SafemarginError as error:
                camera.forget()
                with self._changed:
                    reel.fault = str(error)
                    self._changed.notify_all()
                return
            with self._changed:
                reel.pictures[step] = picture
                reel.taken += 1
                reel.size += len(picture)
                self._changed.notify_all()
                if self._closed:
                    return
        self._looking_at = step + 1  # continue here unless something else is wanted
        self._make_room(reel)

    def _make_room(self, current: Reel) -> None:
        with self._changed:
            used = sum(reel.size for reel in self._reels.values())
            for name in list(self._reels):
                if used <= self._most_bytes or self._reels[name] is current:
                    return
                used -= self._reels.pop(name).size
