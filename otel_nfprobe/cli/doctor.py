# SPDX-License-Identifier: Apache-2.0
"""`nfprobe doctor [PID]`: what this machine, user and target allow, and what to do about the rest."""

from __future__ import annotations

import argparse
from typing import Any

from otel_nfprobe.adapters.base import Adapter
from otel_nfprobe.adapters.installed import adapter_names, choose_adapter
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.base.printable import printable_value
from otel_nfprobe.cli.machine import describe_machine, describe_user
from otel_nfprobe.cli.main import EXIT_DONE, print_json
from otel_nfprobe.linux.namespaces import foreign_namespaces, root_directory
from otel_nfprobe.probes.inject import SAFE_SYSTEM_CALLS
from otel_nfprobe.probes.preflight import check_target
from otel_nfprobe.probes.probe_selection import nothing_to_probe
from otel_nfprobe.target.library_file import sees_proc
from otel_nfprobe.target.target import Target, Thread


class DoctorCommand:
    """Says what this machine, this user and, with a PID, this target allow. Changes nothing.

    The exit status is that of the first thing that would stop `nfprobe attach PID` with the same --adapter, or 0:
    it is 2 where no adapter knows the process.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("pid", type=int, nargs="?", metavar="PID", help="the process to look at")
        parser.add_argument(
            "--adapter", default="auto", metavar="NAME", help="as of attach: auto, none, a name, or a YAML file"
        )
        parser.add_argument("--json", action="store_true", help="print one JSON value as the last line")

    def run(self, arguments: argparse.Namespace) -> int:
        found: dict[str, Any] = {"machine": describe_machine(), "user": describe_user()}
        status = EXIT_DONE
        if arguments.pid is not None:
            found["target"] = examine_target(Target(arguments.pid), arguments.adapter)
            status = int(found["target"]["exit_status"])
        if arguments.json:
            print_json(found)
        else:
            _print(printable_value(found))
        return status


def examine_target(target: Target, adapter: str = "auto") -> dict[str, Any]:
    """What attaching to this process would meet; never raises for the target's sake."""
    facts: dict[str, Any] = {
        "pid": target.pid,
        "name": target.name,
        "executable": target.executable,
        "can_be_probed": True,
        "exit_status": EXIT_DONE,
        "notes": [],
    }
    try:
        facts["notes"] = check_target(target)
        modules = target.modules()
        facts["modules"] = len(modules)
        facts["build_id"] = modules[0].build_id if modules else ""
        facts["threads"] = [_describe_thread(thread) for thread in target.threads()]
        fit = [thread for thread in target.threads() if thread.tid not in target.unfit_threads]
        facts["blocked_thread"] = _blocked_thread(fit)
        facts["place"] = _describe_place(target)
    except NfprobeError as error:
        facts.update(can_be_probed=False, **_refusal(error))
        return facts
    try:
        _examine_adapter(facts, target, choose_adapter(adapter, target))
    except NfprobeError as error:
        facts.update(_refusal(error))
    return facts


def _refusal(error: NfprobeError) -> dict[str, Any]:
    return {"exit_status": error.exit_status, "reason": error.sentence, "next_command": error.next_command}


def _examine_adapter(facts: dict[str, Any], target: Target, adapter: Adapter | None) -> None:
    """Adds which adapter knows the process, and what it finds there.

    Raises:
        NfprobeError: none does, or it finds no functions: attach alone would be refused.
    """
    facts["adapter"] = None
    if adapter is None:
        facts["notes"].append(f"adapters that are installed: {', '.join(adapter_names())}")
        raise nothing_to_probe(target)
    facts["adapter"] = adapter.name
    facts["notes"].append(f"adapter {adapter.name}: {adapter.recognise(target)}")
    facts["notes"] += [f"{role.label}: {role.name}" for role in adapter.roles(target)]
    facts["notes"] += adapter.notes(target)


def _describe_place(target: Target) -> dict[str, Any]:
    return {
        "c_library": "musl" if target.runs_on_musl else "glibc",
        "namespaces": foreign_namespaces(target.pid),
        "root": root_directory(target.pid),
        "sees_proc": sees_proc(target),
    }


def _describe_thread(thread: Thread) -> dict[str, Any]:
    return {
        "tid": thread.tid,
        "name": thread.name,
        "state": thread.state,
        "system_call": thread.system_call,
        "cpus": sorted(thread.cpus),
        "policy": thread.policy,
    }


def _blocked_thread(threads: list[Thread]) -> int | None:
    """The thread that the probe library would be loaded through, or None: then a busy one is waited for."""
    blocked = [thread for thread in threads if thread.system_call in SAFE_SYSTEM_CALLS]
    return min(blocked, key=lambda thread: SAFE_SYSTEM_CALLS.index(thread.system_call or 0)).tid if blocked else None


def _print(found: dict[str, Any]) -> None:
    for title in ("machine", "user"):
        print(title)
        for name, fact in found[title].items():
            print(f"  {name:<22} {fact['value']}")
            if fact["advice"]:
                print(f"  {'':<22} -> {fact['advice']}")
    target = found.get("target")
    if target is None:
        return
    print(f"process {target['pid']} ({target['name']}, {target['executable'] or 'no program'})")
    if not target["can_be_probed"]:
        _print_refusal("cannot be probed", target)
        return
    counts = f"{target['modules']} modules, {len(target['threads'])} threads"
    print(f"  can be probed; {counts}, build id {target['build_id']}")
    _print_place(target["place"])
    through = target["blocked_thread"]
    where = f"thread {through}, which is blocked" if through else "a busy thread's next harmless system call"
    print(f"  the probe library would be loaded through {where}")
    print(f"  adapter: {target.get('adapter') or 'none'}")
    for note in target["notes"]:
        print(f"  note: {note}")
    if "reason" in target:
        _print_refusal("attach alone is refused", target)


def _print_refusal(what: str, target: dict[str, Any]) -> None:
    print(f"  {what}: {target['reason']}")
    if target["next_command"]:
        print(f"  next: {target['next_command']}")


def _print_place(place: dict[str, Any]) -> None:
    lives = (
        f"in other namespaces than nfprobe: {', '.join(place['namespaces'])}"
        if place["namespaces"]
        else "in the same namespaces as nfprobe"
    )
    root = f"; root directory {place['root']}" if place["root"] not in ("", "/") else ""
    way = "" if place["sees_proc"] else "; it sees no /proc, so the probe library comes as a file that is removed again"
    print(f"  {place['c_library']}; {lives}{root}{way}")
