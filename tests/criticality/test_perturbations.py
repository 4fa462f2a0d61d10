"""Perturbations other than random actions, against worlds whose losses are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from helpers.paths import WORLDS
from helpers.worlds import Masked, TableWorld, coin, opposite, swerve, swerving

import safemargin as sm
from safemargin.core.measured import mistakes_in_words
from safemargin.core.records import EpisodeKey
from safemargin.core.settings import Settings
from safemargin.criticality.estimation import MomentMeasurer, Randomness
from safemargin.criticality.perturbations import History, make_perturbation
from safemargin.criticality.rollouts import Runner
from safemargin.environments import make_simulator
from safemargin.errors import InvalidInput
from safemargin.policies import load_policy
from safemargin.policies.actions import RandomActions
from safemargin.policies.base import Memory, Policy

POLICY = load_policy(swerve, kind="logits")
GAMMA = 0.99
STEP = 7

Chance = Callable[[int], float]


def even(k: int) -> float:
    return float(k % 2 == 0)


# A perturbation, and the chance that it does the wrong thing k steps after an odd step of a world
# in which the agent's actions alternate.
LOSSES: list[tuple[str, Chance]] = [
    ("stuck", even),  # at the action of step 6, which is wrong at 7, 9, 11, …
    ("stuck:1", lambda k: 1 - even(k)),
    ("stuck:0", even),
    ("delayed:1", lambda k: 1.0),
    ("delayed:2", lambda k: 0.0),
    ("dropped", even),
    (f"policy:{WORLDS}:wrong_way", lambda k: 1.0),
    (f"{WORLDS}:opposite", lambda k: 1.0),
]
DRAWN: list[tuple[str, Chance]] = [
    ("random", lambda k: 0.5),
    ("noisy:0.4", lambda k: 0.2),  # half of the random actions are right
    (f"{WORLDS}:coin", lambda k: 0.5),
]


def exact(chance: Chance, n: int, slip: float = 0.0) -> float:
    """Σ γ^k P(alive) P(wrong) over the n steps that may go wrong."""
    return sum((GAMMA * (1 - slip)) ** k * chance(k) for k in range(n))


def named(case: tuple[str, Chance]) -> str:
    return case[0].rpartition("/")[2]


def measure(perturb: Any, *, slip: float = 0.0, step: int = STEP, **given: Any) -> list[Any]:
    world = TableWorld(swerving(60, slip=slip))
    return sm.true_criticality(
        world, POLICY, step=step, n=[1, 2, 4, 8], perturb=perturb, settings=Settings(**given)
    )


@pytest.mark.parametrize("plan", ["fixed", "paper"])
@pytest.mark.parametrize("case", LOSSES, ids=named)
def test_what_draws_nothing_is_one_exact_trial(case: tuple[str, Chance], plan: Any) -> None:
    perturb, chance = case
    for found in measure(perturb, trial_plan=plan):
        assert (found.trials, found.exact, found.half_width) == (1, True, 0.0)
        assert found.mean == pytest.approx(exact(chance, found.n), abs=1e-12)


@pytest.mark.parametrize("case", DRAWN, ids=named)
def test_what_draws_is_sampled(case: tuple[str, Chance]) -> None:
    perturb, chance = case
    for found in measure(perturb, trials=400, max_enumerated=0):
        assert found.trials == (2**found.n if perturb == "random" and found.n < 9 else 400)
        assert abs(found.mean - exact(chance, found.n)) <= 2.5 * found.half_width + 1e-9


@pytest.mark.parametrize("case", LOSSES + DRAWN, ids=named)
def test_a_stochastic_world(case: tuple[str, Chance]) -> None:
    perturb, chance = case
    slip = 0.05
    world = TableWorld(swerving(60, slip=slip))
    settings = Settings(trials=300)
    seed = next(s for s in range(50) if lives_beyond(world, s, STEP))
    found = sm.true_criticality(
        world, POLICY, step=STEP, n=[1, 4], seed=seed, perturb=perturb, settings=settings
    )
    assert [estimate.n for estimate in found] == [1, 4]
    for estimate in found:
        assert (estimate.trials, estimate.exact) == (300, False)
        # Where nothing is lost, or one step for certain, there is no spread at all.
        assert abs(estimate.mean - exact(chance, estimate.n, slip)) <= (
            2.5 * estimate.half_width + 1e-9
        )


def lives_beyond(world: TableWorld, seed: int, step: int) -> bool:
    world.reset(seed=seed)
    return not any(world.step(0)[2] for _ in range(step + 1))


def test_before_the_first_action_nothing_is_held_or_delayed() -> None:
    # From state 0: nothing is done (action 0) instead of 0, 1, 0, 1, …
    (_, _, stuck, _) = measure("stuck", step=0)
    assert stuck.mean == pytest.approx(exact(lambda k: 1 - even(k), 4), abs=1e-12)
    # A delay of 3: 0, 0, 0, and then what was meant at steps 0, 1, …, which is wrong.
    (_, _, _, late) = measure("delayed:3", step=0)
    assert late.mean == pytest.approx(GAMMA + sum(GAMMA**k for k in range(3, 8)), abs=1e-12)


@pytest.mark.parametrize("perturb", ["stuck", "delayed:1", "noisy:0.5", f"{WORLDS}:coin"])
def test_trials_are_those_of_brute_force(perturb: str) -> None:
    """With merging, lock-step and shared beginnings, or one by one by hand: the same returns."""
    settings = Settings(n_values=(1, 4, 9), trials=12, perturb=perturb)
    world = TableWorld(swerving(40))
    runner = Runner(make_simulator(world), POLICY, settings)
    episode = runner.run_episode(EpisodeKey("natural", 0), seed=0)
    measurer = MomentMeasurer(runner, episode, STEP, Randomness(environment=False, policy=False))
    mistakes = make_perturbation(perturb)
    for n, measured in zip(settings.n_values, measurer.measure(1, 4, 9), strict=True):
        plan = measurer.planner.plan(n)
        for number, found in enumerate(measured.perturbed):
            world.reset(seed=0)
            history = History(RandomActions(world.action_space), episode.actions[:STEP])
            for action in episode.actions[:STEP]:
                world.step(action)
            rewards, ended = [], False
            while not ended:
                row = swerve(world._observe()[np.newaxis])[0]
                action = int(np.argmax(row))
                if len(rewards) < n:
                    history.intended_since.append(action)
                    action = mistakes.action(plan.uniforms(number)[len(rewards)], action, history)
                    history.taken_since.append(action)
                _, reward, ended, *_ = world.step(action)
                rewards.append(reward)
            assert (found,) == runner.returns([(reward,) for reward in rewards])


def test_boxes() -> None:
    space = gym.spaces.Box(np.array([-2.0, 0.0]), np.array([2.0, 1.0]), dtype=np.float64)
    history = History(RandomActions(space), np.array([[0.5, 0.25]]))
    own = np.array([1.0, 0.9])
    nothing = np.empty(0)
    for perturb, expected in (
        ("stuck", [0.5, 0.25]),
        ("stuck:1.5,1", [1.5, 1.0]),
        ("dropped", [0.0, 0.0]),
    ):
        taken = make_perturbation(perturb).action(nothing, own, history)
        np.testing.assert_array_equal(taken, expected)
    # Gaussian with 0.1 of half the range: 0.2 and 0.05, clipped to the box.
    noisy = make_perturbation("noisy:0.1")
    assert noisy.width(history.random_actions) == 2
    rows = np.random.default_rng(0).random((4000, 2))
    drawn = np.array([noisy.action(row, np.array([0.0, 0.5]), history) for row in rows])
    assert np.abs(drawn.mean(axis=0) - [0, 0.5]).max() < 0.01
    np.testing.assert_allclose(drawn.std(axis=0), [0.2, 0.05], rtol=0.05)
    extreme = noisy.action(np.array([0.0, 1 - 2**-53]), own, history)
    assert space.contains(extreme)
    assert extreme[1] == 1.0
    with pytest.raises(InvalidInput, match=r"perturb 'stuck:3,0': '3,0' is no action of Box"):
        make_perturbation("stuck:3,0").check(space, Settings())


class Remembering(Policy):
    kind = "logits"
    identity = description = "remembering"

    def initial_memory(self, batch: int) -> Memory:
        return (np.zeros((batch, 1)),)

    def scores(self, observations: Any, memory: Memory = None) -> Any:
        return np.zeros((len(observations), 2), np.float32), memory


remembering = Remembering()


def broken(generator: Any, action: Any, history: Any) -> int:
    raise ZeroDivisionError("no")


def past_the_end(generator: Any, action: Any, history: Any) -> int:
    return 7


def three_and_a_half(generator: Any, action: Any, history: Any) -> float:
    return 3.5


@pytest.mark.parametrize(
    ("perturb", "message"),
    [
        ("stuk", "perturb 'stuk' is unknown; did you mean 'stuck'"),
        ("delayed", "perturb 'delayed': write it as delayed:D"),
        ("dropped:2", "perturb 'dropped:2': write it as dropped"),
        ("delayed:0", "perturb 'delayed:0': the delay D is a whole number of steps from 1"),
        ("delayed:1.5", "perturb 'delayed:1.5': the delay D is a whole number"),
        ("noisy:1.5", "perturb 'noisy:1.5': EPS lies above 0 and is at most 1"),
        ("noisy:much", "perturb 'noisy:much': EPS lies above 0"),
        (
            "delayed:459",
            "perturb 'delayed:459' delays actions by as long as the horizon of 459 steps or longer",
        ),
        ("stuck:2", r"perturb 'stuck:2': '2' is no action of Discrete\(2\)"),
        ("stuck:left", r"perturb 'stuck:left': 'left' is no action of Discrete\(2\)"),
        ("nowhere.py:fault", "perturb 'nowhere.py:fault': there is no file nowhere.py"),
        ("policy:zoo:pnog", "pnog"),
        (past_the_end, "'past_the_end' returned 7 at step 7, which is no action here; return a"),
        (three_and_a_half, r"'three_and_a_half' returned 3.5 at step 7, which is no action here"),
        (broken, "perturbation 'broken' raised"),
        (f"{WORLDS}:Masked.pays", "expected a function .* got dict"),
    ],
    ids=lambda given: getattr(given, "__name__", str(given)),
)
def test_bad_input(perturb: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        measure(perturb)


@pytest.mark.parametrize("action", [[5.0], [0.0, 0.0], ["left"], None], ids=str)
def test_an_action_outside_a_box_is_refused(action: Any) -> None:
    def outside(generator: Any, own: Any, history: Any) -> Any:
        return action

    def still(rows: np.ndarray) -> np.ndarray:
        return np.zeros((len(rows), 1), np.float32)

    with pytest.raises(InvalidInput, match="at step 1, which does not lie in the action space Box"):
        sm.true_criticality(
            gym.make("Pendulum-v1"), load_policy(still, kind="actions"), step=1, n=1,
            perturb=outside,
        )  # fmt: skip


def test_a_policy_with_a_memory_cannot_take_over() -> None:
    with pytest.raises(InvalidInput, match="this policy has a memory"):
        measure(f"policy:{__file__}:remembering")


def test_an_action_that_the_mask_forbids_is_refused() -> None:
    def first(rows: np.ndarray) -> np.ndarray:
        return np.tile(np.array([1, 0, 0, 0], np.float32), (len(rows), 1))

    policy = load_policy(first, kind="logits")
    # Action 2 is legal at even steps only.
    (found,) = sm.true_criticality(Masked(), policy, step=4, n=1, perturb="stuck:2")
    assert found.mean == 2.0
    with pytest.raises(InvalidInput, match="'stuck:2' returned 2 at step 5, which the environment"):
        sm.true_criticality(Masked(), policy, step=4, n=2, perturb="stuck:2")


def test_a_function_sees_the_past() -> None:
    seen: list[Any] = []

    def spy(generator: np.random.Generator, action: int, history: History) -> int:
        seen.append((history.taken, history.intended, int(history.observation.argmax())))
        return 1

    spy.draws = False  # type: ignore[attr-defined]
    world = TableWorld(swerving(60))
    sm.true_criticality(world, POLICY, step=2, n=2, perturb=spy)
    assert seen[:2] == [([0, 1], [0, 1, 0], 2), ([0, 1, 1], [0, 1, 0, 1], 3)]


def test_a_function_draws_the_same_numbers_for_every_n() -> None:
    drawn: dict[int, list[float]] = {}

    def spy(generator: np.random.Generator, action: int, history: History) -> int:
        drawn.setdefault(len(history.taken), []).append(float(generator.random()))
        return action

    measure(spy, trials=8)
    # 8 trials for each of the four n and the repetitions: the same 8 numbers again and again.
    assert [len(set(values)) for _, values in sorted(drawn.items())] == [8] * 8
    assert len({value for values in drawn.values() for value in values}) == 64


def test_in_words() -> None:
    assert mistakes_in_words("random") == "random actions"
    assert mistakes_in_words("delayed:3") == "steps with actions delayed by 3"
    assert mistakes_in_words("policy:/home/me/agent.onnx") == "actions of agent.onnx"
    assert coin(np.random.default_rng(0), 0, None) in (0, 1)
    assert opposite(np.random.default_rng(0), 1, None) == 0
