# SPDX-License-Identifier: Apache-2.0
"""Regular expressions that are compiled when they are first used: most commands use few of those of their modules."""

from __future__ import annotations

import re
from typing import Any, cast


class _Late:
    def __init__(self, pattern: str, flags: int) -> None:
        self.pattern, self._flags = pattern, flags

    def __getattr__(self, name: str) -> Any:
        compiled = re.compile(self.pattern, self._flags)
        self.__dict__.update({method: getattr(compiled, method) for method in dir(compiled) if method[0] != "_"})
        return getattr(compiled, name)


def compile_late(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """Returns what `re.compile` returns, except its flags. A wrong pattern raises when it is used first."""
    return cast("re.Pattern[str]", _Late(pattern, flags))
