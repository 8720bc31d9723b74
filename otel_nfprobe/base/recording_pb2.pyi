# mypy: ignore-errors
# ruff: noqa
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import (
    ClassVar as _ClassVar,
    Iterable as _Iterable,
    Mapping as _Mapping,
    Optional as _Optional,
    Union as _Union,
)

DESCRIPTOR: _descriptor.FileDescriptor

class Counters(_message.Message):
    __slots__ = ["thread"]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    thread: _containers.RepeatedCompositeFieldContainer[ThreadCounters]
    def __init__(self, thread: _Optional[_Iterable[_Union[ThreadCounters, _Mapping]]] = ...) -> None: ...

class Counting(_message.Message):
    __slots__ = ["function", "names", "number"]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    function: _containers.RepeatedCompositeFieldContainer[FunctionCounts]
    names: str
    number: int
    def __init__(
        self,
        number: _Optional[int] = ...,
        names: _Optional[str] = ...,
        function: _Optional[_Iterable[_Union[FunctionCounts, _Mapping]]] = ...,
    ) -> None: ...

class End(_message.Message):
    __slots__ = ["blocks", "records", "summary_json"]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_JSON_FIELD_NUMBER: _ClassVar[int]
    blocks: int
    records: int
    summary_json: str
    def __init__(
        self, blocks: _Optional[int] = ..., records: _Optional[int] = ..., summary_json: _Optional[str] = ...
    ) -> None: ...

class Function(_message.Message):
    __slots__ = [
        "id",
        "module",
        "name",
        "name_source",
        "offset",
        "probe_inside_counts",
        "probe_inside_ticks",
        "probe_whole_counts",
        "probe_whole_ticks",
        "role",
        "size",
        "strategy",
        "unit",
    ]
    ID_FIELD_NUMBER: _ClassVar[int]
    MODULE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAME_SOURCE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    PROBE_INSIDE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    PROBE_INSIDE_TICKS_FIELD_NUMBER: _ClassVar[int]
    PROBE_WHOLE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    PROBE_WHOLE_TICKS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    id: int
    module: str
    name: str
    name_source: str
    offset: int
    probe_inside_counts: _containers.RepeatedScalarFieldContainer[int]
    probe_inside_ticks: float
    probe_whole_counts: _containers.RepeatedScalarFieldContainer[int]
    probe_whole_ticks: float
    role: int
    size: int
    strategy: str
    unit: str
    def __init__(
        self,
        id: _Optional[int] = ...,
        role: _Optional[int] = ...,
        module: _Optional[str] = ...,
        offset: _Optional[int] = ...,
        size: _Optional[int] = ...,
        name: _Optional[str] = ...,
        name_source: _Optional[str] = ...,
        strategy: _Optional[str] = ...,
        probe_inside_ticks: _Optional[float] = ...,
        probe_whole_ticks: _Optional[float] = ...,
        probe_inside_counts: _Optional[_Iterable[int]] = ...,
        probe_whole_counts: _Optional[_Iterable[int]] = ...,
        unit: _Optional[str] = ...,
    ) -> None: ...

class FunctionCounts(_message.Message):
    __slots__ = ["id", "probe_inside_counts", "probe_whole_counts"]
    ID_FIELD_NUMBER: _ClassVar[int]
    PROBE_INSIDE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    PROBE_WHOLE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    id: int
    probe_inside_counts: _containers.RepeatedScalarFieldContainer[int]
    probe_whole_counts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(
        self,
        id: _Optional[int] = ...,
        probe_inside_counts: _Optional[_Iterable[int]] = ...,
        probe_whole_counts: _Optional[_Iterable[int]] = ...,
    ) -> None: ...

class Functions(_message.Message):
    __slots__ = ["function"]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    function: _containers.RepeatedCompositeFieldContainer[Function]
    def __init__(self, function: _Optional[_Iterable[_Union[Function, _Mapping]]] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = [
        "boot_id",
        "executable",
        "host",
        "nfprobe_version",
        "pid",
        "resource",
        "session",
        "settings",
        "start_unix_ns",
        "ticks_per_second",
    ]
    class ResourceEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

    class SettingsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    EXECUTABLE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    NFPROBE_VERSION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    START_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    TICKS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    boot_id: str
    executable: str
    host: str
    nfprobe_version: str
    pid: int
    resource: _containers.ScalarMap[str, str]
    session: str
    settings: _containers.ScalarMap[str, str]
    start_unix_ns: int
    ticks_per_second: float
    def __init__(
        self,
        nfprobe_version: _Optional[str] = ...,
        session: _Optional[str] = ...,
        pid: _Optional[int] = ...,
        executable: _Optional[str] = ...,
        host: _Optional[str] = ...,
        start_unix_ns: _Optional[int] = ...,
        ticks_per_second: _Optional[float] = ...,
        resource: _Optional[_Mapping[str, str]] = ...,
        settings: _Optional[_Mapping[str, str]] = ...,
        boot_id: _Optional[str] = ...,
    ) -> None: ...

class Name(_message.Message):
    __slots__ = ["kind", "number", "text"]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    kind: int
    number: int
    text: str
    def __init__(
        self, kind: _Optional[int] = ..., number: _Optional[int] = ..., text: _Optional[str] = ...
    ) -> None: ...

class Names(_message.Message):
    __slots__ = ["name"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: _containers.RepeatedCompositeFieldContainer[Name]
    def __init__(self, name: _Optional[_Iterable[_Union[Name, _Mapping]]] = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ["module", "name", "offset", "size", "start"]
    MODULE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    module: str
    name: str
    offset: int
    size: int
    start: int
    def __init__(
        self,
        start: _Optional[int] = ...,
        size: _Optional[int] = ...,
        module: _Optional[str] = ...,
        offset: _Optional[int] = ...,
        name: _Optional[str] = ...,
    ) -> None: ...

class Places(_message.Message):
    __slots__ = ["place"]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    place: _containers.RepeatedCompositeFieldContainer[Place]
    def __init__(self, place: _Optional[_Iterable[_Union[Place, _Mapping]]] = ...) -> None: ...

class SampleCounts(_message.Message):
    __slots__ = ["counts", "name"]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    counts: bytes
    name: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[_Iterable[str]] = ..., counts: _Optional[bytes] = ...) -> None: ...

class Thread(_message.Message):
    __slots__ = ["index", "name", "tid"]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TID_FIELD_NUMBER: _ClassVar[int]
    index: int
    name: str
    tid: int
    def __init__(self, index: _Optional[int] = ..., tid: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class ThreadCounters(_message.Message):
    __slots__ = [
        "batches",
        "dropped_packets",
        "empty_polls",
        "empty_ticks",
        "handed_over_packets",
        "index",
        "lost",
        "punted_packets",
        "received_packets",
        "refused_packets",
        "taken_over_packets",
        "transmit_calls",
        "transmitted_packets",
    ]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_PACKETS_FIELD_NUMBER: _ClassVar[int]
    EMPTY_POLLS_FIELD_NUMBER: _ClassVar[int]
    EMPTY_TICKS_FIELD_NUMBER: _ClassVar[int]
    HANDED_OVER_PACKETS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    PUNTED_PACKETS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_PACKETS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_PACKETS_FIELD_NUMBER: _ClassVar[int]
    TAKEN_OVER_PACKETS_FIELD_NUMBER: _ClassVar[int]
    TRANSMITTED_PACKETS_FIELD_NUMBER: _ClassVar[int]
    TRANSMIT_CALLS_FIELD_NUMBER: _ClassVar[int]
    batches: int
    dropped_packets: int
    empty_polls: int
    empty_ticks: int
    handed_over_packets: int
    index: int
    lost: _containers.RepeatedScalarFieldContainer[int]
    punted_packets: int
    received_packets: int
    refused_packets: int
    taken_over_packets: int
    transmit_calls: int
    transmitted_packets: int
    def __init__(
        self,
        index: _Optional[int] = ...,
        empty_polls: _Optional[int] = ...,
        empty_ticks: _Optional[int] = ...,
        batches: _Optional[int] = ...,
        received_packets: _Optional[int] = ...,
        transmit_calls: _Optional[int] = ...,
        transmitted_packets: _Optional[int] = ...,
        refused_packets: _Optional[int] = ...,
        dropped_packets: _Optional[int] = ...,
        lost: _Optional[_Iterable[int]] = ...,
        punted_packets: _Optional[int] = ...,
        handed_over_packets: _Optional[int] = ...,
        taken_over_packets: _Optional[int] = ...,
    ) -> None: ...

class Threads(_message.Message):
    __slots__ = ["thread"]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    thread: _containers.RepeatedCompositeFieldContainer[Thread]
    def __init__(self, thread: _Optional[_Iterable[_Union[Thread, _Mapping]]] = ...) -> None: ...
