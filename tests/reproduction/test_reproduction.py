"""Training, exporting and shipping agents, in the small."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.paths import ROOT

torch = pytest.importorskip("torch", reason="training needs PyTorch: pip install '.[torch]'")
pytest.importorskip("ale_py", reason="training needs the games: pip install '.[atari]'")
pytest.importorskip("cv2", reason="playing needs the games: pip install '.[atari]'")
onnx = pytest.importorskip("onnx", reason="exporting needs onnx: pip install --group dev")
pytest.importorskip("onnxscript", reason="exporting needs onnxscript: pip install --group dev")

from safemargin.environments.atari import VECTOR_OPTIONS, make_atari  # noqa: E402
from safemargin.policies import load_policy  # noqa: E402

REPRODUCTION = ROOT / "reproduction"
NOT_FOR_TRAINING = ["scipy", "matplotlib", "onnxruntime", "onnx", "rich", "cv2", "cloudpickle"]
TINY = {
    "train_a3c": ["--rollout-steps", "4", "--minibatch", "8", "--passes", "1"],
    "train_apex": ["--capacity", "400", "--first-learning", "120", "--batch", "8"],
}

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # from torch.onnx.export itself


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts find each other, as when one of them is run."""
    monkeypatch.syspath_prepend(str(REPRODUCTION))


# -- training ----------------------------------------------------------------------------------


def train(trainer: str, folder: Path, steps: int) -> str:
    """Run a trainer as on a machine that lacks what only studies need; gives what it printed."""
    arguments = [trainer, "pong", "--out", str(folder), "--steps", str(steps), *TINY[trainer]]
    arguments += ["--groups", "2", "--games-per-group", "2"]
    code = (
        f"import sys, runpy; sys.modules.update(dict.fromkeys({NOT_FOR_TRAINING}))\n"
        f"sys.path.insert(0, {str(REPRODUCTION)!r}); sys.argv = {arguments}\n"
        f"runpy.run_path({str(REPRODUCTION / (trainer + '.py'))!r}, run_name='__main__')"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    environment.pop("OUT", None)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("trainer", TINY)
def test_a_trainer_learns_and_goes_on_where_it_stopped(trainer: str, tmp_path: Path) -> None:
    folder = tmp_path / "agent"

    def state() -> tuple[dict[str, Any], dict[str, Any], float]:
        content = torch.load(folder / "weights.pt", weights_only=True)
        optimizer = torch.load(folder / "optimizer.pt", weights_only=True)
        return content["progress"], content["weights"], float(optimizer[0]["step"])

    assert "start at step 0 " in train(trainer, folder, 160)
    progress, weights, updates = state()
    assert progress["steps"] == 160
    assert updates > 0
    printed = train(trainer, folder, 320)
    assert "start at step 160 " in printed
    assert "stopped at step 320 " in printed
    later_progress, later_weights, later_updates = state()
    assert later_updates > updates  # the optimizer, too, goes on
    assert not torch.equal(weights["torso.layers.0.weight"], later_weights["torso.layers.0.weight"])
    assert later_progress["seconds"] > progress["seconds"]
    assert [piece["first_step"] for piece in later_progress["pieces"]] == [0, 160]
    assert "--steps 320" in later_progress["pieces"][1]["command"]


def test_agents_are_trained_on_the_games_that_studies_measure() -> None:
    from atari_training import GAME_OPTIONS

    assert {**VECTOR_OPTIONS, "reward_clipping": False} == GAME_OPTIONS


def test_the_replay_memory_gives_back_what_the_games_showed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over games that end, and a ring that is overwritten several times."""
    from atari_training import DISCOUNT, Games
    from train_apex import LOOK_AHEAD, Actors, Learner, Settings

    class RecordedGames(Games):
        """Games that remember what they showed before every step, and what the step brought."""

        def send(self, actions: np.ndarray) -> None:
            shown.setdefault(self, []).append(self.observation.copy())
            super().send(actions)

        def receive(self) -> Any:
            outcomes.setdefault(self, []).append(super().receive())
            return outcomes[self][-1]

    shown: dict[Games, list[np.ndarray]] = {}
    outcomes: dict[Games, list[Any]] = {}
    torch.manual_seed(1)
    settings = Settings(groups=2, games_per_group=3, capacity=6 * 50, batch=48, updates_per_turn=0)
    # Random play loses the five lives of this game in a few hundred steps.
    groups = [RecordedGames("breakout", 3, seed, workers=1) for seed in (7, 10)]
    learner = Learner(groups[0].action_count, settings, torch.device("cpu"))
    monkeypatch.setattr(learner, "values", lambda images: torch.rand(len(images), 4))
    actors = Actors(groups, learner)
    replay, batch = actors.replay, learner.batch
    compared = ends = starts = 0
    for _ in range(300):
        actors.play()
        now = actors.time_step
        if now < 20 or now % 5:
            continue
        slots, games = replay.sample(batch)
        for row, (slot, game) in enumerate(zip(slots.tolist(), games.tolist(), strict=True)):
            time = now - (now - slot) % replay.length
            group, number = groups[game // 3], game % 3
            following = outcomes[group][time : time + LOOK_AHEAD]
            rewards = np.array([step.reward[number] for step in following])
            going = np.cumprod([not step.ended[number] for step in following])
            rewards[1:] *= going[:-1]
            factors = DISCOUNT ** np.arange(LOOK_AHEAD)
            assert not following[0].restarted[number]
            assert np.array_equal(batch.observations[row], shown[group][time][number])
            assert batch.returns[row] == pytest.approx(rewards @ factors)
            assert batch.discounts[row] == pytest.approx(going[-1] * DISCOUNT**LOOK_AHEAD)
            if going[-1]:
                later = shown[group][time + LOOK_AHEAD][number]
                assert np.array_equal(batch.next_observations[row], later)
            before = outcomes[group][max(time - 3, 0) : time]
            starts += any(step.restarted[number] for step in before)
            ends += not going[-1]
            compared += 1
    for group in groups:
        group.close()
    assert compared > 2500
    assert ends > 20  # transitions over the end of a life or of a game
    assert starts > 20  # observations that begin with black frames, since their game is new


def test_games_can_begin_with_random_actions() -> None:
    from evaluate import play

    seen: list[np.ndarray] = []

    def still(images: np.ndarray) -> np.ndarray:
        seen.append(images.copy())
        return np.tile([1.0, 0, 0, 0, 0, 0], (len(images), 1))  # always the no-op

    alone = play("pong", still, 12, 4, "greedy", most_steps=60)
    alike = np.array(seen)
    seen.clear()
    opened = play("pong", still, 12, 4, "greedy", most_steps=60, opening=40)
    assert alone["distinct_games"] < opened["distinct_games"] == 12
    assert np.array_equal(alike[0], seen[0])
    assert not np.array_equal(alike[50], seen[50])


# -- shipping ----------------------------------------------------------------------------------


def random_network(kind: str) -> Any:
    """An untrained network whose scores differ as clearly as those of a trained one."""
    from atari_training import NETWORKS

    torch.manual_seed(3)
    network = NETWORKS[kind](6)
    with torch.no_grad():
        for head in (network.policy if kind == "logits" else network.advantage,):
            head.weight.normal_()
    return network.eval()


def write_evaluation(path: Path, kind: str) -> None:
    result = {
        "games": 100,
        "score_mean": -20.123,
        "score_sd": 0.5,
        "score_min": -21.0,
        "score_max": -19.0,
        "clipped_return_per_life": -20.123,
        "steps_per_game": 900.04,
    }
    ways = ("greedy", "sampled" if kind == "logits" else "epsilon")
    path.write_text(json.dumps([{"choose": choose, **result} for choose in ways]))


def write_curve(path: Path, rows: list[tuple[int, float]]) -> None:
    from atari_training import CURVE_COLUMNS

    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(CURVE_COLUMNS)
        writer.writerows([step, 4 * step, step / 9, score, score] for step, score in rows)


def ship_into(folder: Path, run: str, name: str, *, observations: int) -> dict[str, Any]:
    """Ship the agent of a run in a folder into the folder; gives its card."""
    from ship import ship

    return ship(
        folder / run,
        name,
        evaluation=folder / run / "evaluation.json",
        notes=["not trained at all"],
        observations=observations,
        zoo=folder,
        pictures=folder,
    )


@pytest.mark.parametrize("kind", ["logits", "q"])
def test_what_ships_plays_as_the_trained_network(kind: str, tmp_path: Path) -> None:
    from atari_training import save_checkpoint
    from export import round_to_half

    network = random_network(kind)
    optimizer = torch.optim.Adam(network.parameters())
    progress = {"game": "pong", "actions": 6, "steps": 1000, "seconds": 61.7, "seed": 5}
    save_checkpoint(tmp_path / "run", network, optimizer, {**progress, "planned_steps": 2000})
    write_evaluation(tmp_path / "run/evaluation.json", kind)
    write_curve(tmp_path / "run/curve.csv", [(100, float("nan")), (500, -20.5), (900, -20.0)])
    card = ship_into(tmp_path, "run", "pong-random", observations=300)
    assert (tmp_path / "training-pong-random.png").stat().st_size > 10_000
    assert json.loads((tmp_path / "pong-random.json").read_text()) == card
    assert (card["mean_score"], card["score_sd"], card["games"]) == (-20.12, 0.5, 100)
    assert (card["steps"], card["frames"], card["wall_seconds"]) == (1000, 4000, 62)
    assert card["curve"]["steps"] == [500, 900]
    assert card["half_precision"]["observations"] == 300
    assert card["half_precision"]["largest_gap_of_these"] < 0.02
    numbers = sum(weights.numel() for weights in network.parameters())
    assert card["size_bytes"] < 2.1 * numbers

    policy = load_policy(tmp_path / "pong-random.onnx")
    assert (policy.kind, policy.identity) == (kind, card["identity"])
    observations = pong_observations(60)
    mine, _ = policy.scores(observations)
    images = torch.from_numpy(observations)
    with torch.no_grad():
        exact = network(images).numpy()
        round_to_half(network)
        rounded = network(images).numpy()
    np.testing.assert_allclose(mine, rounded, atol=2e-5 * np.abs(exact).max())
    np.testing.assert_allclose(mine, exact, atol=2e-3 * np.abs(exact).max())
    best_two = np.sort(exact, axis=1)[:, -2:]
    clear = best_two[:, 1] - best_two[:, 0] > 4e-3 * np.abs(exact).max()
    assert clear.sum() > 30
    assert np.array_equal(mine.argmax(axis=1)[clear], exact.argmax(axis=1)[clear])


def test_a_mean_of_states_is_one_agent_that_says_so(tmp_path: Path) -> None:
    from atari_training import load_network, save_checkpoint
    from mean_weights import mean_weights

    networks = [random_network("logits") for _ in range(2)]
    with torch.no_grad():
        for weights in networks[1].parameters():
            weights.add_(0.5)
    for steps, network in zip((3000, 1000), networks, strict=True):
        progress = {"game": "pong", "actions": 6, "steps": steps, "seconds": steps / 9, "seed": 5}
        optimizer = torch.optim.Adam(network.parameters())
        save_checkpoint(tmp_path / str(steps), network, optimizer, {**progress, "planned_steps": 1})
    states = [
        torch.load(tmp_path / str(steps) / "weights.pt", weights_only=True)
        for steps in (1000, 3000)
    ]
    (tmp_path / "mean").mkdir()
    torch.save(mean_weights(states), tmp_path / "mean/weights.pt")
    mean, progress = load_network(tmp_path / "mean/weights.pt")
    assert (progress["steps"], progress["mean_of"]) == (3000, [1000, 3000])
    for ours, first in zip(mean.parameters(), networks[0].parameters(), strict=True):
        torch.testing.assert_close(ours, first + 0.25)

    write_evaluation(tmp_path / "mean/evaluation.json", "logits")
    write_curve(tmp_path / "mean/curve.csv", [(500, -20.5), (900, -20.0)])
    card = ship_into(tmp_path, "mean", "pong-mean", observations=50)
    assert card["notes"] == [
        "The weights are the mean of the states at steps 1,000 and 3,000.",
        "not trained at all",
    ]
    states[0]["progress"]["seed"] = 6
    with pytest.raises(ValueError, match="not of one training: another seed"):
        mean_weights(states)


def pong_observations(count: int) -> np.ndarray:
    """Every fourth observation of a game with random actions, [count, 4, 84, 84]."""
    env = make_atari("pong")
    generator = np.random.default_rng(1)
    observation, _ = env.reset(seed=1)
    seen = []
    for step in range(4 * count):
        if step % 4 == 0:
            seen.append(observation)
        observation, *_ = env.step(int(generator.integers(6)))
    return np.array(seen)


def test_weights_too_large_for_half_precision_are_refused() -> None:
    from export import halve_weights

    weights = onnx.numpy_helper.from_array(np.full((2, 2), 1e6, np.float32), "w")
    graph = onnx.helper.make_graph([], "g", [], [], initializer=[weights])
    with pytest.raises(ValueError, match=r"the weights w reach 1e\+06.*ends at 65504.*half=False"):
        halve_weights(onnx.helper.make_model(graph))


def test_agents_are_shipped_to_where_the_package_looks_for_them() -> None:
    import ship
    import train_cartpole

    from safemargin.policies.zoo import zoo_path

    assert ship.ZOO == train_cartpole.ZOO == zoo_path("cartpole").parent


def test_an_agent_without_evaluation_is_not_shipped(tmp_path: Path) -> None:
    from ship import read_evaluation

    with pytest.raises(SystemExit, match=r"evaluation\.json is missing: evaluate\.py GAME WEIGHTS"):
        read_evaluation(tmp_path / "evaluation.json")


def test_a_curve_is_thinned_and_knows_where_it_was_resumed(tmp_path: Path) -> None:
    from ship import read_curve

    unknown = float("nan")
    rows = [(step, unknown if step in (1, 200, 201) else step / 10) for step in range(1, 400)]
    write_curve(tmp_path / "curve.csv", rows)
    curve = read_curve(tmp_path / "curve.csv")
    assert len(curve["steps"]) == 100
    assert (curve["steps"][0], curve["steps"][-1]) == (2, 399)
    assert curve["score"][-1] == 39.9
    assert curve["resumed_at"] == [200]
