"""Worlds that follow the clock are refused by name; those that merely look at it are not."""

from __future__ import annotations

import cProfile
import datetime
import re
import threading
import time
from datetime import date
from datetime import datetime as moment
from time import perf_counter_ns, sleep
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from safemargin.environments.doctor import examine
from safemargin.environments.doctor.clock import OFFSETS, fixed_clocks

REAL = [time.time]
"""The real clock, in a place where nobody replaces it."""
QUICK: dict[str, Any] = {"points": 6, "steps": 20, "starts": 4, "start_steps": 20}


class Timed(gym.Env[Any, Any]):
    """Pays what `read` says, after 30 steps."""

    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Box(0, 100, (1,), np.float32)

    def __init__(self, read: Any) -> None:
        self.read = read

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        reward = float(self.read()) if self.t > 30 else 0.0
        return np.full(1, self.t, np.float32), reward, self.t >= 40, False, {}


READS: dict[str, Any] = {
    "time.time": lambda: int(time.time()) % 2,
    "time.monotonic": lambda: int(time.monotonic()) % 2,
    "perf_counter_ns": lambda: perf_counter_ns() // 10**9 % 2,
    "datetime.now": lambda: datetime.datetime.now().second % 2,
    "now with a zone": lambda: moment.now(datetime.UTC).second % 2,
    "localtime": lambda: time.localtime().tm_sec % 2,
    "date": lambda: date.today().toordinal(),
    "an hour": lambda: int(time.time()) // 3600,
    "half a second": lambda: int(time.time() * 2) % 2,
    "a quarter": lambda: int(time.monotonic() * 4) % 2,
}


@pytest.mark.parametrize("name", READS)
def test_an_environment_that_follows_the_clock_is_refused(name: str) -> None:
    diagnosis = examine(lambda: Timed(READS[name]), **QUICK)
    assert not diagnosis.measurable
    assert "depend on the clock (time.time and its like)" in diagnosis.verdict
    assert "count steps instead" in diagnosis.verdict
    # A fast clock may also flip a few steps later.
    assert re.search(r"at step (3[1-9]|40)\b", diagnosis.verdict)


@pytest.mark.parametrize("in_a_second", [10, 100, 1000])
def test_a_clock_that_flips_faster_is_noticed(in_a_second: int) -> None:
    """It may flip in the middle of a run."""
    diagnosis = examine(lambda: Timed(lambda: int(time.time() * in_a_second) % 2), **QUICK)
    assert not diagnosis.measurable
    assert "depend on the clock" in diagnosis.verdict


@pytest.mark.parametrize("shown", [0, 1])
@pytest.mark.parametrize("in_a_second", [1, 4, 10, 100])
def test_no_chance_hides_a_clock_from_the_doctor(in_a_second: int, shown: int) -> None:
    """All runs happen to see the real clock on the same side, whichever that is."""

    def read() -> int:
        now = time.time()
        return shown if abs(now - REAL[0]()) < 1 else int(now * in_a_second) % 2

    diagnosis = examine(lambda: Timed(read), **QUICK)
    assert not diagnosis.measurable
    assert "when the clock shows another time" in diagnosis.verdict


class ByDefault(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper that pays by a clock that no module's name leads to."""

    of_class = staticmethod(time.monotonic)

    def __init__(self, env: gym.Env[Any, Any], pay: float, clock: Any = time.time) -> None:
        super().__init__(env)
        self.pay, self.clock = pay, clock

    def step(self, action: Any) -> Any:
        observation, reward, *rest = self.env.step(action)
        flipped = int((self.clock or self.of_class)()) % 2
        return observation, float(reward) + self.pay * flipped, *rest


@pytest.mark.parametrize("clock", [{}, {"clock": None}])
def test_a_clock_in_a_wrapper_that_cannot_be_set_back(clock: dict[str, Any]) -> None:
    diagnosis = examine(lambda: ByDefault(Timed(lambda: 0.0), 1.0, **clock), **QUICK)
    assert not diagnosis.measurable
    assert "depend on the clock" in diagnosis.verdict
    harmless = examine(lambda: ByDefault(Timed(lambda: 0.0), 0.0, **clock), **QUICK)
    assert harmless.measurable
    name = "time.monotonic" if clock else "time.time"
    (said,) = [each.text for each in harmless.findings if "reads" in each.text]
    assert f"reads {name} through a default argument, or an attribute of a class" in said


def test_a_clock_in_a_wrapper() -> None:
    class Flipping(gym.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            observation, reward, *rest = self.env.step(action)
            return observation, reward + int(time.time()) % 2, *rest  # type: ignore[return-value]

    diagnosis = examine(lambda: Flipping(Timed(lambda: 0.0)), **QUICK)
    assert "when the clock shows another time" in diagnosis.verdict
    looks = examine(lambda: gym.wrappers.RecordEpisodeStatistics(Timed(lambda: 0.0)), **QUICK)
    assert looks.measurable
    assert not any("reads" in each.text for each in looks.findings)


def test_elapsed_time_is_named_too() -> None:
    """It differs at once, without a shifted clock."""
    diagnosis = examine(lambda: Timed(lambda: time.perf_counter()), **QUICK)
    assert "do not give the same episode again in the same environment" in diagnosis.verdict
    assert "depend on the clock" in diagnosis.verdict


def test_the_clock_is_not_blamed_for_something_else() -> None:
    diagnosis = examine(lambda: Timed(np.random.default_rng().normal), **QUICK)
    assert not diagnosis.measurable
    assert "the clock" not in diagnosis.verdict


DUE = [0.0]


def pace() -> float:
    """Wait for the next frame, as rendering does, with an appointment that a module keeps."""
    sleep(max(0.0, DUE[0] - time.time()))
    DUE[0] = time.time() + 1e-6
    assert isinstance(moment.now(), datetime.datetime)
    assert type(moment(2020, 1, 1)) is type(datetime.datetime.fromisoformat("2020-01-01"))
    return 0.0


def test_an_environment_that_keeps_pace_is_measured_and_never_waits() -> None:
    DUE[0] = 0.0
    diagnosis = examine(lambda: Timed(pace), **QUICK)
    assert diagnosis.measurable
    assert diagnosis.environment_deterministic
    assert DUE[0] <= time.time() + 1  # nothing is left that would wait for a shifted clock


def test_clocks_are_put_back() -> None:
    before = time.time, time.sleep, datetime.datetime, moment, perf_counter_ns, threading.Thread
    seen: list[float] = []
    with fixed_clocks(OFFSETS[-1]):
        held = time.time
        shown = held()
        other = threading.Thread(target=lambda: seen.append(held()))
        other.start()
        other.join()
        assert seen[0] - shown >= OFFSETS[-1]  # another thread reads the real clock
    after = time.time, time.sleep, datetime.datetime, moment, perf_counter_ns, threading.Thread
    assert after == before
    assert held() >= seen[0]  # the one that was kept shows the real time again


def test_fixed_clocks_repeat_themselves() -> None:
    def read(before: float) -> list[Any]:
        with fixed_clocks(before):
            first = [time.time(), time.monotonic()]
            sleep(10)
            return [*first, moment.now(), perf_counter_ns()]

    assert read(0.0) == read(0.0)
    now, later = read(OFFSETS[0]), read(OFFSETS[1])
    assert moment.fromtimestamp(now[0], datetime.UTC).isoformat()[:19] == "2020-01-01T00:00:00"
    for clock in (0, 1):  # just after and just before a whole second
        assert now[clock] % 2 == pytest.approx(0, abs=1e-4)
        assert later[clock] % 2 == pytest.approx(2, abs=1e-3)
        assert later[clock] % 2 < 2


def test_whoever_waits_for_a_time_to_come_gets_there_and_no_further() -> None:
    """A real appointment is reached within a second of readings, and never missed by an hour."""
    due = time.time()
    with fixed_clocks():
        while (shown := time.time()) < due:
            pass
    assert shown <= time.time()


def test_an_examination_can_be_profiled() -> None:
    profile = cProfile.Profile()
    profile.enable()
    diagnosis = examine(lambda: Timed(lambda: 0.0), **QUICK)
    profile.disable()
    assert diagnosis.measurable
    assert any("_same_at_other_times" in str(each.code) for each in profile.getstats())
