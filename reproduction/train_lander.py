"""Train the LunarLander agent whose own mistakes the reproduction looks for.

python reproduction/train_lander.py -o lander.onnx    # or lander.zip

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
    if options.output.suffix == ".onnx":
        export_onnx(model, options.output)
    else:
        model.save(options.output)


class Heads(torch.nn.Module):
    """The scores and the value of an observation."""

    def __init__(self, model: PPO) -> None:
        super().__init__()
        policy = model.policy
        self.scores = torch.nn.Sequential(policy.mlp_extractor.policy_net, policy.action_net)
        self.value = torch.nn.Sequential(policy.mlp_extractor.value_net, policy.value_net)

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits [batch, actions] and values [batch]."""
        return self.scores(observation), self.value(observation)[:, 0]


def export_onnx(model: PPO, path: Path) -> None:
    """Write the agent as ONNX, which plays several times as fast."""
    torch.onnx.export(
        Heads(model).eval(),
        (torch.zeros(2, *model.observation_space.shape),),
        str(path),
        input_names=["observation"],
        output_names=["logits", "value"],
        dynamic_shapes={"observation": {0: torch.export.Dim("batch")}},
        dynamo=True,
        external_data=False,
        verbose=False,
    )


if __name__ == "__main__":
    main()
