# SPDX-License-Identifier: Apache-2.0
"""An expression that is compiled late finds what one finds that is compiled at once."""

from __future__ import annotations

import re

import pytest

from otel_nfprobe.base.lateregex import compile_late


def test_methods_and_pattern() -> None:
    late, early = compile_late(r"(a+)b", re.IGNORECASE), re.compile(r"(a+)b", re.IGNORECASE)
    assert late.pattern == early.pattern
    for text in ("xAAb ab", "b", ""):
        assert late.findall(text) == early.findall(text)
        assert late.sub("-", text) == early.sub("-", text)
        assert (late.search(text) is None) == (early.search(text) is None)
    found = late.fullmatch("AAB")
    assert found is not None
    assert found[1] == "AA"


def test_a_wrong_pattern_is_told_when_it_is_used() -> None:
    late = compile_late("(")
    with pytest.raises(re.error):
        late.match("")
