#!/usr/bin/env python3
"""The imports of src/ by file: arrows point one way.

A cycle of files is allowed where it is a parent with its children, and no more than three files. ffi/ imports nothing
but itself. With --list, prints for each file what it imports.
"""
import re
import sys
from pathlib import Path

SRC = Path(__file__).resolve().parent.parent / "src"
MOST = 3


def module_of(path):
    parts = list(path.relative_to(SRC).with_suffix("").parts)
    return tuple(parts[:-1] if parts[-1] in ("mod", "lib") else parts)


FILES = {module_of(path): path for path in sorted(SRC.rglob("*.rs"))}


def shown(module):
    return str(FILES[module].relative_to(SRC))


def paths(tree):
    """`a::{b, c::{d, e}}` as a::b, a::c::d, a::c::e."""
    at = tree.find("{")
    if at < 0:
        return [tree]
    inner, found, start, depth = tree[at + 1 : tree.rfind("}")], [], 0, 0
    for i, c in enumerate(inner + ","):
        depth += (c == "{") - (c == "}")
        if c == "," and depth == 0:
            found += [tree[:at] + part for part in paths(inner[start:i])] if inner[start:i] else []
            start = i + 1
    return found


def resolve(module, path):
    """The file that an absolute or relative path leads to."""
    names, base = path.split("::"), ()
    if names[0] == "crate":
        names = names[1:]
    else:
        base = module
        while names and names[0] in ("self", "super"):
            base = base[:-1] if names[0] == "super" else base
            names = names[1:]
    for name in names:
        if base + (name,) not in FILES:
            break
        base += (name,)
    return base


def imports(module):
    code = re.sub(r"//.*|\"(?:\\[\s\S]|[^\"\\])*\"", "", FILES[module].read_text())
    children = [m[-1] for m in FILES if m and m[:-1] == module]
    start = r"\b(?:crate|super|self" + "".join("|" + child for child in children) + ")::"
    trees = re.findall(r"\buse\s+([^;]+);", code)
    inline = re.findall("(?<![:$\\w])" + start + r"[\w:]+", re.sub(r"\buse\s+[^;]+;", "", code))
    found = [p for tree in trees for p in paths(re.sub(r"\s+", "", tree)) if re.match(start, p)]
    return {resolve(module, p) for p in found + inline} - {module}


def cycles(graph):
    """The strongly connected components (Tarjan) of more than one file."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for to in graph[node]:
            if to not in index:
                visit(to)
            if to in stack:
                low[node] = min(low[node], low[to])
        if low[node] == index[node]:
            cycle = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            found.append(cycle)

    for node in graph:
        if node not in index:
            visit(node)
    return [sorted(cycle) for cycle in found if len(cycle) > 1]


def main():
    graph = {module: imports(module) for module in FILES}
    if "--list" in sys.argv:
        for module, to in graph.items():
            print(f"{shown(module)}: {' '.join(sorted(map(shown, to)))}")
    wrong = False
    for cycle in cycles(graph):
        family = all(module[: len(cycle[0])] == cycle[0] for module in cycle)
        allowed = family and len(cycle) <= MOST
        wrong |= not allowed
        print(f"{'allowed: cycle' if allowed else 'FORBIDDEN: cycle'} of {len(cycle)}: {' '.join(map(shown, cycle))}")
    for module, to in graph.items():
        out = [shown(other) for other in to if other[:1] != ("ffi",)]
        # What an option is, a name with a range, it shares with the protocol.
        locks = set(re.findall(r"\bdlock_\w+(?:::\w+)?", FILES[module].read_text())) - {"dlock_protocol::options"}
        if module[:1] == ("ffi",) and (out or locks):
            wrong = True
            print(f"FORBIDDEN in {shown(module)}, which knows no locks: {' '.join([*out, *sorted(locks)])}")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
