"""The fleet page in a real browser: take an agent over, steer it, hand it back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from helpers.paths import WORLDS

import safemargin as sm
from safemargin.cli import main
from safemargin.monitor.audit import Entry

pytest.importorskip("fastapi")
pytest.importorskip("websockets")
pytest.importorskip("selenium")

from helpers.browser import BROWSER, DRIVER, Page
from helpers.fleet_server import TOKEN, Person, Server, running, wait_until
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

pytestmark = pytest.mark.skipif(
    BROWSER is None or DRIVER is None,
    reason="no browser to test in: apt-get install chromium chromium-driver",
)
PICTURED = "[...document.querySelectorAll('.tile img')].slice(0, 3).every(i => i.naturalWidth)"


@pytest.fixture(scope="module")
def folder(drawn_study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("watched")
    assert main(["fit", str(drawn_study), "-o", str(target / "margins.json")]) == 0
    return target


def options(folder: Path) -> list[str]:
    policy = [f"{WORLDS}:always_first", str(folder / "margins.json"), "--scores", "logits"]
    policy += ["--env", f"{WORLDS}:make_drawn"]  # a margins file can never execute code
    return [*policy, "--agents", "3", "--remote", "--speed", "10", "--tolerance", "1000"]


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with running(folder, *options(folder)) as started:
        yield started


@pytest.fixture
def page(chromium: webdriver.Chrome, server: Server) -> Page:
    return opened(chromium, server)


def fresh(chromium: webdriver.Chrome) -> Page:
    """An empty page, with no complaints of the one before it."""
    page = Page(chromium)
    chromium.get("about:blank")
    page.complaints()
    return page


def opened(chromium: webdriver.Chrome, server: Server) -> Page:
    page = fresh(chromium)
    chromium.get(server.address)
    page.wait(
        "view.agents.filter(each => each.status === 'live' && each.step !== null).length >= 3"
    )
    page.wait(PICTURED)  # nothing moves any more
    return page


def look_at(page: Page, name: str) -> None:
    """Click on an agent's tile."""
    page.driver.find_element(By.CSS_SELECTOR, f".tile[aria-label^='{name},']").click()
    page.wait(f"view.agents[view.looks]?.name === '{name}'")


def entries(folder: Path, agent: str) -> list[Entry]:
    with sm.AuditLog(folder / "watch.db") as log:
        return [
            entry for entry in log.entries(agent=agent) if entry.kind not in ("call", "release")
        ]


def test_tiles_and_queue(page: Page) -> None:
    page.wait("document.querySelectorAll('.tile img').length >= 3")
    page.wait(PICTURED)
    names = page.script("[...document.querySelectorAll('.tile b')].map(each => each.textContent)")
    assert names[:3] == ["agent 1", "agent 2", "agent 3"]
    assert "3 agents" in page.text("summary")
    page.wait(
        "JSON.stringify([...document.querySelectorAll('#queue li')].map(e => e.dataset.index)) ==="
        " JSON.stringify(ordered().map(each => String(each.index)))"
    )
    loaded = page.script("performance.getEntriesByType('resource').map(each => each.name)")
    here = (page.script("location.origin"), "blob:", "data:")
    assert any(name.endswith("/pages/fleet.js") for name in loaded)
    assert page.script("document.querySelectorAll('#glossary dt').length") == 7
    assert [name for name in loaded if not name.startswith(here)] == []
    assert not page.complaints()


def test_a_call_beside_a_large_margin_says_why(page: Page) -> None:
    state = (
        "stateText({status: 'live', calling: true, called_since: now() - 3, cause: %r, margin: %d})"
    )
    text = {
        (cause, margin): page.script(state % (cause, margin))
        for cause in ("margin", "look")
        for margin in (0, 4)
    }
    assert text == {
        ("margin", 0): "▲ calls 3 s",
        ("margin", 4): "▲ calls 3 s, since recovered",
        ("look", 0): "◎ look 3 s",
        ("look", 4): "◎ look 3 s",
    }


def test_the_queue_keeps_its_order_under_the_pointer(page: Page) -> None:
    shown = "[...document.querySelectorAll('#queue li')].map(row => Number(row.dataset.index))"
    page.wait(f"{shown}.length >= 3")
    page.driver.execute_script("window.urgency = (one, other) => one.index - other.index")
    page.wait(f"{shown}.every((index, place, all) => !place || all[place - 1] < index)")
    rising = page.script(shown)
    queue = page.driver.find_element(By.ID, "queue")
    ActionChains(page.driver).move_to_element(queue).perform()
    page.wait("document.getElementById('queue-note').textContent.includes('held')")
    page.driver.execute_script("window.urgency = (one, other) => other.index - one.index")
    page.driver.execute_script("sortedAt = 0; sortQueue()")
    assert page.script(shown) == rising
    tiles = page.driver.find_element(By.ID, "summary")
    ActionChains(page.driver).move_to_element(tiles).perform()
    page.wait(f"{shown}[0] === {rising[-1]}")


def test_take_over_steer_and_hand_back(page: Page, folder: Path) -> None:
    look_at(page, "agent 1")
    page.wait("view.seen !== null && view.timeline !== null")
    assert page.text("agent-name") == "agent 1"
    page.wait("document.querySelectorAll('#scores .score').length === 2")
    assert "STAY" in page.text("scores")
    page.wait("document.getElementById('agent-picture').naturalWidth > 0")
    page.press("t")
    page.wait("stateOf(view.agents[view.looks]) === 'mine' && view.seen.waiting")
    place = page.script("[view.seen.episode, view.seen.step]")
    page.press("2")  # LEAVE
    page.wait("view.agents[view.looks].human_actions === 1 && view.seen.waiting")
    page.press(Keys.ENTER)  # as the agent wants
    page.wait("view.agents[view.looks].human_actions === 2 && view.seen.waiting")
    page.driver.find_element(By.CSS_SELECTOR, "#pad button").click()  # STAY
    page.wait("view.agents[view.looks].human_actions === 3 && view.seen.waiting")
    step = page.script("view.seen.step")
    heard = page.script("view.received")
    page.wait(f"view.received > {heard + 20}")  # the others went on
    assert page.script("view.seen.step") == step  # nothing pressed: it waits
    page.press(Keys.ESCAPE)
    page.wait("stateOf(view.agents[view.looks]) !== 'mine'")
    page.wait(f"view.seen.episode > {place[0]} || view.seen.step > {step + 2}")
    found = entries(folder, "agent 1")
    assert [entry.kind for entry in found] == [
        "joined", "taken", "action", "action", "action", "handed-back",
    ]  # fmt: skip
    actions = [entry for entry in found if entry.kind == "action"]
    assert [entry.details["action_name"] for entry in actions] == ["LEAVE", "STAY", "STAY"]
    assert [entry.details["own"] for entry in actions] == [False, True, False]
    assert [entry.details["overruled"] for entry in actions] == [True, False, False]
    assert (actions[0].episode, actions[0].step) == tuple(place)
    assert all(entry.pictured for entry in actions)
    assert "took agent 1 over" in page.script("view.entries.map(e => e.text).join()")
    assert not page.complaints()


def test_a_page_that_was_closed_shows_the_true_state(
    page: Page, chromium: webdriver.Chrome, server: Server
) -> None:
    look_at(page, "agent 2")
    page.press("t")
    page.wait("stateOf(view.agents[view.looks]) === 'mine'")
    again = opened(chromium, server)
    again.wait("view.agents.some(each => each.name === 'agent 2' && stateOf(each) === 'mine')")
    again.wait("view.seen !== null && view.seen.waiting")  # it is looked at again, too
    assert again.text("agent-name") == "agent 2"
    again.press("1")
    again.wait("view.agents[view.looks].human_actions === 1")
    again.press(Keys.ESCAPE)
    again.wait("stateOf(view.agents[view.looks]) !== 'mine'")


def test_somebody_else_was_faster(page: Page, server: Server) -> None:
    look_at(page, "agent 3")
    place = page.script("view.looks")
    with Person(server.address, "Ben") as ben:
        ben.say(do="take", agent=place)
        ben.entry("taken")
        page.wait("stateOf(view.agents[view.looks]) === 'theirs'")
        page.press("t")
        page.wait(
            "document.getElementById('notes').textContent.includes('Ben took agent 3 over before')"
        )
        assert "wants agent 3, too. You have it." in ben.hear("note")["text"]
        page.press("T")  # from Ben
        page.wait("stateOf(view.agents[view.looks]) === 'mine'")
        assert "took agent 3 from you" in ben.hear("note")["text"]
    page.press(Keys.ESCAPE)
    page.wait("stateOf(view.agents[view.looks]) !== 'mine'")


def test_an_agent_elsewhere_without_pictures_calls(page: Page, server: Server) -> None:
    page.click("sound")
    assert page.text("sound") == "sound on"
    page.driver.execute_script("lastBeep = 0")
    address = server.address
    with sm.RemoteOverseer(address, name="far away", token=TOKEN, action_names=["a", "b"]) as away:
        away.decide(0, scores=[200.0, 0.0])  # far above all that was measured
        page.wait("view.agents.some(each => each.name === 'far away' && each.calling)")
        page.wait("lastBeep > 0")
        page.wait("document.querySelector(\".tile[data-state=calls][aria-label^='far away,']\")")
        page.press("n")
        page.wait("view.seen !== null")
        while page.script("view.agents[view.looks].name") != "far away":  # others call, too
            looks = page.script("view.looks")
            page.press("j")
            page.wait(f"view.looks !== {looks}")
        page.wait("document.getElementById('agent-name').textContent === 'far away'")
        assert "lies above" in page.text("why")
        assert page.script("document.title.startsWith('▲')")
        assert page.script("!document.getElementById('no-picture').hidden")
    page.wait("view.agents.find(each => each.name === 'far away').status === 'left'")
    page.click("sound")
    assert not page.complaints()


def test_a_call_is_seen_handed_over_and_snoozed(page: Page, server: Server) -> None:
    state = "view.agents.find(each => each.name === 'needy')"
    with (
        Person(server.address, "Ben") as ben,
        sm.RemoteOverseer(server.address, name="needy", token=TOKEN) as needy,
    ):
        needy.decide(0, scores=[200.0, 0.0])  # far above all that was measured
        page.wait(f"{state}?.calling && document.querySelector(\".tile[aria-label^='needy,']\")")
        look_at(page, "needy")
        page.wait("!document.getElementById('seen').hidden")
        page.press("a")
        page.wait(f"{state}.seen_by === view.me")
        page.wait("document.getElementById('seen').hidden")
        page.wait("[...document.getElementById('hand-over').options].some(o => o.value === 'Ben')")
        Select(page.driver.find_element(By.ID, "hand-over")).select_by_visible_text("Ben")
        page.wait(f"{state}.seen_by === 'Ben'")
        assert "hands needy over to you" in ben.hear("note")["text"]
        page.click("snooze")
        page.wait(f"!{state}.calling && snoozed({state})")
        page.wait("document.getElementById('snooze').textContent.startsWith('Wake')")
        needy.decide(0, scores=[200.0, 0.0])
        page.wait(f"{state}.step === 1")
        assert not page.script(f"{state}.calling")
        page.press("z")
        page.wait(f"!snoozed({state})")
        needy.decide(0, scores=[200.0, 0.0])
        page.wait(f"{state}.calling")
    assert not page.complaints()


def test_people_elsewhere_who_cannot_be_told(chromium: webdriver.Chrome, folder: Path) -> None:
    own = folder / "untold"
    own.mkdir()
    with running(own, *options(folder), "--webhook", "http://127.0.0.1:9") as server:
        page = opened(chromium, server)
        assert page.script("document.getElementById('away').hidden")
        with sm.RemoteOverseer(server.address, name="far away", token=TOKEN) as away:
            away.decide(0, scores=[200.0, 0.0])
            page.wait("!document.getElementById('away').hidden")
        assert page.text("away") == (
            "People away from this page are not notified of calls: the webhook fails. "
            "The server's output says why."
        )
        assert not page.complaints()
        page.driver.get("about:blank")


def test_an_agent_that_is_lost_while_i_steer_and_dismissed(page: Page, server: Server) -> None:
    from websockets.sync.client import connect

    way = f"ws://127.0.0.1:{server.port}/agents"
    with connect(way, additional_headers={"Authorization": f"Bearer {TOKEN}"}) as agent:
        agent.send('{"kind": "hello", "name": "a lost one", "instance": "1"}')
        place = "view.agents.find(each => each.name === 'a lost one')"
        page.wait(place)
        first = "document.querySelector('.tile b').textContent"
        page.wait(f"{first} === 'a lost one'")
        page.driver.execute_script(f"look({place}.index)")
        page.press("t")
        page.wait(f"stateOf({place}) === 'mine'")
    page.wait(f"{place}.status === 'lost'")
    page.wait("document.getElementById('control-note').textContent.startsWith('you have it')")
    assert page.script("document.getElementById('take').hidden")
    page.wait("document.getElementById('notes').textContent.includes('which you steer, is lost')")
    page.wait(f"{first} === 'agent 1'")  # those that are gone come last
    page.click("dismiss")
    tiles = "[...document.querySelectorAll('.tile b')].map(each => each.textContent)"
    page.wait(f"!{tiles}.includes('a lost one')")
    assert not page.complaints()


def test_the_server_goes_and_comes_back(chromium: webdriver.Chrome, folder: Path) -> None:
    own = folder / "own"
    own.mkdir()
    with running(own, *options(folder)) as first:
        page = opened(chromium, first)
        first.kill()
        page.wait("!document.getElementById('away').hidden")
        assert "cannot be reached" in page.text("away")
        with running(own, *options(folder), port=first.port):
            page.wait("document.getElementById('away').hidden")
            page.wait("view.agents.filter(each => each.status === 'live').length === 3", 60)
    page.driver.get("about:blank")
    assert all("WebSocket connection" in text for text in page.complaints())
    with sm.AuditLog(own / "watch.db") as log:
        log.check()


@pytest.mark.parametrize("abandoned", [False, True])
def test_a_server_that_stalls_is_noticed_and_does_nothing_late(
    chromium: webdriver.Chrome, folder: Path, *, abandoned: bool
) -> None:
    own = folder / f"stalls {abandoned}"
    own.mkdir()
    with running(own, *options(folder)) as server:
        page = opened(chromium, server)
        look_at(page, "agent 1")
        page.press("t")
        page.wait("stateOf(view.agents[view.looks]) === 'mine' && view.seen?.waiting")
        server.stall()
        page.press("2")  # the page cannot know yet
        page.wait("!document.getElementById('away').hidden", 10)
        assert "cannot be reached" in page.text("away")
        page.press("2")
        page.driver.find_element(By.CSS_SELECTOR, "#pad button").click()
        if abandoned:  # as after 15 s: another connection is tried
            page.driver.execute_script("view.old = view.socket; view.heardAt -= 15000")
            page.wait("view.socket !== view.old")
        server.resume()
        page.wait("document.getElementById('away').hidden")
        if not abandoned:
            page.wait("document.getElementById('notes').textContent.includes('too late')")
        assert not [entry for entry in entries(own, "agent 1") if entry.kind == "action"]
        page.wait("view.seen?.waiting")
        assert page.script("view.agents[view.looks].human_actions") == 0
        page.press("1")  # the same decision can still be answered
        page.wait("view.agents[view.looks].human_actions === 1")
        page.driver.get("about:blank")
        assert len([each for each in entries(own, "agent 1") if each.kind == "action"]) == 1


def test_who_leaves_the_page_in_the_same_tab_is_gone(
    chromium: webdriver.Chrome, folder: Path
) -> None:
    own = folder / "leaves"
    own.mkdir()
    with running(own, *options(folder), "--grace", "1") as server:
        page = opened(chromium, server)
        look_at(page, "agent 1")
        page.press("t")
        page.wait("stateOf(view.agents[view.looks]) === 'mine'")
        # As where the browser keeps the page for "back": it is hidden, and nothing is destroyed.
        page.driver.execute_script("dispatchEvent(new PageTransitionEvent('pagehide'))")
        wait_until(lambda: entries(own, "agent 1")[-1].kind == "handed-back", "the agent to go on")
        page.driver.execute_script(
            "dispatchEvent(new PageTransitionEvent('pageshow', {persisted: true}))"
        )
        page.wait("view.connected && view.agents[0].control === null")
        page.driver.get("about:blank")
        kinds = [entry.kind for entry in entries(own, "agent 1")]
        assert (kinds.count("taken"), kinds.count("handed-back")) == (1, 1)


def test_the_replay(chromium: webdriver.Chrome, folder: Path, tmp_path: Path) -> None:
    with running(tmp_path, *options(folder)) as watched, Person(watched.address, "Ben") as ben:
        ben.say(do="look", agent=0)
        ben.say(do="take", agent=0)
        for action in (1, 0, 1):
            ben.act(0, action)
            ben.entry("action")
        ben.say(do="give", agent=0)
        ben.entry("handed-back")
    with sm.AuditLog(tmp_path / "watch.db") as log:
        count = len(log)
    (tmp_path / "again").mkdir()
    with running(tmp_path / "again", "--replay", str(tmp_path / "watch.db")) as server:
        page = fresh(chromium)
        chromium.get(server.address)
        page.wait(f"view.all.length >= {count} && view.at >= 0")
        assert "none altered" in page.text("summary")
        assert page.script("document.querySelectorAll('#glossary dt').length") == 7
        spoken = page.script("document.getElementById('scrubber').getAttribute('aria-valuetext')")
        assert spoken == page.script(
            "`entry ${view.at + 1} of ${view.shown.length}: ${view.shown[view.at].text}`"
        )
        page.driver.execute_script("go(view.shown.findIndex(entry => entry.kind === 'action'))")
        assert "acted for agent" in page.text("entry-title")
        page.wait("document.getElementById('entry-picture').naturalWidth > 0")
        assert (
            page.script("document.querySelectorAll('#then .chip[data-state=theirs]').length") == 1
        )
        names = page.script(
            "[...document.querySelectorAll('#scores .name')].map(e => e.textContent)"
        )
        assert sorted(name.removeprefix("▸ ") for name in names) == ["LEAVE", "STAY"]
        counted = {"scores": [1, 2, 3], "first_action": 7, "proposed": 9, "action": 8}
        page.driver.execute_script("showScores('somebody', arguments[0])", counted)
        rows = "[...document.querySelectorAll('#scores .score')]"
        assert page.script(f"{rows}.map(row => row.children[0].textContent)") == [
            "action 7", "action 8", "▸ action 9",
        ]  # fmt: skip
        assert page.script(f"{rows}.findIndex(row => row.classList.contains('taken'))") == 1
        # All actions that the log names anywhere have these names, as on the live page.
        named = {"action": 7, "action_name": "NOOP", "proposed": 9, "proposed_name": "RIGHT"}
        page.driver.execute_script(
            "view.names = namesOf([{agent: 'arm', details: arguments[0]}]);"
            "showScores('arm', arguments[1])",
            *(named, counted),
        )
        assert page.script(f"{rows}.map(row => row.children[0].textContent)") == [
            "NOOP", "action 8", "▸ RIGHT",
        ]  # fmt: skip
        place = page.script("view.at")
        page.press(Keys.ARROW_RIGHT)
        assert page.script("view.at") == place + 1
        page.press(" ")
        page.wait(f"view.at > {place + 3}")
        assert not page.complaints()
    written = tmp_path / "files" / "replay.html"
    assert main(["watch", "--replay", str(tmp_path / "watch.db"), "-o", str(written)]) == 0
    chromium.get(written.as_uri())
    page.wait(f"view.all.length === {count} && view.at >= 0")
    assert "none altered when this page was written on" in page.text("summary")
    page.driver.execute_script("go(view.shown.findIndex(entry => entry.kind === 'action'))")
    page.wait("document.getElementById('entry-picture').naturalWidth > 0")
    assert not page.complaints()


def test_no_other_page_can_show_this_one_in_a_frame(
    chromium: webdriver.Chrome, server: Server, tmp_path: Path
) -> None:
    address = server.address
    trap = f"<iframe id='f' src='{address}'></iframe>"
    folder = tmp_path / "trap"
    folder.mkdir()
    (folder / "index.html").write_text(trap)
    handler = partial(SimpleHTTPRequestHandler, directory=folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        page = fresh(chromium)
        chromium.get(f"http://127.0.0.1:{other.server_port}/")
        said = wait_until(page.complaints, "the browser to refuse the frame")
        other.shutdown()
    assert any("frame-ancestors 'none'" in each for each in said), said
    chromium.switch_to.frame("f")
    assert page.script("document.getElementById('tiles')") is None
    chromium.switch_to.default_content()
