"""What counts as a failure: each form, the defaults, and events that never happen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from helpers.paths import WORLDS
from helpers.worlds import make_lives

import safemargin as sm
from safemargin.errors import EnvironmentFault, InvalidInput
from safemargin.monitor.failures import find_failures


class Flights(gym.Env[np.ndarray, int]):
    """Lands after 12 steps, or crashes at a step that the seed decides; fuel runs low before."""

    observation_space = gym.spaces.Box(-99, 99, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        self.crash = int(self.np_random.integers(6, 20))
        return self._see(), {}

    def step(self, action: int) -> Any:
        self.steps += 1
        crashed, landed = self.steps == self.crash, self.steps == 12
        low = self.steps in (3, 4)
        return self._see(), -5.0 * crashed + landed, crashed, landed and not crashed, {"low": low}

    def _see(self) -> np.ndarray:
        return np.array([self.crash, self.steps], np.float32)


class Shaped(Flights):
    """The same, but every step costs a little: no setback to speak of."""

    def step(self, action: int) -> Any:
        observation, reward, crashed, landed, info = super().step(action)
        return observation, reward - 0.1, crashed or landed, False, info


def pilot(observations: np.ndarray) -> np.ndarray:
    return np.stack([1 + observations.sum(axis=1), np.zeros(len(observations))], axis=1)


def late(episode: sm.Episode) -> Any:
    """The last two steps of long episodes."""
    return [episode.steps - 2, episode.steps - 1] if episode.steps > 10 else []


def everything(episode: sm.Episode) -> bool:
    return True


def nonsense(episode: sm.Episode) -> Any:
    return "soon"


def beyond(episode: sm.Episode) -> Any:
    return [10**6]


def breaks(episode: sm.Episode) -> Any:
    raise ValueError("no idea")


HERE = str(Path(__file__).resolve())


def study_of(path: Path, make: Any, policy: Any = pilot) -> sm.Study:
    settings = {"n_values": (1,), "gamma": 0.5}
    study = sm.Study.create(path, make, policy, settings, scores="logits")
    study.collect(20, 0, workers=1)
    return study


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flights") / "study"
    study_of(folder, Flights).close()
    return folder


@pytest.fixture
def study(flights: Path) -> Any:
    with sm.Study.open(flights, env=Flights) as opened:
        yield opened


def ends(study: sm.Study) -> dict[Any, tuple[int, str]]:
    return {each.key: (each.steps, each.ended)
            for each in study.store.proxy_traces(study.default_proxy)}  # fmt: skip


def test_every_form_by_hand(study: sm.Study) -> None:
    known = ends(study)
    crashed = {key: [steps - 1] if ended == "terminated" else []
               for key, (steps, ended) in known.items()}  # fmt: skip
    assert 0 < sum(map(len, crashed.values())) < len(known)

    def found(text: str) -> dict[Any, list[int]]:
        return {key: each.tolist() for key, each in find_failures(study, text).steps.items()}

    assert found("terminated") == found("setback") == found("return<0.5") == crashed
    assert found("info:low") == {key: [2] for key in known}  # where it becomes true, not 3
    assert found(f"{HERE}:late") == {
        key: [steps - 2, steps - 1] if steps > 10 else [] for key, (steps, _) in known.items()
    }
    assert found(f"{HERE}:everything") == {key: [steps - 1] for key, (steps, _) in known.items()}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("life-lost", "there are no lives in the study .*; --fail terminated names"),
        ("return<-100", "'return<-100' never happens in the 20 episodes"),
        ("return<much", "expected a number after 'return<', as in return<100"),
        ("return<nan", "expected a number after"),
        ("info:hight", "the environment's info never has 'hight'; .*low"),
        ("terminate", "--fail takes life-lost, terminated, setback.*not 'terminate'; did you mean"),
        ("__import__('os')", "--fail takes life-lost"),
        (f"{HERE}:nonsense", "expected True, False or the steps of an episode, got 'soon'"),
        (f"{HERE}:beyond", "names a step outside episode natural 0"),
        (f"{HERE}:breaks", "failed on episode natural 0: ValueError: no idea"),
        (f"{HERE}:HERE", "expected a function, got str"),
        (f"{HERE}:nothing_like_it", "no 'nothing_like_it' there"),
    ],
)
def test_bad_events_are_refused_in_a_sentence(study: sm.Study, text: str, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        find_failures(study, text)


def test_defaults_say_what_they_are_and_why(study: sm.Study, tmp_path: Path) -> None:
    found = find_failures(study)
    assert found.text == "terminated"
    assert "earn less than those that continue; --fail says otherwise" in found.why
    with study_of(tmp_path / "lives", make_lives, f"{WORLDS}:always_first") as lives:
        assert find_failures(lives).text == "life-lost"
    with study_of(tmp_path / "shaped", Shaped) as shaped:
        found = find_failures(shaped)
        assert found.text.startswith("return<-")
        assert "the worst 10% of episodes" in found.why
        level = float(found.text.removeprefix("return<"))
        traces = list(shaped.store.proxy_traces(shaped.default_proxy))
        failed = [trace for trace in traces if len(found.steps[trace.key])]
        assert {trace.key for trace in failed} == {
            trace.key for trace in traces if trace.total_reward < level
        }
        assert 0 < len(failed) <= 2


def test_info_needs_episodes_that_repeat_themselves(flights: Path) -> None:
    class Other(Flights):
        def step(self, action: int) -> Any:
            observation, reward, *rest = super().step(action)
            return observation, reward + 1, *rest

    with (
        sm.Study.open(flights, env=Other) as opened,
        pytest.raises(EnvironmentFault, match="did not give what was recorded at step 0"),
    ):
        find_failures(opened, "info:low")


def test_where_all_is_well_nothing_is_a_failure(tmp_path: Path) -> None:
    class Fine(Flights):
        def step(self, action: int) -> Any:
            observation, *_ = super().step(action)
            return observation, 1.0, self.steps == 12, False, {}

    with study_of(tmp_path, Fine) as fine:
        found = find_failures(fine)
        assert found.text == ""
        assert "name one with --fail" in found.why
