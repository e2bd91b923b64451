"""The table of capabilities in docs/clients.md names what exists in each client."""

from __future__ import annotations

import inspect
import pathlib
import re

import pytest

import dlock
import dlock.asyncio

TOP = pathlib.Path(__file__).parents[3]
# By language: the sources, and the names that are no identifier of them.
SOURCES = {
    "Rust": ("crates/client", "rs toml"),
    "Node": ("clients/node/src", "ts mts"),
    "Go": ("clients/go", "go mod"),
}


def cells():
    """Yields each capability with the name of a language and its cell."""
    table = (TOP / "docs/clients.md").read_text().partition("## Capabilities")[2].partition("\n## ")[0]
    header, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table.splitlines()
        if line[:1] == "|"
    ]
    for row in rows:
        assert len(row) == len(header), row
        for language, cell in zip(header[1:], row[1:]):
            yield row[0], language, cell


CELLS = [cell for cell in cells() if not cell[2].startswith("planned")]


def names_in(cell):
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize(("capability", "language", "cell"), CELLS)
def test_a_cell_has_a_name_or_a_reason(capability, language, cell):
    assert names_in(cell) or len(cell.split()) > 1


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        (capability, name)
        for capability, language, cell in CELLS
        if language == "Python"
        for name in names_in(cell)
    ],
)
def test_a_name_of_the_python_client_exists(capability, name):
    options = {**inspect.signature(dlock.Lock).parameters, **inspect.signature(dlock.Redlock).parameters}
    if name.endswith("="):
        assert name[:-1] in options
        return
    path = name.partition("(")[0].removeprefix("dlock.").split(".")
    if path[0] in ("otel", "testing"):
        assert (TOP / f"clients/python/src/dlock/{path[0]}.py").exists()
        return
    for module in dlock, dlock.asyncio:
        if (name == "dlock.Quorum" or name.endswith("Error")) and module is dlock.asyncio:
            continue
        holders = [module, module.Lock, module.Redlock, getattr(module, "Operator", None)]
        found = next((each for each in holders if hasattr(each, path[0])), None)
        for part in path:
            if part == "holder":
                continue  # an attribute of an error's object
            assert hasattr(found, part), f"{module.__name__} has no {name}"
            found = getattr(found, part)


@pytest.mark.parametrize(
    ("capability", "language", "name"),
    [(*cell[:2], name) for cell in CELLS if cell[1] in SOURCES for name in names_in(cell[2])],
)
def test_a_name_of_another_client_is_in_its_sources(capability, language, name):
    folder, kinds = SOURCES[language]
    word = re.search(r"(\w+)\W*$", name)[1]
    files = [
        file
        for kind in kinds.split()
        for file in (TOP / folder).rglob(f"*.{kind}")
        if "node_modules" not in file.parts
    ]
    assert any(re.search(rf"\b{word}\b", file.read_text()) for file in files), f"{language} has no {word}"
