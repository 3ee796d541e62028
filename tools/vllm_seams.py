"""Note how a version of vLLM looks at growpage's seams, from its source alone.

    python tools/vllm_seams.py WHEEL_OR_FOLDER [--output FILE]

WHEEL_OR_FOLDER is a wheel of vLLM, which need not be installable here, or a folder that holds the
package ``vllm``. The result is what the tests compare growpage's expectations with: which names
that it imports exist, the parameters of what it overrides or calls (``null`` for what is not
there), and which of the attributes that it reads exist.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import growpage
from growpage.engine import seams

Read = Callable[[str], str | None]
"""The text of a file of the source tree by its path, or none."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef


class Source:
    """A tree of Python source, in which names are looked up as an import would find them."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self.module = cache(self._module)

    def find(self, path: str) -> ast.AST | None:
        """What ``package.module:Class.method`` is defined as; methods may be inherited."""
        module, _, name = path.partition(":")
        first, *rest = name.split(".")
        found = self._named(module, first)
        for part in rest:
            found = found and self._member(*found, part)
        return found[1] if found else None

    def exists(self, path: str) -> bool:
        """Whether ``from package.module import name`` finds something: any name, or a module."""
        module, _, name = path.partition(":")
        tree = self.module(module)
        if self.find(path) is not None or self.module(f"{module}.{name}") is not None:
            return True
        targets = (
            target for node in ast.walk(tree or ast.Module([], [])) for target in _targets(node)
        )
        return any(isinstance(target, ast.Name) and target.id == name for target in targets)

    def attributes(self, path: str) -> set[str]:
        """Everything that a class and its bases declare, define, or set on ``self``."""
        module, _, name = path.partition(":")
        found = self._named(module, name)
        return set() if found is None else set(self._attributes(*found))

    # ---- looking up --------------------------------------------------------------------------

    def _module(self, module: str) -> ast.Module | None:
        base = module.replace(".", "/")
        for file in (f"{base}.py", f"{base}/__init__.py"):
            text = self._read(file)
            if text is not None:
                return ast.parse(text)
        return None

    def _named(self, module: str, name: str) -> tuple[str, ast.AST] | None:
        """The module that defines ``name`` as seen from ``module``, and the definition."""
        tree = self.module(module)
        for node in ast.walk(tree) if tree else ():
            if isinstance(node, ast.ClassDef | Definition) and node.name == name:
                return module, node
        for node in ast.walk(tree) if tree else ():
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return self._named(self._imported(module, node), alias.name)
        return None

    def _imported(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = self._read(module.replace(".", "/") + "/__init__.py") is not None
        parts = module.split(".")
        parts = parts[: len(parts) - node.level + package]
        return ".".join([*parts, *([node.module] if node.module else [])])

    def _bases(self, module: str, node: ast.ClassDef) -> Iterator[tuple[str, ast.ClassDef]]:
        for base in node.bases:
            name = base.value if isinstance(base, ast.Subscript) else base
            found = self._named(module, name.id) if isinstance(name, ast.Name) else None
            if found and isinstance(found[1], ast.ClassDef):
                yield found[0], found[1]

    def _member(self, module: str, node: ast.AST, name: str) -> tuple[str, ast.AST] | None:
        assert isinstance(node, ast.ClassDef)
        for member in node.body:
            if isinstance(member, ast.ClassDef | Definition) and member.name == name:
                return module, member
        for base in self._bases(module, node):
            found = self._member(*base, name)
            if found:
                return found
        return None

    def _attributes(self, module: str, node: ast.AST) -> Iterator[str]:
        assert isinstance(node, ast.ClassDef)
        for member in node.body:
            if isinstance(member, Definition):
                yield member.name
            for target in _targets(member):
                if isinstance(target, ast.Name):
                    yield target.id
        for inner in ast.walk(node):
            for target in _targets(inner):
                if isinstance(target, ast.Attribute) and _is_self(target.value):
                    yield target.attr
            if isinstance(inner, ast.Call) and ast.unparse(inner.func) == "self.register_buffer":
                yield ast.literal_eval(inner.args[0])
        for base in self._bases(module, node):
            yield from self._attributes(*base)


def _targets(node: ast.AST) -> list[ast.expr]:
    """What a statement assigns to or declares."""
    if isinstance(node, ast.AnnAssign):
        return [node.target]
    if isinstance(node, ast.Assign):
        return [
            part
            for target in node.targets
            for part in (target.elts if isinstance(target, ast.Tuple) else [target])
        ]
    return []


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def parameters(node: ast.AST) -> list[str]:
    """The names that a function takes, without the ``cls`` of a class method."""
    assert isinstance(node, Definition)
    args = node.args
    names = [arg.arg for arg in (*args.posonlyargs, *args.args)]
    if args.vararg:
        names.append(args.vararg.arg)
    names += [arg.arg for arg in args.kwonlyargs]
    if args.kwarg:
        names.append(args.kwarg.arg)
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    return names[1:] if "classmethod" in decorators else names


def imports() -> set[str]:
    """Every name that growpage imports from vLLM."""
    return {
        f"{node.module}:{alias.name}"
        for file in Path(growpage.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm"
        for alias in node.names
    }


def snapshot(source: Source) -> dict[str, Any]:
    """How the source looks at every seam of any supported version."""
    moved = (*seams.MAKE_ARG_PARSER.values(), *seams.CLI_ENV_SETUP.values())
    paths = sorted({*seams.CALLABLES, *seams.CHANGED, *moved})
    found = {path: source.find(path) for path in paths}
    return {
        "imports": {path: source.exists(path) for path in sorted(imports())},
        "callables": {path: node and parameters(node) for path, node in found.items()},
        "attributes": {
            path: sorted(set(names) & source.attributes(path))
            for path, names in sorted(seams.ATTRIBUTES.items())
        },
    }


def open_source(where: Path) -> Source:
    """The source in a wheel, or in a folder that holds ``vllm``."""
    if where.is_dir():

        def from_folder(file: str) -> str | None:
            path = where / file
            return path.read_text() if path.is_file() else None

        return Source(from_folder)
    archive = zipfile.ZipFile(where)
    names = frozenset(archive.namelist())
    return Source(lambda file: archive.read(file).decode() if file in names else None)


def main() -> None:
    """Write the snapshot as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("where", type=Path, metavar="WHEEL_OR_FOLDER")
    parser.add_argument("--output", type=Path, help="instead of standard output")
    options = parser.parse_args()
    text = json.dumps(snapshot(open_source(options.where)), indent=1) + "\n"
    if options.output:
        options.output.write_text(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
