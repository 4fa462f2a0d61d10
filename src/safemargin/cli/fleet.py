"""Running what `safemargin watch` serves: a fleet of agents, or the replay of its log."""

from __future__ import annotations

import contextlib
import gc
import math
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from socket import socket
from typing import Any

from safemargin.cli.options import note_new_parents, print_note, print_written, serve_page
from safemargin.cli.watch import CallOptions, PeopleOptions, WatchOptions
from safemargin.core.budget import Budget
from safemargin.core.text import printable
from safemargin.environments import EnvironmentSpec, environment_identity
from safemargin.errors import InvalidInput
from safemargin.margins.lookup import Margins
from safemargin.monitor.audit import AuditLog
from safemargin.monitor.caller import Caller
from safemargin.monitor.forecast import (
    Forecast,
    forecast_budget,
    forecast_margins,
    forecast_rehearsal,
)
from safemargin.monitor.monitor import Monitor
from safemargin.monitor.notifications import Command, Notifier, Webhook
from safemargin.monitor.seals import ANCHOR_TIMEOUT, Anchor
from safemargin.monitor.stuck import Stuck
from safemargin.policies import load_policy
from safemargin.study.signing import code_named
from safemargin.validation.defaults import default_tolerance
from safemargin.web.access import Access, check_host, find_page_token, find_token, new_token
from safemargin.web.entrance import hosts_of
from safemargin.web.fleet.local import Crew, LocalAgents
from safemargin.web.fleet.messages import LONGEST_MESSAGE
from safemargin.web.fleet.rehearsal import rehearse
from safemargin.web.fleet.state import Fleet
from safemargin.web.fleet_app import create_fleet_app
from safemargin.web.replay_app import create_replay_app
from safemargin.web.replay_file import write_replay
from safemargin.web.server import listen

_UNSEALED = {
    True: "no key can be stored for you here, so {log} is not sealed: whoever can write to it can "
    "rewrite it",
    False: "{log} was begun without a key and is continued without: whoever can write to it can "
    "rewrite it; --log with another file begins a sealed one",
}
FLOODS = {
    True: "Nobody can answer that: with --budget 20/hour, only the most urgent decisions call, 20 "
    "times an hour",
    False: "That is much to ask of one person; with --budget 20/hour, it is a call in three "
    "minutes",
}
"""What to do about too many calls, by whether there is no budget."""
NOTIFY_AT_MOST = 10.0
"""Seconds between two messages to people who do not look at the page."""
SERVER_SETTINGS = {
    "ws_max_size": LONGEST_MESSAGE,
    "ws_ping_interval": 5.0,
    "ws_ping_timeout": 15.0,
    "ws_per_message_deflate": False,
}


def run_fleet(files: Sequence[str], options: WatchOptions) -> None:
    """Serve the page of a fleet, with the agents that run here, until Ctrl-C.

    `files` are a policy and its margins file, the margins file alone, or nothing.
    """
    _check(files, options)
    check_host(options.server.host, no_token=options.server.no_token)
    crew = margins = None
    caller = _caller(options.calls)
    if files:
        margins = Margins.load(files[-1])
        crew = _crew(files, options, margins)
        if not margins.measured.usual:
            print_note(f"in these margins, {margins.measured}")
    if crew is not None:
        caller.check(crew.agents)
    forecast = _forecast(options, caller, crew, margins)
    people, remote = options.people, options.server.remote
    with contextlib.ExitStack() as stack:
        notifiers = _notifiers(people)
        for notifier in notifiers:
            stack.callback(_close, notifier, 5)
        anchor = None if people.anchor is None else Anchor(people.anchor)
        # Whatever may be refused comes before the log is made.
        if options.server.token_file is not None:
            find_token(options.server.token_file, people.log)
        bound = stack.enter_context(listen(options.server.host, options.server.port))
        log = stack.enter_context(AuditLog(people.log, write=True))
        log.check()
        if log.sealed == "no":
            print_note(_UNSEALED[log.created].format(log=people.log))
        token = find_token(options.server.token_file, people.log)
        access = Access(token, None if options.server.no_token else find_page_token(log.path))
        if forecast is not None:
            print_note(forecast.text + (f". {FLOODS[caller.budget is None]}" * forecast.floods))
        fleet = Fleet(
            log,
            make_monitor=None if margins is None else _monitors(options.calls, margins),
            on_lost=people.on_lost,
            grace=people.grace,
            about=_about(options, crew, margins, forecast),
            caller=caller,
        )
        fleet.journal.listeners += notifiers
        if anchor is not None:
            anchor.on_failure = _report_failure
            stack.callback(_close, anchor, 2 * ANCHOR_TIMEOUT)
            anchor.start(log)
        hooks: dict[str, Any] = {}
        if crew is not None:
            local = LocalAgents(fleet, crew)
            hooks = {"start": local.start, "stop": local.stop}
        page = create_fleet_app(
            fleet, access, hosts=hosts_of(options.server.host), remote=remote, **hooks
        )
        _serve(options, bound, page, "the fleet", access, token=token if remote else None)


def _caller(calls: CallOptions) -> Caller:
    """Return what decides who calls."""
    if calls.budget is not None:
        for name in ("call_at", "release_at", "pause"):
            if getattr(calls, name) is not None:
                option = name.replace("_", "-")
                raise InvalidInput(
                    f"with --budget, the threshold adapts to the budget; leave --{option} out"
                )
    if calls.stuck_after < 0 or not math.isfinite(calls.stuck_after):
        raise InvalidInput(f"--stuck-after must be at least 0 s, got {calls.stuck_after}")
    stuck = Stuck(patience=calls.stuck_after) if calls.stuck_after else None
    return Caller(
        calls.budget, looks=calls.looks, length=calls.call_length, gap=calls.gap, stuck=stuck
    )


def _forecast(
    options: WatchOptions, caller: Caller, crew: Crew | None, margins: Margins | None
) -> Forecast | None:
    """Return what to expect of the calls, as far as that can be known."""
    agents = 1 if crew is None else crew.agents
    if caller.budget is not None:
        return forecast_budget(caller, agents)
    if margins is None:
        return None
    if crew is not None:
        alone = Caller(length=caller.length, gap=caller.gap)
        return forecast_rehearsal(rehearse(crew), alone, agents, crew.speed)
    rule = _monitors(options.calls, margins)().rule
    return forecast_margins(margins, rule.tolerance, rule.call_at, agents)


def _notifiers(people: PeopleOptions) -> list[Notifier]:
    """Return what brings calls to people who do not look at the page."""
    notifiers: list[Notifier] = []
    if people.run is not None:
        try:
            words = shlex.split(people.run)
        except ValueError as error:
            raise InvalidInput(f"--run cannot be read: {error}") from error
        if words and shutil.which(words[0]) is None:
            raise InvalidInput(f"--run: there is no command {words[0]!r} that can be run here")
        notifiers.append(Command(words, at_most_every=NOTIFY_AT_MOST))
    if people.webhook is not None:
        notifiers.insert(0, Webhook(people.webhook, at_most_every=NOTIFY_AT_MOST))
    for notifier in notifiers:
        notifier.on_failure = _report_failure
    return notifiers


def _close(sender: Notifier | Anchor, timeout: float) -> None:
    """Let it send what it still has, and print how many messages failed, if any."""
    sender.close(timeout=timeout)
    if sender.failed:
        _report_failure(sender, last=True)


def _report_failure(sender: Notifier | Anchor, *, last: bool = False) -> None:
    """Print the first message that failed at once, and how many failed at the end."""
    if last or sender.failed == 1:
        count = f"{sender.failed} of {sender.failed + sender.delivered}"
        what = f"failed for {count} messages; the last" if last else "failed"
        text = f"the {type(sender).__name__.lower()} {what}: {sender.last_error}"
        print(f"safemargin: {printable(text)}", file=sys.stderr, flush=True)


def _check(files: Sequence[str], options: WatchOptions) -> None:
    """Refuse options that contradict one another or lie out of range."""
    agents, remote = options.agents.agents, options.server.remote
    if not remote and len(files) != 2:
        raise InvalidInput(
            "watch needs a policy and its margins file, like `safemargin watch zoo:pong-a3c "
            "margins.json`; or --remote, for agents that run elsewhere"
        )
    if len(files) > (1 if remote and agents is None else 2):
        raise InvalidInput(
            "with --remote, watch takes a margins file only; --agents A runs a policy here as well"
        )
    if agents is not None and not 1 <= agents <= 500:
        raise InvalidInput(f"--agents must be 1 to 500, got {agents}")
    if agents is not None and len(files) != 2:
        raise InvalidInput("--agents needs a policy and its margins file to run them with")
    if options.made_with.env_arg and options.agents.env is None:
        raise InvalidInput("--env-arg gives arguments to the environment of --env; name that, too")
    if options.people.output is not None:
        raise InvalidInput("--output writes a replay; name its log with --replay LOG")
    speed, grace, wait = options.agents.speed, options.people.grace, options.calls.wait
    if not 0.01 <= speed <= 1000:
        raise InvalidInput(f"--speed must be 0.01 to 1000 decisions a second, got {speed}")
    if not grace >= 0 or not math.isfinite(grace):
        raise InvalidInput(f"--grace must be at least 0 s, got {grace}")
    if not 0 <= wait <= 3600:
        raise InvalidInput(f"--wait must be 0 to 3600 s, got {wait}")
    if options.agents.seed < 0:
        raise InvalidInput(f"--seed must be at least 0, got {options.agents.seed}")


def _crew(files: Sequence[str], options: WatchOptions, margins: Margins) -> Crew | None:
    """Return the agents to run here, if any, checked to belong to the margins."""
    monitor = _monitors(options.calls, margins)()
    if len(files) == 1:
        return None
    policy = load_policy(
        options.made_with.policy(files[0]),
        kind=options.made_with.scores or margins.policy.get("kind"),
    )
    monitor.check(policy)
    spec = _environment(options, margins, files[-1])
    with contextlib.closing(spec.make()) as env:
        policy.check(env)
        monitor.check(None, environment_identity(spec, env))
        space = env.action_space
    agents = options.agents.agents or 4
    monitors = _monitors(options.calls, margins, agents=agents, action_space=space)
    pace = options.agents.speed, options.agents.seed, options.calls.wait
    return Crew(spec, policy, monitors, agents, *pace)


def _environment(options: WatchOptions, margins: Margins, file: str) -> EnvironmentSpec:
    """Return the environment of --env, or else that of the margins if it names no code."""
    if options.agents.env is not None:
        return EnvironmentSpec.parse(options.agents.env, options.made_with.arguments)
    known = margins.environment
    if not known.get("name"):
        raise InvalidInput(
            f"{file} does not say which environment it was made for; name it with --env"
        )
    spec = EnvironmentSpec.parse(known["name"], known.get("arguments"))
    if code := code_named(spec):
        plain = not code_named(EnvironmentSpec.parse(known["name"]))
        what = (
            "gives its environment more than numbers" if plain else "names code as its environment"
        )
        raise InvalidInput(
            f"{file} {what}, {code[0]}, and a margins file can never "
            "execute code; name it with --env (and its arguments with --env-arg) if you know what "
            "it does"
        )
    return spec


def _monitors(
    calls: CallOptions, margins: Margins, *, agents: int = 1, action_space: Any = None
) -> Callable[[], Monitor]:
    """Return a maker of monitors: one for each agent, with one rate of false alarms together."""
    return partial(
        Monitor,
        margins,
        tolerance=default_tolerance(margins) if calls.tolerance is None else calls.tolerance,
        call_at=1 if calls.call_at is None else calls.call_at,
        release_at=calls.release_at,
        pause=calls.pause or 0,
        action_space=action_space,
        false_alarms=0.01 / agents,
    )


def _about(
    options: WatchOptions, crew: Crew | None, margins: Margins | None, forecast: Forecast | None
) -> dict[str, Any]:
    """Return what the page says about the fleet, and the log about the server."""
    about: dict[str, Any] = {"remote": options.server.remote, "speed": options.agents.speed}
    if options.calls.budget is not None:
        about["budget"] = Budget.parse(options.calls.budget).text
    if forecast is not None:
        about |= {"forecast": forecast.text, "floods": forecast.floods}
    if margins is not None:
        rule = _monitors(options.calls, margins)().rule
        about |= {
            **{name: getattr(rule, name) for name in ("tolerance", "call_at", "release_at")},
            "confidence": margins.confidence,
            "proxy": margins.proxy,
            "n_values": list(margins.n_values),
            "mistakes": margins.measured.mistakes,
            "loss": margins.measured.loss,
            "environment": margins.environment.get("name"),
            "policy": margins.policy.get("description"),
        }
    if crew is not None:
        about |= {"agents": crew.agents, "seed": crew.seed, "environment": crew.environment.name}
    return about


def replay_log(files: Sequence[str], options: WatchOptions, path: Path) -> None:
    """Serve a page that shows what a log holds, until Ctrl-C; with --output, write it to a file."""
    if files or options.server.remote or options.agents.agents is not None:
        raise InvalidInput("--replay shows a log and runs no agents; leave the rest out")
    if options.people.output is not None:
        note_new_parents(options.people.output)
        with AuditLog(path) as log:
            written = write_replay(log, options.people.output)
        print_written({"replay": str(written)}, [written], as_json=options.as_json)
        return
    check_host(options.server.host, no_token=options.server.no_token)
    with listen(options.server.host, options.server.port) as bound, AuditLog(path) as log:
        log.check()
        access = Access("", None if options.server.no_token else new_token())
        page = create_replay_app(log, access, hosts=hosts_of(options.server.host))
        _serve(options, bound, page, "the replay", access)


def _serve(
    options: WatchOptions,
    bound: socket,
    page: Any,
    what: str,
    access: Access,
    *,
    token: str | None = None,
) -> None:
    gc.freeze()  # what is loaded stays: collecting garbage need not look at it, and takes a tenth
    serve_page(
        *(page, bound, what),
        browser=not options.server.no_browser,
        as_json=options.as_json,
        access=access,
        token=token,
        settings=SERVER_SETTINGS,
    )
