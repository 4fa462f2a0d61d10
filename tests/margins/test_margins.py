"""The margin table: the for-all rule, out of range, its file, and bad input."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safemargin.errors import InvalidInput, MarginsFileError
from safemargin.margins.bounds.table import Bound
from safemargin.margins.fitting import NoBound, fit_margins
from safemargin.margins.lookup import FORMAT, Margins, OutsideRange


def table(**changes: Any) -> Margins:
    """Three n and four bins; n = 2 is worse than n = 4 in the second bin."""
    values: dict[str, Any] = {
        "n_values": (1, 2, 4),
        "grid": [[0.0, 1.0, 2.0, 3.0]] * 3,
        "upper": [
            [-0.1, 0.2, 0.3, 0.5],  # n = 1
            [0.2, 0.9, 0.9, 1.0],  # n = 2
            [0.4, 0.6, 1.5, 2.0],  # n = 4
        ],
        "confidence": 0.95,
        "method": "paper",
        "details": {"lift": True},
    }
    return Margins(Bound(**{**values, **changes}), proxy="q_range", policy={"identity": "abc"})


def naive(margins: Margins, proxy: float, tolerance: float) -> int:
    """s* by its definition, with plain loops."""
    bound = margins.bound
    if proxy > bound.grid[0][-1]:
        return 0
    distances = [abs(proxy - value) for value in bound.grid[0]]
    column = max(j for j, distance in enumerate(distances) if distance == min(distances))
    best = 0
    for n in bound.n_values:
        if all(bound.upper[row][column] <= tolerance
               for row, smaller in enumerate(bound.n_values) if smaller <= n):  # fmt: skip
            best = n
    return best


def test_lookup_worked_by_hand() -> None:
    margins = table()
    assert margins(0, 0.0) == 1  # −0.1 ≤ 0, then 0.2 > 0
    assert margins(0, 0.2) == 2  # at the tolerance is within it
    assert margins(0, 0.4) == 4
    assert margins(1, 0.1) == 0
    assert margins(1, 0.6) == 1  # n = 4 would hold, but n = 2 does not
    assert margins(1, 0.9) == 4
    assert margins(proxy=2.9, tolerance=1.0) == 2
    assert margins(0, math.inf) == 4


def test_scalars_arrays_and_broadcasting() -> None:
    margins = table()
    one = margins(1, 0.9)
    assert type(one) is int
    row = margins([0, 1, 2], 0.9)
    assert isinstance(row, np.ndarray)
    assert row.dtype.kind == "i"
    assert row.tolist() == [4, 4, 2]
    assert margins(0, [0.0, 0.2, 0.4]).tolist() == [1, 2, 4]
    assert margins([[0], [1]], [0.0, 0.4, 0.9]).tolist() == [[1, 4, 4], [0, 1, 4]]
    assert margins(np.float32(1), np.array(0.9)) == 4
    assert margins([], 0.5).tolist() == []
    found = margins.lookup([[0.0], [-1.0]], [0.0, 0.2])
    assert found.margin.shape == found.outside.shape == found.below.shape == (2, 2)
    with pytest.raises(InvalidInput, match=r"shapes that broadcast, got \(2,\) and \(3,\)"):
        margins([1, 2], [1, 2, 3])


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_for_all_rule_against_a_naive_loop(data: st.DataObject) -> None:
    n_values = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=6, unique=True))
    bins = data.draw(st.integers(2, 6))
    # Quarters, so that ties at the tolerance and halfway between bins do occur.
    quarters = st.integers(-8, 8).map(lambda value: value / 4)
    grid = data.draw(st.lists(quarters, min_size=bins, max_size=bins, unique=True))
    upper = data.draw(
        st.lists(st.lists(quarters, min_size=bins, max_size=bins),
                 min_size=len(n_values), max_size=len(n_values))
    )  # fmt: skip
    margins = table(n_values=sorted(n_values), grid=[sorted(grid)] * len(n_values), upper=upper)
    proxies = data.draw(st.lists(st.integers(-24, 24).map(lambda v: v / 8), max_size=5))
    tolerances = data.draw(st.lists(quarters.map(abs), max_size=4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutsideRange)
        found = margins(np.array(proxies)[:, None], np.array(tolerances))
    expected = [[naive(margins, p, t) for t in tolerances] for p in proxies]
    assert found.tolist() == expected


def test_below_the_range_the_lowest_bin_is_used() -> None:
    found = table().lookup(-5, 0.4)
    assert (found.margin, found.below, found.outside) == (4, True, False)
    assert table()(-5, 0.4) == 4


def test_above_the_range() -> None:
    margins = table()
    assert margins(3.0, 9) == 4  # the highest itself is inside
    with pytest.warns(OutsideRange, match="1 of 1 proxy values lie above 3, the highest"):
        assert margins(3.001, 9) == 0
    with pytest.warns(OutsideRange, match="2 of 3 proxy values") as caught:
        assert margins([0, 4, 5], 9).tolist() == [4, 0, 0]
    assert len(caught) == 1
    assert caught[0].filename == __file__
    found = margins.lookup([3, 4], 9)  # flags, and no warning
    assert found.margin.tolist() == [4, 0]
    assert found.outside.tolist() == [False, True]
    found = margins.lookup(4, 1.0, above="nearest")
    assert (found.margin, found.outside) == (2, True)
    with pytest.raises(InvalidInput, match="the proxy 4 lies above 3, the highest"):
        margins.lookup([0, 4], 1.0, above="error")
    assert margins.lookup([0, 3], 9, above="error").margin.tolist() == [4, 4]
    with pytest.raises(InvalidInput, match="above='neares' is unknown; did you mean 'nearest'"):
        margins.lookup(4, 1.0, above="neares")  # type: ignore[arg-type]
    with pytest.warns(OutsideRange):
        assert margins(math.inf, 1.0) == 0


def test_a_proxy_that_looks_at_n() -> None:
    grid = [[0.0, 1.0, 2.0, 3.0], [10.0, 11.0, 12.0, 13.0], [20.0, 21.0, 22.0, 23.0]]
    margins = table(grid=grid, looks_at_n=True)
    assert margins([0, 10, 20], 0.4) == 4
    assert margins([0, 11, 20], 0.4) == 1
    assert margins([[0, 10, 20], [3, 13, 23]], 1.0).tolist() == [4, 2]
    with pytest.warns(OutsideRange):  # unknown for n = 2 only: what is known below it stays
        assert margins([0, 99, 20], 0.4) == 1
    with pytest.raises(InvalidInput, match=r"one value for each of n = \[1, 2, 4\]"):
        margins(1.0, 0.5)
    with pytest.raises(InvalidInput, match="'q_range' looks at n, so a heatmap has no single"):
        margins.heatmap([0.5])


def test_heatmap() -> None:
    margins = table()
    assert margins.heatmap([0.0, 0.6, 9.0]).tolist() == [[1, 0, 0, 0], [4, 1, 1, 1], [4] * 4]


@pytest.mark.parametrize(
    ("proxy", "tolerance", "text"),
    [
        (1, -0.1, "tolerance must be at least 0, got -0.1"),
        (1, [0.5, -2.0], "tolerance must be at least 0, got -2"),
        (math.nan, 0.5, "the proxy must be a number, got NaN"),
        ([1.0, math.nan], 0.5, "the proxy must be a number, got NaN"),
        (1, math.nan, "the tolerance must be a number, got NaN"),
        ("high", 0.5, "the proxy must be a number or an array, got 'high'"),
        (None, 0.5, "the proxy must be a number"),
    ],
)
def test_bad_lookups(proxy: Any, tolerance: Any, text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        table()(proxy, tolerance)


def fitted(**options: Any) -> Margins:
    rng = np.random.default_rng(2)
    proxies = rng.gamma(2, 1, 120)
    criticalities = proxies[:, None] * rng.random((120, 3)) * [0.5, 1, 2]
    return fit_margins(proxies, criticalities, (1, 2, 4), **options)


def test_fit_margins_by_hand_on_two_levels() -> None:
    # 50 moments at proxy ≈ 0 lose nothing, 50 at proxy ≈ 10 lose 1: margins 1 and 0 at ζ = 0.9.
    proxies = np.concatenate([np.linspace(0, 1, 50), np.linspace(9, 10, 50)])
    losses = np.concatenate([np.zeros(50), np.ones(50)])[:, None]
    margins = fit_margins(proxies, losses, [1], 0.95, "paper")
    assert margins(0.0, 0.9) == 1
    assert margins(9.4, 0.9) == 0
    assert margins.counts == {"moments": 100}
    assert (margins.n_values, margins.confidence, margins.method) == ((1,), 0.95, "paper")


def test_the_default_by_hand_on_two_levels() -> None:
    proxies = np.concatenate([np.linspace(0, 1, 50), np.linspace(9, 10, 50)])
    losses = np.concatenate([np.zeros(50), np.ones(50)])[:, None]
    margins = fit_margins(proxies, losses, [1])
    assert (margins.method, margins.estimand) == ("calibrated", "mean")
    assert margins(0.0, 0.9) == 1
    assert margins(10.0, 0.9) == 0
    assert margins(10.0, 1.0) == 1
    assert "not by proof" in margins.bound.details["guarantee"]


def test_too_few_moments_give_no_bound_and_say_how_many_are_needed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with pytest.warns(
        NoBound, match=r"confidence of 0.999 needs 999 natural moments .* there are 500"
    ) as caught:
        margins = fit_margins(rng.random(500), rng.random((500, 2)), (1, 2), 0.999)
    assert caught[0].filename == __file__
    assert margins(0.5, 1e9) == margins(0.5, math.inf) == 0
    assert margins.notes[0].endswith("collect 999 or more, or lower the confidence")
    document = json.loads(margins.save(tmp_path / "margins.json").read_text())
    assert document["version"] == 4
    assert document["upper"][0][0] is None
    again = Margins.load(tmp_path / "margins.json")
    assert np.isinf(again.bound.upper).all()
    assert again.to_dict() == margins.to_dict()


def test_no_bound_in_the_middle_ends_the_chain() -> None:
    margins = table(upper=[[0.1, 0.2, 0.3, 0.5], [0.2, math.inf, 0.9, 1.0], [0.4, 0.6, 1.5, 2.0]])
    assert margins(1.0, 99) == 1
    assert margins(2.0, 99) == 4


def test_version_one_is_still_read() -> None:
    document = table().to_dict()
    document["version"] = 1
    del document["estimand"]
    old = Margins.from_dict(document)
    assert old.estimand == "mean"
    assert old(1, 0.9) == 4
    with pytest.raises(MarginsFileError, match="'upper' holds None where a number belongs"):
        Margins.from_dict({**document, "upper": [[None] * 4] * 3})
    assert Margins.from_dict({**document, "version": 2, "estimand": "mean",
                              "upper": [[None] * 4] * 3})(1, 9) == 0  # fmt: skip


def test_provenance_is_kept() -> None:
    margins = fitted(
        proxy="q_range",
        environment={"name": "CartPole-v1"},
        policy={"name": "agent.onnx", "identity": "f00", "score_kind": "q"},
        settings={"gamma": 0.99},
        counts={"natural": 60, "spread": 60},
        created_by="safemargin fit",
    )
    again = Margins.from_dict(json.loads(json.dumps(margins.to_dict())))
    assert again.environment == {"name": "CartPole-v1"}
    assert again.policy["identity"] == "f00"
    assert again.settings == {"gamma": 0.99}
    assert again.counts == {"natural": 60, "spread": 60}
    assert (again.proxy, again.created_by) == ("q_range", "safemargin fit")
    assert again.safemargin_version == margins.safemargin_version != ""
    assert again.lowest_proxy < again.highest_proxy


@pytest.mark.parametrize("looks_at_n", [False, True])
def test_file_round_trip_is_exact_to_the_bit(tmp_path: Path, looks_at_n: bool) -> None:
    margins = fitted()
    if looks_at_n:
        rng = np.random.default_rng(0)
        margins = fit_margins(rng.random((50, 2)), rng.random((50, 2)), (1, 2), policy={"π": "ζ"})
    path = margins.save(tmp_path / "margins.json")
    again = Margins.load(path)
    assert again.bound.grid.tobytes() == margins.bound.grid.tobytes()
    assert again.bound.upper.tobytes() == margins.bound.upper.tobytes()
    assert again.to_dict() == margins.to_dict()
    assert again.save(tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_the_readme_in_the_file_is_enough_to_look_up(tmp_path: Path) -> None:
    margins = fitted()
    data = json.loads(margins.save(tmp_path / "margins.json").read_text(encoding="utf-8"))
    assert data["format"] == FORMAT
    assert "take the bin" in data["readme"]
    for proxy, tolerance in [(0.3, 0.2), (1.0, 1.0), (2.0, 1.5), (0.0, 0.0)]:
        nearest = min(range(len(data["grid"])), key=lambda j: abs(data["grid"][j] - proxy))
        margin = 0
        for n, row in zip(data["n_values"], data["upper"], strict=True):
            if row[nearest] > tolerance:
                break
            margin = n
        assert margins(proxy, tolerance) == margin


def test_saving_leaves_the_old_file_whole_when_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fitted().save(tmp_path / "margins.json")
    before = path.read_bytes()

    def full_disk(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(MarginsFileError, match=r"margins.json cannot be written: No space left"):
        fitted(confidence=0.5).save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["margins.json"]


def test_saving_where_it_cannot(tmp_path: Path) -> None:
    with pytest.raises(MarginsFileError, match="cannot be written: No such file or directory"):
        fitted().save(tmp_path / "nowhere" / "margins.json")
    with pytest.raises(InvalidInput, match="hold something that JSON cannot"):
        fitted(settings={"gamma": math.nan}).save(tmp_path / "margins.json")
    with pytest.raises(InvalidInput, match="hold something that JSON cannot"):
        fitted(settings={"gamma": object()}).save(tmp_path / "margins.json")
    with pytest.raises(
        InvalidInput, match="hold something that JSON cannot: .*surrogates not allowed"
    ):
        fitted(settings={"gamma": "\udcff"}).save(tmp_path / "margins.json")
    assert os.listdir(tmp_path) == []


def test_a_file_is_utf_8_with_or_without_a_mark(tmp_path: Path) -> None:
    path = table().save(tmp_path / "margins.json")
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole, encoding="utf-8-sig")
    assert Margins.load(path).n_values == table().n_values
    path.write_text(whole, encoding="utf-16")
    with pytest.raises(MarginsFileError, match="is not valid JSON"):
        Margins.load(path)


def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    whole = table().save(tmp_path / "margins.json").read_bytes()
    path = tmp_path / "cut.json"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(MarginsFileError, match=r"cut.json is not valid JSON.*fit again"):
            Margins.load(path)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_file_never_raises_anything_else(data: st.DataObject) -> None:
    document = table().to_dict()
    junk = st.one_of(
        st.none(), st.booleans(), st.integers(-2, 10**400), st.floats(), st.text(max_size=3),
        st.lists(st.none() | st.floats() | st.lists(st.floats(), max_size=3), max_size=4),
        st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
    )  # fmt: skip
    name = data.draw(st.sampled_from(sorted(document)))
    document[name] = data.draw(junk)
    with contextlib.suppress(MarginsFileError):  # anything else fails this test
        margins = Margins.from_dict(document)
        assert margins.lookup(1, 0.5).margin in (0, *margins.n_values)


def changed(**changes: Any) -> dict[str, Any]:
    return {**table().to_dict(), **changes}


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ([1, 2], "not a margins file"),
        ({}, "not a margins file"),
        (changed(format="other"), "not a margins file"),
        (changed(version=5), "its version is 5 and this safemargin reads versions 1 to 4; install"),
        (changed(version=4, probe={"kind": "q"}), "the probe is damaged"),
        (changed(estimand="median"), "the estimand 'median' is unknown; did you mean 'mean'"),
        (changed(estimand=None), "'estimand' must be of type str, not None"),
        (changed(version="1"), "'version' must be of type int, not '1'"),
        (changed(upper=[[1.0]]), r"grid and upper must both be \[3 n, bins\]"),
        (changed(upper=[[1.0], [1.0, 2.0]]), "'upper' must hold equal rows"),
        (changed(upper=[["a"] * 4] * 3), "'upper' holds 'a' where a number belongs"),
        (changed(grid=[None] * 4), "'grid' holds None where a number belongs"),
        (changed(upper=[[math.inf] * 4] * 3), "'upper' holds inf where a number belongs"),
        (changed(upper=[[True] * 4] * 3), "'upper' holds True where a number belongs"),
        (changed(grid=[0.0, 2.0, 1.0, 3.0]), "grid must increase from bin to bin"),
        (changed(grid=[]), r"must both be \[3 n, bins\]"),
        (changed(n_values=[4, 2, 1]), "increasing whole numbers"),
        (changed(n_values=["a"]), "increasing whole numbers"),
        (changed(n_values=[1, 2, 2**63]), "n_values must be at most 9223372036854775807, got 92"),
        (
            changed(n_values=[1, 2, 10**400]),
            "n_values must be at most 9223372036854775807, got 1000",
        ),
        (changed(confidence=1.5), "confidence must lie between 0 and 1, got 1.5"),
        (changed(policy="agent"), "'policy' must be of type dict, not 'agent'"),
        (changed(looks_at_n=0), "'looks_at_n' must be of type bool, not 0"),
        ({"format": FORMAT, "version": 1}, "the entry 'n_values' is missing"),
        (changed(details={"notes": 5}), "the notes in 'details' must be a list of strings, not 5"),
        (changed(details={"notes": None}), "the notes in 'details' must be a list of strings"),
        (changed(details={"notes": "few"}), "the notes in 'details' must be a list of strings"),
        (changed(details={"notes": [1]}), "the notes in 'details' must be a list of strings"),
        (changed(policy={"identity": 7}), "the identity in 'policy' must be a string, not 7"),
        (changed(policy={"kind": ["q"]}), r"the kind in 'policy' must be a string, not \['q'\]"),
        (changed(environment={"identity": []}), "the identity in 'environment' must be a string"),
        (
            changed(natural_proxies={"count": 10**30, "ranks": [1], "values": [0], "ties": [0]}),
            "the count of natural_proxies is 1000",
        ),
        (changed(created_by="\ud800"), "cannot be written again .*surrogates not allowed"),
        (changed(settings={"\ud800": 1}), "cannot be written again .*surrogates not allowed"),
        (changed(details={"a": [{"b": "\ud800"}]}), "cannot be written again .*surrogates"),
    ],
)
def test_foreign_and_damaged_documents(tmp_path: Path, document: Any, text: str) -> None:
    path = tmp_path / "margins.json"
    path.write_text(json.dumps(document))
    if "inf" in text:  # json.dumps writes Infinity, which is not JSON; 1e999 is, and means inf
        with pytest.raises(MarginsFileError, match="is not valid JSON"):
            Margins.load(path)
        path.write_text(json.dumps(document).replace("Infinity", "1e999"))
    with pytest.raises(MarginsFileError, match=rf"margins.json: .*{text}.*fit again"):
        Margins.load(path)


def test_files_that_are_not_json_at_all(tmp_path: Path) -> None:
    with pytest.raises(MarginsFileError, match=r"none.json does not exist; fit first"):
        Margins.load(tmp_path / "none.json")
    with pytest.raises(MarginsFileError, match="cannot be read: Is a directory; name the"):
        Margins.load(tmp_path)
    for content in (b"", b"\x89PNG\r\n\xff\xfe", b"[" * 100_000, b"9" * 5000, b"NaN"):
        path = tmp_path / "odd.json"
        path.write_bytes(content)
        with pytest.raises(MarginsFileError, match=r"odd\.json"):
            Margins.load(path)


def test_a_lookup_loads_no_fitting_code(tmp_path: Path) -> None:
    path = table().save(tmp_path / "margins.json")
    code = (
        "import sys\n"
        "from safemargin.margins import Margins\n"
        f"print(Margins.load({str(path)!r})(1, 0.9))\n"
        "fitting = {f'safemargin.margins.{name}' for name in\n"
        "           ('fitting', 'methods', 'density', 'bounds.sample', 'bounds.conformal')}\n"
        "heavy = {'scipy', 'matplotlib', 'gymnasium', 'onnxruntime', 'torch'}\n"
        "print(sorted((fitting | heavy) & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.stdout.splitlines() == ["4", "[]"]


def test_a_link_stays_a_link_and_a_device_a_device(tmp_path: Path) -> None:
    margins = fit_margins(np.arange(40.0), np.arange(40.0)[:, None], [1], method="paper")
    target, link, pipe = tmp_path / "target.json", tmp_path / "link.json", tmp_path / "pipe"
    link.symlink_to(target)
    margins.save(link)
    assert link.is_symlink()
    assert Margins.load(target).to_dict() == margins.to_dict()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()))
    received: list[str] = []
    reader.start()
    margins.save(pipe)
    reader.join(timeout=10)
    assert pipe.is_fifo()
    assert received[0] == target.read_text()
    with pytest.raises(MarginsFileError, match="cannot be written"):
        margins.save(tmp_path)


def test_test_vectors_are_what_a_look_up_returns(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    proxies = rng.random(300)
    margins = fit_margins(proxies, proxies[:, None] * rng.random((300, 2)), (1, 2))
    document = json.loads(margins.save(tmp_path / "margins.json").read_text())
    vectors = document["test_vectors"]
    assert len({vector["margin"] for vector in vectors}) > 1
    for vector in vectors:
        found = margins.lookup(vector["proxy"], vector["tolerance"])
        assert found.margin == vector["margin"]
    for changed, said in (
        ({"n_values": [1, 9]}, r"changed after it was made: at a proxy of .* say 2, .* grants 9"),
        ({"upper": [[0.0] * len(row) for row in document["upper"]]}, "its table grants 2"),
        ({"test_vectors": [{"proxy": 0.5}]}, "is no entry of 'test_vectors'; fit again"),
        ({"test_vectors": 3}, "3 is no entry of 'test_vectors'"),
    ):
        (tmp_path / "changed.json").write_text(json.dumps({**document, **changed}))
        with pytest.raises(MarginsFileError, match=said):
            Margins.load(tmp_path / "changed.json")
    older = {**document, "version": 3}
    del older["probe"], older["test_vectors"]
    (tmp_path / "older.json").write_text(json.dumps(older))
    assert Margins.load(tmp_path / "older.json").probe is None
