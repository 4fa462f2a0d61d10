"""Train the LunarLander agent whose own mistakes the reproduction looks for.

python reproduction/train_lander.py -o lander.zip

PPO from Stable-Baselines3, stopped early: it lands most of the time, and is wrong often enough for
regret to be there.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

ENVIRONMENT = "LunarLander-v3"


def main() -> None:
    """Read the command line, train, and say what the agent earns."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", "-o", type=Path, required=True, metavar="FILE")
    parser.add_argument("--steps", type=int, default=400_000, help="default 400,000")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = PPO(
        "MlpPolicy",
        make_vec_env(ENVIRONMENT, n_envs=16, seed=options.seed),
        n_steps=1024,
        gae_lambda=0.98,
        gamma=0.99,
        n_epochs=4,
        ent_coef=0.01,
        seed=options.seed,
        device="cpu",
    )
    model.learn(options.steps)
    returns, _ = evaluate_policy(
        model, make_vec_env(ENVIRONMENT, seed=10_000), 50, return_episode_rewards=True
    )
    print(f"mean return of 50 episodes: {np.mean(returns):.0f}, the worst {np.min(returns):.0f}")
    model.save(options.output)


if __name__ == "__main__":
    main()
