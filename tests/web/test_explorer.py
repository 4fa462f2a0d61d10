"""The explorer's server: every answer, every refusal, in-process."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import numpy as np
import pytest
from helpers.commands import let_ctrl_c_through
from helpers.fleet_server import wait_until
from helpers.paths import WORLDS
from helpers.visits import visit
from helpers.worlds import Masked, always_first, lean, make_branching, make_drawn, make_drawn_lives

import safemargin as sm
import safemargin.web
from safemargin.cli import main
from safemargin.core.records import EpisodeKey
from safemargin.criticality import estimation
from safemargin.criticality.plans import Planner
from safemargin.engines.processes import ProcessEngine
from safemargin.replay.critical_moments import most_critical
from safemargin.replay.highlights import choose_highlights
from safemargin.replay.pictures import Camera
from safemargin.replay.recordings import Recordings
from safemargin.replay.whatif import WhatIfs
from safemargin.study.findings import findings
from safemargin.study.store import DATABASE

pytest.importorskip("fastapi")
pytest.importorskip("plotly")

from fastapi import APIRouter
from fastapi.testclient import TestClient

from safemargin.web import describe
from safemargin.web.describe import describe_study, starting_point
from safemargin.web.explorer import create_app
from safemargin.web.server import listen

ADDRESS = "http://127.0.0.1"


@pytest.fixture(scope="module")
def client(drawn_study: Path) -> Iterator[TestClient]:
    with (
        sm.Study.open(drawn_study) as study,
        TestClient(create_app(study), base_url=ADDRESS) as client,
    ):
        yield client


def wait_for(ask: Any, state: str = "done") -> Any:
    for _ in range(300):
        found = ask()
        if found["state"] != "running":
            break
        time.sleep(0.1)
    assert found["state"] == state, found
    return found


def test_the_page_loads_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    for source in ("/plotly.js", "/pages/explorer.js", "/pages/whatif.js", "/pages/style.css"):
        assert source in page.text
        assert client.get(source).status_code == 200
    for name in ("index.html", "explorer.js", "whatif.js", "charts.js", "margins.js", "style.css"):
        assert "http" not in client.get("/pages/" + name).text.replace("https://plot.ly", "")
    assert client.get("/pages/app.py").status_code == 404
    assert client.get("/pages/__init__.py").json() == {"detail": "there is no page '__init__.py'"}


def test_other_sites_cannot_ask(client: TestClient) -> None:
    assert client.get("/api/study", headers={"Host": "evil.example"}).status_code == 400


def test_the_study_and_where_to_begin(client: TestClient, drawn_study: Path) -> None:
    about = client.get("/api/study").json()
    assert about["path"] == str(drawn_study)
    assert about["moments"] == {"natural": 40, "spread": 12}
    assert about["estimates_left"] == 0
    assert about["first_action"] == 0
    names = [each["name"] for each in about["episodes"]]
    assert about["start"]["episode"] in names
    start = next(each for each in about["episodes"] if each["name"] == about["start"]["episode"])
    assert start["measured_loss"]["step"] == about["start"]["step"]
    losses = [each["measured_loss"]["mean"] for each in about["episodes"]]
    assert start["measured_loss"]["mean"] == max(losses)


def test_report_explorer_and_highlights_begin_with_the_same_moment(drawn_study: Path) -> None:
    with sm.Study.open(drawn_study) as study:
        recordings = Recordings(study)
        reported = most_critical(study, recordings, 1)[0]
        shown = starting_point(recordings)
        filmed = choose_highlights(study, recordings, study.fit(0.9), 1.0, top=1, apart=5)[0]
    assert shown == (reported.episode, reported.step) == (filmed.episode, filmed.step)
    assert filmed.loss == pytest.approx(np.mean(reported.losses))


def test_without_measured_losses_it_begins_within_the_measured_range(
    narrow_study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(describe, "measured_losses", lambda study: {})
    with sm.Study.open(narrow_study) as study:
        highest = study.fit(0.9).highest_proxy
        recordings = Recordings(study)
        name, step = starting_point(recordings)
        proxies = recordings.open(name).episode.proxies["log_prob_range"]
        assert proxies[step] == highest == 49
        assert proxies.max() > highest
        about = describe_study(study, recordings, (name, step))
        summary = next(each for each in about["episodes"] if each["name"] == name)
        last = len(proxies) - study.settings.excluded_steps
        assert summary["steps_above"] == (proxies[summary["opening"] : last] > highest).sum() > 0
        assert summary["eligible_steps"] == last - summary["opening"]
        assert (
            "steps lie above every measured proxy, so nothing is promised" in (about["steps_above"])
        )


def test_an_end_is_a_loss_only_where_there_are_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(describe, "measured_losses", lambda study: {})
    settings = {"n_values": (1,), "trials": 2, "max_episode_steps": 60}
    for make, lives in ((make_drawn, False), (make_drawn_lives, True)):
        study = sm.Study.create(
            tmp_path / make.__name__, make, always_first, settings, scores="logits"
        )
        with study:
            study.collect(6, 0, workers=1)
            recordings = Recordings(study)
            assert recordings.has_lives is lives
            best = max(recordings.summaries(), key=lambda each: each.peak_proxy)
            # Now it is one that a time limit cut off, and all others ended.
            changed = [
                replace(each, ended="truncated" if each is best else "terminated", peak_proxy=peak)
                for each in recordings.summaries()
                for peak in [9e9 if each is best else each.peak_proxy]
            ]
            recordings.summaries = lambda changed=changed: changed  # type: ignore[method-assign]
            assert (starting_point(recordings)[0] == best.name) is not lives


def test_episodes_that_run_into_one_play(drawn_study: Path) -> None:
    with sm.Study.open(drawn_study) as study:
        recordings = Recordings(study)
        seen: dict[str, Any] = {}
        joined = 0
        for summary in recordings.summaries():
            episode = recordings.open(summary.name).episode
            if summary.joins is not None:
                joined += 1
                other = seen[summary.joins]  # an earlier one
                tail = min(8, episode.steps - episode.opening, other.steps - other.opening)
                assert np.array_equal(episode.scores[-tail:], other.scores[-tail:])
            seen[summary.name] = episode
        assert 40 < joined < 52
        status = study.status()
        assert status.plays == 52 - joined
        told = [text for level, text in findings(study, status, None)]
    assert any(text.startswith(f"52 moments lie in {status.plays} plays") for text in told)


def test_plays_that_never_meet_are_told_apart(tmp_path: Path) -> None:
    study = sm.Study.create(
        tmp_path, "CartPole-v1", lean, {"n_values": (1,), "trials": 2}, scores="logits"
    )
    with study:
        study.collect(3, 0, workers=1)
        recordings = Recordings(study)
        assert [each.joins for each in recordings.summaries()] == [None, None, None]
        assert study.status().plays == 3


def test_an_episode_has_every_number(client: TestClient, drawn_study: Path) -> None:
    told = client.get("/api/episodes/natural-2-0").json()
    with sm.Study.open(drawn_study) as study:
        episode = study.store.episode(EpisodeKey("natural", 2))
    assert told["steps"] == episode.steps == len(told["rewards"]) == len(told["scores"])
    assert told["actions"] == episode.actions.tolist()
    assert told["proxies"]["log_prob_range"] == episode.proxies["log_prob_range"].tolist()
    assert told["moment"] is not None
    with sm.Study.open(drawn_study) as study:
        measured = Recordings(study).measured("natural-2-0")
    assert [(each["n"], each["mean"], each["half_width"]) for each in told["measured"]] == [
        (each.estimate.n, each.estimate.mean, each.estimate.half_width) for each in measured
    ]
    assert len(measured) == 3


def test_margins_are_those_of_a_fit(client: TestClient, drawn_study: Path) -> None:
    told = client.get("/api/margins/log_prob_range").json()
    with sm.Study.open(drawn_study) as study:
        margins = study.fit(0.95)
    table = next(each for each in told["tables"] if each["confidence"] == 0.95)
    assert table["grid"] == [margins.bound.grid[0].tolist()]
    assert table["upper"] == margins.bound.upper.tolist()
    assert told["confidence"] == 0.95
    unbounded = next(each for each in told["tables"] if each["confidence"] == 0.99)
    assert not unbounded["enough"]
    assert unbounded["needed"] == 198
    assert "needs 99 natural moments" in unbounded["notes"][0]
    assert client.get("/api/margins/nonsense").status_code == 404


def test_frames_and_steps_that_do_not_exist(client: TestClient) -> None:
    steps = client.get("/api/episodes/natural-0-0").json()["steps"]
    for step in (0, steps):
        answer = client.get(f"/api/episodes/natural-0-0/frames/{step}")
        assert answer.headers["content-type"] == "image/jpeg"
        assert answer.content[:2] == b"\xff\xd8"
    answer = client.get(f"/api/episodes/natural-0-0/frames/{steps + 1}")
    assert answer.status_code == 404
    assert answer.json()["detail"] == (
        f"natural-0-0 has no step {steps + 1}: its steps are 0 to {steps}"
    )
    answer = client.get("/api/episodes/natural-0-0/frames/abc")
    assert answer.status_code == 422
    assert answer.json() == {"detail": "step must be a whole number, got 'abc'"}
    answer = client.get("/api/episodes/natural-400-0")
    assert answer.status_code == 404
    assert "there is no episode 'natural-400-0'" in answer.json()["detail"]
    film = client.get("/api/episodes/natural-0-0/film").json()
    assert film["of"] == steps + 1
    assert film["fault"] is None
    assert film["action_names"] == ["STAY", "LEAVE"]


def test_what_if_of_a_stored_moment_comes_from_the_study(client: TestClient) -> None:
    moment = client.get("/api/episodes/natural-0-0").json()["moment"]
    told = client.post(f"/api/episodes/natural-0-0/steps/{moment}/whatif").json()
    assert (told["state"], told["stored"]) == ("done", True)
    assert [each["n"] for each in told["results"]] == [1, 2, 4]
    for each in told["results"]:
        assert sum(each["losses"]) / len(each["losses"]) == pytest.approx(each["mean"])


def test_what_if_elsewhere_runs_trials_and_plays_them(client: TestClient) -> None:
    told = client.get("/api/episodes/natural-1-0").json()
    step = told["moment"] + 1
    place = f"/api/episodes/natural-1-0/steps/{step}/whatif"
    assert client.get(place).status_code == 400  # nobody has asked yet
    assert client.post(place).json()["stored"] is False
    found = wait_for(lambda: client.get(place).json())
    assert [each["n"] for each in found["results"]] == [1, 2, 4]

    client.post(f"{place}/2")
    showing = wait_for(lambda: client.get(f"{place}/2").json())
    losses = found["results"][1]["losses"]
    takes = showing["takes"]
    assert set(takes) == {"best", "median", "worst"}
    assert takes["best"]["loss"] == min(losses)
    assert takes["worst"]["loss"] == max(losses)
    for role, take in takes.items():
        assert take["repeats"]  # the very trial that was measured
        assert take["random_steps"] == 2
        last = take["frames"] - 1
        assert len(take["rewards"]) == last
        assert client.get(f"{place}/2/{role}/{last}").content[:2] == b"\xff\xd8"
        assert client.get(f"{place}/2/{role}/{last + 1}").status_code == 404
    assert client.get(f"{place}/2/strangest/0").status_code == 404
    assert client.post(f"{place}/3").json() == {
        "detail": f"there are no trials with n = 3 at step {step} yet"
    }
    assert client.post("/api/episodes/natural-1-0/steps/99999/whatif").status_code == 404


def copy_of(study: Path, target: Path) -> sqlite3.Connection:
    target.mkdir()
    shutil.copy(study / DATABASE, target)
    return sqlite3.connect(target / DATABASE)


def test_an_environment_that_is_not_installed(drawn_study: Path, tmp_path: Path) -> None:
    with copy_of(drawn_study, tmp_path / "moved") as database:
        (text,) = database.execute("SELECT value FROM meta WHERE name = 'environment'").fetchone()
        entry = json.loads(text)
        entry["spec"] = json.dumps({"env": "gone_package.worlds:make", "arguments": {}})
        database.execute(
            "UPDATE meta SET value = ? WHERE name = 'environment'", (json.dumps(entry),)
        )
    database.close()
    with (
        sm.Study.open(tmp_path / "moved", trust=True) as study,
        TestClient(create_app(study), base_url=ADDRESS) as client,
    ):
        episode = client.get("/api/episodes/natural-0-0").json()
        assert client.get("/api/margins/log_prob_range").json()["tables"]
        answer = client.get("/api/episodes/natural-0-0/frames/3")
        assert answer.status_code == 404
        assert "no module named 'gone_package' can be" in answer.json()["detail"]
        stored = client.post(f"/api/episodes/natural-0-0/steps/{episode['moment']}/whatif").json()
        assert stored["state"] == "done"
        place = f"/api/episodes/natural-0-0/steps/{episode['moment'] + 1}/whatif"
        client.post(place)
        told = wait_for(lambda: client.get(place).json(), "failed")
        assert "no module named 'gone_package' can be" in told["fault"]


def test_threads_begin_when_all_routes_are_taken(
    drawn_study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that change Python's warning filters would undo those of FastAPI."""
    before = set(threading.enumerate())
    begun: list[set[threading.Thread]] = []
    taken = APIRouter.add_api_route

    def watched(*arguments: Any, **options: Any) -> None:
        begun.append(set(threading.enumerate()) - before)
        taken(*arguments, **options)

    monkeypatch.setattr(APIRouter, "add_api_route", watched)
    with (
        sm.Study.open(drawn_study) as study,
        TestClient(create_app(study), base_url=ADDRESS),
    ):
        assert len(begun) > 5
        assert not any(begun)


def test_an_unfinished_study(drawn_study: Path, tmp_path: Path) -> None:
    with copy_of(drawn_study, tmp_path / "begun") as database:
        database.execute("DELETE FROM estimates")
    database.close()
    with (
        sm.Study.open(tmp_path / "begun") as study,
        TestClient(create_app(study), base_url=ADDRESS) as client,
    ):
        assert client.get("/api/study").json()["estimates_left"] == 156
        told = client.get("/api/margins/log_prob_range").json()
        assert told["tables"] == []
        assert "holds no finished moment yet" in told["note"]


def first_of_four(observations: np.ndarray) -> np.ndarray:
    return np.tile(np.eye(4, dtype=np.float32)[0], (len(observations), 1))


@pytest.mark.parametrize("made_before", [True, False])
def test_trials_under_a_mask_are_played_as_they_were_measured(
    made_before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planner(*given: Any, enumerable: bool, mask: Any) -> Planner:
        """As it was before the actions of n = 1 were enumerated under a mask."""
        return Planner(*given, enumerable=enumerable and mask is None)

    if made_before:
        monkeypatch.setattr(estimation, "Planner", planner)
    settings = {"n_values": (1, 2), "trials": 6}
    with sm.Study.create(tmp_path, Masked, first_of_four, settings, scores="q") as study:
        study.collect(2, 0, workers=1)
        with TestClient(create_app(study), base_url=ADDRESS) as client:
            moment = client.get("/api/episodes/natural-0-0").json()["moment"]
            place = f"/api/episodes/natural-0-0/steps/{moment}/whatif"
            one, two = client.post(place).json()["results"]
            assert (one["exact"], two["exact"]) == (not made_before, False)
            assert len(one["losses"]) == (6 if made_before else 3 - moment % 2)
            for n in (1, 2):
                client.post(f"{place}/{n}")
                showing = wait_for(lambda n=n: client.get(f"{place}/{n}").json())
                assert all(take["repeats"] for take in showing["takes"].values())


def test_without_pictures_trials_are_played_all_the_same(tmp_path: Path) -> None:
    settings = {"n_values": (1, 2), "trials": 4}
    study = sm.Study.create(tmp_path, make_branching, always_first, settings, scores="logits")
    with study:
        study.collect(2, 0, workers=1)
        with TestClient(create_app(study), base_url=ADDRESS) as client:
            moment = client.get("/api/episodes/natural-0-0").json()["moment"]
            place = f"/api/episodes/natural-0-0/steps/{moment}/whatif"
            assert client.post(place).json()["stored"]
            client.post(f"{place}/2")
            takes = wait_for(lambda: client.get(f"{place}/2").json())["takes"]
            assert set(takes) == {"best", "median", "worst"}
            assert all(take["repeats"] and take["frames"] == 0 for take in takes.values())
            assert client.get(f"{place}/2/best/0").status_code == 404
            told = client.get("/api/episodes/natural-0-0/frames/0").json()["detail"]
            assert "does not take render_mode='rgb_array'; let the function" in told


def test_a_port_in_use(drawn_study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        assert main(["explore", str(drawn_study), "--port", port, "--no-browser"]) == 2
    assert f"port {port} of 127.0.0.1 is in use, perhaps by another page of safemargin" in (
        capsys.readouterr().err
    )
    assert main(["explore", str(drawn_study), "--port", "99999", "--no-browser"]) == 2
    assert "a port is 0 (any free one) to 65535, got 99999" in capsys.readouterr().err


def test_no_such_episode(drawn_study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["explore", str(drawn_study), "--port", "0", "--no-browser"]
    assert main([*arguments, "--episode", "natural 900"]) == 2
    assert "has no episode 'natural 900'; it has natural 0 to 39" in capsys.readouterr().err


@pytest.fixture(scope="module")
def slow_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("slow") / "study"
    settings = {"n_values": (1, 2), "trials": 12}
    study = sm.Study.create(
        path, f"{WORLDS}:make_slow_branching", f"{WORLDS}:always_first", settings, scores="logits"
    )
    with study:
        study.collect(2, 0, workers=1)
    return path


@pytest.mark.parametrize("seconds", [0.0, 0.4, 2.5])
def test_control_c_while_a_what_if_runs(slow_study: Path, seconds: float) -> None:
    command = [sys.executable, "-m", "safemargin", "explore", str(slow_study), "--json"]
    process = subprocess.Popen(
        [*command, "--port", "0", "--no-browser"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "SLOW_WORLD_SECONDS": "0.05"},
        preexec_fn=let_ctrl_c_through,
    )
    assert process.stdout is not None
    address = json.loads(process.stdout.readline())["address"]
    with visit(address)("api/episodes/natural-0-0/steps/3/whatif", "POST") as answer:
        assert json.load(answer)["state"] == "running"
    time.sleep(seconds)
    began = time.monotonic()
    process.send_signal(2)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "\n")
    assert time.monotonic() - began < 5


def test_work_in_the_background_is_ended_by_the_thread_that_does_it(
    slow_study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads that close one engine at once tear each other's sockets down."""
    monkeypatch.setenv("SLOW_WORLD_SECONDS", "0.05")
    closers: list[threading.Thread] = []
    workers: list[Any] = []
    close = ProcessEngine.close

    def watched(engine: ProcessEngine) -> None:
        closers.append(threading.current_thread())
        workers.extend(worker.process for worker in engine._workers)
        close(engine)

    monkeypatch.setattr(ProcessEngine, "close", watched)
    with sm.Study.open(slow_study) as study:
        recordings = Recordings(study)
        what_ifs = WhatIfs(recordings, lambda: Camera(study.environment_spec))
        asked = what_ifs.ask(recordings.open("natural-0-0"), 3)
        wait_until(lambda: what_ifs._engine and what_ifs._engine._workers, "the workers")
        assert asked.state == "running"
        assert what_ifs.close(seconds=20)
    assert asked.state == "failed"
    assert closers == [what_ifs._threads[0]]
    assert workers
    assert all(worker.poll() is not None for worker in workers)
    assert not any(thread.is_alive() for thread in what_ifs._threads)


def test_control_c_before_there_is_a_page(
    drawn_study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(path: Path, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sm.Study, "open", interrupted)
    for command, told in [
        (["explore", "--no-browser", "--port", "0"], "stopped"),
        (["report", "-o", "r.html"], "stopped; no report was written"),
        (["highlights"], "stopped; the clips that were finished are kept"),
    ]:
        assert main([command[0], str(drawn_study), *command[1:]]) == 130
        assert capsys.readouterr().err == f"\n{told}\n"


def test_a_step_to_begin_with(
    drawn_study: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    places = []

    def look(app: Any, bound: Any, *, query: str, **more: Any) -> None:
        with TestClient(app, base_url=ADDRESS) as client:
            client.get("/" + query)
            places.append(client.get("/api/study").json()["start"])

    monkeypatch.setattr("safemargin.web.server.serve", look)
    arguments = ["explore", str(drawn_study), "--port", "0", "--no-browser"]
    assert main([*arguments, "--episode", "spread 1", "--step", "9"]) == 0
    assert places == [{"episode": "spread-1-0", "step": 9}]
    assert main([*arguments, "--episode", "spread 1", "--step", "99999"]) == 2
    assert "there is no step 99,999 in spread 1; it has 40" in capsys.readouterr().err
    assert main([*arguments, "--step", "9"]) == 2
    assert "--step needs the episode it is a step of" in capsys.readouterr().err


def test_from_the_command_line_to_control_c(drawn_study: Path) -> None:
    command = [sys.executable, "-m", "safemargin", "explore", str(drawn_study), "--json"]
    process = subprocess.Popen(
        [*command, "--port", "0", "--no-browser", "--seed", "3"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    address = json.loads(process.stdout.readline())["address"]
    with pytest.raises(HTTPError) as refused:
        urllib.request.urlopen(address.partition("?")[0] + "api/study", timeout=120)
    assert refused.value.code == 401
    refused.value.close()
    with visit(address)("api/study") as answer:
        assert json.load(answer)["start"]["episode"] == "seed-3-0"
    process.send_signal(2)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "Traceback" not in err
