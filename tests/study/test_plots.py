"""Pictures: the numbers in the info records, and files that show something."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from safemargin.core.records import Tuples
from safemargin.core.text import readable
from safemargin.errors import InvalidInput
from safemargin.margins.bounds.table import Bound
from safemargin.margins.density import estimate_density
from safemargin.margins.fitting import fit_margins
from safemargin.margins.lookup import Margins
from safemargin.study import plot_info, plots


def make_tuples(
    n_values: tuple[int, ...] = (1, 2, 4), natural: int = 100, spread: int = 100
) -> Tuples:
    rng = np.random.default_rng(0)
    count = natural + spread
    proxies = np.concatenate([rng.gamma(2, 1.2, natural), rng.uniform(0, 12, spread)])
    scale = np.sqrt(np.array(n_values))
    return Tuples(
        phases=np.array(["natural"] * natural + ["spread"] * spread),
        indices=np.concatenate([np.arange(natural), np.arange(spread)]),
        lives=np.zeros(count, dtype=np.int64),
        steps=np.zeros(count, dtype=np.int64),
        proxies=proxies,
        criticalities=proxies[:, None] * rng.random((count, len(n_values))) * scale / 12,
        half_widths=np.zeros((count, len(n_values))),
        trials=np.ones((count, len(n_values)), dtype=np.int64),
        n_values=n_values,
        proxy="log_probability_range",
    )


def check_picture(figure: Figure, path: Path) -> None:
    """A readable PNG with ink in it and nothing cut off at the edge of the page."""
    written = plots.save_figure(figure, path, dpi=80)
    assert written.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    pixels = imread(written)[..., :3]  # [height, width, colours]
    assert pixels.shape == (*np.round(80 * figure.get_size_inches()[::-1]).astype(int), 3)
    assert len(np.unique((pixels[::3, ::3] * 255).astype(int).reshape(-1, 3), axis=0)) > 5
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    assert (border > 0.98).all(), "something is cut off at the edge"


def test_kde_info_holds_the_curves_of_the_density() -> None:
    tuples = make_tuples()
    info = plot_info.kde_info(tuples, confidence=0.9, minimum_bandwidth=0.1)
    assert [panel.n for panel in info.panels] == [1, 2, 4]
    assert info.dropped == 10
    keep = np.argsort(tuples.proxies)[:190]
    panel = info.panels[1]
    density = estimate_density(
        tuples.proxies[keep], tuples.criticalities[keep, 1], minimum_bandwidth=0.1
    )
    np.testing.assert_allclose(panel.density.weights, density.weights, atol=1e-12)
    np.testing.assert_allclose(panel.percentile, density.percentile(0.9), atol=1e-9)
    np.testing.assert_allclose(panel.mean, density.mean, atol=1e-9)
    np.testing.assert_allclose(panel.median, density.median, atol=1e-9)
    assert sorted(panel.proxies) == sorted(tuples.proxies[keep])


def test_many_n_show_nine_of_them_and_say_so() -> None:
    info = plot_info.kde_info(make_tuples(tuple(range(1, 33))), bins=20)
    assert [panel.n for panel in info.panels] == [1, 5, 9, 13, 17, 20, 24, 28, 32]
    assert info.n_values == tuple(range(1, 33))
    figure = plots.kde_figure(info)
    assert "9 of 32 values of n shown" in figure.get_suptitle()


def test_a_proxy_that_looks_at_n_is_drawn_at_its_own_column() -> None:
    tuples = make_tuples()
    wide = np.stack([tuples.proxies * factor for factor in (1, 2, 3)], axis=1)
    changed = Tuples(**{**{name: getattr(tuples, name) for name in Tuples.__slots__},
                        "proxies": wide})  # fmt: skip
    info = plot_info.kde_info(changed, bins=20)
    assert info.panels[2].density.proxy[-1] == pytest.approx(3 * info.panels[0].density.proxy[-1])
    histogram = plot_info.histogram_info(changed, n=4)
    assert histogram.edges[-1] == 3 * tuples.proxies.max()
    assert histogram.proxy == "log_probability_range, n = 4"
    with pytest.raises(InvalidInput, match=r"n = 3 is not in this study: \[1, 2, 4\]"):
        plot_info.histogram_info(changed, n=3)


def test_heatmap_info_is_the_lookup() -> None:
    bound = Bound((1, 2), [[0.0, 1.0]] * 2, [[0.2, 0.4], [0.3, 1.0]], 0.95, "paper")  # type: ignore[arg-type]
    margins = Margins(bound, proxy="q_range")
    info = plot_info.heatmap_info(margins, tolerances=[0.0, 0.35, 0.5, 1.0])
    assert info.margins.tolist() == [[0, 0], [2, 0], [2, 1], [2, 2]]
    whole = plot_info.heatmap_info(margins)
    assert whole.tolerances[0] == 0
    assert whole.tolerances[-1] == pytest.approx(1.05)
    assert (whole.margins[-1] == 2).all()  # the picture ends where everything is affordable
    with pytest.raises(InvalidInput, match="two or more tolerances in increasing order"):
        plot_info.heatmap_info(margins, tolerances=[1.0, 0.5])


def test_histogram_info_counts_by_hand() -> None:
    tuples = make_tuples(natural=20, spread=20)
    info = plot_info.histogram_info(tuples)
    assert len(info.edges) == 51
    assert (info.edges[0], info.edges[-1]) == (tuples.proxies.min(), tuples.proxies.max())
    assert (info.natural.sum(), info.spread.sum()) == (20, 20)
    assert info.dropped == 2
    assert info.cut_off == np.sort(tuples.proxies)[-2]
    low, high = info.edges[3], info.edges[4]
    assert info.natural[3] == sum(low <= p < high for p in tuples.proxies[:20])
    nothing = plot_info.histogram_info(tuples, drop_highest=0)
    assert (nothing.dropped, nothing.cut_off) == (0, None)


@pytest.mark.parametrize(
    "n_values", [(1,), (1, 2), (1, 2, 4), (1, 2, 4, 8), (1, 2, 3, 4, 5), tuple(range(1, 33))]
)
def test_kde_pictures(tmp_path: Path, n_values: tuple[int, ...]) -> None:
    info = plot_info.kde_info(make_tuples(n_values), bins=40)
    figure = plots.kde_figure(info)
    check_picture(figure, tmp_path / "new folder" / "kde.png")
    assert len(figure.axes) == len(info.panels)


def test_kde_picture_of_equal_and_of_mostly_equal_criticalities(tmp_path: Path) -> None:
    tuples = make_tuples()
    tuples.criticalities[:, 0] = 0.0
    tuples.criticalities[:, 1] = 0.0
    tuples.criticalities[np.argmin(tuples.proxies), 1] = 100.0
    check_picture(plots.kde_figure(plot_info.kde_info(tuples)), tmp_path / "kde.png")


@pytest.mark.parametrize("n_values", [(1,), (1, 2, 4), tuple(range(1, 33))])
def test_heatmap_pictures(tmp_path: Path, n_values: tuple[int, ...]) -> None:
    tuples = make_tuples(n_values)
    margins = fit_margins(tuples.proxies, tuples.criticalities, n_values, proxy="q_range")
    figure = plots.heatmap_figure(plot_info.heatmap_info(margins))
    check_picture(figure, tmp_path / "margins.png")
    assert figure.axes[0].get_xlabel() == "proxy: Q range"
    ticks = [text.get_text() for text in figure.axes[1].get_yticklabels()]
    assert ticks[0] == "0"
    assert ticks[-1] == str(n_values[-1])
    assert len(ticks) <= 12


@pytest.mark.parametrize(("natural", "spread"), [(100, 100), (50, 0), (0, 50)])
def test_histogram_pictures(tmp_path: Path, natural: int, spread: int) -> None:
    info = plot_info.histogram_info(make_tuples(natural=natural, spread=spread))
    check_picture(plots.histogram_figure(info), tmp_path / "proxies.png")


def test_words() -> None:
    assert readable("log_probability_range") == "log-probability range"
    assert readable("log_prob_range") == "log-probability range"
    assert readable("prob_range") == "probability range"
    assert readable("q_variance") == "Q variance"
    assert [plot_info.percent(share) for share in (0.95, 0.999, 0.07)] == ["95 %", "99.9 %", "7 %"]


def test_bad_input(tmp_path: Path) -> None:
    tuples = make_tuples()
    with pytest.raises(InvalidInput, match="most_panels must be at least 1, got 0"):
        plot_info.kde_info(tuples, most_panels=0)
    with pytest.raises(InvalidInput, match="confidence must lie between 0 and 1, got 3"):
        plot_info.kde_info(tuples, confidence=3)
    with pytest.raises(InvalidInput, match="bins must be at least 1, got 0"):
        plot_info.histogram_info(tuples, bins=0)
    with pytest.raises(InvalidInput, match="no moments to draw"):
        plot_info.histogram_info(make_tuples(natural=0, spread=0))
    figure = plots.histogram_figure(plot_info.histogram_info(tuples))
    with pytest.raises(InvalidInput, match=r"a.xyz cannot be written"):
        plots.save_figure(figure, tmp_path / "a.xyz")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match=r"file is a file; name a folder"):
        plots.save_figure(figure, tmp_path / "file" / "a.png")


def test_pyplot_is_not_used() -> None:
    code = "import sys, safemargin.study.plots; print('matplotlib.pyplot' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.stdout.strip() == "False"
