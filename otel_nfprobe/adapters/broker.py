# SPDX-License-Identifier: Apache-2.0
"""Adapter for the MQTT broker mosquitto. A message is the packet: its topic, message id and length, not its payload.

Everything is read from arguments of functions that mosquitto exports (mosquitto_broker_internal.h), so no offset
in a structure is needed:

    packet__read(context)                                  reads one network packet and does all that follows from it
    handle__packet(context)                                the same for a packet that came by websocket
    mosquitto_acl_check(context, topic, length, ...)       may it be published: how long it is
    db__message_store_find(context, id, ...)               quality of service 1 and 2: its message id
    db__message_release_incoming(context, id)              quality of service 2: it is released
    sub__messages_queue(source, topic, qos, retain, ...)   routes it to its subscribers
    send__publish(context, id, topic, length, ...)         sends it to one of them

The address of the topic is the stored message's own and the same in sub__messages_queue and send__publish.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller

from otel_nfprobe.adapters.base import (
    ABSENT,
    COUNT_FIXED,
    LENGTH,
    MESSAGE,
    MESSAGE_SCOPE,
    NUMBER,
    SEND,
    WHEN_ALWAYS,
    RoleFunction,
)
from otel_nfprobe.arch.architecture import Architecture, of_host
from otel_nfprobe.arch.snippet import assemble
from otel_nfprobe.base.errors import RefusedError
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.symbols import function_at
from otel_nfprobe.target.target import Target

_Snippet = Callable[[Architecture], str]
TOPIC_ARGUMENT = 1
# What is captured at the entry: asks an Architecture for the text of a snippet.
BUFFER_AND_NUMBER = methodcaller("arguments_text", high=2, low=1)
SECOND_ARGUMENT_16 = methodcaller("argument_text", 1, bits=16)
THIRD_ARGUMENT_32 = methodcaller("argument_text", 2, bits=32)
NEEDED = {  # name: role, snippet, label
    "packet__read": (MESSAGE_SCOPE, None, "reads a network packet"),
    "sub__messages_queue": (MESSAGE, None, "routes a message"),
    "send__publish": (SEND, BUFFER_AND_NUMBER, "sends a message to a subscriber"),
}
WELCOME = {
    "handle__packet": (MESSAGE_SCOPE, None, "works on a network packet"),
    "mosquitto_acl_check": (LENGTH, THIRD_ARGUMENT_32, "length of a message"),
    "db__message_store_find": (NUMBER, SECOND_ARGUMENT_16, "id of a message"),
    "db__message_release_incoming": (NUMBER, SECOND_ARGUMENT_16, "id of a message that is released"),
}
DATABASE = "db"  # a variable since 2.0; before, functions were handed it as their first argument
INNER = ("handle__publish", "db__message_store", "db__message_insert", "packet__write")


class BrokerAdapter:
    """Finds mosquitto's functions by their exported names."""

    name = "broker"

    def __init__(self) -> None:
        self.inner: list[str] = []

    def recognise(self, target: Target) -> str | None:
        """See Adapter."""
        program = _program(target)
        return None if program is None else f"{program.name} exports {', '.join(NEEDED)}"

    def roles(self, target: Target) -> list[RoleFunction]:
        """See Adapter."""
        program = _program(target)
        if program is None:
            raise RefusedError(
                f"Process {target.pid} ({target.name}) does not export {', '.join((*NEEDED, DATABASE))}: it is no "
                "mosquitto broker of version 2 whose functions have names.",
                f"nfprobe functions {target.pid}",
            )
        exports = program.image.exports
        self.inner = [f"{program.name}:{name}" for name in INNER if name in exports]
        known = {**NEEDED, **{name: found for name, found in WELCOME.items() if name in exports}}
        return [_role(program, name, *known[name]) for name in known]

    def notes(self, target: Target) -> list[str]:
        """See Adapter."""
        return [
            "the arguments of mosquitto's functions are taken to be those of version 2.0",
            "a message is received when it is routed, and transmitted when it is handed to a subscriber's connection",
        ]


def _program(target: Target) -> Module | None:
    """The program's own file, when it exports what is needed."""
    modules = target.modules()
    fits = bool(modules) and all(name in modules[0].image.exports for name in (*NEEDED, DATABASE))
    return modules[0] if fits else None


def _role(
    program: Module, name: str, role: int, snippet: Callable[[Architecture], str] | None, label: str
) -> RoleFunction:
    function = function_at(program, program.image.exports[name].address)
    if function is None:
        raise RefusedError(f"{name} of {program.name} is not the start of a function.")
    reads = {"pointers_argument": TOPIC_ARGUMENT, "count_from": COUNT_FIXED, "count_argument": 1}
    fields = {"requested_argument": ABSENT, "when": WHEN_ALWAYS, **reads} if role == MESSAGE else {}
    code = assemble(snippet(of_host())).code if snippet else b""
    return RoleFunction(function.address, function.label, role, fields, label, code)
