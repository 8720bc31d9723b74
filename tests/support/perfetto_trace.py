# SPDX-License-Identifier: Apache-2.0
"""Perfetto traces, read as its own trace processor reads them: packets in the order of time, slices by track.

Source: Perfetto's documents, "Synthetic track events" and protos/perfetto/trace/track_event/track_event.proto.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent


@dataclass
class Slice:
    """A slice of a track, given by the names from the process to the track; `above`: the slice it lies in."""

    track: tuple[str, ...]
    name: str
    start_ns: int
    end_ns: int | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    flows: list[int] = field(default_factory=list)
    above: Slice | None = None


@dataclass
class PerfettoTrace:
    """What is in a trace. counters: values with their times, by track; clocks: by ID, at one moment."""

    slices: list[Slice] = field(default_factory=list)
    counters: dict[tuple[str, ...], list[tuple[int, int]]] = field(default_factory=dict)
    clocks: dict[int, int] = field(default_factory=dict)

    def of(self, track: str) -> list[Slice]:
        """Slices of all tracks with this last name."""
        return [slice for slice in self.slices if slice.track[-1] == track]


def read_trace(path: Path) -> PerfettoTrace:
    """Reads a trace of one packet sequence; every slice has to be ended, by nothing but its own end."""
    packets = Trace.FromString(path.read_bytes()).packet
    assert packets[0].sequence_flags == TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    found, names, annotations = PerfettoTrace(), {}, {}
    tracks: dict[int, tuple[str, ...]] = {}
    events: list[TracePacket] = []
    for packet in packets:
        assert packet.trusted_packet_sequence_id == packets[0].trusted_packet_sequence_id
        found.clocks |= {clock.clock_id: clock.timestamp for clock in packet.clock_snapshot.clocks}
        names |= {entry.iid: entry.name for entry in packet.interned_data.event_names}
        annotations |= {entry.iid: entry.name for entry in packet.interned_data.debug_annotation_names}
        if packet.HasField("track_descriptor"):
            described = packet.track_descriptor
            name = described.name or described.thread.thread_name or described.process.process_name
            assert described.uuid not in tracks
            tracks[described.uuid] = (*(tracks[described.parent_uuid] if described.parent_uuid else ()), name)
        if packet.HasField("track_event"):  # what it refers to was described before
            assert packet.track_event.track_uuid in tracks
            assert packet.track_event.name_iid == 0 or packet.track_event.name_iid in names
            events.append(packet)
    open_slices: dict[int, list[Slice]] = {}
    for packet in sorted(events, key=lambda packet: packet.timestamp):
        event, at_ns = packet.track_event, packet.timestamp
        track = tracks[event.track_uuid]
        inside = open_slices.setdefault(event.track_uuid, [])
        if event.type == TrackEvent.TYPE_COUNTER:
            found.counters.setdefault(track, []).append((at_ns, event.counter_value))
        elif event.type == TrackEvent.TYPE_SLICE_END:
            inside.pop().end_ns = at_ns
        else:
            above = inside[-1] if inside else None
            arguments = {
                annotations.get(entry.name_iid, entry.name): getattr(entry, entry.WhichOneof("value"))
                for entry in event.debug_annotations
            }
            name = names[event.name_iid]
            slice = Slice(track, name, at_ns, None, arguments, list(event.flow_ids), above)
            found.slices.append(slice)
            if event.type == TrackEvent.TYPE_INSTANT:
                slice.end_ns = at_ns
            else:
                inside.append(slice)
    assert not any(open_slices.values())
    return found
