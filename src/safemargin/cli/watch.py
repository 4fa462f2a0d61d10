"""The commands of oversight: what calling would cost and catch, a watched fleet, its log."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

import safemargin as sm
from safemargin.cli import options
from safemargin.core.text import counted
from safemargin.errors import InvalidInput


@options.app.command(group=options.OVERSEE)
def simulate_oversight(
    study: options.StudyFolder,
    /,
    *,
    budget: Annotated[str | None, Parameter(metavar="B")] = None,
    by: Annotated[str | None, Parameter(metavar="RANKING")] = None,
    fail: Annotated[str | None, Parameter(metavar="EVENT")] = None,
    tolerance: options.Numbers | None = None,
    within: Annotated[int, Parameter(metavar="K")] = 8,
    rate: Annotated[float, Parameter(metavar="R")] = 15.0,
    agents: Annotated[int, Parameter(metavar="A")] = 1,
    fatigue: Annotated[float | None, Parameter(metavar="C")] = None,
    fit: options.FitOptions = options.FitOptions(),
    output: options.Output | None = None,
    about: options.About = options.About(),
    as_json: options.Json = False,
) -> int:
    """Show what calling below a margin would have cost in attention, and caught.

    Goes through the study's episodes as a monitor would have, with margins fitted without the
    episode at hand.

    For example:

        safemargin simulate-oversight runs/pong --budget 0.05
        safemargin simulate-oversight runs/pong --tolerance 0.5,1 -o calls.png
        safemargin simulate-oversight runs/pong --by regret --budget 0.05 --fail setback
        safemargin simulate-oversight runs/pong --by regret --budget 20/hour --agents 12

    Exit status 1: no threshold keeps within the budget.

    Args:
        budget: what people can attend to: a share of decisions, e.g. 0.05, or calls of all agents
            together, e.g. 20/hour; the answer is call_at
        by: look at the decisions that this puts first, within --budget (default 0.05), with lot and
            regret itself beside it: margin, proxy, regret or stakes (`learn --target`), or the
            name of any proxy
        fail: what counts as a failure: life-lost, terminated, setback (a negative reward),
            return<X, info:KEY (becomes true), or file.py:function, which gets an Episode and
            returns whether it failed, or at which steps (default: chosen from the study and shown)
        tolerance: losses you accept, in reward units (default: a few that make a difference)
        within: a call during the K decisions up to a failure catches it
        rate: decisions per second of one agent
        agents: number of agents watched at once
        fatigue: with --by: at C calls an hour, a person reviews only every second one well
        output: draw it as well, into a .png, .svg or .pdf file
    """
    from safemargin.cli.console import study_to_judge
    from safemargin.cli.show_attention import print_attention

    shared: dict[str, Any] = {"fail": fail, "within": within, "rate": rate, "agents": agents}
    if by is not None:
        if output is not None or fit.estimand != "mean" or fit.proxy is not None:
            raise InvalidInput("--by ranks decisions; leave out --output, --proxy and --estimand")
        opened_as = study, about
        return _ranked(opened_as, by, budget, tolerance, fit, fatigue, as_json=as_json, **shared)
    if fatigue is not None:
        raise InvalidInput("--fatigue is about a person who follows a ranking; add --by margin")
    with study_to_judge(study, about) as opened:
        attention = sm.simulate_oversight(
            opened, budget=budget, tolerances=tolerance, **shared, **vars(fit)
        )
    if output is not None:
        from safemargin.monitor.attention_plot import attention_figure
        from safemargin.study.plots import save_figure

        save_figure(attention_figure(attention), output)
    options.print_answer(attention, print_attention, as_json=as_json)
    if output is not None and not as_json:
        print(f"wrote {output}")
    if attention.budget is not None and not any(attention.choices):
        print(
            f"safemargin: no threshold keeps within {attention.budget.text} at these tolerances; "
            "with --by margin, the lowest margins call as often as the budget allows",
            file=sys.stderr,
        )
        return options.FINDING
    return options.OK


def _ranked(
    study: tuple[Path, options.About],
    by: str,
    budget: str | None,
    tolerance: list[float] | None,
    fit: options.FitOptions,
    fatigue: float | None,
    *,
    as_json: bool,
    **shared: Any,
) -> int:
    """Print what people see who look at the decisions that a ranking puts first."""
    from safemargin.cli.console import study_to_judge
    from safemargin.cli.show_ranking import print_oversight
    from safemargin.monitor.ranking import rank_oversight

    if tolerance is not None and (by != "margin" or len(tolerance) > 1):
        raise InvalidInput("with --by, one --tolerance may be given, and only for --by margin")
    with study_to_judge(*study) as opened:
        found = rank_oversight(
            opened,
            by,
            budget=0.05 if budget is None else budget,
            tolerance=None if tolerance is None else tolerance[0],
            fatigue=fatigue,
            confidence=fit.confidence,
            method=fit.method,
            **shared,
        )
    options.print_answer(found, print_oversight, as_json=as_json)
    return options.OK


AGENTS_HERE = options.group("Agents that run here")


@Parameter(name="*", group=AGENTS_HERE)
@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """The agents that run beside the server."""

    agents: Annotated[int | None, Parameter(metavar="A")] = None
    """how many (default: 4)"""
    env: Annotated[str | None, Parameter(metavar="ENV")] = None
    """their environment (default: that of the margins file, unless it is a function)"""
    speed: Annotated[float, Parameter(metavar="S")] = 15.0
    """decisions per second"""
    seed: int = 0
    """random seed of their first episodes"""


@Parameter(name="*", group=options.group("When they call"))
@dataclass(frozen=True, kw_only=True)
class CallOptions:
    """When an agent calls somebody, and for how long."""

    tolerance: Annotated[float | None, Parameter(metavar="Z")] = None
    """the loss you accept, in reward units (default: one at which margins differ)"""
    budget: Annotated[str | None, Parameter(metavar="B")] = None
    """what people can attend to, e.g. 20/hour (calls of all agents together) or 0.05 (of all
    decisions); the most urgent decisions call"""
    looks: Annotated[str | None, Parameter(metavar="B")] = None
    """how much of the budget goes to random looks, at agents that do not call (default: a
    tenth)"""
    call_at: Annotated[int | None, Parameter(metavar="N")] = None
    """without a budget: call below this margin (default: 1)"""
    release_at: Annotated[int | None, Parameter(metavar="N")] = None
    """stop calling once the margin reaches N (default: the next n)"""
    pause: Annotated[int | None, Parameter(metavar="K")] = None
    """decisions between two calls (default: 0)"""
    call_length: Annotated[float, Parameter(metavar="S")] = 3.0
    """a call lasts at least S seconds"""
    gap: Annotated[float, Parameter(metavar="S")] = 2.0
    """calls of an agent less than S seconds apart are one"""
    stuck_after: Annotated[float, Parameter(metavar="S")] = 30.0
    """an agent that has met nothing new for S seconds, without a reward, calls; 0: it does not"""
    wait: Annotated[float, Parameter(metavar="S")] = 0.0
    """an agent that starts to call waits up to S seconds for somebody to take it over; 0: it
    continues meanwhile"""


@Parameter(name="*", group=options.group("People"))
@dataclass(frozen=True, kw_only=True)
class PeopleOptions:
    """How people are reached, what happens when they leave, and where it is logged."""

    on_lost: Literal["go-on", "hold", "stop"] = "go-on"
    """an agent whose person has closed the page acts by itself again (go-on), waits for somebody
    (hold), or ends (stop)"""
    grace: Annotated[float, Parameter(metavar="S")] = 20.0
    """… once they have been gone for S seconds"""
    webhook: Annotated[str | None, Parameter(metavar="URL")] = None
    """post calls there as JSON, at most one every 10 s; agents do not wait for it"""
    run: Annotated[str | None, Parameter(metavar="COMMAND")] = None
    """run this on calls, at most once every 10 s, with the call as JSON on its standard input"""
    log: Annotated[Path, Parameter(metavar="FILE")] = Path("watch.db")
    """log everything in this file; an existing log is continued"""
    anchor: Annotated[str | None, Parameter(metavar="FILE|URL")] = None
    """once a minute, write the log's newest hash there (append to a file, or post), best out of
    reach of whoever could alter the log"""
    replay: Annotated[Path | None, Parameter(metavar="LOG")] = None
    """show what happened instead; runs no agents"""
    output: options.Output | None = None
    """with --replay: write the replay into this .html file instead, which needs no server"""


@Parameter(name="*", group=options.group("The server"))
@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Where the page is, and who may report to it."""

    remote: bool = False
    """agents elsewhere may report"""
    port: int = 8718
    """0 picks any free port"""
    host: str = "127.0.0.1"
    """the default is reachable from this machine only"""
    no_token: bool = False
    """whoever uses this machine may open the page and take over; its address needs no token"""
    token_file: Annotated[Path | None, Parameter(metavar="FILE")] = None
    """the agents' token (default: SAFEMARGIN_TOKEN, or one made beside the log)"""
    no_browser: bool = False
    """only print the page's address"""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """Everything that `safemargin watch` was asked to do."""

    agents: AgentOptions = AgentOptions()
    made_with: Annotated[options.EnvironmentOptions, Parameter(group=AGENTS_HERE)] = (
        options.EnvironmentOptions()
    )
    calls: CallOptions = CallOptions()
    people: PeopleOptions = PeopleOptions()
    server: ServerOptions = ServerOptions()
    as_json: options.Json = False


@options.app.command(group=options.OVERSEE)
@options.on_ctrl_c("stopped")
def watch(
    *files: Annotated[str, Parameter(name="POLICY MARGINS")], asked: WatchOptions = WatchOptions()
) -> None:
    """Watch a fleet of agents on a local web page, and take over where it matters.

    The page shows every agent with its margin, the lowest first; those below --call-at call you.
    Take one over with T, steer it with the keys shown, hand it back with Escape. Ctrl-C ends it
    all.

    Every call, take-over, human action and hand-back goes into the log, which can only grow; the
    same --log after a crash continues it.

    For example:

        safemargin watch --agents 12 zoo:beamrider-a3c margins.json
        safemargin watch --remote margins.json      # agents that run elsewhere report
        safemargin watch --remote --host 0.0.0.0    # … from other machines, too
        safemargin watch --replay watch.db          # what happened, on a page
        safemargin watch --replay watch.db -o replay.html  # … in a file for others
        safemargin audit watch.db                   # … as text, checked to be whole

    An agent elsewhere reports with `sm.RemoteOverseer(address, name=…, token=…)`.

    Args:
        files: the policy to run here and its margins file; with --remote, a margins file for
            agents that report scores only, or nothing
    """
    from safemargin.cli.fleet import replay_log, run_fleet

    if asked.people.replay is None:
        run_fleet(files, asked)
    else:
        replay_log(files, asked, asked.people.replay)


UNPROVEN = (
    "the hashes fit together, but {why}: whoever can write to the file could have rewritten all "
    "of it"
)
CHECKED = {
    "yours": "none was altered or is missing in between: each is sealed with your key",
    "other": UNPROVEN.format(why="the key that seals them is not on this machine"),
    "no": UNPROVEN.format(why="no key seals them"),
}
"""What a check has shown, by whether the log is sealed."""


@options.app.command(group=options.OVERSEE)
def audit(
    log: Annotated[Path, Parameter(name="LOG", help="the file that `watch` wrote")],
    /,
    *,
    agent: Annotated[str | None, Parameter(metavar="NAME")] = None,
    anchor: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    as_json: options.Json = False,
) -> int:
    """Print the log of a watched fleet, and check that nothing was altered.

    With your key, which `watch` made on this machine, it finds whatever was altered by somebody
    without it; without the key, only changes after which the hashes were not computed again.
    Entries that were cut off at the end are found with --anchor.

    For example:

        safemargin audit watch.db --agent 'agent 03'
        safemargin audit watch.db --anchor /mnt/elsewhere/anchors

    Exit status 1: an entry was altered or is missing.

    Args:
        agent: only the entries of this one
        anchor: compare the log with the lines that `watch --anchor` wrote
    """
    from safemargin.errors import AuditLogAltered
    from safemargin.monitor.seals import check_anchors

    with sm.AuditLog(log) as opened:
        try:
            count = opened.check()
            anchored = None if anchor is None else check_anchors(opened, anchor)
        except AuditLogAltered as error:
            if as_json:
                options.print_json({"whole": False, "fault": str(error), "sealed": opened.sealed})
            print(f"safemargin: {error}", file=sys.stderr)
            return options.FINDING
        entries = list(opened.entries(agent=agent))
    if agent is not None and not entries:
        raise InvalidInput(f"{log} has no entry of an agent {agent!r}")
    if as_json:
        found = {"entries": [entry.to_dict() for entry in entries], "whole": True}
        options.print_json({**found, "sealed": opened.sealed, "anchored_up_to": anchored})
        return options.OK
    for entry in entries:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.time))
        step = "" if entry.step is None else f"{entry.episode}/{entry.step}"
        print(f"{entry.id:>6}  {when}  {step:>8}  {entry.text}")
    print(f"{counted(count, 'entry', 'entries')}; {CHECKED[opened.sealed]}", file=sys.stderr)
    if anchored is not None:
        print(f"{anchor} agrees, up to entry {anchored:,}", file=sys.stderr)
    return options.OK
