"""The types of the client, for a program of a user and for the examples of the README."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

import pytest
import redis
from test_readme import programs_of_readme

import dlock

PROGRAM = pathlib.Path(__file__).with_name("user_program.py")
TOP = pathlib.Path(__file__).parents[3]

needs_types = pytest.mark.skipif(
    not (pathlib.Path(redis.__file__).parent / "py.typed").exists()
    or int(redis.__version__.split(".")[0]) < 8,
    reason="needs the types of redis-py 8 or later",
)


def test_the_program_uses_each_public_name():
    text = PROGRAM.read_text()
    assert [name for name in dlock.__all__ if f"dlock.{name}" not in text] == []


@pytest.fixture
def programs(tmp_path):
    """The program and the examples, in a folder of their own: the client's configuration does not count."""
    for number, program in enumerate([PROGRAM.read_text(), *programs_of_readme()]):
        (tmp_path / f"program{number}.py").write_text(program)
    return tmp_path.glob("*.py")


@needs_types
def test_mypy_accepts_the_programs(tmp_path, programs):
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *programs]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_types
def test_pyright_accepts_the_programs(tmp_path, programs):
    pyright = shutil.which("pyright") or shutil.which(TOP / "target/node/node_modules/.bin/pyright")
    if pyright is None:
        pytest.skip("no pyright: make test-clients installs it")
    command = [pyright, "--pythonpath", sys.executable, *programs]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
