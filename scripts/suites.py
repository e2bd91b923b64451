#!/usr/bin/env python3
"""Runs the suites of all languages side by side: suites.py [--rounds N] [--busy] [SUITE...] <MESSAGES

MESSAGES is what `cargo test --no-run --message-format json` prints, which names the test programs. A suite is one
of these programs, the documentation's tests (doc), or all tests of the Python, the Node or the Go client. Without SUITE,
all run. --busy runs two busy loops beside them, and prints a table of the tests that failed.

Prints a line for each suite: its time, the CPU time of it and its children, and the number of its tests if the runner
counts them. Then it prints the end of the output of the suites that failed. The output of each run is in build/suites.
Fails if a test failed.
"""

import argparse
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
LOGS = TOP / "build/suites"
BUSY_LOOPS = 2
# Most tests wait for servers most of the time. A suite runs several tests at a time, too.
AT_A_TIME = (os.cpu_count() or 1) + 1
# These take longest and start first, so that no suite is left to run alone at the end.
LONGEST = "client-service python node go quorum-model module-restarts client-chaos cli-command_line".split()
# Only ends a hang: the slowest suite takes some minutes on an idle machine.
LIMIT_S = 3600
# How much of the output of a suite that failed is printed: each runner names the failed tests at the end.
SHOWN_LINES = 300
# The number of tests that passed, as printed by libtest, by pytest, and by Node's two reporters.
PASSED = re.compile(
    r"^test result: \w+\. (\d+) passed|^(?:=* ?\d+ failed, )?(\d+) passed|^[#ℹ] pass (\d+)$", re.M
)
# A line that reports a failed test, as printed by the same four and by `go test`, which counts no tests.
FAILED = re.compile(
    r"^test (?P<rust>\S+) \.\.\. FAILED$"
    r"|^(?:FAILED|ERROR) (?P<python>\S+?::.+?)(?: - .*)?$"
    r"|^ *not ok \d+ - (?P<tap>.+?)$"
    r"|^ *✖ (?P<spec>.+?) \([\d.]+ms\)$"
    r"|^--- FAIL: (?P<go>\S+) ",
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

    def row(self):
        tests = ", ".join(f"{name} ({count})" for name, count in self.failed_tests.most_common())
        return f"| {self.name} | {self.runs} | {self.failed_runs} | {tests} |"


class Run:
    """A run of a suite, in a process group of its own."""

    def __init__(self, suite, round_number):
        self.suite = suite
        self.log = LOGS / f"{suite.name}-{round_number}.log"
        self.began = time.monotonic()
        with self.log.open("w") as output:
            self.process = subprocess.Popen(
                suite.command,
                cwd=suite.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def seconds(self):
        return time.monotonic() - self.began

    def stop(self):
        """Ends the suite and its children. The suite itself may have ended already."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def ended(self, status, usage):
        """Counts and prints the result. Returns True if no test failed."""
        self.stop()
        self.process.returncode = code = os.waitstatus_to_exitcode(status)
        text = self.log.read_text(errors="replace")
        counts = [int(next(filter(None, found.groups()))) for found in PASSED.finditer(text)]
        passed = f"{sum(counts):4} tests passed" if counts else "tests not counted"
        cpu = usage.ru_utime + usage.ru_stime
        result = "ok" if code == 0 else "FAILED"
        print(
            f"{result:>6}  {self.suite.name:<24} {self.seconds():5.0f} s, CPU {cpu:5.0f} s, {passed}",
            flush=True,
        )
        self.suite.runs += 1
        if code != 0:
            self.suite.failed_runs += 1
            names = {next(filter(None, found.groups())) for found in FAILED.finditer(text)}
            self.suite.failed_tests.update(names or [f"the suite itself: {code}"])
        return code == 0


def run_side_by_side(suites, round_number):
    """Returns the runs that failed."""
    waiting = collections.deque(suites)
    running = {}
    failed = []
    try:
        while waiting or running:
            while waiting and len(running) < AT_A_TIME:
                run = Run(waiting.popleft(), round_number)
                running[run.process.pid] = run
            signal.alarm(LIMIT_S)
            pid, status, usage = os.wait4(-1, 0)
            run = running.pop(pid, None)
            if run and not run.ended(status, usage):
                failed.append(run)
    finally:
        signal.alarm(0)
        for run in running.values():
            print(f"stopped {run.suite.name} after {run.seconds():.0f} s", flush=True)
            run.stop()
    return failed


def rust_suites(messages):
    for message in map(json.loads, messages):
        program = message.get("executable")
        if message["reason"] != "compiler-artifact" or not program or not message["profile"]["test"]:
            continue
        folder = pathlib.Path(message["manifest_path"]).parent
        listed = subprocess.run(
            [program, "--list"], cwd=folder, capture_output=True, text=True, check=True
        ).stdout
        if ": test\n" in listed:
            package = folder.name if folder != TOP else "module"
            yield Suite(f"{package}-{message['target']['name']}", [program], folder)


def other_suites():
    servers = os.environ.get("DLOCK_OTHER_LANGUAGES_SERVERS") or os.environ["DLOCK_TEST_SERVERS"]
    env = ["env", f"DLOCK_TEST_SERVERS={servers}", f"NODE_PATH={TOP}/target/node/node_modules"]
    yield Suite("doc", ["cargo", "test", "--workspace", "--exclude", "dlock-bench", "--doc"], TOP)
    python = [str(TOP / "target/python/bin/python"), "-m", "pytest", "-q"]
    yield Suite("python", [*env, *python], TOP / "clients/python")
    yield Suite("node", [*env, "npm", "test", "--silent"], TOP / "clients/node")
    yield Suite("go", [*env, "scripts/test-go.sh"], TOP)


def chosen_suites(wanted):
    suites = [*rust_suites(sys.stdin), *other_suites()]
    unknown = set(wanted) - {suite.name for suite in suites}
    if unknown:
        sys.exit(f"no such suite: {' '.join(unknown)}; there are {' '.join(suite.name for suite in suites)}")
    if wanted:
        suites = [suite for suite in suites if suite.name in wanted]
    return sorted(
        suites, key=lambda suite: LONGEST.index(suite.name) if suite.name in LONGEST else len(LONGEST)
    )


def stop_at_signals():
    def stop(number, _frame):
        sys.exit(f"no suite ended within {LIMIT_S} s" if number == signal.SIGALRM else "stopped")

    for number in signal.SIGTERM, signal.SIGINT, signal.SIGALRM:
        signal.signal(number, stop)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("suites", nargs="*")
    options = parser.parse_args()
    suites = chosen_suites(options.suites)
    LOGS.mkdir(parents=True, exist_ok=True)
    stop_at_signals()
    loops = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY_LOOPS * options.busy)
    ]
    began = time.monotonic()
    failed = []
    try:
        for round_number in range(1, options.rounds + 1):
            if options.rounds > 1:
                print(
                    f"== round {round_number} of {options.rounds}, {(time.monotonic() - began) / 60:.0f} min",
                    flush=True,
                )
            failed += run_side_by_side(suites, round_number)
    finally:
        for loop in loops:
            loop.kill()
        if options.busy:
            print("| suite | runs | failed runs | failed tests (runs) |\n|---|---|---|---|")
            print("\n".join(suite.row() for suite in suites), flush=True)
    # .ci/run runs these again.
    (LOGS / "failed").write_text(" ".join(dict.fromkeys(run.suite.name for run in failed)))
    for run in failed:
        print(f"!! {run.suite.name} failed: {run.log.relative_to(TOP)}", flush=True)
        if not options.busy:
            print(*run.log.read_text(errors="replace").splitlines()[-SHOWN_LINES:], sep="\n", flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
