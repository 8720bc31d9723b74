# SPDX-License-Identifier: Apache-2.0
"""Every sentence that the program can end with, found in its sources, with `…` for what only a run knows."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "otel_nfprobe"
VARIES = "…"
ERROR = "NfprobeError"
WORDINGS_MAX = 200  # of one expression


class _Module:
    """One source file: its constants, its functions, and what stands in which function."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tree = ast.parse(path.read_text())
        self.imported: dict[str, tuple[str, str]] = {}
        self.constants: dict[str, ast.expr] = {}
        self.nodes: dict[ast.AST, list[ast.AST]] = {}  # of each scope: the module, and each function
        self.scopes: list[ast.FunctionDef] = []
        self._look_through(self.tree)
        nodes = [node for own in self.nodes.values() for node in own]
        self.classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
        self.functions = {node.name: node for node in self.scopes}
        for node in nodes:
            if isinstance(node, ast.ImportFrom):
                self.imported |= {item.asname or item.name: (node.module or "", item.name) for item in node.names}
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.constants[node.targets[0].id] = node.value

    def _look_through(self, scope: ast.AST) -> None:
        # Once through all nodes, since that is what takes the time.
        waiting = [scope]
        while waiting:
            own: list[ast.AST] = []
            self.nodes[scope := waiting.pop()] = own
            inside = _children(scope)
            while inside:
                node = inside.pop()
                if isinstance(node, ast.FunctionDef):
                    self.scopes.append(node)
                    waiting.append(node)
                    inside += node.decorator_list
                else:
                    own.append(node)
                    inside += _children(node)

    def raised(self, errors: set[str]) -> Iterator[tuple[ast.expr, ast.AST]]:
        """The first argument of each error that is made here, and the function that it stands in."""
        for scope in [self.tree, *self.scopes]:
            for node in self.nodes[scope]:
                if isinstance(node, ast.Call) and node.args and _name_of(node.func) in errors:
                    yield node.args[0], scope


# Nearly half of all nodes, and nothing is in them.
_LEAVES = (ast.expr_context, ast.operator, ast.cmpop, ast.unaryop, ast.boolop)


def _children(node: ast.AST) -> list[ast.AST]:
    found: list[ast.AST] = []
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            found += [item for item in value if isinstance(item, ast.AST)]
        elif isinstance(value, ast.AST) and not isinstance(value, _LEAVES):
            found.append(value)
    return found


def _name_of(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


class Sentences:
    """Reads wordings out of expressions: constants, f-strings, sums, conditions, names and calls of functions here."""

    def __init__(self) -> None:
        self.modules = {path: _Module(path) for path in sorted(PACKAGE.rglob("*.py"))}
        classes = [node for module in self.modules.values() for node in module.classes]
        self.errors = {ERROR}
        while more := {node.name for node in classes if {*map(_name_of, node.bases)} & self.errors} - self.errors:
            self.errors |= more

    def find(self) -> dict[str, str]:
        """Each wording, and where it is made."""
        found = {}
        for path, module in self.modules.items():
            for expression, scope in module.raised(self.errors):
                for text in self._wordings(expression, module, scope, 0):
                    found[_plain(text)] = f"{path.relative_to(ROOT)}:{expression.lineno}"
        return found

    def _wordings(self, node: ast.expr | None, module: _Module, scope: ast.AST, depth: int) -> list[str]:
        if node is None or depth > 6:
            return [VARIES]
        if isinstance(node, ast.Constant):
            return [node.value if isinstance(node.value, str) else VARIES]
        if isinstance(node, ast.JoinedStr):
            return self._joined(node.values, module, scope, depth)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self._joined([node.left, node.right], module, scope, depth)
        if isinstance(node, ast.IfExp):
            return self._all([node.body, node.orelse], module, scope, depth)
        if isinstance(node, ast.BoolOp):
            return self._all(node.values, module, scope, depth)
        if isinstance(node, ast.Name):
            return self._of_name(node.id, module, scope, depth)
        if isinstance(node, ast.Call):
            return self._of_call(node, module, depth)
        return [VARIES]

    def _joined(self, parts: list[ast.expr], module: _Module, scope: ast.AST, depth: int) -> list[str]:
        # What an f-string takes in stays open, but for the choice between two fixed texts.
        choices = []
        for part in parts:
            inside = part.value if isinstance(part, ast.FormattedValue) else part
            fixed = isinstance(inside, (ast.IfExp, ast.Constant)) or part is inside
            texts = (
                self._wordings(inside, module, scope, depth + 1) if fixed else _fixed_texts(inside, module.nodes[scope])
            )
            choices.append(texts or [VARIES])
        return ["".join(texts) for texts in itertools.islice(itertools.product(*choices), WORDINGS_MAX)]

    def _all(self, nodes: list[ast.expr], module: _Module, scope: ast.AST, depth: int) -> list[str]:
        return [text for node in nodes for text in self._wordings(node, module, scope, depth + 1)]

    def _of_name(self, name: str, module: _Module, scope: ast.AST, depth: int) -> list[str]:
        values: list[ast.expr] = []
        for node in module.nodes[scope]:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    values += _assigned(target, node.value, name)
                    values += self._returned(target, node.value, name, module)
        if not values and name in module.constants:
            values = [module.constants[name]]
        if not values and name in module.imported:
            other, original = self._look_up(*module.imported[name])
            if other and original in other.constants:
                return self._wordings(other.constants[original], other, other.tree, depth + 1)
        return self._all(values, module, scope, depth) if values else [VARIES]

    def _of_call(self, node: ast.Call, module: _Module, depth: int) -> list[str]:
        name = _name_of(node.func)
        other: _Module | None = module
        if name not in module.functions and name in module.imported:
            other, name = self._look_up(*module.imported[name])
        if other is None or name not in other.functions or not isinstance(node.func, ast.Name):
            return [VARIES]
        function = other.functions[name]
        returned = [item.value for item in other.nodes[function] if isinstance(item, ast.Return) and item.value]
        return [text for value in returned for text in self._wordings(value, other, function, depth + 1)]

    def _returned(self, target: ast.expr, value: ast.expr, name: str, module: _Module) -> list[ast.expr]:
        """What a function of this file returns at the place of a name: `sentence, rest = tell_why(...)`."""
        names = [_name_of(inner) for inner in target.elts] if isinstance(target, ast.Tuple) else []
        function = module.functions.get(_name_of(value.func)) if isinstance(value, ast.Call) else None
        if name not in names or function is None:
            return []
        returned = [item.value for item in module.nodes[function] if isinstance(item, ast.Return)]
        return [item.elts[names.index(name)] for item in returned if isinstance(item, ast.Tuple)]

    def _look_up(self, module: str, name: str) -> tuple[_Module | None, str]:
        path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
        return self.modules.get(path), name


def _fixed_texts(node: ast.expr, own: list[ast.AST]) -> list[str]:
    """What a name can hold that is only ever given constant texts; nothing of any other expression."""
    if not isinstance(node, ast.Name):
        return []
    given = [
        value
        for item in own
        if isinstance(item, ast.Assign)
        for target in item.targets
        for value in _assigned(target, item.value, node.id)
    ]
    texts = [value.value for value in given if isinstance(value, ast.Constant) and isinstance(value.value, str)]
    return [text for text in texts if text] if len(texts) == len(given) else []


def _assigned(target: ast.expr, value: ast.expr, name: str) -> list[ast.expr]:
    if isinstance(target, ast.Name) and target.id == name:
        return [value]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = zip(target.elts, value.elts, strict=True)
        return [found for inner, part in pairs for found in _assigned(inner, part, name)]
    return []


def _plain(text: str) -> str:
    return re.sub(f"{VARIES}+", VARIES, " ".join(text.split()))


def pattern_of(entry: str) -> re.Pattern[str]:
    """What an entry of the page matches: `…` stands for anything, as it does in a wording."""
    return re.compile(".+".join(re.escape(part) for part in entry.split(VARIES)), re.DOTALL)
