# SPDX-License-Identifier: Apache-2.0
"""`nfprobe export [RECORDING]`: sends a recording's packets to an OTLP endpoint, or the contents of the spool."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from typing import Any

from otel_nfprobe.base.columns import Columns
from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.cli.arrival_options import add_arrival_options, take_arrivals
from otel_nfprobe.cli.main import EXIT_DONE, EXIT_NOT_DONE, print_json, tell
from otel_nfprobe.cli.options import (
    LINKS,
    add_correlation_options,
    add_flow_option,
    add_limit_option,
    add_span_options,
    describe_time_scale,
    find_correlate_window_ns,
    find_flow,
    find_time_scale,
    parse_duration_ns,
    parse_fraction,
    recorded_window_ns,
)
from otel_nfprobe.cli.session_spans import add_spool_options, describe_counters, find_spool
from otel_nfprobe.cli.trace_file import add_trace_options, check_trace_options, is_trace_file, write_trace_file
from otel_nfprobe.cli.waiting import Waiting
from otel_nfprobe.export.configuration import find_configuration
from otel_nfprobe.export.delivery import Transport
from otel_nfprobe.export.destination import find_complaint, find_destination, open_destination
from otel_nfprobe.export.endpoint import EXAMPLE, Endpoint
from otel_nfprobe.export.export_counters import ExportCounters
from otel_nfprobe.export.limiter import Limiter
from otel_nfprobe.export.otlp import DROPPED_UNREACHABLE, Exporter
from otel_nfprobe.export.resource import make_resource_attributes
from otel_nfprobe.export.span import SpanEncoder, find_session_id
from otel_nfprobe.export.spool import Spool
from otel_nfprobe.export.trace_builder import Explainer
from otel_nfprobe.monitor.latecapture import SLOW
from otel_nfprobe.pipeline.absences import ABSENCE
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.pipeline.queue_drops import QUEUE_DROP
from otel_nfprobe.pipeline.repeats import Repeats
from otel_nfprobe.pipeline.sampling import Sampler, format_trace_state
from otel_nfprobe.recording.recording import ABSENCES, QUEUE_DROPS, SUBMIT, THREADS, Block, RecordingReader
from otel_nfprobe.recording.replay import RecordingFacts, read_facts, replay_steps
from otel_nfprobe.recording.sessionfacts import ThreadInfo

# A user waits: report an unreachable receiver soon. The recording stays, and can be sent again.
RETRY_TOTAL_S = 10.0
CLOSE_TIMEOUT_S = 600.0


class ExportCommand:
    """Sends a recording's packets to an OTLP endpoint: all, or those that the options select.

    Trace IDs and times are those of the session, so spans already sent by attach are not duplicated.
    Without a recording it sends the spans that earlier sessions could not deliver (--spool).
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "recording", nargs="?", metavar="RECORDING", help="file written by attach --record (default: the spool)"
        )
        parser.add_argument(
            "-o", "--output", metavar="FILE.pftrace", help="write a Perfetto trace instead of sending spans"
        )
        parser.add_argument("--endpoint", metavar="URL", help="OTLP receiver (default: OTEL_EXPORTER_OTLP_ENDPOINT)")
        parser.add_argument("--exporter", metavar="NAME", help="otlp, or an exporter of the OpenTelemetry SDK")
        parser.add_argument(
            "--sample",
            type=parse_fraction,
            metavar="SHARE",
            help="this share of all packets, selected by ID",
        )
        parser.add_argument(
            "--slower-than",
            type=parse_duration_ns,
            metavar="TIME",
            help="packets slower than this, such as 50us",
        )
        parser.add_argument(
            "--slowest",
            type=parse_slowest,
            metavar="SHARE",
            help="the slowest packets, about this share; of a Perfetto trace: what ran around so many of them",
        )
        add_flow_option(parser, "send")
        add_limit_option(parser)
        add_correlation_options(parser)
        add_span_options(parser)
        add_spool_options(parser)
        add_arrival_options(parser)
        add_trace_options(parser)
        parser.add_argument("--service", metavar="NAME", help="service.name of the spans (default: as recorded)")
        parser.add_argument(
            "--json",
            action="store_true",
            help="the last line of standard output is the summary as one JSON object",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        check_trace_options(arguments, is_trace_file(arguments.output))
        if arguments.output is not None:
            return _write_trace(arguments)
        if (arguments.slowest or 0.0) > 1:
            raise UsageError("Of spans --slowest is a share from 0 to 1 such as 0.1%.", "nfprobe export --help")
        destination = find_destination(arguments.exporter, arguments.endpoint, os.environ)
        if complaint := find_complaint(os.environ):
            tell(complaint)
        if destination is None:
            raise UsageError(
                "No endpoint is configured (or OTEL_SDK_DISABLED is true).",
                f"nfprobe export {arguments.recording or ''} --endpoint {EXAMPLE}".replace("  ", " "),
            )
        if arguments.recording is None:
            return export_spool(arguments, open_destination(destination), RETRY_TOTAL_S, CLOSE_TIMEOUT_S)
        if arguments.spool:
            raise UsageError(
                "--spool is for spans that sessions could not deliver; recordings are sent without it.",
                f"nfprobe export {arguments.recording} --endpoint {arguments.endpoint or EXAMPLE}",
            )
        reader = RecordingReader(arguments.recording)
        facts = read_facts(reader)
        take_arrivals(arguments, reader, facts)
        window_ns = find_correlate_window_ns(arguments) or recorded_window_ns(facts.header.settings)
        encoder = _make_encoder(arguments, facts, window_ns)
        is_consistent = facts.header.settings.get("packets") != SLOW
        limiter = Limiter(arguments.max_traces_per_second, facts.ticks_per_second, is_consistent)
        export = _Export(reader, facts, encoder, _make_sampler(arguments, facts), limiter, window_ns)
        with Waiting(lambda: f"sending {arguments.recording}: {export.packets:,} packets so far"):
            counters = export.send(open_destination(destination))
        return _conclude(arguments, facts, export, counters)


def parse_slowest(text: str) -> float:
    """A share from 0 to 1, or a number of packets."""
    return float(text) if text.isdecimal() else parse_fraction(text)


def _write_trace(arguments: argparse.Namespace) -> int:
    again = "nfprobe export RECORDING -o FILE.pftrace"
    if not is_trace_file(arguments.output):
        raise UsageError(f"{arguments.output} is not named FILE.pftrace; other files are nfprobe report's.", again)
    if arguments.recording is None:
        raise UsageError("A Perfetto trace is of a recording.", again)
    chosen = arguments.sample, arguments.slower_than, arguments.flow, arguments.endpoint, arguments.exporter
    if any(value is not None for value in chosen):
        raise UsageError("A Perfetto trace is of all packets, or of those of --around or --slowest.", again)
    slowest = arguments.slowest
    if slowest is not None and slowest != int(slowest):
        raise UsageError("Of a Perfetto trace --slowest is a number of packets, such as 10.", again)
    return write_trace_file(arguments, [arguments.recording], None if slowest is None else int(slowest))


@dataclass
class _Export:
    # One recording on its way to one endpoint.
    reader: RecordingReader
    facts: RecordingFacts
    encoder: SpanEncoder
    sampler: Sampler
    limiter: Limiter
    correlate_window_ns: int
    packets: int = 0

    def send(self, where: Endpoint | Transport) -> ExportCounters:
        exporter = Exporter(where, retry_total_s=RETRY_TOTAL_S)
        try:
            with Pipeline(self.facts.roles) as pipeline:
                pipeline.set_counter_costs(self.facts.counter_costs)
                rate = self.facts.ticks_per_second
                explainer = Explainer(self.sampler, self.encoder, rate, limiter=self.limiter)
                repeats = Repeats.correlating(self.correlate_window_ns)
                for step in replay_steps(self.reader, self.facts, pipeline, repeats):
                    if self._is_time_to_send(step, explainer) and not self._send(explainer, exporter):
                        break
        except BaseException:
            exporter.close(0)
            raise
        return exporter.close(CLOSE_TIMEOUT_S)

    # In the session's steps, so that the spans are the same.
    def _is_time_to_send(self, step: Columns | Block, explainer: Explainer) -> bool:
        if isinstance(step, Columns):
            is_full = explainer.is_full  # of a session; here only if the recording has no submit marks
            explainer.add(step)
            return is_full
        if step.type == THREADS:
            self._name_threads(step.payload)
        elif step.type == ABSENCES:
            explainer.add_absences(step.array(ABSENCE))
        elif step.type == QUEUE_DROPS:
            explainer.add_queue_drops(step.array(QUEUE_DROP))
        return step.type == SUBMIT

    def _name_threads(self, threads: list[ThreadInfo]) -> None:
        for thread in threads:
            if thread.tid:
                self.facts.threads[thread.index] = thread
        self.encoder.set_threads(_list_threads(self.facts))

    # Returns False if the receiver is unreachable: the rest would only be dropped.
    def _send(self, explainer: Explainer, exporter: Exporter) -> bool:
        for request in explainer.requests():
            exporter.submit(request, wait=True)
            if exporter.read_counters().dropped_spans[DROPPED_UNREACHABLE]:
                return False
            self.packets += request.packets
        return True


def _make_encoder(arguments: argparse.Namespace, facts: RecordingFacts, correlate_window_ns: int) -> SpanEncoder:
    header = facts.header
    target: dict[str, Any] = {**header.resource, "process.pid": header.pid}
    configuration = find_configuration(os.environ)
    configured = configuration.resource if configuration else None
    resource = make_resource_attributes(target, arguments.service, configured)
    if sentence := describe_time_scale(find_time_scale(arguments), resource["service.name"]):
        tell(sentence)
    encoder = SpanEncoder(
        resource,
        facts.function_names,
        find_session_id(header.session),
        facts.make_clock(),
        format_trace_state(arguments.sample or 0.0) if header.settings.get("packets") != SLOW else "",
        correlate_window_ns,
        find_time_scale(arguments),
        arguments.spans == LINKS,
    )
    encoder.set_threads(_list_threads(facts))
    encoder.set_numbers(facts.names)
    for counted in facts.counter_sets:
        encoder.set_counters(counted.counters, counted.number)
    return encoder


def _list_threads(facts: RecordingFacts) -> list[tuple[int, str]]:
    threads = [(0, "")] * (max(facts.threads, default=-1) + 1)
    for index, thread in facts.threads.items():
        threads[index] = (thread.tid, thread.name)
    return threads


def _make_sampler(arguments: argparse.Namespace, facts: RecordingFacts) -> Sampler:
    chosen = any(value is not None for value in (arguments.sample, arguments.slower_than, arguments.slowest))
    slower = None if arguments.slower_than is None else round(arguments.slower_than * facts.ticks_per_second / 1e9)
    return Sampler((arguments.sample or 0.0) if chosen else 1.0, slower, arguments.slowest, find_flow(arguments))


def _conclude(arguments: argparse.Namespace, facts: RecordingFacts, export: _Export, counters: ExportCounters) -> int:
    dropped = sum(counters.dropped_spans.values()) + export.encoder.dropped_spans
    if facts.damage:
        tell(facts.damage)
    sentence = f"{counters.exported_spans:,} spans of {export.packets:,} packets were sent"
    if dropped:
        reasons = counters.last_error or ", ".join(counters.dropped_spans)
        sentence += f", {dropped:,} were dropped ({reasons})"
    service = f" --service {arguments.service}" if arguments.service else ""
    again = f"nfprobe export {arguments.recording} --endpoint {arguments.endpoint or EXAMPLE}{service}"
    tell(f"{sentence}.", again if counters.dropped_spans else "")
    if arguments.json:
        print_json(
            {
                "spans": {
                    "exported": counters.exported_spans,
                    "dropped": dropped,
                    "dropped_reasons": dict(counters.dropped_spans),
                    "dropped_traces": dict(export.limiter.dropped),
                },
                "packets": export.packets,
                "bad_packets": export.encoder.bad_packets,
                "requests": counters.exported_requests,
            }
        )
    return EXIT_NOT_DONE if counters.dropped_spans else EXIT_DONE


# ---- what is spooled ------------------------------------------------------------------------------------------------
# `nfprobe export` without a recording: sends what ended sessions left in the spool.


def export_spool(arguments: argparse.Namespace, where: Endpoint | Transport, patience_s: float, close_s: float) -> int:
    """Sends everything that waits, for whatever endpoint. Returns the exit status.

    Args:
        patience_s: how long the receiver may be unreachable; then the rest stays in the spool.
        close_s: time limit for the rest of the queue.
    """
    settings = find_spool(arguments)
    if settings is None or not settings.directory.is_dir():
        place = f" in {settings.directory}" if settings else ""
        raise UsageError(f"There is no spool{place}, and no recording was given.", "nfprobe export RECORDING")
    exporter = Exporter(where, spool=Spool(settings, write=False))
    try:
        with Waiting("sending what earlier sessions could not deliver"):
            exporter.wait(patience_s)
    except BaseException:
        exporter.close(0)
        raise
    return _conclude_spool(arguments, exporter.close(close_s))


def _conclude_spool(arguments: argparse.Namespace, counters: ExportCounters) -> int:
    found = counters.recovered
    assert found is not None
    for line in counters.sentences:
        tell(line)
    sentence = f"{found.exported_spans:,} spooled spans were sent"
    dropped = sum(found.dropped_spans.values())
    if dropped:
        reasons = ", ".join(f"{spans:,} {reason}" for reason, spans in found.dropped_spans.items())
        sentence += f", {dropped:,} are gone ({reasons})"
    if found.spooled_spans:
        sentence += f", {found.spooled_spans:,} still wait ({counters.last_error.rstrip('.')})"
    again = f"nfprobe export --endpoint {arguments.endpoint or EXAMPLE}"
    tell(f"{sentence}.", again if found.spooled_spans else "")
    if arguments.json:
        print_json({"spans": describe_counters(found), "requests": found.exported_requests})
    return EXIT_NOT_DONE if dropped or found.spooled_spans else EXIT_DONE
