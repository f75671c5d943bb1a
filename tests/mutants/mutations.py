"""Small faults for a module: what a slip of the hand would do to its source, one at a time.

Each mutant changes one operator, constant, condition or statement of a function. Text is left
alone: the wording of an error is no decision. Limits and defaults that stand outside functions are
left alone: they are tuning. A mutant is named by the function it is in and by what it changes, so
that the name survives changes elsewhere in the file.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_LEFT_ALONE = (ast.JoinedStr, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_REPORTS = frozenset({"info", "warn", "warning", "error", "debug"})
"""Calls that only tell a person something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One fault in one module."""

    module: str
    name: str
    tree: ast.Module

    def compile(self, path: str) -> CodeType:
        return compile(self.tree, path, "exec")


def mutants_of(module: str, source: str) -> list[Mutant]:
    """Every mutant of a module, in the order of its source."""
    tree = ast.parse(source)
    seen: Counter[str] = Counter()
    found = []
    for scope, number, after in _faults(tree):
        mutated = copy.deepcopy(tree)
        target = list(ast.walk(mutated))[number]
        before = ast.unparse(target).split("\n")[0]
        _replace(mutated, target, after)
        ast.fix_missing_locations(mutated)
        name = f"{scope}: {before} -> {ast.unparse(after).split(chr(10))[0]}"
        seen[name] += 1
        numbered = name if seen[name] == 1 else f"{name} #{seen[name]}"
        found.append(Mutant(module=module, name=numbered, tree=mutated))
    return found


def _faults(tree: ast.Module) -> Iterator[tuple[str, int, ast.AST]]:
    """The scope of a node, its number in `ast.walk`, and what to put in its place."""
    numbers = {id(node): number for number, node in enumerate(ast.walk(tree))}
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    for scope, owner in _scopes(tree, ""):
        for node in _visit(owner) if isinstance(owner, functions) else ():
            for after in _variants(node):
                yield scope, numbers[id(node)], after


def _scopes(node: ast.AST, outer: str) -> Iterator[tuple[str, ast.AST]]:
    """Functions and classes, each by its full name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            scope = f"{outer}.{child.name}" if outer else child.name
            yield scope, child
            yield from _scopes(child, scope)
        else:
            yield from _scopes(child, outer)


def _visit(node: ast.AST) -> Iterator[ast.AST]:
    """Walk through what is worth mutating of a function; inner ones have a scope of their own."""
    for name, value in ast.iter_fields(node):
        if name in ("decorator_list", "annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, _LEFT_ALONE):
                continue
            if isinstance(child, ast.Expr) and _is_report(child.value):
                continue
            if isinstance(child, ast.keyword) and child.arg == "strict":
                # `zip` checks a claim of ours that no test can break.
                continue
            yield child
            if not isinstance(child, ast.Raise):
                yield from _visit(child)


def _is_report(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return True
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name in _REPORTS


def _variants(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Compare):
        for at, operator in enumerate(node.ops):
            changed = copy.deepcopy(node)
            changed.ops[at] = _COMPARISONS[type(operator)]()
            yield changed
    elif isinstance(node, ast.BoolOp):
        other = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        yield ast.BoolOp(other, node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        if not any(isinstance(side, ast.JoinedStr) for side in (node.left, node.right)):
            yield ast.BinOp(node.left, _OPERATORS[type(node.op)](), node.right)
    elif isinstance(node, ast.Constant):
        yield from _constants(node)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLS:
        yield ast.Call(ast.Name(_CALLS[node.func.id], ast.Load()), node.args, node.keywords)
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        yield from _conditions(node)
    else:
        yield from _statements(node)


def _constants(node: ast.Constant) -> Iterator[ast.AST]:
    if isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node.value, int):
        yield ast.Constant(node.value + 1)


def _conditions(node: ast.If | ast.While | ast.IfExp) -> Iterator[ast.AST]:
    """A condition that no other mutation reaches: a bare name, attribute or call."""
    if isinstance(node.test, ast.Name | ast.Attribute | ast.Call | ast.NamedExpr):
        changed = copy.copy(node)
        changed.test = ast.UnaryOp(ast.Not(), node.test)
        yield changed


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Raise) or (isinstance(node, ast.Expr) and _acts(node.value)):
        yield ast.Pass()
    elif isinstance(node, ast.AugAssign):
        yield ast.AugAssign(node.target, _OPERATORS[type(node.op)](), node.value)
        yield ast.Pass()
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
        yield ast.Pass()
    elif isinstance(node, ast.Continue):
        yield ast.Break()
    elif isinstance(node, ast.Break):
        yield ast.Continue()


def _acts(node: ast.expr) -> bool:
    return isinstance(node, ast.Call | ast.Await)


def _replace(tree: ast.Module, target: ast.AST, after: ast.AST) -> None:
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is target:
                setattr(parent, name, after)
                return
            if isinstance(value, list) and any(item is target for item in value):
                setattr(parent, name, [after if item is target else item for item in value])
                return
    raise LookupError(ast.dump(target))
