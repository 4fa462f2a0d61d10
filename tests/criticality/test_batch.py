"""Trials give the same returns alone and in a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.runners import Counting, runner_in
from helpers.worlds import Outcome, TableWorld, always_first, branching, chain

from safemargin.core.records import EpisodeKey, Floats, Measurement
from safemargin.core.settings import Settings
from safemargin.criticality.batch import Trial, TrialBatch
from safemargin.criticality.coalescing import Rollout, StateIndex
from safemargin.criticality.estimation import MomentMeasurer, Randomness
from safemargin.criticality.rollouts import Point, Runner
from safemargin.engines.base import Job, Worker
from safemargin.environments import EnvironmentSpec, Snapshot, SnapshotSimulator, make_simulator
from safemargin.policies import load_policy
from safemargin.policies.base import Policy

KEY = EpisodeKey("natural", 0)
NOTHING = np.empty((0, 1))


def run_trial(runner: Runner, point: Point, uniforms: Floats) -> Rollout:
    trial = Trial(uniforms)
    TrialBatch(runner, point).run([trial])
    return trial.rollout


def test_a_trial_takes_the_given_random_actions_and_then_the_policys() -> None:
    runner = runner_in(TableWorld(branching(40)))
    episode = runner.run_episode(KEY)
    point = runner.go_to(episode, 6)
    # From step 6 in the good lane, action 1 (uniform 0.9) leads to the poor lane, which next
    # leads back at step 10. The reward is that of the lane in which the action is taken.
    trial = run_trial(runner, point, np.array([[0.9]]))
    step = np.arange(6, 40)
    good = 0.5 + step / 40
    poor = np.where(step % 3 == 0, -0.25, 0.0)
    expected = np.where((step > 6) & (step <= 10), poor, good)
    np.testing.assert_array_equal([reward for (reward,) in trial.rewards], expected)
    assert trial.finished


def test_trials_from_one_point_do_not_disturb_one_another() -> None:
    runner = runner_in(TableWorld(branching(40)))
    episode = runner.run_episode(KEY)
    point = runner.go_to(episode, 3)
    draws = np.random.default_rng(0).random((20, 8, 1))
    first = [run_trial(runner, point, row) for row in draws]
    again = [run_trial(runner, point, row) for row in draws[::-1]]
    assert [each.rewards for each in first] == [each.rewards for each in again[::-1]]


def test_the_horizon_ends_a_trial() -> None:
    runner = runner_in(TableWorld(chain(60)), gamma=0.5, horizon_error=0.25, n_values=(1,))
    point = runner.go_to(runner.run_episode(KEY), 0)
    trial = run_trial(runner, point, NOTHING)
    assert trial.rewards == [(1.0,), (1.0,)]
    assert trial.finished


def test_a_recurrent_policy_remembers_through_perturbations() -> None:
    runner = runner_in(TableWorld(branching(40)), Counting())
    episode = runner.run_episode(KEY)
    for step in range(0, 30, 7):
        # One perturbed step that happens to be the policy's own choice changes nothing.
        own = np.array([[0.1 if episode.actions[step] == 0 else 0.9]])
        trial = run_trial(runner, runner.go_to(episode, step), own)
        assert trial.rewards == list(episode.rewards[step:])


class TableSimulator(SnapshotSimulator):
    """Its snapshots can be restored in any simulator of the same world."""

    portable = True

    def _save_state(self) -> Any:
        world: Any = self.env
        return world.state, world.np_random.bit_generator.state

    def _restore_state(self, snapshot: Snapshot) -> None:
        world: Any = self.env
        world.state, world.np_random.bit_generator.state = snapshot.state


def measured(
    size: int, *, table: Any = None, policy: Any = always_first, step: int = 4, **settings: Any
) -> list[Measurement]:
    loaded = policy if isinstance(policy, Policy) else load_policy(policy, kind="logits")
    worlds = [TableSimulator(TableWorld(table or branching(40))) for _ in range(size)]
    chosen = Settings(**settings)
    runner = Runner(worlds[0], loaded, chosen, (), worlds[1:])
    for world in worlds:
        world.reset(9)
    episode = runner.run_episode(KEY)
    randomness = Randomness(
        environment=table is SLIPPERY, policy=not runner.policy_actions.deterministic
    )
    found = MomentMeasurer(runner, episode, step, randomness).measure(*chosen.n_values)
    assert [each.estimate.n for each in found] == list(chosen.n_values)
    return found


SLIPPERY = chain(60, slip=0.05)


@pytest.mark.parametrize(
    "case",
    [
        {},
        {"policy": Counting()},
        {"trial_plan": "paper", "sampling_error": 0.3},
        {"trial_plan": "paper", "sampling_error": 1.0, "table": SLIPPERY, "max_trials": 400},
        {"action_choice": "sampled"},
        {"trial_plan": "anytime", "largest_loss": 60.0, "smallest_loss": -60.0, "max_trials": 90},
    ],
    ids=["fixed", "recurrent", "paper", "slippery", "sampled", "anytime"],
)
def test_any_batch_size_measures_the_same(case: dict[str, Any]) -> None:
    alone = measured(1, **case)
    assert all(len(one.perturbed) and len(one.unperturbed) for one in alone)
    for size in (2, 3, 8):
        together = measured(size, **case)
        for one, other in zip(alone, together, strict=True):
            assert one.estimate == other.estimate
            assert one.perturbed.tobytes() == other.perturbed.tobytes()
            assert one.unperturbed.tobytes() == other.unperturbed.tobytes()


@pytest.mark.parametrize(
    ("case", "least"),
    [
        ({"sampling_error": 0.3}, 0),
        ({"sampling_error": 6.0, "min_trials": 2, "table": SLIPPERY, "n_values": (1, 4, 16)}, 1),
    ],
    ids=["nothing to discard", "sure sooner than expected"],
)
def test_a_batch_of_one_wastes_nothing_and_a_larger_one_little(
    case: dict[str, Any], least: int
) -> None:
    assert all(each.wasted == 0 for each in measured(1, trial_plan="paper", **case))
    together = measured(8, trial_plan="paper", **case)
    spent = sum(each.steps for each in together)
    wasted = sum(each.wasted for each in together)
    assert least <= wasted < 0.2 * spent
    assert all(each.wasted <= each.steps for each in together)


def test_a_fixed_number_of_trials_is_never_overrun() -> None:
    assert all(each.wasted == 0 for each in measured(8))


def test_random_actions_that_begin_alike_are_simulated_once() -> None:
    # No rollout can meet another one in a world that counts its steps.
    table = chain(300)
    runs = {
        n_values: sum(
            each.steps for each in measured(4, table=table, step=0, n_values=n_values, trials=20)
        )
        for n_values in [(8,), (16,), (8, 16)]
    }
    overhead = 200  # proofs and repeated trials are counted too, and differ a little
    assert runs[(8, 16)] < runs[(8,)] + runs[(16,)] - 20 * 8 + overhead


def test_a_trial_can_follow_one_that_is_not_finished() -> None:
    first, second, third = Rollout([1.0, 2.0]), Rollout([5.0]), Rollout([7.0, 8.0, 9.0])
    second.follow(first)
    assert not second.complete
    first.follow(third)
    third.rewards.append(10.0)
    third.finished = True
    assert second.complete
    assert second.all_rewards() == [5.0, 2.0, 9.0, 10.0]
    assert first.all_rewards() == [1.0, 2.0, 9.0, 10.0]
    assert third.all_rewards() == [7.0, 8.0, 9.0, 10.0]


class Resentful(Policy):
    """Takes action 0 until it has seen state 2, and action 1 ever after."""

    kind = "logits"
    identity = "resentful"
    description = "resentful"

    def initial_memory(self, batch: int) -> tuple[np.ndarray]:
        return (np.zeros((batch, 1), np.float32),)

    def scores(self, observations: Any, memory: Any = None) -> tuple[np.ndarray, Any]:
        seen = np.maximum(memory[0], observations[:, 2:3])
        return np.concatenate([1 - seen, seen], axis=1), (seen,)


def test_equal_states_with_other_memories_have_other_futures() -> None:
    # Action 0 leads from state 0 past 1, action 1 past 2; both ways meet in 3, where action 0 pays.
    table = [
        [[Outcome(1, 1, 0.0)], [Outcome(1, 2, 0.0)]],
        [[Outcome(1, 3, 0.0)], [Outcome(1, 3, 0.0)]],
        [[Outcome(1, 3, 0.0)], [Outcome(1, 3, 0.0)]],
        [[Outcome(1, 4, 1.0)], [Outcome(1, 4, 0.0)]],
        [[Outcome(1, 4, 0.0, ends=True)], [Outcome(1, 4, 0.0, ends=True)]],
    ]
    (found,) = measured(1, table=table, policy=Resentful(), step=0, n_values=(1,), gamma=0.9)
    assert found.perturbed.tolist() == pytest.approx([0.9**2, 0.0])
    assert found.estimate.mean == pytest.approx(0.5 * 0.9**2)


def test_nobody_follows_what_was_abandoned() -> None:
    simulator = make_simulator(TableWorld(chain(5)))
    simulator.reset(0)
    state_index = StateIndex(10)
    lost, found, late = Rollout(), Rollout(), Rollout()
    assert state_index.match_or_add(0, simulator, None, lost) is None
    lost.abandoned = True
    assert state_index.match_or_add(0, simulator, None, found) is None
    assert state_index.match_or_add(0, simulator, None, late) is found


def test_abandoned_trials_make_room_unless_they_are_followed() -> None:
    runner = runner_in(TableWorld(chain(60)))
    point = runner.go_to(runner.run_episode(KEY), 0)
    batch = TrialBatch(runner, point)
    unwanted = Trial(NOTHING)
    batch.start(unwanted)
    assert not batch.free
    unwanted.rollout.followers = 1
    batch.abandon([unwanted])
    assert not batch.free
    unwanted.rollout.followers = 0
    batch.abandon([unwanted])
    assert batch.free
    assert unwanted.rollout.abandoned


def test_looking_stops_where_it_does_not_pay() -> None:
    simulator = make_simulator(TableWorld(chain(50)))
    simulator.reset(0)
    state_index = StateIndex(50)
    digests = 0

    def digest() -> bytes:  # every rollout is in a state of its own
        nonlocal digests
        digests += 1
        return digests.to_bytes(16, "big")

    simulator.digest = digest  # type: ignore[method-assign]
    for _ in range(40):
        rollout = Rollout()
        for position in range(49):
            state_index.match_or_add(position, simulator, None, rollout, 8)
    assert not state_index.pays_off(8)
    assert digests < 40 * 50 / 4
    assert state_index.pays_off(1)  # for other n it is yet to be seen
    before = digests
    state_index.match_or_add(0, simulator, None, Rollout(), 8)
    assert digests == before
    simulator.digest_is_cheap = True
    state_index.match_or_add(0, simulator, None, Rollout(), 8)
    assert digests == before + 1


def test_atari_in_a_batch_equals_brute_force_through_the_wrappers() -> None:
    """Lock-step, shared prefixes, coalescing and the lean path change no bit of any return."""
    settings = Settings(gamma=0.9, n_values=(1, 4, 8), trials=12, max_episode_steps=400)
    spec = EnvironmentSpec.parse("atari:pong")
    policy = load_policy("zoo:pong-a3c")
    nothing_random = Randomness(environment=False, policy=False)
    worker = Worker(Job(spec, policy, settings, (), "snapshot", nothing_random))
    episode = worker.runner.run_episode(EpisodeKey("natural", 9))
    plain = Runner(SnapshotSimulator(spec.make()), policy, settings)
    again = plain.run_episode(EpisodeKey("natural", 9))
    assert again.scores.tobytes() == episode.scores.tobytes()
    for step in (2, 150):
        fast = MomentMeasurer(worker.runner, episode, step, nothing_random)
        slow = MomentMeasurer(plain, again, step, nothing_random)
        slow.state_index = None
        ours, brute_force = fast.measure(1, 4, 8), slow.measure(1, 4, 8)
        assert len(ours) == 3
        for one, other in zip(ours, brute_force, strict=True):
            assert one.estimate == other.estimate
            assert one.perturbed.tobytes() == other.perturbed.tobytes()
            assert one.steps < other.steps
    worker.close()
