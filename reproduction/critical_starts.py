"""Does training help where it matters? Episodes that begin at measured critical states.

After StateMask and RICE (Cheng et al. 2023, 2024): an agent whose training was stopped early is
studied, and trained on, once from ordinary starts alone and once with every other episode begun at
one of its most critical moments. Both get the same number of training steps. CartPole, with
Stable-Baselines3; needs the extra sb3, and about a minute of processor time for each seed:

    python reproduction/critical_starts.py --seeds 5
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import PPO

import safemargin as sm
from safemargin.core.files import written_whole
from safemargin.core.seeding import plain_generator
from safemargin.criticality.stopping import student_quantile

ENVIRONMENT = "CartPole-v1"
RESULT = Path(__file__).parent / "critical_starts.json"
STUDIED = {"n_values": (1, 4), "gamma": 0.97}
CRITICAL = 0.25
"""The share of measured moments that training begins at: those that lose most."""

Start = tuple[int, list[int]]
"""The seed of an episode, and the actions up to a moment."""


class CriticalStarts(gym.Wrapper[Any, Any, Any, Any]):
    """Begins a share of the episodes at one of these moments, by repeating what led there."""

    def __init__(
        self, env: gym.Env[Any, Any], starts: list[Start], share: float, seed: int
    ) -> None:
        super().__init__(env)
        self.starts, self.share, self.draws = starts, share, plain_generator(seed)
        self.led = 0
        """Steps that only led to a start."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if self.draws.random() >= self.share:
            return self.env.reset(seed=seed, options=options)
        chosen, actions = self.starts[int(self.draws.integers(len(self.starts)))]
        observation, info = self.env.reset(seed=chosen, options=options)
        for action in actions:
            observation, _, ended, cut, info = self.env.step(action)
            if ended or cut:
                raise RuntimeError("a recorded episode did not repeat itself")
        self.led += len(actions)
        return observation, info


def critical_moments(folder: Path, model: Path, seed: int) -> list[Start]:
    """Study the agent, and return the moments at which mistakes cost most."""
    with sm.Study.create(folder, ENVIRONMENT, str(model), {**STUDIED, "seed": seed}) as study:
        study.collect(natural=24, spread=8, workers=1)
        tuples = study.tuples()
        worst = tuples.criticalities.max(axis=1)
        chosen = np.argsort(-worst)[: max(int(CRITICAL * len(worst)), 1)]
        starts = []
        for row in chosen:
            episode = study.store.episode(tuples.keys[row])
            actions = episode.actions[: int(tuples.steps[row])].astype(int).tolist()
            starts.append((episode.seed, actions))
    return starts


def score(model: PPO, starts: list[Start] | None, games: int = 40) -> float:
    """Return the mean number of steps that an episode lasts, from ordinary starts or these."""
    env = gym.make(ENVIRONMENT)
    lasted = []
    for game in range(games):
        if starts is None:
            observation, _ = env.reset(seed=1_000_000 + game)
        else:
            chosen, actions = starts[game % len(starts)]
            observation, _ = env.reset(seed=chosen)
            for action in actions:
                observation, *_ = env.step(action)
        steps, over = 0, False
        while not over:
            action, _ = model.predict(observation, deterministic=True)
            observation, _, ended, cut, _ = env.step(int(action))
            steps, over = steps + 1, ended or cut
        lasted.append(steps)
    return float(np.mean(lasted))


def one_seed(seed: int, first: int, more: int) -> dict[str, float]:
    """Train, study, and train on in both ways."""
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch) / "base.zip"
        model = PPO("MlpPolicy", gym.make(ENVIRONMENT), n_steps=512, seed=seed, device="cpu")
        model.learn(first).save(base)
        starts = critical_moments(Path(scratch) / "study", base, seed)
        found = {
            "seed": seed,
            "before": score(model, None),
            "before critical": score(model, starts),
        }
        for name, share in (("ordinary", 0.0), ("critical", 0.5)):
            env = CriticalStarts(gym.make(ENVIRONMENT), starts, share, seed)
            trained = PPO.load(base, env=env, device="cpu", seed=seed)
            trained.learn(more, reset_num_timesteps=False)
            found |= {name: score(trained, None), f"{name} critical": score(trained, starts)}
            found[f"{name} led"] = float(env.led)
    return found


def band(values: list[float]) -> str:
    """Return a mean with Student's 95 % half-width."""
    half = student_quantile(0.95, len(values)) * np.std(values, ddof=1) / len(values) ** 0.5
    return f"{np.mean(values):.0f} ± {half:.0f}"


def main() -> None:
    """Read the command line, train, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=8192, help="steps before the study")
    parser.add_argument("--more", type=int, default=8192, help="steps after it, in either way")
    parser.add_argument("-o", "--output", type=Path, default=RESULT)
    options = parser.parse_args()
    torch.set_num_threads(1)  # the network is too small to share
    rows = []
    for seed in range(options.seeds):
        rows.append(one_seed(seed, options.first, options.more))
        print({name: round(value, 1) for name, value in rows[-1].items()}, flush=True)
        about = {"first": options.first, "more": options.more, "rows": rows}
        with written_whole(options.output) as path:
            path.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    if len(rows) > 1:
        for name in ("before", "ordinary", "critical"):
            at = band([row[name] for row in rows]), band([row[f"{name} critical"] for row in rows])
            print(f"{name:10} ordinary starts {at[0]:>12}   critical starts {at[1]:>12}")
        gain = [row["critical"] - row["ordinary"] for row in rows]
        print(f"critical less ordinary, ordinary starts: {band(gain)}")


if __name__ == "__main__":
    main()
