"""Pictures of recorded episodes: the right ones, at any step, through all lives, or none at all."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.paths import WORLDS
from helpers.worlds import (
    DrawnWorld,
    TableWorld,
    always_first,
    branching,
    make_branching,
    make_drawn_lives,
)
from PIL import Image

import safemargin as sm
from safemargin.environments import EnvironmentSpec
from safemargin.errors import InvalidInput, NoPictures
from safemargin.replay import stills
from safemargin.replay.films import Films
from safemargin.replay.pictures import Camera, encode
from safemargin.replay.recordings import Recordings
from safemargin.replay.stills import StillRequest, take_stills

DRAWN = EnvironmentSpec.parse(f"{WORLDS}:make_drawn")


def state_shown(picture: np.ndarray) -> int:
    return round(float(picture[20, 30, 0]) / 3)


@pytest.fixture
def recordings(drawn_study: Path) -> Any:
    with sm.Study.open(drawn_study) as study:
        yield Recordings(study)


def test_a_camera_shows_the_state_at_any_step(recordings: Recordings) -> None:
    recording = recordings.open("natural-0-0")
    world = DrawnWorld(branching(40), starts=2)
    world.reset(seed=recording.episode.seed)
    states = [world.state]
    for action in recording.episode.actions:
        world.step(action)
        states.append(world.state)
    camera = Camera(DRAWN)
    assert camera.action_names == ["STAY", "LEAVE"]
    assert camera.frames_per_second == 20
    for step in (0, 7, 3, recording.episode.steps, 12, 12):
        assert state_shown(camera.look(recording, step)) == states[step]
    other = recordings.open("natural-1-0")
    assert camera.look(other, 5).shape == (40, 60, 3)
    assert state_shown(camera.look(recording, 7)) == states[7]
    camera.close()


def test_later_lives_are_reached_through_the_earlier_ones(tmp_path: Path) -> None:
    study = sm.Study.create(
        tmp_path, make_drawn_lives, always_first, {"n_values": (1,), "trials": 2}, scores="logits"
    )
    with study:
        study.collect(5, 0, workers=1)
        recordings = Recordings(study)
        assert recordings.title("natural-1-2") == "natural 1, life 3"
        assert recordings.find("natural 1, life 3") == recordings.find("1 life 3") == "natural-1-2"
        for wrong in ("natural 1, life 0", "natural 1, life 4"):
            with pytest.raises(InvalidInput, match="has no episode"):
                recordings.find(wrong)
        recording = recordings.open("natural-1-2")
        assert len(recording.earlier_lives) == 2
        camera = Camera(study.environment_spec)
        assert camera.look(recording, 3).any()
        wrong = replace(recording, earlier_lives=recording.earlier_lives[:1])
        with pytest.raises(NoPictures, match="did not give what was recorded at step"):
            camera.look(wrong, recording.episode.steps)


def test_atari_jumps_between_kept_states() -> None:
    pytest.importorskip("ale_py")
    from safemargin.core.records import Episode, EpisodeKey
    from safemargin.replay.recordings import Recording

    spec = EnvironmentSpec.parse("atari:pong")
    actions = np.random.default_rng(0).integers(6, size=200)
    camera = Camera(spec)
    assert camera.jumps
    assert camera.frames_per_second == 15
    camera.simulator.reset(3)
    rewards = [camera.simulator.step(int(action)).reward for action in actions]
    episode = Episode(
        EpisodeKey("natural", 0), 3, 0, actions, np.array(rewards),
        np.zeros((200, 6), np.float32), {}, False, False, True,
    )  # fmt: skip
    recording = Recording("natural-0-0", episode, ())
    forwards = {step: camera.look(recording, step).copy() for step in (0, 64, 100, 128, 130, 200)}
    for step in (130, 64, 0, 128, 200, 100):
        assert np.array_equal(camera.look(recording, step), forwards[step]), step
    camera.close()


def make_undrawn(render_mode: str | None = None) -> TableWorld:
    """Takes the argument, but there is nothing to see."""
    return TableWorld(branching(40))


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (
            EnvironmentSpec.parse(make_branching),
            "does not take render_mode='rgb_array'; let the func",
        ),
        (EnvironmentSpec.parse(make_undrawn), "does not draw: it knows no render_mode='rgb_array'"),
        (EnvironmentSpec.parse("Nowhere-v3"), "no pictures: environment 'Nowhere-v3' is unknown"),
    ],
)
def test_without_pictures_there_is_a_reason(spec: EnvironmentSpec, reason: str) -> None:
    with pytest.raises(NoPictures, match=reason):
        Camera(spec)


@pytest.mark.parametrize(
    ("backend", "cure"),
    [
        ("", "MUJOCO_GL is not set; set MUJOCO_GL=egl (or osmesa)"),
        (None, "MUJOCO_GL is not set; set MUJOCO_GL=egl (or osmesa)"),
        ("glfw", "MUJOCO_GL is 'glfw'; set MUJOCO_GL=egl (or osmesa)"),
        ("nonsense", "MUJOCO_GL is 'nonsense'; set MUJOCO_GL=egl (or osmesa)"),
    ],
)
def test_mujoco_without_opengl_gets_one_sentence(backend: str | None, cure: str) -> None:
    """In a separate process: MuJoCo's libraries may print to it, or kill it."""
    pytest.importorskip("mujoco")
    code = (
        "from safemargin.environments import EnvironmentSpec\n"
        "from safemargin.replay.pictures import Camera\n"
        "try: Camera(EnvironmentSpec.parse('Hopper-v5'))\n"
        "except Exception as error: print(error)\n"
    )
    hidden = ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    if backend is not None:
        environment["MUJOCO_GL"] = backend
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout == (f"no pictures: MuJoCo finds no OpenGL to draw Hopper-v5 with, {cure}\n")


def test_films_fill_up_and_make_room(recordings: Recordings) -> None:
    films = Films(lambda: Camera(DRAWN), most_bytes=10_000)
    first, second = recordings.open("natural-0-0"), recordings.open("natural-1-0")
    try:
        for recording in (first, second, first):
            for step in (5, recording.episode.steps):
                jpeg = films.picture(recording, step)
                shown = np.asarray(Image.open(io.BytesIO(jpeg)))
                assert shown.shape == (40, 60, 3)
        assert jpeg == encode(Camera(DRAWN).look(first, first.episode.steps))
        assert films.taken(first) == (first.episode.steps + 1, None)
        assert films.taken(second)[0] == 0  # dropped: there is room for one
        assert films.action_names == ["STAY", "LEAVE"]
    finally:
        films.close()


def test_films_say_why_there_are_none(recordings: Recordings) -> None:
    films = Films(lambda: Camera(EnvironmentSpec.parse(make_branching)))
    with pytest.raises(NoPictures, match="does not take render_mode"):
        films.picture(recordings.open("natural-0-0"), 0)
    films.close()


def test_a_replay_that_differs_is_not_shown(recordings: Recordings) -> None:
    recording = recordings.open("natural-0-0")
    rewards = recording.episode.rewards.copy()
    rewards[9] += 1
    wrong = replace(recording, name="wrong", episode=replace(recording.episode, rewards=rewards))
    films = Films(lambda: Camera(DRAWN))
    with pytest.raises(NoPictures, match="did not give what was recorded at step 9"):
        films.picture(wrong, 30)
    assert state_shown(np.asarray(Image.open(io.BytesIO(films.picture(recording, 0))))) < 4
    films.close()


def test_recordings_are_found_by_what_people_type(recordings: Recordings) -> None:
    assert recordings.find("3") == "natural-3-0"
    assert recordings.find("spread 2") == "spread-2-0"
    assert recordings.find("natural-4-0") == "natural-4-0"
    with pytest.raises(InvalidInput, match="has no episode '400'; it has natural 0 to"):
        recordings.find("400")
    assert recordings.find("natural: 4") == recordings.find(" 4.0 ") == "natural-4-0"
    asked = "give a number (of a natural episode), 'spread 3', or a name like natural-17-0"
    known = {summary.name for summary in recordings.summaries()}
    assert {"spread-3-0", "spread-1-0", "spread-2-0"} <= known
    for wrong in ("banana 3", "-1", "seed 2", "natural-3-1", "spread", "", "3 0 0", "9" * 5000):
        with pytest.raises(InvalidInput, match="has no episode ") as refused:
            recordings.find(wrong)
        assert str(refused.value).endswith(asked)


def test_a_number_is_never_that_of_a_spread_episode(
    recordings: Recordings, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = [each for each in recordings.summaries() if each.name != "natural-2-0"]
    second = replace(some[0], name="natural-2-1", index=2, life=1)
    for left, found in ((some, None), ([*some, second], "natural-2-1")):
        monkeypatch.setattr(recordings, "summaries", lambda left=left: left)
        if found:  # the first life that is long enough to be in the list
            assert recordings.find("2") == recordings.find("natural 2") == found
        else:
            with pytest.raises(InvalidInput, match="has no episode '2'"):
                recordings.find("2")


def test_recordings_are_opened_by_their_name_alone(recordings: Recordings) -> None:
    with pytest.raises(InvalidInput, match="there is no episode 'natural-7'"):
        recordings.open("natural-7")


def test_a_fresh_episode_is_not_part_of_the_study(recordings: Recordings) -> None:
    before = len(recordings.summaries())
    name = recordings.run_seed(3)
    assert name == "seed-3-0"
    assert recordings.summaries()[0].phase == "seed"
    assert len(recordings.summaries()) == before + 1
    assert recordings.moment(name) is None
    assert recordings.measured(name) == []
    assert recordings.study.status().episodes == before


def test_stills_are_the_same_from_one_process_or_several(
    recordings: Recordings, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [StillRequest(recordings.open(f"natural-{index}-0"), 10 + index) for index in range(5)]
    alone = take_stills(DRAWN, wanted)
    monkeypatch.setattr(stills, "WORTH_A_HELPER", 20)
    monkeypatch.setattr(stills, "available_cores", lambda: 2)
    taken = []
    assert take_stills(DRAWN, wanted, lambda: taken.append(1)) == alone
    assert len(taken) == 5
    assert all(still.jpeg for still in alone)
    missing = take_stills(EnvironmentSpec.parse("Nowhere-v3"), wanted)
    assert "no pictures: environment 'Nowhere-v3' is unknown" in str(missing[4].fault)
