#!/usr/bin/env python3
"""Checks the imports of every crate and client by file: no circles, and only what a table of ARCHITECTURE.md allows.

A table of layers has the header `| from | may use |`. The line above the header names the folder of the
sources. A row names files (`lock.rs`), folders (`queue/`, with the file `queue.rs`), or both; "all below"
stands for the rows below it. Files of one row may use each other. An import through a re-export counts as an
import of the file with the definition.

With --list, prints what each file imports.
"""

import ast
import re
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent


class Rust:
    """The files of a crate. Tests are left out: `tests.rs` and what `#[cfg(test)]` marks in a file."""

    def __init__(self, folder):
        self.folder = folder
        # A module is the tuple of the parts of its path: ("queue", "waiter"), and () for the crate's root.
        self.files = {self.module(path): path for path in folder.rglob("*.rs") if path.name != "tests.rs"}
        self.code = {module: without_tests(path.read_text()) for module, path in self.files.items()}
        self.uses = {module: self.used_names(module) for module in self.files}

    def module(self, path):
        parts = path.relative_to(self.folder).with_suffix("").parts
        return parts[:-1] if parts[-1] in ("mod", "lib", "main") else parts

    def used_names(self, module):
        """Returns the path of each name that a file imports by `use`. The key "*" has the paths of all `use ..::*`."""
        names = {"*": []}
        for tree in re.findall(r"\buse\s+([^;]+);", self.code[module]):
            # "a as b" becomes "a=b", without spaces.
            for path in paths(re.sub(r"\s+as\s+", "=", tree).replace("\n", "").replace(" ", "")):
                path, _, alias = path.partition("=")
                path = path.removesuffix("::self")
                name = alias or path.split("::")[-1]
                if name == "*":
                    names["*"].append(path.removesuffix("::*"))
                else:
                    names[name] = path
        return names

    def defines(self, module, name):
        """Returns whether a module defines an item of this name, rather than re-exporting it."""
        return re.search(rf"\b(?:struct|enum|trait|type|fn|const|static|mod|macro_rules!)\s+{name}\b", self.code[module])

    def resolve(self, module, path, depth=0):
        """Returns the module that defines the item to which `path` leads from `module`; None if it is in another crate."""
        # First follow the path through the modules: `base` is the module so far, and `names` is the rest.
        names, base = path.split("::"), module
        if names[0] == "crate":
            names, base = names[1:], ()
        elif names[0] in ("self", "super"):
            while names and names[0] in ("self", "super"):
                base = base[:-1] if names[0] == "super" else base
                names = names[1:]
        elif module + (names[0],) not in self.files and names[0] not in self.uses[module]:
            return None
        while names and base + (names[0],) in self.files:
            base, names = base + (names[0],), names[1:]
        # `depth` ends the search in re-exports that lead to each other.
        if not names or names[0] == "*" or depth == 8 or self.defines(base, names[0]):
            return base
        # `base` re-exports the item: follow its `use`, unless `path` comes from that `use`.
        if names[0] in self.uses[base] and (self.uses[base][names[0]] != path or base != module):
            return self.resolve(base, "::".join([self.uses[base][names[0]], *names[1:]]), depth + 1)
        for glob in self.uses[base]["*"]:
            to = self.resolve(base, glob, depth + 1)
            if to is not None and to != base and self.defines(to, names[0]):
                return to
        return base

    def imports(self, module):
        """Returns the modules of the crate that a module uses: by `use`, or by a path in its code."""
        children = [m[-1] for m in self.files if m and m[:-1] == module]
        start = r"(?:crate|super|self" + "".join("|" + child for child in children) + ")::"
        code = re.sub(r"\buse\s+[^;]+;", "", self.code[module])
        paths_in_code = re.findall(rf"(?<![:$\w]){start}[\w:]+", code)
        uses = self.uses[module]
        found = [*paths_in_code, *(path + "::*" for path in uses["*"]), *(path for name, path in uses.items() if name != "*")]
        return {self.resolve(module, path) for path in found} - {None, module}


def without_tests(text):
    """Returns the code without comments, strings and test modules."""
    code = re.sub(r"//.*|\"(?:\\[\s\S]|[^\"\\])*\"", "", text)
    while found := re.search(r"#\[cfg\(test\)\]\s*mod \w+ \{", code):
        end, open_braces = found.end(), 1
        while open_braces and end < len(code):
            open_braces += (code[end] == "{") - (code[end] == "}")
            end += 1
        code = code[: found.start()] + code[end:]
    return re.sub(r"#\[cfg\(test\)\]\s*use [^;]+;", "", code)


def paths(tree):
    """Returns the paths of a `use`: a::b, a::c::d and a::c::e for `a::{b, c::{d, e}}`."""
    brace = tree.find("{")
    if brace < 0:
        return [tree]
    prefix, inner = tree[:brace], tree[brace + 1 : tree.rfind("}")]
    found, start, open_braces = [], 0, 0
    for i, c in enumerate(inner + ","):
        open_braces += (c == "{") - (c == "}")
        if c == "," and open_braces == 0:
            # After a last comma, the part is empty.
            if inner[start:i]:
                found += [prefix + path for path in paths(inner[start:i])]
            start = i + 1
    return found


class Python:
    """The files of the Python client: the modules of the package `dlock`."""

    def __init__(self, folder):
        self.files = {(path.stem,): path for path in folder.rglob("*.py")}

    def imports(self, module):
        found = set()
        for node in ast.walk(ast.parse(self.files[module].read_text())):
            if isinstance(node, ast.ImportFrom) and (node.level or node.module.split(".")[0] == "dlock"):
                inside = (node.module or "").removeprefix("dlock").removeprefix(".")
                names = [inside] if inside else [alias.name for alias in node.names]
                found |= {(name,) if (name,) in self.files else ("__init__",) for name in names}
        return found - {module}


class Node:
    """The files of the Node client."""

    def __init__(self, folder):
        self.files = {(path.name,): path for path in folder.rglob("*.*ts")}

    def imports(self, module):
        names = re.findall(r"(?:from|import\()\s*\"\./([\w./-]+)\"", self.files[module].read_text())
        return {(re.sub(r"js$", "ts", name),) for name in names} - {module}


def packages():
    """Yields the folder of each package's sources, as ARCHITECTURE.md names it, with the class that reads it."""
    yield "src", Rust
    for folder in sorted(TOP.glob("crates/*/src")):
        yield str(folder.relative_to(TOP)), Rust
    yield "clients/python/src/dlock", Python
    yield "clients/node/src", Node


def circles(graph):
    """Returns the circles of a graph: its strongly connected components of more than one node (by Tarjan's algorithm)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for to in sorted(graph[node]):
            if to not in index:
                visit(to)
            if to in stack:
                low[node] = min(low[node], low[to])
        if low[node] == index[node]:
            circle = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            found.append(circle)

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return [sorted(circle) for circle in found if len(circle) > 1]


def layer_tables():
    """Returns the tables of ARCHITECTURE.md by folder. A row is a pair: the list of its files and folders, and the list
    of those that they may use (or the text "all below")."""
    tables, folder, rows = {}, None, None
    for line in (TOP / "ARCHITECTURE.md").read_text().splitlines():
        if re.fullmatch(r"\| *from *\| *may use *\|", line):
            rows = tables.setdefault(folder, [])
        elif rows is not None and line.startswith("|"):
            names, uses = line.strip().strip("|").split("|")
            if not set(line) <= set("|- :"):
                rows.append((code_spans(names), "all below" if "all below" in uses else code_spans(uses)))
        elif line.strip():
            rows = None
            # If this line names a folder of sources, the next table is about that folder.
            found = re.findall(r"`([\w/.-]*\bsrc\b[\w/.-]*)`", line)
            folder = found[-1].rstrip("/") if found else folder
    return tables


def code_spans(cell):
    return re.findall(r"`([^`]+)`", cell)


def row_of(rows, file):
    """Returns the number of the row that has a file: by its own name, else by the innermost of its folders; None if no
    row has it."""
    best = None
    for number, (names, _) in enumerate(rows):
        for name in names:
            bare = name.rstrip("/")
            # A folder `queue/` also has the file `queue.rs`.
            is_in_folder = name.endswith("/") and (file.startswith(name) or file.rpartition(".")[0] == bare)
            rank = (file == bare, len(bare))
            if (file == bare or is_in_folder) and (best is None or rank > best[0]):
                best = (rank, number)
    return None if best is None else best[1]


def is_named(names, file):
    """Returns whether a table cell with these names covers the file."""
    return row_of([(names, [])], file) is not None


def layer_errors(rows, graph):
    """Yields an error for each import that a table of layers does not allow, each name in the table that no file has,
    and each file without a row."""
    for name in {name for names, uses in rows for name in [*names, *(uses if uses != "all below" else [])]}:
        if not any(is_named([name], file) for file in graph):
            yield f"the table names {name}, which does not exist"
    for file, to in graph.items():
        row = row_of(rows, file)
        if row is None:
            yield f"the table has no row for {file}"
            continue
        uses = rows[row][1]
        for other in sorted(to):
            other_row = row_of(rows, other)
            below = uses == "all below" and other_row is not None and other_row > row
            if other_row != row and not below and (uses == "all below" or not is_named(uses, other)):
                yield f"{file} must not use {other}"


SHARED_WITH_FFI = {"dlock_protocol::options", "dlock_protocol::reply"}


def ffi_errors(package):
    """Yields the imports of src/ffi that its layer forbids. src/ffi may use only its own files, and of the other crates
    only SHARED_WITH_FFI."""
    for module, path in package.files.items():
        if module[:1] == ("ffi",):
            for other in package.imports(module):
                if other[:1] != ("ffi",):
                    yield f"{path.name} must not use {'/'.join(other)}"
            for name in set(re.findall(r"\bdlock_\w+(?:::\w+)?", path.read_text())) - SHARED_WITH_FFI:
                yield f"{path.name} must not use {name}"


def main():
    errors, tables = [], layer_tables()
    for folder, language in packages():
        package = language(TOP / folder)
        names = {module: str(path.relative_to(TOP / folder)) for module, path in package.files.items()}
        graph = {names[module]: {names[to] for to in package.imports(module)} for module in package.files}
        if "--list" in sys.argv:
            for file, to in sorted(graph.items()):
                print(f"{folder}/{file}: {' '.join(sorted(to))}")
        errors += [f"{folder}: these files import each other: {' '.join(circle)}" for circle in circles(graph)]
        if folder == "src":
            errors += [f"src/ffi: {error}" for error in ffi_errors(package)]
        if folder in tables:
            errors += [f"{folder}: {error}" for error in layer_errors(tables.pop(folder), graph)]
        elif len(graph) > 1:
            errors.append(f"ARCHITECTURE.md: no table of layers for {folder}")
    errors += [f"ARCHITECTURE.md: no sources in {folder}" for folder in tables]
    print("\n".join(errors), end="\n" if errors else "")
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main())
