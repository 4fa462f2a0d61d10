"""Minari datasets on this machine: recorded episodes to read, and a study's own to write."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from safemargin.core.progress import Progress, Silence
from safemargin.core.records import Array, Episode, EpisodeKey, Floats
from safemargin.core.version import __version__
from safemargin.criticality.replaying import Replay
from safemargin.engines import Job
from safemargin.environments import Simulator, make_simulator
from safemargin.errors import (
    EnvironmentFault,
    InvalidInput,
    MissingExtra,
    StudyIncomplete,
    did_you_mean,
    errors_as,
)
from safemargin.policies.base import Policy
from safemargin.policies.batching import ask
from safemargin.policies.observations import batch_of, for_each
from safemargin.study.store import Store

SCHEME = "minari:"
OURS = "safemargin"
"""The entry of a dataset's metadata that says which policy, environment and lives it holds."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordedEpisode:
    """What a dataset holds of one episode."""

    number: int
    game: int
    """Episodes of one game (its lives) share this number."""
    opening: int
    """This many first actions were random, and are no choice of the policy."""
    observations: Any  # [steps, ...] in the structure of the space: what was seen at each decision
    actions: Array  # [steps, ...]
    rewards: Floats  # [steps]

    @property
    def steps(self) -> int:
        """The number of decisions."""
        return len(self.rewards)


class Dataset:
    """The recorded episodes of one Minari dataset, in their order."""

    def __init__(self, name: str) -> None:
        """`name` is the dataset's id, with or without 'minari:', or the folder that holds it."""
        self.name = name.removeprefix(SCHEME)
        self._folder = _data_folder(self.name)
        failure = f"the Minari dataset {self.name!r} cannot be read:"
        with errors_as(InvalidInput, failure):
            known = json.loads((self._folder / "metadata.json").read_text(encoding="utf-8"))
            if not {"observation_space", "action_space"} <= known.keys():
                raise InvalidInput(  # Minari would make the environment that the file names
                    f"the Minari dataset {self.name!r} does not say what its spaces are; record it "
                    "with Minari 0.4 or later"
                )
            self._storage = _storage().read(self._folder)
            spec = known.get("env_spec")
            self.environment: str | None = None if spec is None else json.loads(spec)["id"]
        self._failure = failure
        self.observation_space = self._storage.observation_space
        self.action_space: Any = self._storage.action_space
        ours = known.get(OURS)
        self.ours: Mapping[str, Any] = ours if isinstance(ours, dict) else {}
        """What safemargin noted when it wrote the dataset; nothing if something else did."""
        self.lossy = bool(known.get("jpeg_encoding", True)) and any(
            map(_is_picture, _leaves(self.observation_space))
        )
        """Whether its pictures were compressed, so that they are not what the policy saw."""
        self._lives = dict(enumerate(self.ours.get("lives", ())))

    def __len__(self) -> int:
        return int(self._storage.total_episodes)

    @property
    def steps(self) -> int:
        """The number of decisions in all episodes."""
        return int(self._storage.total_steps)

    def __iter__(self) -> Iterator[RecordedEpisode]:
        with errors_as(InvalidInput, self._failure):
            for number, found in enumerate(self._storage.get_episodes(range(len(self)))):
                rewards = np.asarray(found["rewards"], np.float64)
                # Episodes that were added later are games of their own.
                game, opening = self._lives.get(number, (-1 - number, 0))
                decisions = itemgetter(slice(len(rewards)))  # nothing is decided at the end
                yield RecordedEpisode(
                    number,
                    int(game),
                    int(opening),
                    for_each(for_each(found["observations"], decisions), np.asarray),
                    np.asarray(found["actions"]),
                    rewards,
                )

    def spaces(self) -> gym.Env[Any, Any]:
        """Return an environment that has the dataset's spaces and nothing else."""
        env: gym.Env[Any, Any] = gym.Env()
        env.observation_space, env.action_space = self.observation_space, self.action_space
        return env


def write_dataset(
    store: Store,
    job: Job,
    name: str,
    *,
    episodes: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """Play the (first `episodes`) natural episodes again, and write them as a new Minari dataset.

    Each step has the reward and the proxies that the study holds, the latter among the infos. The
    dataset appears whole or not at all. Returns its folder.
    """
    name = name.removeprefix(SCHEME)
    target = _new_folder(name)
    keys = [key for key in store.episode_outlines() if key.phase == "natural"][:episodes]
    if not keys:
        raise StudyIncomplete(f"the study in {store.folder} holds no natural episodes yet")
    progress = progress or Silence()
    progress.stage("minari", total=len(keys), done=0)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    simulator = make_simulator(job.environment.make(), way="snapshot")
    try:
        with errors_as(InvalidInput, f"the Minari dataset {name!r} cannot be written:"):
            (draft / "data").mkdir(parents=True)
            storage = _new_storage(draft / "data", simulator.env, job.environment.text)
            lives: list[tuple[int, int]] = []
            for key in keys:
                episode = store.episode(key)
                storage.update_episodes([_buffer(simulator, job.policy, episode)])
                lives.append((key.index, episode.opening))
                progress.advance(episode.steps)
            storage.update_metadata(_metadata(name, job, lives))
            os.rename(draft, target)
    finally:
        simulator.close()
        shutil.rmtree(draft, ignore_errors=True)
    return target


def _buffer(simulator: Simulator, policy: Policy, episode: Episode) -> Any:
    """Play an episode again, and return what Minari stores of it."""
    from minari.data_collector.episode_buffer import EpisodeBuffer

    replay = Replay(simulator, episode, (), partial(_diverged, episode.key), unwatched=0)
    # Lives come one after another, so that no game is played twice.
    seen = [simulator.next_life() if episode.key.life else replay.begin()]
    while replay.step < episode.steps:
        seen.append(replay.advance().observation)
    if policy.initial_memory(1) is None:  # rewards may be equal where observations are not
        row, _ = ask(policy, batch_of(seen[-2:-1]), None)
        if not np.array_equal(row[0], episode.scores[-1]):
            raise _diverged(episode.key, episode.steps - 1)
    ends = np.zeros((2, episode.steps), bool)
    ends[:, -1] = episode.terminated, not episode.terminated
    infos: dict[str, Array] = {"opening": np.arange(episode.steps + 1) < episode.opening}
    for proxy, values in episode.proxies.items():
        nothing = np.full((1, *values.shape[1:]), np.nan)  # at the end nothing is decided
        infos[f"proxy_{proxy}"] = np.concatenate([values, nothing])
    return EpisodeBuffer(
        seed=episode.seed,
        observations=batch_of(seen),
        actions=episode.actions,
        rewards=episode.rewards,
        terminations=ends[0],
        truncations=ends[1],
        infos=infos,
    )


def _metadata(name: str, job: Job, lives: list[tuple[int, int]]) -> dict[str, Any]:
    from minari import __version__ as format_version

    return {
        "dataset_id": name,
        "minari_version": format_version,
        "algorithm_name": job.policy.description,
        "description": f"{job.policy.description} in {job.environment.name}, written by safemargin",
        OURS: {
            "version": __version__,
            "policy": job.policy.identity,
            "environment": job.identity,
            "lives": lives,
        },
    }


def _new_storage(folder: Path, env: gym.Env[Any, Any], named: str | None) -> Any:
    """`named` is how the study names its environment: only an id says all that made it."""
    spec = env.spec
    if spec is not None and (spec.id != (named or "").rpartition(":")[2] or not _is_plain(spec)):
        spec = None
    return _storage().new(
        folder,
        observation_space=env.observation_space,
        action_space=env.action_space,
        env_spec=spec,
        data_format="hdf5",
        jpeg_encoding=False,  # a picture must stay what the policy saw
    )


def _is_plain(spec: Any) -> bool:
    try:
        spec.to_json()
    except (TypeError, ValueError):
        return False
    return True


def _diverged(key: EpisodeKey, step: int) -> EnvironmentFault:
    return EnvironmentFault(
        f"{key.phase} episode {key.index} does not play again as it was recorded (step {step}); "
        "was the environment or one of its libraries changed?"
    )


def _storage() -> Any:
    try:
        import h5py  # noqa: F401 (what Minari keeps datasets in)
        from minari.dataset.minari_storage import MinariStorage
    except ImportError:
        raise MissingExtra("a Minari dataset", extra="minari") from None
    return MinariStorage


def _data_folder(name: str) -> Path:
    """Return the folder with a dataset's data: that of the name, or the one with that id."""
    _storage()
    from minari.storage.datasets_root_dir import get_dataset_path

    for folder in (Path(name).expanduser(), Path(get_dataset_path(name))):
        for found in (folder / "data", folder):
            if (found / "metadata.json").is_file():
                return found
    root = Path(get_dataset_path())
    known = [str(each.parent.parent.relative_to(root)) for each in root.rglob("data/metadata.json")]
    advice = did_you_mean(name, known) if known else "there is none at all"
    raise InvalidInput(
        f"there is no Minari dataset {name!r} in {root}; {advice} (safemargin downloads nothing: "
        f"`minari download {name}`)"
    )


def _new_folder(name: str) -> Path:
    _storage()
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.namespace import create_namespace, list_local_namespaces
    from minari.storage.datasets_root_dir import get_dataset_path

    try:
        namespace, _, _ = parse_dataset_id(name)
    except (ValueError, TypeError):  # TypeError: it has no version
        raise InvalidInput(
            f"{name!r} cannot be the id of a Minari dataset; write NAME-v0 or NAMESPACE/NAME-v0, "
            "e.g. minari:cartpole/mine-v0"
        ) from None
    folder = Path(get_dataset_path(name))
    if folder.exists():
        raise InvalidInput(
            f"there is a Minari dataset {name!r} already; choose another version, or "
            f"`minari delete {name}`"
        )
    if namespace is not None and namespace not in list_local_namespaces():
        create_namespace(namespace)
    return folder


def _leaves(space: Any) -> list[Any]:
    parts = getattr(space, "spaces", None)
    if parts is None:
        return [space]
    each = parts.values() if isinstance(parts, Mapping) else parts
    return [leaf for part in each for leaf in _leaves(part)]


def _is_picture(space: gym.Space[Any]) -> bool:
    from minari.dataset.minari_storage import is_image_space

    return bool(is_image_space(space))
