"""The examples in the README of the Python client and in that of the project run as pasted."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import redis.asyncio

README = pathlib.Path(__file__).parent.parent / "README.md"


def examples_of(path):
    return re.findall(r"```python\n(.*?)```", path.read_text(), re.S)


def test_the_examples_of_the_readme_run(server):
    examples = examples_of(README)
    assert len(examples) == 5
    # The second example is a program of its own; the others continue the first.
    programs = [examples[1], "\n".join(examples[:1] + examples[2:])]
    for program in programs:
        program = program.replace("port=6379", f"port={server.port}")
        if not hasattr(redis.asyncio.Redis, "aclose"):
            # redis-py 5.0.0 has only `close`.
            program = program.replace("client.aclose()", "client.close()")
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert re.search(r"held, with the fence \d{16}\b", done.stdout)
    assert re.search(r"held by a majority, with the fence \d{16}\b", done.stdout)


def test_the_example_of_the_project_runs(server):
    [example] = examples_of(README.parent.parent.parent / "README.md")
    program = example.replace("port=6379", f"port={server.port}")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert re.match(r"held, with the fence \d{16}\b", done.stdout), done.stdout
