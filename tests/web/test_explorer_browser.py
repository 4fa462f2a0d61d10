"""The explorer and the report in a real browser: scrub, jump, move a slider, ask what if."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import let_ctrl_c_through
from helpers.contrast import contrast
from helpers.paths import WORLDS
from helpers.studies import damaged

import safemargin as sm
from safemargin.cli import main
from safemargin.cli.demo import WORST_MOMENT

pytest.importorskip("fastapi")
pytest.importorskip("plotly")
pytest.importorskip("selenium")

from helpers.browser import BROWSER, DRIVER, Page
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

pytestmark = pytest.mark.skipif(
    BROWSER is None or DRIVER is None,
    reason="no browser to test in: apt-get install chromium chromium-driver",
)


STEP = "{step: view.step, steps: view.episode.steps}"


@contextlib.contextmanager
def exploring(study: Path, *more: str) -> Iterator[str]:
    """The address of an explorer that runs as long as this."""
    command = [sys.executable, "-m", "safemargin", "explore", str(study), *more]
    process = subprocess.Popen(
        [*command, "--json", "--port", "0", "--no-browser"],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=let_ctrl_c_through,
    )
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["address"]
    finally:
        process.send_signal(2)
        process.communicate(timeout=120)


@pytest.fixture(scope="module")
def explorer(drawn_study: Path) -> Iterator[str]:
    with exploring(drawn_study) as address:
        yield address


@pytest.fixture
def page(chromium: webdriver.Chrome, explorer: str) -> Page:
    opened = Page(chromium)
    chromium.get("about:blank")
    chromium.get(explorer)
    opened.wait("view.episode !== null && document.getElementById('frame').naturalWidth > 0")
    return opened


def test_it_opens_on_the_worst_moment(page: Page) -> None:
    assert page.script("view.step === view.study.start.step")
    assert page.script("view.marks[0] === view.step")
    assert page.text("margin") == str(page.script("view.margins[view.step]"))
    assert "step\n{step} of {steps}".format(**page.script(STEP)) in page.text("facts")
    assert page.script("document.querySelectorAll('#scores .score').length") == 2
    page.wait("document.getElementById('scores').textContent.includes('STAY')")
    assert page.script("document.querySelectorAll('#timeline .scatterlayer .trace').length") == 4
    assert not page.complaints()


def test_scrub_step_and_play(page: Page) -> None:
    page.slide("scrubber", 7)
    assert page.script("view.step") == 7
    page.wait("document.getElementById('frame').src.includes('/frames/7?')")
    page.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_LEFT)
    assert page.script("view.step") == 8
    assert page.script("location.hash.endsWith('/8')")
    page.press(" ")
    page.wait("view.step > 10")
    page.press(" ")
    assert not page.script("view.playing")
    page.press(Keys.END)
    assert page.text("margin-text") == "the episode has ended"
    assert not page.complaints()


def test_jump_from_mark_to_mark(page: Page) -> None:
    page.slide("limit", 3)  # everything is marked, so marks lie all over the episode
    page.wait("document.getElementById('limit-text').textContent === '4' && view.marks.length > 1")
    page.press(Keys.HOME)
    page.press("n")
    first = page.script("view.step")
    assert first == min(page.script("view.marks"))
    page.press("n")
    assert page.script("view.step") - first >= 20
    page.press("p")
    assert page.script("view.step") == first
    page.driver.find_elements(By.CSS_SELECTOR, "#moment-list li")[-1].click()
    assert page.script("view.step === view.marks[view.marks.length - 1]")
    assert not page.complaints()


def test_tolerance_and_confidence_answer_at_once(page: Page) -> None:
    margins: Callable[[], list[int]] = lambda: page.script("view.margins")  # noqa: E731
    page.slide("tolerance", 200)
    page.wait("document.getElementById('tolerance-text').textContent === show(tolerance())")
    generous = margins()
    assert 4 in generous
    page.slide("tolerance", 0)
    page.wait("Math.max(...view.margins) < 4")
    assert all(few <= many for few, many in zip(margins(), generous, strict=True))
    page.slide("confidence", 5)
    page.wait("view.margins === null")
    assert "it takes 198 natural moments" in page.text("margin-note")
    assert page.text("margin") == "–"
    assert not page.complaints()


def test_margins_on_the_page_are_those_of_python(page: Page, drawn_study: Path) -> None:
    with sm.Study.open(drawn_study) as study:
        margins = study.fit(0.8)
    highest = margins.highest_proxy
    proxies = np.concatenate([np.linspace(0, 1.1 * highest, 300), margins.bound.grid[0]])
    page.driver.execute_script("window.proxies = arguments[0]", proxies.tolist())
    for tolerance in (0.0, 0.3, 1.0, 2.5, 1e9):
        found = page.script(
            "proxies.map(proxy => view.tables.at("
            f"view.tables.tables.find(each => each.confidence === 0.8), proxy, {tolerance}))"
        )
        assert found == margins.lookup(proxies, tolerance).margin.tolist()


def test_two_clicks_to_another_episodes_worst_moment(page: Page) -> None:
    rows = page.driver.find_elements(By.CSS_SELECTOR, "#episode-list li")
    name = rows[2].get_attribute("data-name")
    rows[2].click()
    page.wait(f"view.episode.name === '{name}'")
    page.wait("document.querySelector('#episode-list .here') !== null")
    assert page.script("view.step === view.marks[0]")
    assert not page.complaints()


def test_what_if(page: Page) -> None:
    page.press("w")
    page.wait("shown.data !== null && shown.data.state === 'done'", 60)
    page.wait("Object.keys(shown.takes).length === 3", 60)
    assert page.script("document.querySelectorAll('#losses .boxlayer .trace').length") == 3
    captions = page.script("document.getElementById('screens').textContent")
    assert "what happened" in captions
    assert "worst trial" in captions
    assert "differs" not in captions
    page.wait("[...document.querySelectorAll('#screens img')].every(image => image.naturalWidth)")
    page.driver.find_elements(By.CSS_SELECTOR, "#n-chips button")[0].click()
    page.wait("shown.n === 1 && Object.keys(shown.takes).length === 3", 60)
    page.wait("shown.offset > 2")
    page.click("what-if-close")
    assert not page.script("document.getElementById('what-if-dialog').open")
    assert not page.complaints()


def test_what_lies_above_every_measured_proxy(
    chromium: webdriver.Chrome, narrow_study: Path
) -> None:
    page = Page(chromium)
    with exploring(narrow_study) as address:
        chromium.get("about:blank")
        chromium.get(address)
        page.wait("view.episode !== null && document.querySelector('#moment-list .badge') !== null")
        highest = "view.study.episodes.find(each => each.peak_proxy === 49 && each.steps_above > 0)"
        page.driver.execute_script(
            f"const shown = {highest}; location.hash = `#${{shown.name}}/${{shown.peak_step}}`"
        )
        page.wait(f"view.episode.name === {highest}.name && view.step === {highest}.peak_step")
        assert page.script("proxyValues()[view.step]") == 49  # the highest of the measured ones
        assert page.text("margin").isdecimal()
        unknown = page.script("view.marks.map(step => view.unknown[step])")
        assert unknown == sorted(unknown)  # those come last
        assert unknown[-1]
        badges = page.script(
            "view.marks.map(step => document.querySelector("
            "`#moment-list li[data-step='${step}'] .badge`).textContent)"
        )
        assert [text == "?" for text in badges] == unknown
        assert "lie above every measured proxy" in page.text("moment-help")
        assert "steps lie above every measured proxy, so nothing is promised" in page.text("above")
        assert "?" in page.script("document.querySelector('#episode-list .badges').textContent")
        page.script("goTo(view.marks[view.marks.length - 1])")
        assert page.text("margin") == "?"
        assert page.text("margin-text") == "above every measured proxy, so nothing is promised"
        rows = page.script("marginRows()")
        above = page.script("view.unknown")
        assert [row is None for row in rows] == above
        bars = page.script("document.getElementById('timeline').data[4].x")
        assert bars == [step for step, is_above in enumerate(above) if is_above]
        assert not page.complaints()


def test_addresses_that_do_not_exist(page: Page, explorer: str) -> None:
    name = page.script("view.episode.name")
    steps = page.script("view.episode.steps")
    title = page.script("outlineOf(view.episode.name).title")
    before = page.script("view.step")
    page.script(f"location.hash = '#{name}/99999'")
    page.wait("!document.getElementById('hint').hidden")
    assert page.text("hint").startswith(f"There is no step 99,999 in {title}; it has {steps}.")
    assert page.script("view.step") == before
    assert page.script("location.hash") == f"#{name}/{before}"
    page.script(f"location.hash = '#{name}/abc'")
    page.wait("document.getElementById('hint').textContent.includes('not abc')")
    assert page.script("view.step") == before
    page.press(Keys.ARROW_RIGHT)
    assert page.script("document.getElementById('hint').hidden")
    page.driver.get("about:blank")
    page.driver.get(explorer + "#nope-1-0/3")
    page.wait("view.episode !== null && !document.getElementById('hint').hidden")
    assert page.text("hint").startswith("There is no episode nope-1-0 in this study.")
    assert page.script("view.step === view.study.start.step")


def test_the_step_box_never_tells_a_step_that_is_not_shown(page: Page) -> None:
    box = page.driver.find_element(By.ID, "step")
    steps = page.script("view.episode.steps")
    box.send_keys(Keys.CONTROL, "a")
    box.send_keys("99999", Keys.ENTER)
    assert page.script("view.step") == steps
    assert box.get_attribute("value") == str(steps)
    assert "There is no step 99,999" in page.text("hint")
    page.slide("scrubber", 5)
    box.send_keys(Keys.CONTROL, "a")
    box.send_keys("e", Keys.ENTER)
    assert page.script("view.step") == 5
    assert box.get_attribute("value") == "5"
    assert f"a whole number from 0 to {steps}" in page.text("hint")


def test_measured_losses_and_a_verdict(page: Page) -> None:
    moment = page.script("view.episode.moment")
    page.script("goTo(view.episode.moment)")
    assert page.script("PHASES[view.study.episodes[0].phase]") in page.text("phases-help")
    measured = page.script("view.episode.measured")
    assert page.script("document.querySelectorAll('#measured .loss').length") == len(measured) == 3
    assert "on average" in page.text("measured-verdict")
    listed = page.driver.find_element(By.CSS_SELECTOR, f"#moment-list li[data-step='{moment}']")
    assert "measured: n =" in listed.text
    page.press(Keys.ARROW_RIGHT)
    assert f"step {moment}" in page.text("measured")
    page.press("w")
    page.wait("shown.data !== null && shown.data.state === 'done'", 60)
    assert page.text("what-if-verdict") == page.script("verdict(shown.data.results, accepted())")
    page.wait("shown.takes.worst !== undefined", 60)
    courses = page.script("document.getElementById('courses').data.map(each => each.line)")
    assert courses[-1]["dash"]  # what happened, on top of all others
    marks = page.script("document.getElementById('losses').layout.annotations.map(a => a.text)")
    assert "mean" in marks
    page.click("what-if-close")


@pytest.mark.parametrize(
    ("means", "level", "told"),
    [
        (
            [(1, 0.87, 0.0), (2, 1.1, 0.0)],
            0.4,
            "One random action costs 0.87 on average, more than the 0.4 you accept; 2 cost 1.1.",
        ),
        (
            [(1, 0.1, 0.02), (2, 0.5, 0.2)],
            0.4,
            "2 random actions cost 0.5 ± 0.2 on average, probably more than the 0.4 you accept; "
            "1 costs 0.1 ± 0.02.",
        ),
        (
            [(1, -0.68, 0.0), (2, -0.9, 0.0)],
            0.4,
            "One random action gains 0.68 on average and no other n costs more: within the 0.4 "
            "you accept.",
        ),
        ([(4, 0.0, 0.0)], None, "4 random actions cost nothing on average."),
    ],
)
def test_verdicts(
    page: Page, means: list[tuple[int, float, float]], level: float | None, told: str
) -> None:
    results = [{"n": n, "mean": mean, "half_width": half} for n, mean, half in means]
    assert page.script(f"verdict({json.dumps(results)}, {json.dumps(level)})") == told


def test_the_filter_says_what_it_does(page: Page) -> None:
    assert page.script("document.getElementById('only-lost').parentElement.hidden")  # all ended
    page.script("view.study.episodes[0].ended = 'truncated'")
    page.script("layFilter()")
    assert page.text("only-lost-text") == "only those that ended on their own"
    page.script("view.study.has_lives = true")
    page.script("layFilter()")
    assert page.text("only-lost-text") == "only those that were lost"


def test_the_action_taken_is_marked_where_actions_do_not_begin_at_0(
    chromium: webdriver.Chrome, tmp_path: Path
) -> None:
    study = tmp_path / "study"
    parts = [f"{WORLDS}:make_from_seven", f"{WORLDS}:always_first", "--scores", "logits"]
    sizes = ["--natural", "4", "--spread", "0", "--workers", "1", "--n", "1", "--trials", "2"]
    assert main(["collect", *parts, "-o", str(study), *sizes]) == 0
    page = Page(chromium)
    with exploring(study) as address:
        chromium.get("about:blank")
        chromium.get(address)
        page.wait("view.episode !== null && document.querySelector('#scores .score')")
        rows = "[...document.querySelectorAll('#scores .score')]"
        assert page.script(f"{rows}.map(row => row.children[0].textContent)") == [
            "action 7", "action 8",
        ]  # fmt: skip
        assert page.script("view.episode.actions[view.step]") == 7
        assert page.script(f"{rows}.map(row => row.classList.contains('taken'))") == [True, False]


def test_it_says_whose_play_an_episode_runs_into(page: Page) -> None:
    joined = page.script("view.study.episodes.find(each => each.joins)")
    text = page.script(
        f"document.querySelector('#episode-list li[data-name={joined['name']}]').textContent"
    )
    other = joined["joins"].replace("-", " ").removesuffix(" 0")
    assert f"converges with {other}" in text


def test_after_the_server_has_ended(chromium: webdriver.Chrome, drawn_study: Path) -> None:
    page = Page(chromium)
    with exploring(drawn_study) as address:
        chromium.get("about:blank")
        chromium.get(address)
        page.wait("view.episode !== null")
    page.driver.find_elements(By.CSS_SELECTOR, "#episode-list li")[2].click()
    page.wait("!document.getElementById('notice').hidden")
    ended = "The explorer has stopped; run `safemargin explore` again."
    assert page.text("notice") == ended
    page.press("w")
    page.wait("document.getElementById('what-if-state').textContent.includes('has stopped')")
    page.complaints()  # of the browser itself, that nobody answers


@contextlib.contextmanager
def as_wide_as(driver: webdriver.Chrome, width: int) -> Iterator[None]:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    yield
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_on_a_phone(page: Page, drawn_study: Path, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    assert main(["report", str(drawn_study), "-o", str(target)]) == 0
    capable = "document.documentElement.scrollWidth <= 400"
    with as_wide_as(page.driver, 400):
        page.wait(capable)
        assert page.script("document.getElementById('scrubber').clientWidth") > 300
        page.driver.get(target.as_uri())
        page.wait("document.querySelectorAll('#densities .heatmaplayer image').length === 3")
        assert page.script(capable)
        lefts = page.script(  # one below the other
            "[...document.querySelectorAll('#densities .heatmaplayer image')]"
            ".map(image => Math.round(image.getBoundingClientRect().left))"
        )
        assert len(set(lefts)) == 1
        subtitle = "document.getElementById('subtitle')"
        assert page.script(f"{subtitle}.scrollWidth <= {subtitle}.clientWidth")


def test_bounds_can_be_told_apart(page: Page, drawn_study: Path, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    assert main(["report", str(drawn_study), "-o", str(target), "--top", "0"]) == 0
    page.driver.get(target.as_uri())
    page.wait("document.querySelectorAll('#bounds .scatterlayer .trace').length === 3")
    lines = page.script("document.getElementById('bounds').data.map(each => each.line)")
    assert len({line["color"] for line in lines}) == len({line["dash"] for line in lines}) == 3
    hidden = "getComputedStyle(document.querySelector('#bounds .modebar')).opacity === '0'"
    page.wait(hidden)  # until the mouse comes


def test_the_report_opens_from_a_mail_attachment(
    chromium: webdriver.Chrome, drawn_study: Path, tmp_path: Path
) -> None:
    target = tmp_path / "report.html"
    assert main(["report", str(drawn_study), "-o", str(target)]) == 0
    page = Page(chromium)
    page.driver.get(target.as_uri())
    page.complaints()  # of the page before, whose server has ended
    page.wait("document.querySelectorAll('#densities .heatmaplayer image').length === 3")
    assert page.script("performance.getEntriesByType('resource').length") == 0  # all is inside
    assert page.script("document.querySelectorAll('#cards .card img').length") == 10
    assert "random action" in page.text("lead")
    # What the sentence says is the marked column of the table of how it changes.
    found = page.driver.find_elements(By.CSS_SELECTOR, "#lead .around td.here")
    marked = [cell.text for cell in found]
    assert len(marked) == 3
    assert f"afford {marked[1]} random action" in page.text("lead")
    here = page.script(
        "tables.plateaus(table(), tables.median_proxy).find(part => tolerance() < part.to)"
    )
    assert page.script("tolerance() === tables.tolerance")
    quarter = (here["to"] - here["from"]) / 4
    assert here["from"] + quarter <= page.script("tolerance()") <= here["to"] - quarter
    card = page.driver.find_element(By.CSS_SELECTOR, "#cards .card").text
    assert "on average" in card
    assert f"safemargin explore {drawn_study} --episode" in card
    assert "natural: one step of the episode was drawn at random" in page.text("phases-help")
    page.slide("lookup-proxy", 1e6)
    page.wait("document.getElementById('lookup').textContent === '?'")
    assert page.text("lookup-text") == "above every measured proxy, so nothing is promised"
    page.slide("tolerance", 200)
    page.slide("lookup-proxy", 1)
    page.wait("document.getElementById('lookup').textContent === '4'")
    page.slide("confidence", 5)
    page.wait("document.getElementById('margin-note').textContent.includes('198 natural moments')")
    assert not page.complaints()


@pytest.fixture(scope="module")
def few_moments(drawn_study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study with 30 natural moments: enough for a confidence of 0.9, too few for 0.95."""
    return damaged(
        drawn_study,
        tmp_path_factory.mktemp("few") / "study",
        "DELETE FROM estimates WHERE phase = 'natural' AND episode >= 30",
    )


TOO_LITTLE = (
    "oo little data for a confidence of 0.95: it takes 38 natural moments, and there are 30."
)
CHOICE = (
    "Opened at a confidence of 0.9, the highest that 30 natural moments suffice for; 0.95 takes 38."
)


def test_the_report_opens_at_its_worst_moment(
    chromium: webdriver.Chrome, drawn_study: Path, tmp_path: Path
) -> None:
    target = tmp_path / "report.html"
    assert main(["report", str(drawn_study), "-o", str(target), "--top", "3"]) == 0
    page = Page(chromium)
    page.driver.get(target.as_uri() + WORST_MOMENT)
    page.wait("document.querySelector('#cards .card') === document.querySelector(':target')")
    seen = "document.querySelector(':target').getBoundingClientRect().top"
    page.wait(f"{seen} >= 0 && {seen} < innerHeight")


def test_a_report_of_few_moments_shows_too_little_data_in_grey(
    chromium: webdriver.Chrome, few_moments: Path, tmp_path: Path
) -> None:
    target = tmp_path / "report.html"
    assert main(["report", str(few_moments), "-o", str(target), "--top", "2"]) == 0
    page = Page(chromium)
    page.driver.get(target.as_uri())
    page.complaints()  # of the page before, whose server has ended
    page.wait("document.querySelectorAll('#bounds .scatterlayer .trace').length === 3")
    assert page.script("table().confidence") == 0.9
    assert page.text("choice") == CHOICE
    assert "want to be 90 % sure" in page.text("lead")
    shades = (
        "new Set(document.getElementById('heatmap').data[0].colorscale.map(each => each[1])).size"
    )
    assert page.script(shades) == 4
    page.slide("confidence", 3)  # 0.95
    page.wait(f"{shades} === 1")
    assert TOO_LITTLE in page.text("lead")
    assert TOO_LITTLE in page.text("margin-note")
    assert page.text("lookup") == "?"
    assert page.text("lookup-text") == "too little data at this confidence"
    assert "38 natural moments needed" in page.text("heatmap")
    badges = page.driver.find_elements(By.CSS_SELECTOR, "#cards .badge")
    assert [each.text for each in badges] == ["?", "?"]
    assert not page.complaints()


def test_the_explorer_says_which_confidence_it_chose(
    chromium: webdriver.Chrome, few_moments: Path
) -> None:
    with exploring(few_moments) as address:
        page = Page(chromium)
        chromium.get(address)
        page.wait("view.episode !== null && document.getElementById('frame').naturalWidth > 0")
        assert page.text("confidence-text") == "0.9"
        assert page.text("choice") == CHOICE
        assert page.text("margin") == str(page.script("view.margins[view.step]"))
        page.slide("confidence", 3)
        page.wait("view.margins === null")
        assert TOO_LITTLE in page.text("margin-note")
        page.wait("document.getElementById('margin').textContent === '–'")


LABELLED = """[...document.querySelectorAll("input[type=range]")]
  .filter(each => each.checkVisibility()).map(each => [
    each.id, each.labels.length ? each.labels[0].textContent : each.ariaLabel,
    each.getAttribute("aria-valuetext")])
"""
CHARTS = """[...document.querySelectorAll(".js-plotly-plot")].map(
  each => [each.id, each.getAttribute("role"), each.ariaLabel])
"""
WORDS = "[...document.querySelectorAll('#glossary dt')].map(each => each.textContent)"
BADGES = """[0, ...%s.n_values].map(margin => badge(margin, %s.n_values))
  .map(each => [each.style.color, each.style.background]
  .map(text => text.match(/\\d+/g).map(Number)))
"""


def test_pages_can_be_used_without_seeing_them(
    page: Page, drawn_study: Path, tmp_path: Path
) -> None:
    def sliders() -> dict[str, tuple[str, str]]:
        return {name: (label, value) for name, label, value in page.script(LABELLED)}

    named = sliders()
    assert named["tolerance"][0] == "tolerance ζ"
    assert named["tolerance"][1] == f"a loss of {page.text('tolerance-text')}"
    assert named["confidence"] == ("confidence β", "0.95")
    assert named["limit"][0] == "mark margins up to"
    assert named["limit"][1].startswith("a margin of ")
    step = page.script(STEP)
    assert named["scrubber"] == ("Step", f"step {step['step']} of {step['steps']}")
    ((chart, role, text),) = page.script(CHARTS)
    assert (chart, role) == ("timeline", "img")
    assert f"over {step['steps']} steps, the lowest margin is " in text
    words = ["margin", "loss", "tolerance ζ", "confidence β", "proxy", "regret", "stakes"]
    assert page.script(WORDS) == words

    target = tmp_path / "report.html"
    assert main(["report", str(drawn_study), "-o", str(target), "--top", "1"]) == 0
    page.driver.get(target.as_uri())
    page.wait("document.querySelectorAll('.js-plotly-plot').length === 4")
    named = sliders()
    assert named["tolerance"] == ("tolerance ζ", f"a loss of {page.text('tolerance-text')}")
    assert named["confidence"] == ("confidence β", "0.95")
    charts = page.script(CHARTS)
    assert {role for _, role, _ in charts} == {"img"}
    assert all(len(text) > 40 for *_, text in charts)
    assert page.script(WORDS) == words
    for ink, ground in page.script(BADGES % ("tables", "tables")):
        colours = ["#" + "".join(f"{part:02x}" for part in each) for each in (ink, ground)]
        assert contrast(*colours) >= 4.5
