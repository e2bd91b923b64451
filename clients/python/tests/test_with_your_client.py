"""The programs of docs/with-your-client.md run as they are."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess

import pytest
from conftest import LIMIT, until

DOCUMENT = pathlib.Path(__file__).parents[3] / "docs/with-your-client.md"
CHECK = {
    "php": ["php", "-r", "exit(class_exists('Redis') ? 0 : 1);"],
    "ruby": ["ruby", "-e", 'require "redis"'],
}
RUN = {"php": ["php"], "ruby": ["ruby"]}


def is_installed(language):
    """Returns whether the language and its Redis client are installed. `make test-clients` installs both."""
    if shutil.which(RUN[language][0]) is None:
        return False
    return subprocess.run(CHECK[language], capture_output=True).returncode == 0


@pytest.mark.parametrize("language", RUN)
def test_a_program_waits_for_the_lock_and_releases_it(server, r, tmp_path, language):
    if not is_installed(language) and not os.environ.get("DLOCK_TEST_LANGUAGES"):
        pytest.skip(f"{language} or its client is not installed")
    text = re.search(f"```{language}\n(.*?)```", DOCUMENT.read_text(), re.S)[1]
    program = tmp_path / f"main.{language}"
    program.write_text(text.replace("6379", str(server.port)))
    r.execute_command("DLOCK.ACQUIRE", "invoice:42", "holder", 60_000)
    command = [*RUN[language], program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            until("a client waits", lambda: r.execute_command("DLOCK.WAITERS", "invoice:42"))
            assert r.execute_command("DLOCK.RELEASE", "invoice:42", "holder") == 1
            assert re.match(r"held, with the fence \d{16}\b", running.stdout.readline())
            assert running.wait(LIMIT) == 0
        finally:
            running.kill()
    assert r.exists("invoice:42") == 0
