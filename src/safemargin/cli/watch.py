"""The commands of a watched fleet at work: watch it live, read what happened."""

from __future__ import annotations

import argparse
import gc
import json
import math
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from safemargin.cli.base import INTERRUPTED, OK, AddCommand, environment_arguments, print_json
from safemargin.cli.watch_options import DEFAULT_PORT, add_audit_options, add_watch_options
from safemargin.errors import InvalidInput

if TYPE_CHECKING:
    from socket import socket

    from safemargin.margins.lookup import Margins
    from safemargin.monitor.audit import AuditLog
    from safemargin.monitor.notifications import Notifier
    from safemargin.web.fleet.local import Crew

NOTIFY_AT_MOST = 10.0
"""Seconds between two messages to people who do not look at the page."""


def add_watch_commands(command: AddCommand) -> None:
    """Declare the commands with their options."""
    add_watch_options(command, run_watch)
    add_audit_options(command, run_audit)


def run_watch(options: argparse.Namespace) -> int:
    try:
        return _replay(options) if options.replay is not None else _watch(options)
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return INTERRUPTED


def _watch(options: argparse.Namespace) -> int:
    _check(options)
    from safemargin.monitor.audit import AuditLog
    from safemargin.web.access import find_token

    crew, margins = _crew(options)
    notifiers = _notifiers(options)
    try:
        # Whatever may be refused comes before the log is made.
        if options.token_file is not None:
            find_token(options.token_file, options.log)
        with _listen(options) as bound, AuditLog(options.log, write=True) as log:
            log.check()
            _run_fleet(options, bound, log, crew, margins, notifiers)
    finally:
        for notifier in notifiers:
            notifier.close(timeout=5)
            if notifier.failed:
                count = f"{notifier.failed} of {notifier.failed + notifier.delivered}"
                _tell_failure(notifier, f"failed for {count} messages; the last")
    return OK


def _run_fleet(
    options: argparse.Namespace,
    bound: socket,
    log: AuditLog,
    crew: Crew | None,
    margins: Margins | None,
    notifiers: list[Notifier],
) -> None:
    from safemargin.web.access import Access, find_page_token, find_token
    from safemargin.web.fleet.state import Fleet
    from safemargin.web.fleet_app import create_fleet_app

    loopback = options.host in _loopback()
    page_token = None if loopback else find_page_token(options.log)
    access = Access(find_token(options.token_file, options.log), page_token)
    fleet = Fleet(
        log,
        make_monitor=None if margins is None else _monitors(options, margins, agents=1),
        on_lost=options.on_lost,
        grace=options.grace,
        about=_about(options, crew, margins),
    )
    fleet.journal.listeners += notifiers
    hooks: dict[str, Any] = {}
    if crew is not None:
        from safemargin.web.fleet.local import LocalAgents

        local = LocalAgents(fleet, crew)
        hooks = {"start": local.start, "stop": local.stop}
    hosts = _loopback() if loopback else ("*",)
    app = create_fleet_app(fleet, access, hosts=hosts, remote=options.remote, **hooks)
    query = "" if page_token is None else f"?token={page_token}"
    more = {"token": access.token} if options.remote else {}
    _serve(options, bound, app, "the fleet", query=query, more=more)


def _notifiers(options: argparse.Namespace) -> list[Notifier]:
    """Whoever is told of calls besides the page."""
    from safemargin.monitor.notifications import Command, Webhook

    command = None if options.to_run is None else _command(options.to_run)
    found: list[Notifier] = []
    if options.webhook is not None:
        found.append(Webhook(options.webhook, at_most_every=NOTIFY_AT_MOST))
    if command is not None:
        found.append(Command(command, at_most_every=NOTIFY_AT_MOST))
    for notifier in found:
        notifier.on_failure = _tell_first_failure
    return found


def _command(text: str) -> list[str]:
    """The command's words; InvalidInput where it cannot be run."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidInput(f"--run cannot be read: {error}") from error
    if words and shutil.which(words[0]) is None:
        raise InvalidInput(f"--run: there is no command {words[0]!r} that can be run here")
    return words


def _tell_first_failure(notifier: Notifier) -> None:
    if notifier.failed == 1:
        _tell_failure(notifier, "failed")


def _tell_failure(notifier: Notifier, what: str) -> None:
    from safemargin.monitor.audit import printable

    text = f"the {type(notifier).__name__.lower()} {what}: {notifier.last_error}"
    print(f"safemargin: {printable(text)}", file=sys.stderr, flush=True)


def _check(options: argparse.Namespace) -> None:
    most = 1 if options.remote and options.agents is None else 2
    if not options.remote and len(options.what) != 2:
        raise InvalidInput(
            "watch needs a policy and its margins file, like `safemargin watch zoo:pong-a3c "
            "margins.json`; or --remote, for agents that run elsewhere"
        )
    if len(options.what) > 2 or (len(options.what) == 2 and most == 1):
        raise InvalidInput(
            "with --remote, watch takes a margins file only; --agents A runs a policy here as well"
        )
    if options.agents is not None and not 1 <= options.agents <= 500:
        raise InvalidInput(f"--agents must be 1 to 500, got {options.agents}")
    if options.agents is not None and len(options.what) != 2:
        raise InvalidInput("--agents needs a policy and its margins file to run them with")
    if options.env_arg and options.env is None:
        raise InvalidInput("--env-arg gives arguments to the environment of --env; name that, too")
    if not 0.01 <= options.speed <= 1000:
        raise InvalidInput(f"--speed must be 0.01 to 1000 decisions a second, got {options.speed}")
    if not options.grace >= 0 or not math.isfinite(options.grace):
        raise InvalidInput(f"--grace must be at least 0 s, got {options.grace}")
    if not 0 <= options.wait <= 3600:
        raise InvalidInput(f"--wait must be 0 to 3600 s, got {options.wait}")
    if options.seed < 0:
        raise InvalidInput(f"--seed must be at least 0, got {options.seed}")


def _crew(options: argparse.Namespace) -> tuple[Crew | None, Margins | None]:
    """The agents to run here, and the margins; checked to belong together."""
    from safemargin.margins.lookup import Margins

    if not options.what:
        return None, None
    margins = Margins.load(options.what[-1])
    if options.tolerance is None:
        options.tolerance = _tolerance(margins)
    monitor = _monitors(options, margins, agents=1)()
    if len(options.what) == 1:
        return None, margins
    from safemargin.environments import EnvironmentSpec, environment_identity
    from safemargin.policies import load_policy
    from safemargin.study.signing import code_named
    from safemargin.web.fleet.local import Crew

    policy = load_policy(options.what[0], kind=options.scores or margins.policy.get("kind"))
    monitor.check(policy)
    known = margins.environment
    if options.env is None and not known.get("name"):
        raise InvalidInput(
            f"{options.what[-1]} does not say which environment it was made for; name it with --env"
        )
    if options.env is not None:
        spec = EnvironmentSpec.parse(options.env, environment_arguments(options))
    else:
        spec = EnvironmentSpec.parse(known["name"], known.get("arguments"))
        if code := code_named(spec):
            raise InvalidInput(
                f"{options.what[-1]} names code as its environment, {code[0]}, and a margins file "
                "is never let run any; name it with --env (and its arguments with --env-arg) if "
                "you know what it does"
            )
    env = spec.make()
    try:
        policy.check(env)
        monitor.check(None, environment_identity(spec, env))
        space = env.action_space
    finally:
        env.close()
    agents = options.agents or 4
    crew = Crew(
        spec,
        policy,
        _monitors(options, margins, agents=agents, action_space=space),
        agents,
        options.speed,
        options.seed,
        options.wait,
    )
    return crew, margins


def _tolerance(margins: Margins) -> float:
    from safemargin.validation.heldout import typical_tolerances

    typical = typical_tolerances(margins.bound.upper)
    return typical[len(typical) // 2]


def _monitors(
    options: argparse.Namespace, margins: Margins, *, agents: int, action_space: Any = None
) -> Callable[[], Any]:
    """Makes a monitor for each agent; together they cry wolf over drift no oftener than one."""
    from safemargin.monitor.monitor import Monitor

    def make() -> Monitor:
        return Monitor(
            margins,
            tolerance=options.tolerance,
            call_at=options.call_at,
            release_at=options.release_at,
            pause=options.pause,
            action_space=action_space,
            false_alarms=0.01 / agents,
        )

    return make


def _about(
    options: argparse.Namespace, crew: Crew | None, margins: Margins | None
) -> dict[str, Any]:
    """What the page says about the fleet, and the log about the server."""
    told: dict[str, Any] = {"remote": options.remote, "speed": options.speed}
    if margins is not None:
        rule = _monitors(options, margins, agents=1)().rule
        told |= {
            "tolerance": rule.tolerance,
            "call_at": rule.call_at,
            "release_at": rule.release_at,
            "confidence": margins.confidence,
            "proxy": margins.proxy,
            "n_values": list(margins.n_values),
            "environment": margins.environment.get("name"),
            "policy": margins.policy.get("description"),
        }
    if crew is not None:
        told |= {"agents": crew.agents, "seed": crew.seed, "environment": crew.environment.name}
    return told


def _loopback() -> tuple[str, ...]:
    from safemargin.web.entrance import HOSTS

    return (*HOSTS, "::1")


def _replay(options: argparse.Namespace) -> int:
    from safemargin.monitor.audit import AuditLog
    from safemargin.web.access import Access, find_page_token
    from safemargin.web.replay_app import create_replay_app

    if options.what or options.remote or options.agents is not None:
        raise InvalidInput("--replay shows a log and runs no agents; leave the rest out")
    with _listen(options) as bound, AuditLog(options.replay) as log:
        log.check()
        loopback = options.host in _loopback()
        page_token = None if loopback else find_page_token(options.replay)
        access = Access("", page_token)
        app = create_replay_app(log, access, hosts=_loopback() if loopback else ("*",))
        query = "" if page_token is None else f"?token={page_token}"
        _serve(options, bound, app, "the replay", query=query, more={})
    return OK


def _listen(options: argparse.Namespace) -> socket:
    from safemargin.web.server import listen

    return listen(options.host, DEFAULT_PORT if options.port is None else options.port)


def _serve(
    options: argparse.Namespace,
    bound: socket,
    app: Any,
    what: str,
    *,
    query: str,
    more: dict[str, str],
) -> None:
    from safemargin.web.fleet.messages import LONGEST_MESSAGE
    from safemargin.web.server import serve

    def started(address: str) -> None:
        if options.json:
            print(json.dumps({"address": address + query, **more}), flush=True)
            return
        print(f"{what} is at {address}{query}  (Ctrl-C ends it)", flush=True)
        for name, value in more.items():
            print(f"agents report to {address} with the {name} {value}", flush=True)

    settings = {
        "ws_max_size": LONGEST_MESSAGE,
        "ws_ping_interval": 5.0,
        "ws_ping_timeout": 15.0,
        "ws_per_message_deflate": False,
    }
    gc.freeze()  # what is loaded stays: collecting garbage need not look at it, and takes a tenth
    try:
        serve(
            app,
            bound,
            browser=not options.no_browser,
            started=started,
            query=query,
            settings=settings,
        )
    except KeyboardInterrupt:
        print(file=sys.stderr)


def run_audit(options: argparse.Namespace) -> int:
    from safemargin.monitor.audit import AuditLog

    with AuditLog(options.log) as log:
        count = log.check()
        entries = list(log.entries(agent=options.agent))
    if options.agent is not None and not entries:
        raise InvalidInput(f"{options.log} has no entry of an agent {options.agent!r}")
    if options.json:
        print_json({"entries": [entry.to_dict() for entry in entries], "whole": True})
        return OK
    for entry in entries:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.time))
        place = "" if entry.step is None else f"{entry.episode}/{entry.step}"
        print(f"{entry.id:>6}  {when}  {place:>8}  {entry.text}")
    print(f"{count:,} entries; none was altered or is missing in between", file=sys.stderr)
    return OK
