"""Sends a study's key numbers and pictures to TensorBoard, or to any other tracker."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from safemargin.errors import InvalidInput, MissingExtra, SafemarginError
from safemargin.study.study import Study


class Tracker(Protocol):
    """What a tracker must have; the SummaryWriters of tensorboardX and PyTorch do."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any:
        """Record a number."""

    def add_image(self, tag: str, img_tensor: Any, global_step: int, *, dataformats: str) -> Any:
        """Record a picture [height, width, channels], if `dataformats` is 'HWC'."""


def log_study(
    study: Study, tracker: Tracker, *, step: int = 0, tolerances: Sequence[float] = ()
) -> dict[str, float]:
    """Send a study's key numbers and its pictures to a tracker; return the numbers.

    `step` is where they stand on the tracker's axis, e.g. the training step of the checkpoint.
    `tolerances` adds the mean margin at each, over the natural moments. Pictures are left out where
    there are too few moments for a fit.
    """
    numbers = key_numbers(study, tolerances)
    for name, value in numbers.items():
        tracker.add_scalar(f"safemargin/{name}", value, step)
    with tempfile.TemporaryDirectory() as folder:
        try:
            pictures = study.plot(folder)
        except SafemarginError:  # too few moments, or a proxy that looks at n
            pictures = []
        for path in pictures:
            tracker.add_image(f"safemargin/{path.stem}", _pixels(path), step, dataformats="HWC")
    return numbers


def key_numbers(study: Study, tolerances: Sequence[float] = ()) -> dict[str, float]:
    """Return the numbers of a study worth following over training, by name."""
    status, tuples = study.status(), study.tuples()
    natural = tuples.phases == "natural"
    found = {f"moments/{phase}": float(count) for phase, count in status.moments.items()}
    found["trials"] = float(status.trials)
    if natural.any():
        for at, n in enumerate(tuples.n_values):
            losses = tuples.criticalities[natural, at]
            found[f"criticality/mean_n_{n}"] = float(losses.mean())
            found[f"criticality/p95_n_{n}"] = float(np.quantile(losses, 0.95))
    if tolerances and natural.any() and tuples.proxies.ndim == 1:
        margins = study.fit()
        inside = np.minimum(tuples.proxies[natural], margins.highest_proxy)
        for tolerance in tolerances:
            granted = margins(inside, tolerance)
            found[f"margin/mean_at_{tolerance:g}"] = float(np.mean(granted))
    return found


def tensorboard(folder: str | Path) -> Any:
    """Return a tracker that writes TensorBoard's files into a folder."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise MissingExtra("logging to TensorBoard", extra="tensorboard") from None
    if Path(folder).is_file():
        raise InvalidInput(f"--tensorboard {folder} is a file; name a folder")
    return SummaryWriter(str(folder))


def _pixels(path: Path) -> Any:
    from matplotlib.image import imread

    return (imread(path)[..., :3] * 255).round().astype(np.uint8)
