"""An rl-zoo folder brings environment, wrappers and policy, or says what it lacks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from helpers.rl_zoo import write_run
from helpers.small_policies import HAVE_SB3

from safemargin.core.settings import Settings
from safemargin.environments import EnvironmentSpec, environment_identity
from safemargin.environments.doctor import examine
from safemargin.environments.doctor.returns import UnlikeTraining, settings_for
from safemargin.errors import InvalidInput, PolicyFault
from safemargin.policies import load_policy
from safemargin.study import Study
from safemargin.study.provenance import source_text

pytestmark = pytest.mark.skipif(not HAVE_SB3, reason="stable-baselines3 is an extra")


def train(environment: Any, *, normalize: bool = False, stack: int = 0, wrapper: Any = None) -> Any:
    """Train for a moment in the order of rl-zoo: wrappers, VecNormalize, VecFrameStack."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

    env: Any = make_vec_env(environment, 1, seed=0, wrapper_class=wrapper)
    if normalize:
        env = VecNormalize(env)
    if stack:
        env = VecFrameStack(env, stack)
    network = {"net_arch": [8]}
    model = PPO("MlpPolicy", env, 1e-3, 64, 32, policy_kwargs=network, seed=0, device="cpu")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # networks this small only wait for a second thread
    model.learn(128)
    torch.set_num_threads(threads)
    normaliser = model.get_vec_normalize_env()
    if normaliser is not None:
        normaliser.training = normaliser.norm_reward = False
    env.seed(5)
    return model, env, normaliser


@pytest.fixture(scope="module")
def pendulum() -> Any:
    return train("Pendulum-v1", normalize=True)


@pytest.fixture(scope="module")
def stacked() -> Any:
    return train("Pendulum-v1", normalize=True, stack=3)


@pytest.fixture(scope="module")
def cartpole() -> Any:
    return train("CartPole-v1")


def same_play(folder: Path, model: Any, theirs: Any, steps: int = 220) -> None:
    """The library's evaluation and ours see the same, do the same and earn the same."""
    ours = EnvironmentSpec.parse(f"rl-zoo:{folder}").make()
    policy = load_policy(f"rl-zoo:{folder}")
    policy.check(ours)
    seen, (mine, _) = theirs.reset(), ours.reset(seed=5)
    ends = 0
    for _ in range(steps):
        action, _ = model.predict(seen, deterministic=True)
        space: Any = ours.action_space
        scores = policy.scores(np.asarray(mine)[None])[0][0]
        acts = np.clip(scores[0], space.low, space.high)
        np.testing.assert_array_equal(acts, action[0])
        seen, reward, done, _ = theirs.step(action)
        mine, earned, terminated, truncated, _ = ours.step(acts)
        assert np.float32(earned) == reward[0]
        assert done[0] == (terminated or truncated)
        if done[0]:
            ends += 1
            mine, _ = ours.reset()
    assert ends > 0


@pytest.mark.parametrize("hub", [False, True])
def test_normalised_it_plays_as_in_its_own_evaluation(
    pendulum: Any, tmp_path: Path, hub: bool
) -> None:
    model, env, normaliser = pendulum
    folder = write_run(
        tmp_path / "run", "Pendulum-v1", model, statistics=normaliser, normalize=True, hub=hub
    )
    env.seed(5)
    same_play(folder, model, env)


def test_frames_are_normalised_before_they_are_stacked(stacked: Any, tmp_path: Path) -> None:
    model, env, normaliser = stacked
    folder = write_run(
        tmp_path / "run",
        "Pendulum-v1",
        model,
        statistics=normaliser,
        normalize="dict(norm_obs=True, norm_reward=True)",
        frame_stack=3,
    )
    env.seed(5)
    same_play(folder, model, env)
    wide = gym.spaces.Box(-8, 8, (9,), np.float32)
    raw = gym.wrappers.TransformObservation(gym.make("Pendulum-v1"), lambda x: np.tile(x, 3), wide)
    with pytest.raises(PolicyFault, match="take the environment of the same folder, too"):
        load_policy(f"rl-zoo:{folder}").check(raw)
    diagnosis = examine(EnvironmentSpec.parse(f"rl-zoo:{folder}").make, starts=4, points=4)
    assert diagnosis.measurable
    assert diagnosis.way == "snapshot"


def test_only_rewards_normalised_needs_no_statistics(cartpole: Any, tmp_path: Path) -> None:
    text = "{'norm_obs': False, 'norm_reward': True}"
    folder = write_run(tmp_path / "run", "CartPole-v1", cartpole[0], normalize=text)
    bare = load_policy(folder / "CartPole-v1.zip", normalize=False)
    assert load_policy(f"rl-zoo:{folder}").identity == bare.identity


def test_wrappers_and_arguments(cartpole: Any, tmp_path: Path) -> None:
    wrappers = [
        {"gymnasium.wrappers.TimeLimit": {"max_episode_steps": 7}},
        "sb3_contrib.common.wrappers.TimeFeatureWrapper",
    ]
    folder = write_run(
        tmp_path / "run",
        "CartPole-v1",
        cartpole[0],
        arguments={"sutton_barto_reward": True},
        env_wrapper=wrappers,
    )
    env = EnvironmentSpec.parse(f"rl-zoo:{folder}").make()
    assert env.observation_space.shape == (5,)
    env.reset(seed=0)
    rewards = [env.step(0)[1] for _ in range(3)]
    assert rewards == [0.0, 0.0, 0.0]
    assert env.get_wrapper_attr("unwrapped").spec.kwargs["sutton_barto_reward"]
    limits = [each for each in layers(env) if isinstance(each, gym.wrappers.TimeLimit)]
    assert [each._max_episode_steps for each in limits] == [7, 500]


def layers(env: Any) -> list[Any]:
    found = [env]
    while isinstance(found[-1], gym.Wrapper):
        found.append(found[-1].env)
    return found


def test_the_environment_is_the_same_wherever_the_folder_lies(
    pendulum: Any, tmp_path: Path
) -> None:
    model, _, normaliser = pendulum
    one = write_run(tmp_path / "one", "Pendulum-v1", model, statistics=normaliser, normalize=True)
    shutil.copytree(one, tmp_path / "two")
    other = write_run(
        tmp_path / "other",
        "Pendulum-v1",
        model,
        statistics=normaliser,
        normalize=True,
        arguments={"g": 5.0},
    )
    found = []
    for folder in (one, tmp_path / "two", other):
        spec = EnvironmentSpec.parse(f"rl-zoo:{folder}")
        found.append(environment_identity(spec, spec.make()))
    assert found[0] == found[1] != found[2]


def test_a_study_of_a_folder_alone(pendulum: Any, tmp_path: Path) -> None:
    model, _, normaliser = pendulum
    folder = write_run(
        tmp_path / "run", "Pendulum-v1", model, statistics=normaliser, normalize=True
    )
    settings = {"gamma": 0.9, "n_values": (1, 2), "trials": 2}
    with Study.create(tmp_path / "study", f"rl-zoo:{folder}", settings=settings) as study:
        study.collect(natural=2, spread=0, workers=1)
        assert study.policy["source"] == f"rl-zoo:{folder}"
        assert study.settings.action_choice == "greedy"
    with Study.open(tmp_path / "study") as again:  # everything is found again by name
        again.collect(natural=3, spread=0, workers=1)
        assert sum(again.status().moments.values()) == 3
    with pytest.raises(InvalidInput, match="'CartPole-v1' does not come with a policy"):
        Study.create(tmp_path / "none", "CartPole-v1")


def test_atari_agents_act_at_random_as_rl_zoo_shows_them(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    from stable_baselines3 import DQN, PPO
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    env = VecFrameStack(make_atari_env("PongNoFrameskip-v4", 1, seed=5), 4)
    small = {"net_arch": [4], "features_extractor_kwargs": {"features_dim": 4}}
    config = {
        "env_wrapper": ["stable_baselines3.common.atari_wrappers.AtariWrapper"],
        "frame_stack": 4,
    }
    model = PPO("CnnPolicy", env, policy_kwargs=small, device="cpu", seed=0)
    folder = write_run(tmp_path / "run", "PongNoFrameskip-v4", model, **config)
    ours, policy = EnvironmentSpec.parse(f"rl-zoo:{folder}").make(), load_policy(f"rl-zoo:{folder}")
    policy.check(ours)
    assert policy.usual_choice == "sampled"
    env.seed(5)
    seen, (mine, _) = env.reset(), ours.reset(seed=5)
    for action in [2, 3, 0, 5, 1, 4] * 4:
        np.testing.assert_array_equal(mine, seen[0])
        seen = env.step([action])[0]
        mine = ours.step(action)[0]
    with pytest.warns(UnlikeTraining, match="its own library's evaluation has it act sampled"):
        chosen = settings_for(policy, Settings())
    assert chosen.action_choice == "greedy"
    assert settings_for(policy, None).action_choice == "sampled"

    values = DQN("CnnPolicy", env, buffer_size=1, policy_kwargs=small, device="cpu", seed=0)
    values.exploration_rate = 0.01
    folder = write_run(tmp_path / "dqn", "PongNoFrameskip-v4", values, **config)
    chosen = settings_for(load_policy(f"rl-zoo:{folder}"), None)
    assert (chosen.action_choice, chosen.epsilon) == ("epsilon-greedy", 0.01)


def test_lives_are_episodes_and_a_seed_starts_a_new_game(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    from safemargin.environments import make_simulator
    from safemargin.environments.rl_zoo import AsEvaluated
    from safemargin.policies.rl_zoo import ZooFolder

    folder = ZooFolder(
        folder=tmp_path,
        model=tmp_path,
        environment="BreakoutNoFrameskip-v4",
        arguments={},
        wrappers=(("stable_baselines3.common.atari_wrappers.AtariWrapper", {}),),
        frame_stack=4,
        statistics=None,
        packages=(),
    )
    assert folder.samples
    from stable_baselines3.common.atari_wrappers import AtariWrapper

    env = AsEvaluated(AtariWrapper(gym.make(folder.environment)), folder)
    simulator = make_simulator(env)
    first = simulator.reset(3)
    while not simulator.ended:
        simulator.step(1)
    assert simulator.game_goes_on
    np.testing.assert_array_equal(simulator.reset(3), first)
    while not simulator.ended:
        simulator.step(1)
    assert not np.array_equal(simulator.next_life(), first)
    assert env.unwrapped.ale.lives() == 4


REFUSED = [
    ({"normalize": True}, "its statistics are missing .*vecnormalize.pkl"),
    ({"normalize": "make_them()"}, r"normalize is 'make_them\(\)', which cannot be read without"),
    ({"normalize": "dict(**given)"}, "normalize is .* cannot be read without running code"),
    ({"env_wrapper": "os.system"}, "env_wrapper os.system is not a gymnasium.Wrapper"),
    ({"env_wrapper": "gone.wrappers.Flat"}, "gone.wrappers.Flat cannot be imported"),
    ({"env_wrapper": "lambda env: env"}, "env_wrapper is 'lambda env: env', which cannot be read"),
    ({"env_wrapper": {"a.B": {"c": print}}}, "env_wrapper is .*builtins.print.* cannot be read"),
    ({"vec_env_wrapper": "a.B"}, "vec_env_wrapper is 'a.B', which cannot be read without running"),
    ({"frame_stack": "4 * 1"}, "frame_stack is '4 \\* 1', which cannot be read"),
    ({"env_kwargs": "dict(a=1)"}, "env_kwargs is 'dict\\(a=1\\)', which cannot be read"),
]


@pytest.mark.parametrize(("config", "text"), REFUSED)
def test_what_is_not_understood_is_refused(
    cartpole: Any, tmp_path: Path, config: dict[str, Any], text: str
) -> None:
    folder = write_run(tmp_path / "run", "CartPole-v1", cartpole[0], **config)
    with pytest.raises(InvalidInput, match=text):
        EnvironmentSpec.parse(f"rl-zoo:{folder}").make()


def test_tags_that_would_run_code_make_nothing(cartpole: Any, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", "CartPole-v1", cartpole[0])
    harmful = f"x: !!python/object/apply:os.mkdir [{tmp_path / 'made'}]\n"
    (folder / "CartPole-v1" / "config.yml").write_text(harmful + "normalize: false\n")
    EnvironmentSpec.parse(f"rl-zoo:{folder}").make()
    assert not (tmp_path / "made").exists()
    (folder / "CartPole-v1" / "config.yml").write_text("[1\n")
    with pytest.raises(InvalidInput, match="config.yml: cannot be read"):
        load_policy(f"rl-zoo:{folder}")
    (folder / "CartPole-v1" / "config.yml").write_text("[1]\n")
    with pytest.raises(InvalidInput, match="config.yml: expected names and values, got"):
        load_policy(f"rl-zoo:{folder}")


def test_folders_that_lack_something(cartpole: Any, pendulum: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="there is no such folder"):
        load_policy(f"rl-zoo:{tmp_path / 'gone'}")
    folder = write_run(tmp_path / "ppo" / "CartPole-v1_1", "CartPole-v1", cartpole[0])
    write_run(tmp_path / "ppo" / "CartPole-v1_2", "CartPole-v1", cartpole[0])
    with pytest.raises(InvalidInput, match="several training runs; name one .*CartPole-v1_1"):
        load_policy(f"rl-zoo:{tmp_path / 'ppo'}")
    with pytest.raises(InvalidInput, match="the folder itself says which statistics belong"):
        load_policy(f"rl-zoo:{folder}", normalize="none")
    (folder / "CartPole-v1.zip").rename(folder / "best_model.zip")
    with pytest.raises(InvalidInput, match=r"no model called CartPole-v1.zip.*best_model.zip"):
        load_policy(f"rl-zoo:{folder}")
    best = load_policy(f"rl-zoo:{folder / 'best_model.zip'}")  # a model of a folder, by its name
    assert best.description.endswith("best_model.zip")
    (folder / "best_model.zip").unlink()
    with pytest.raises(InvalidInput, match=r"there is no model \(a .zip file\) in it"):
        load_policy(f"rl-zoo:{folder}")
    cartpole[0].save(folder / "CartPole-v1.zip")
    pendulum[2].save(str(folder / "CartPole-v1" / "vecnormalize.pkl"))
    with pytest.raises(InvalidInput, match="but config.yml says that the agent was trained with"):
        load_policy(f"rl-zoo:{folder}")
    (folder / "CartPole-v1" / "config.yml").unlink()
    with pytest.raises(InvalidInput, match="expected the folder of one training run, with a conf"):
        load_policy(f"rl-zoo:{folder}")


def test_folders_and_their_parts_are_remembered_by_full_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "pong-a3c").mkdir()
    monkeypatch.chdir(tmp_path)
    assert source_text("rl-zoo:run") == f"rl-zoo:{tmp_path / 'run'}"
    assert source_text("rllib:run#walker") == f"rllib:{tmp_path / 'run'}#walker"
    assert source_text("zoo:pong-a3c") == "zoo:pong-a3c"
