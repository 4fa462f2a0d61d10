"""What counts as a failure in the episodes of a study: the events that oversight should catch.

The user says what counts; a default is chosen from the study where it is plain, and shown. Only a
function that the user names as `file.py:function` is ever run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from safemargin.core.importing import locate
from safemargin.core.records import Episode, EpisodeKey
from safemargin.criticality.replaying import Replay
from safemargin.environments import Simulator, make_simulator
from safemargin.errors import EnvironmentFault, InvalidInput, did_you_mean, errors_as
from safemargin.study.passes import earlier_lives
from safemargin.study.reading import ProxyTrace
from safemargin.study.store import Store
from safemargin.study.study import Study

Steps = npt.NDArray[np.int64]

SIMPLE = {
    "life-lost": "a life that is lost",
    "terminated": "an episode that ends on its own, not by a time limit",
    "setback": "a step with a negative reward",
}
FORMS = (*SIMPLE, "return<X", "info:KEY", "file.py:function")

RARE = 0.05
"""Negative rewards at more than this share of steps are a way of shaping, not setbacks."""

WORST = 0.1
"""Where nothing else tells, the worst episodes are this share of them."""


@dataclass(frozen=True, eq=False)
class Failures:
    """The failures in a study's episodes."""

    text: str
    """As `--fail` takes it; empty where nothing is known to be a failure."""
    why: str
    """What it means, and for a default why it was chosen."""
    steps: Mapping[EpisodeKey, Steps]
    """The steps, counted from the episode's start, at which one happens."""

    def after_opening(self, trace: ProxyTrace) -> Steps:
        """Return the failures of an episode, counted from the agent's first own decision."""
        steps = self.steps.get(trace.key, np.zeros(0, np.int64))
        return steps - trace.opening


def find_failures(study: Study, text: str | None = None) -> Failures:
    """Return the failures of a study; InvalidInput in one sentence for those that never happen."""
    episodes = list(study.store.proxy_traces(study.default_proxy))
    if text is not None:
        return _named(study, episodes, text)
    for candidate, why in _candidates(study, episodes):
        found = _steps(study, episodes, candidate)
        if any(map(len, found.values())):
            return Failures(candidate, f"{why}; --fail says otherwise", found)
    return Failures("", "nothing in the study is plainly a failure; name one with --fail", {})


def _named(study: Study, episodes: Sequence[ProxyTrace], text: str) -> Failures:
    found = _steps(study, episodes, text)
    if not any(map(len, found.values())):
        raise InvalidInput(
            f"the event {text!r} never happens in the {len(episodes):,} episodes of the study in "
            f"{study.path}, so nothing can be said about catching it; name another, or collect more"
        )
    meaning = SIMPLE.get(text)
    if meaning is None:
        number, _, key = text.partition("<") if text.startswith("return<") else ("", "", "")
        meaning = f"an episode that earns less than {key}" if number else "as you named it"
        if text.startswith("info:"):
            meaning = f"a step at which the environment's info {text[5:]!r} becomes true"
    return Failures(text, meaning, found)


def _candidates(study: Study, episodes: Sequence[ProxyTrace]) -> Iterable[tuple[str, str]]:
    """Yield what may count as a failure by default, and why, the plainest first."""
    if not episodes:
        return
    if any(trace.key.life for trace in episodes):
        yield "life-lost", "games have lives here, and each that ends was lost"
        return
    by_end: dict[str, list[float]] = {}
    for trace in episodes:
        by_end.setdefault(trace.ended, []).append(trace.total_reward)
    others = by_end.get("truncated", []) + by_end.get("cut", [])
    if "terminated" in by_end and others and np.mean(by_end["terminated"]) < np.mean(others):
        yield "terminated", "episodes that end on their own earn less than those that continue"
        return
    rewards = np.concatenate([study.store.rewards(trace.key) for trace in episodes])
    if 0 < (rewards < 0).mean() <= RARE:
        yield "setback", f"{(rewards < 0).mean():.1%} of steps have a negative reward"
    returns = np.array([trace.total_reward for trace in episodes])
    level = float(np.quantile(returns, WORST, method="higher"))
    yield f"return<{level!r}", f"it is the worst {WORST:.0%} of episodes"


def _steps(study: Study, episodes: Sequence[ProxyTrace], text: str) -> dict[EpisodeKey, Steps]:
    """Return the steps of every episode at which an event happens, after its opening."""
    found = _all_steps(study, episodes, text)
    return {trace.key: found[trace.key][found[trace.key] >= trace.opening] for trace in episodes}


def _all_steps(study: Study, episodes: Sequence[ProxyTrace], text: str) -> dict[EpisodeKey, Steps]:
    if text.startswith("info:"):
        return _from_info(study, episodes, text.removeprefix("info:"))
    if text.startswith("return<"):
        level = _number(text)
        return {trace.key: _at_end(trace, trace.total_reward < level) for trace in episodes}
    if text == "life-lost":
        if not any(trace.key.life for trace in episodes):
            raise InvalidInput(
                f"there are no lives in the study in {study.path}: each of its games is one "
                "episode; --fail terminated names those that end on their own"
            )
        text = "terminated"
    if text == "terminated":
        return {trace.key: _at_end(trace, trace.ended == "terminated") for trace in episodes}
    if text == "setback":
        return {trace.key: np.flatnonzero(study.store.rewards(trace.key) < 0) for trace in episodes}
    if ":" not in text:
        raise InvalidInput(
            f"--fail takes {', '.join(FORMS[:-1])} or {FORMS[-1]}, not {text!r}; "
            + did_you_mean(text, FORMS)
        )
    function = locate(text, what="--fail")
    if not callable(function):
        raise InvalidInput(f"--fail {text!r}: expected a function, got {type(function).__name__}")
    return {
        trace.key: _as_steps(text, function, study.store.episode(trace.key)) for trace in episodes
    }


def _number(text: str) -> float:
    try:
        level = float(text.removeprefix("return<"))
    except ValueError:
        level = math.nan
    if math.isnan(level):
        raise InvalidInput(f"--fail {text!r}: expected a number after 'return<', as in return<100")
    return level


def _at_end(trace: ProxyTrace, failed: bool) -> Steps:
    return np.array([trace.steps - 1] if failed else [], dtype=np.int64)


def _as_steps(text: str, function: Any, episode: Episode) -> Steps:
    """Ask a user's function which steps of an episode are failures."""
    with errors_as(InvalidInput, f"--fail {text!r} failed on episode {episode.key}:"):
        answer = function(episode)
    if isinstance(answer, bool | np.bool_):
        return np.array([episode.steps - 1] if answer else [], dtype=np.int64)
    try:
        steps = np.unique(np.asarray(list(answer), dtype=np.int64))
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(
            f"--fail {text!r}: expected True, False or the steps of an episode, got {answer!r:.60}"
        ) from error
    if len(steps) and not 0 <= steps[0] <= steps[-1] < episode.steps:
        raise InvalidInput(
            f"--fail {text!r} names a step outside episode {episode.key}, which has "
            f"{episode.steps}: {steps.tolist()[:5]}"
        )
    return steps


def _from_info(study: Study, episodes: Sequence[ProxyTrace], key: str) -> dict[EpisodeKey, Steps]:
    """Play every episode again, and return the steps at which `info[key]` becomes true."""
    found: dict[EpisodeKey, Steps] = {}
    seen: set[str] = set()
    with study.environment_spec.opened() as env:
        simulator = make_simulator(env, way="replay")
        for trace in episodes:
            found[trace.key] = _rises(study.store, simulator, trace.key, key, seen)
    if key not in seen:
        raise InvalidInput(
            f"the environment's info never has {key!r}; {did_you_mean(key, sorted(seen))}"
        )
    return found


def _rises(
    store: Store, simulator: Simulator, episode: EpisodeKey, key: str, seen: set[str]
) -> Steps:
    def differs(step: int) -> EnvironmentFault:
        return EnvironmentFault(
            f"playing episode {episode} again did not give what was recorded at step {step}; "
            "info is known only where episodes repeat themselves"
        )

    recorded = store.episode(episode)
    replay = Replay(simulator, recorded, earlier_lives(store, episode), differs, unwatched=0)
    replay.begin()
    steps, before = [], False
    for step in range(recorded.steps):
        replay.advance()
        seen.update(map(str, simulator.info))
        now = bool(np.any(simulator.info.get(key, False)))
        if now and not before:
            steps.append(step)
        before = now
    return np.array(steps, dtype=np.int64)
