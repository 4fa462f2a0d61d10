"""Folders that rl-zoo3 itself wrote play as in rl-zoo3's own evaluation."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from safemargin.environments import EnvironmentSpec
from safemargin.errors import InvalidInput
from safemargin.policies import load_policy

pytest.importorskip("rl_zoo3", reason="pip install rl_zoo3")
pytestmark = pytest.mark.filterwarnings("ignore")

CONFIG = """
Pendulum-v1: {normalize: true, n_envs: 1, n_timesteps: 256, policy: MlpPolicy, n_steps: 128}
MountainCarContinuous-v0: {normalize: true, frame_stack: 2, n_envs: 1, n_timesteps: 256,
  policy: MlpPolicy, n_steps: 128, env_wrapper: [{rl_zoo3.wrappers.FrameSkip: {skip: 2}}]}
HalfCheetah-v5: {normalize: true, n_envs: 1, n_timesteps: 256, policy: MlpPolicy, n_steps: 128}
MiniGrid-Empty-5x5-v0: {normalize: true, n_envs: 1, n_timesteps: 256, policy: MlpPolicy,
  n_steps: 128, env_wrapper: minigrid.wrappers.FlatObsWrapper}
PongNoFrameskip-v4: {n_envs: 1, n_timesteps: 64, policy: CnnPolicy, n_steps: 64, frame_stack: 4,
  env_wrapper: [stable_baselines3.common.atari_wrappers.AtariWrapper]}
"""


NEEDED = {"HalfCheetah-v5": "mujoco", "MiniGrid-Empty-5x5-v0": "minigrid"}
NAMES = ["Pendulum-v1", "MountainCarContinuous-v0", *NEEDED, "PongNoFrameskip-v4"]


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_of_its_own_training(
    adapted: Any, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its log where it stands
    if name in NEEDED:
        pytest.importorskip(NEEDED[name])
    from rl_zoo3 import ALGOS, create_test_env, get_saved_hyperparams

    importlib.import_module("rl_zoo3.import_envs")  # registers what rl-zoo knows

    (tmp_path / "config.yml").write_text(CONFIG)
    command = [sys.executable, "-m", "rl_zoo3.train", "--algo", "ppo", "--env", name]
    command += ["--conf-file", "config.yml", "-f", "logs", "--eval-freq", "-1", "--seed", "1"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    folder = tmp_path / "logs" / "ppo" / f"{name}_1"
    given, statistics = get_saved_hyperparams(str(folder / name), test_mode=True)
    theirs: Any = create_test_env(
        name, stats_path=statistics, seed=7, hyperparams=given, should_render=False
    )
    model = ALGOS["ppo"].load(folder / f"{name}.zip", device="cpu")
    ours = EnvironmentSpec.parse(f"rl-zoo:{folder}").make()
    policy: Any = load_policy(f"rl-zoo:{folder}")
    sampled = name.startswith(("Pong", "MiniGrid"))
    assert policy.usual_choice == ("sampled" if sampled else None)
    seen, (mine, _) = theirs.reset(), ours.reset(seed=7)
    for _ in range(1001 if name.startswith("HalfCheetah") else 300):
        action, _ = model.predict(seen, deterministic=True)
        scores = policy.scores(np.asarray(mine)[None])[0][0]
        space: Any = ours.action_space
        discrete = policy.kind == "logits"
        acts = scores.argmax() if discrete else np.clip(scores[0], space.low, space.high)
        np.testing.assert_array_equal(acts, action[0])
        seen, reward, done, _ = theirs.step(action)
        mine, earned, terminated, truncated, _ = ours.step(acts)
        assert (np.float32(earned), terminated or truncated) == (reward[0], done[0])
        if done[0]:
            mine, _ = ours.reset()

    def of_the_library(observation: Any) -> Any:
        if policy.normalisation is not None:
            observation = theirs.normalize_obs(observation)
        import torch

        with torch.no_grad():
            tensor, _ = model.policy.obs_to_tensor(observation)
            found = model.policy.get_distribution(tensor).distribution
            if policy.kind == "logits":
                return found.logits.numpy()
            return torch.stack([found.mean, found.stddev.log()], dim=1).numpy()

    adapted("rl_zoo3", f"PPO in {name}", policy, ours, of_the_library)
    if policy.normalisation is not None:
        (folder / name / "vecnormalize.pkl").unlink()
        with pytest.raises(InvalidInput, match="vecnormalize.pkl"):
            load_policy(f"rl-zoo:{folder}")
