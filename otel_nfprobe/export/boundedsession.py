# SPDX-License-Identifier: Apache-2.0
"""A `requests` session for the SDK's HTTP exporters, with responses bounded as in otlp_http.py."""

from __future__ import annotations

from typing import Any

import requests
from requests.adapters import HTTPAdapter

from otel_nfprobe.export.otlp_http import bound_answers, read_answer


class _BoundedAdapter(HTTPAdapter):
    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options)
        bound_answers(self.poolmanager)

    def proxy_manager_for(self, *arguments: Any, **options: Any) -> Any:
        return bound_answers(super().proxy_manager_for(*arguments, **options))

    def send(self, *arguments: Any, **options: Any) -> requests.Response:
        response = super().send(*arguments, **options | {"stream": True})
        try:
            response._content = read_answer(response.raw)
        finally:
            if not response._content:
                response._content = b""
        return response


def open_session() -> requests.Session:
    """Returns a session that connects on first use."""
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, _BoundedAdapter())
    return session
