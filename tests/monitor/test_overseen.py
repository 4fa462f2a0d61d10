"""Oversight in an environment: the wrapper, the generator, and the overseers."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from helpers.luck import GAMMA, STEPS, Luck, first
from helpers.margins import margins, own_margins
from helpers.worlds import Lives, TableWorld, always_first, chain, make_branching

import safemargin as sm
from safemargin.errors import InvalidInput, StudyMismatch
from safemargin.margins.natural_proxies import summarise
from safemargin.monitor.monitor import Monitor
from safemargin.monitor.overseen import Outcome
from safemargin.monitor.overseers import Lookahead, OtherPolicy, Terminal


def watch(**options: Any) -> Monitor:
    return Monitor(own_margins(), **{"tolerance": 1.0, "call_at": 2, **options})


def short_chain() -> gym.Env[Any, Any]:
    return TableWorld(chain(6))


def test_without_an_overseer_the_agent_is_only_watched() -> None:
    env = sm.Overseen(short_chain(), always_first, watch())
    env.reset(seed=0)
    infos, ended = [], False
    while not ended:
        _, reward, ended, _, info = env.step()
        assert reward == 1
        infos.append(info["oversight"])
    assert [each["proxy"] for each in infos] == [1, 2, 3, 4, 5, 6]
    assert [each["margin"] for each in infos] == [2, 1, 0, 0, 0, 0]
    assert [each["call"] for each in infos] == [False, True, True, True, True, True]
    assert [each["outside"] for each in infos] == [False, False, False, True, True, True]
    assert infos[1]["why"] == "margin 1, below 2"
    assert not any(each["asked"] or each["overruled"] for each in infos)
    with pytest.raises(InvalidInput, match="has not started or has ended; reset the environment"):
        env.step()


def test_the_overseer_acts_when_there_is_a_call() -> None:
    asked: list[Any] = []

    def overseer(observation: Any, scores: Any, decision: Any, env: Any) -> Any:
        asked.append((int(observation.argmax()), scores.tolist(), decision.margin))
        return 1 if len(asked) == 2 else None

    env = sm.Overseen(short_chain(), always_first, watch(), overseer)
    env.reset(seed=0)
    assert env.question.proposed == 0
    assert not env.step()[4]["oversight"]["asked"]
    second = env.step()[4]["oversight"]
    assert (second["asked"], second["taken"], second["overruled"]) == (True, 0, False)
    _, reward, terminated, _, info = env.step()
    assert (reward, terminated) == (0, True)  # action 1 ends the walk
    assert info["oversight"]["proposed"] == 0
    assert info["oversight"]["taken"] == 1
    assert info["oversight"]["overruled"]
    assert asked == [(1, [2.0, 0.0], 1), (2, [3.0, 0.0], 0)]


def test_an_action_from_outside_is_the_agents_own() -> None:
    env = sm.Overseen(short_chain(), always_first, watch())
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step(1)
    assert (reward, terminated) == (0, True)
    assert info["oversight"]["proposed"] == 1
    assert not info["oversight"]["overruled"]


def test_episodes_are_counted_and_broken_ones_are_not() -> None:
    monitor = Monitor(own_margins(natural_proxies=summarise(np.arange(50.0))), tolerance=1.0)
    env = sm.Overseen(short_chain(), always_first, monitor)
    for _ in range(2):
        env.reset(seed=0)
        while not env.step()[2]:
            pass
    env.reset(seed=0)
    env.step()
    env.reset(seed=0)
    assert monitor.drift.episodes == 2
    games = Monitor(own_margins(natural_proxies=summarise(np.arange(50.0))), tolerance=1.0)
    lives = sm.Overseen(Lives(short_chain(), lives=3), always_first, games)
    for life in range(3):
        lives.reset(seed=0 if life == 0 else None)
        while not lives.step()[2]:
            pass
    assert games.drift.episodes == 1  # one game


@pytest.mark.parametrize("seed", [None, 1])
def test_a_seed_abandons_a_game_with_lives_left(seed: int | None) -> None:
    heard: list[str] = []
    env, monitor = Lives(short_chain(), lives=3), watch(listeners=[lambda e: heard.append(e.why)])
    for _ in sm.oversee(env, always_first, monitor, seed=0):
        pass
    heard.clear()
    run = sm.oversee(env, always_first, monitor, seed=seed)
    assert next(run).decision.call == (seed is None)  # the call of the last life
    assert heard == ([] if seed is None else ["the episode has ended"])
    overseen = sm.Overseen(Lives(short_chain(), lives=3), always_first, watch())
    overseen.reset(seed=0)
    while not overseen.step()[2]:
        pass
    overseen.reset(seed=seed)
    assert overseen.question.decision.call == (seed is None)


def test_margins_of_another_policy_are_refused() -> None:
    with pytest.raises(StudyMismatch, match="the margins were made for another policy"):
        sm.Overseen(short_chain(), always_first, Monitor(
            margins(proxy="log_prob_range", policy={"kind": "logits", "identity": "sha256:x"}),
            tolerance=1.0,
        ))  # fmt: skip


def test_the_generator_takes_answers() -> None:
    run = sm.oversee(short_chain(), always_first, watch(), seed=0)
    seen = []
    question = next(run)
    with pytest.raises(StopIteration) as stop:  # noqa: PT012
        while True:
            seen.append((question.step, question.decision.margin, question.proposed))
            question = run.send(1 if question.step == 3 else None)
    assert seen == [(0, 2, 0), (1, 1, 0), (2, 0, 0), (3, 0, 0)]
    assert stop.value.value == Outcome(4, 3.0, True, False, 1, 3, 1)
    steps = [
        each.step for each in sm.oversee(short_chain(), always_first, watch(), only_calls=True)
    ]
    assert steps == [1, 2, 3, 4, 5]


def test_an_abandoned_generator_does_not_count_for_drift() -> None:
    monitor = Monitor(own_margins(natural_proxies=summarise(np.arange(50.0))), tolerance=1.0)
    run = sm.oversee(short_chain(), always_first, monitor)
    next(run)
    run.close()
    assert monitor.drift.episodes == 0


def second_best(observations: np.ndarray) -> np.ndarray:
    return np.tile(np.array([0.0, 1.0], np.float32), (len(observations), 1))


def test_another_policy_oversees() -> None:
    env = sm.Overseen(short_chain(), always_first, watch(), OtherPolicy(second_best, kind="logits"))
    env.reset(seed=0)
    env.step()
    _, _, terminated, _, info = env.step()
    assert terminated
    assert info["oversight"]["taken"] == 1


def test_a_lookahead_saves_a_foolish_agent_and_disturbs_nothing() -> None:
    """In the branching world action 1 leads to the poor lane; the lookahead sees that."""
    fool = own_margins()
    look = Lookahead(always_first, kind="logits", steps=30, gamma=0.9)
    plain, saved = [], []
    for rewards, overseer in ((plain, None), (saved, look)):
        monitor = Monitor(fool, tolerance=0.0, call_at=1)  # at tolerance 0 only state 0 is safe
        env = sm.Overseen(make_branching(), always_second_policy(), monitor, overseer)
        env.reset(seed=0)
        ended = False
        while not ended:
            _, reward, ended, _, _info = env.step()
            rewards.append(reward)
    assert len(plain) == len(saved)
    assert sum(saved) > sum(plain) + 10
    assert look.returns.shape == (2,)
    assert look.returns[0] >= look.returns[1]


def always_second_policy() -> Any:
    return sm.load_policy(wrong_and_sure, kind="logits")


def wrong_and_sure(observations: np.ndarray) -> np.ndarray:
    """Prefers action 1, with a proxy that makes the monitor call."""
    return np.tile(np.array([0.0, 2.5], np.float32), (len(observations), 1))


def test_a_lookahead_returns_to_where_it_was() -> None:
    for trials in (1, 3):
        env = make_branching()
        observation, _ = env.reset(seed=1)
        look = Lookahead(always_first, kind="logits", steps=20, trials=trials)
        state = env.unwrapped.state  # type: ignore[attr-defined]
        generator = env.unwrapped.np_random.bit_generator.state
        decision = watch().step(np.array([2.0, 0.0]))
        assert look(observation, np.array([2.0, 0.0], np.float32), decision, env) == 0
        assert env.unwrapped.state == state  # type: ignore[attr-defined]
        assert env.unwrapped.np_random.bit_generator.state == generator


def test_a_lookahead_under_jitter_is_not_misled_by_luck() -> None:
    """Action 1 is worth 1 more whatever happens; the best of three futures is mostly luck."""
    env = Luck(1.0, 60.0)
    decision = watch().step(np.array([2.0, 0.0]))
    chosen = {}
    for jitter in (0.0, 0.2):
        look = Lookahead(
            first, kind="logits", steps=STEPS, gamma=GAMMA, trials=32 if jitter else 1,
            jitter=jitter,
        )  # fmt: skip
        chosen[jitter] = []
        for seed in range(12):
            observation, _ = env.reset(seed=seed)
            scores = first(observation[None])[0]
            chosen[jitter].append(int(look(observation, scores, decision, env)))
            assert env.taken == ()  # it is where it was
    assert chosen[0.2].count(1) >= 11
    assert chosen[0.0].count(1) <= 9


def test_invalid_lookaheads_are_refused() -> None:
    with pytest.raises(InvalidInput, match="a probability from 0 to below 1, got 1"):
        Lookahead(always_first, kind="logits", jitter=1.0)
    with pytest.raises(InvalidInput, match="at least 1 step and 1 trial, got 0 and 1"):
        Lookahead(always_first, kind="logits", steps=0)
    look = Lookahead(always_first, kind="logits")
    env = gym.make("Pendulum-v1")
    with pytest.raises(InvalidInput, match="tries each of a Discrete space's actions, not Box"):
        look(env.reset(seed=0)[0], np.zeros(1), watch().step(np.zeros(2)), env)
    env.close()


def test_a_person_at_the_terminal() -> None:
    answers = iter(["up", "7", "1", "", "0.5", "9"])
    shown: list[str] = []
    person = Terminal(ask=lambda prompt: next(answers), show=shown.append)
    decision = watch().step(np.array([2.0, 0.0]))
    env = short_chain()
    assert person(None, np.array([2.0, 0.0]), decision, env) == 1
    assert shown[0] == "call: margin 1, below 2"
    assert shown[1].split() == ["0", "2"]
    assert "'up' is not an action of Discrete(2)" in shown
    assert "'7' is not an action of Discrete(2)" in shown
    assert person(None, np.array([2.0, 0.0]), decision, env) is None
    pendulum = gym.make("Pendulum-v1")
    assert person(None, np.zeros((2, 1)), decision, pendulum).tolist() == [0.5]
    pendulum.close()

    def closed(prompt: str) -> str:
        raise EOFError

    assert Terminal(ask=closed, show=shown.append)(None, np.zeros(2), decision, env) is None
