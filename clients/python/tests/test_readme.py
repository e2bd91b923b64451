"""The examples in the README of the Python client, in its page in docs/ and in the README of the project run
as pasted."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

README = pathlib.Path(__file__).parent.parent / "README.md"
TOP = README.parent.parent.parent


def examples_of(path):
    return re.findall(r"```python\n(.*?)```", path.read_text(), re.S)


def programs_of_readme():
    """Returns the programs of the README: its second example is one of its own; the others continue the
    first."""
    examples = examples_of(README)
    assert len(examples) == 7
    return examples[1], "\n".join(examples[:1] + examples[2:])


def run(program, server):
    """Runs a program, and returns what it prints."""
    program = program.replace("port=6379", f"port={server.port}")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_examples_of_the_readme_run(server):
    own, others = programs_of_readme()
    assert re.search(r"held, with the fence \d{16}\b", run(own, server))
    printed = run(others, server)
    assert re.search(r"held, with the fence \d{16}\b", printed)
    assert re.search(r"leading, in the term \d{16}\b", printed)
    assert re.search(r"held by a majority, with the fence \d{16}\b", printed)


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) <= 150


def test_the_examples_of_the_page_run(server):
    for example in examples_of(TOP / "docs/python.md"):
        run(example, server)


def test_the_example_of_the_project_runs(server):
    [example] = examples_of(TOP / "README.md")
    assert re.match(r"held, with the fence \d{16}\b", run(example, server))
