#!/usr/bin/env python3
"""Runs each suite ROUNDS times beside two busy loops: test-busy.py ROUNDS [SUITE...] <MESSAGES

MESSAGES is what `cargo test --no-run --message-format json` prints, which names the test programs.

Prints a table of the runs and of the tests that failed. Fails if a test failed. The output of each run that failed is
kept in build/busy.
"""

import collections
import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

TOP = pathlib.Path(__file__).resolve().parent.parent
LOGS = TOP / "build/busy"
BUSY_LOOPS = 2
# Only ends a hang: the slowest suite takes some minutes on an idle machine.
LIMIT_S = 3600
# A line that reports a failed test, as printed by libtest, by pytest, and by Node's two reporters.
FAILED = re.compile(
    r"^test (?P<rust>\S+) \.\.\. FAILED$"
    r"|^(?:FAILED|ERROR) (?P<python>\S+?::.+?)(?: - .*)?$"
    r"|^ *not ok \d+ - (?P<tap>.+?)$"
    r"|^ *✖ (?P<spec>.+?) \([\d.]+ms\)$",
    re.M,
)


@dataclasses.dataclass
class Suite:
    name: str
    command: list
    folder: pathlib.Path
    runs: int = 0
    failed_runs: int = 0
    failed_tests: collections.Counter = dataclasses.field(default_factory=collections.Counter)

    def run(self, round_number):
        self.runs += 1
        log = LOGS / f"{self.name}-{round_number}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                self.command, cwd=self.folder, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                code = process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                code = f"no end within {LIMIT_S} s"
            finally:
                stop_group(process)
        if code == 0:
            log.unlink()
            return
        self.failed_runs += 1
        names = {next(filter(None, found.groups())) for found in FAILED.finditer(log.read_text(errors="replace"))}
        self.failed_tests.update(names or [f"the suite itself: {code}"])
        print(f"   {self.name} failed: {log.relative_to(TOP)}", flush=True)

    def row(self):
        tests = ", ".join(f"{name} ({count})" for name, count in self.failed_tests.most_common())
        return f"| {self.name} | {self.runs} | {self.failed_runs} | {tests} |"


def stop_group(process):
    """Ends a process and its children. The process itself may have ended already."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def rust_suites(messages):
    for message in map(json.loads, messages):
        program = message.get("executable")
        if message["reason"] != "compiler-artifact" or not program or not message["profile"]["test"]:
            continue
        folder = pathlib.Path(message["manifest_path"]).parent
        listed = subprocess.run([program, "--list"], cwd=folder, capture_output=True, text=True, check=True).stdout
        if ": test\n" in listed:
            package = folder.name if folder != TOP else "module"
            yield Suite(f"{package}-{message['target']['name']}", [program], folder)


def client_suites():
    python = [str(TOP / "target/python/bin/python"), "-m", "pytest", "-q"]
    yield Suite("python", ["env", f"NODE_PATH={TOP}/target/node/node_modules", *python], TOP / "clients/python")
    yield Suite("node", ["npm", "test", "--silent"], TOP / "clients/node")


def main():
    rounds, wanted = int(sys.argv[1]), sys.argv[2:]
    suites = [*rust_suites(sys.stdin), *client_suites()]
    if wanted:
        unknown = set(wanted) - {suite.name for suite in suites}
        if unknown:
            sys.exit(f"no such suite: {' '.join(unknown)}; there are {' '.join(suite.name for suite in suites)}")
        suites = [suite for suite in suites if suite.name in wanted]
    LOGS.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY_LOOPS)]
    began = time.monotonic()
    try:
        for round_number in range(1, rounds + 1):
            print(f"== round {round_number} of {rounds}, {(time.monotonic() - began) / 60:.0f} min", flush=True)
            for suite in suites:
                suite.run(round_number)
    finally:
        for loop in loops:
            loop.kill()
        print("| suite | runs | failed runs | failed tests (runs) |\n|---|---|---|---|")
        print("\n".join(suite.row() for suite in suites), flush=True)
    sys.exit(any(suite.failed_runs for suite in suites))


if __name__ == "__main__":
    main()
