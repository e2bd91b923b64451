#!/usr/bin/env python3
"""Compares dlock with the lock libraries of four languages on one server:
peers.py [--quick] [--only LANGUAGE,..] SERVER MODULE

Starts the server with the module. In each round every language has its turn: a program that measures its
libraries one after the other, over one connection library, with each load. The result is the median of the
rounds, so a ratio between the columns of a table is one of neighbouring turns. Prints tables in Markdown. A
language that is not installed is skipped, with a line that says so.

The programs are called with `-addr HOST:PORT -seconds S -loads LOAD,..` and print one line of JSON for each
library and load. A load is callers that acquire and release, each its own lock (pairs-N) or all the same one,
which they hold for some ms (contend-N-Mms).
"""

import argparse
import datetime
import json
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent.parent.parent
BUILD = TOP / "target/peers"
PAIRS = {"pairs-1": "1 caller", "pairs-32": "32 callers, a lock each"}
CONTENDED = {
    "contend-8-1ms": "8 contenders, hold 1 ms",
    "contend-64-1ms": "64 contenders, hold 1 ms",
    "contend-8-0ms": "8 contenders, hold 0",
    "contend-64-0ms": "64 contenders, hold 0",
}
# Ends a program that hangs. A Java program also needs seconds to become warm.
LIMIT_S = 600


class Language:
    def __init__(self, name, command, missing, folder=HERE):
        self.name, self.command, self.folder = name, command, folder
        self.missing = missing
        self.found = {}
        # The results of `measure_scale`, a line for each.
        self.scale = ""

    def measure(self, address, loads, seconds):
        command = [*self.command, "-addr", address, "-seconds", str(seconds), "-loads", ",".join(loads)]
        printed = subprocess.run(
            command, cwd=self.folder, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=True
        ).stdout
        for line in printed.splitlines():
            result = json.loads(line)
            self.found.setdefault(result["library"], {}).setdefault(result["load"], []).append(result)

    def print(self):
        names = list(self.found)
        # The program in Go says the version of the connection library for dlock.
        carrier = "go-redis " if self.name == "Go" else ""
        versions = {
            name: (carrier if name == "dlock" else "") + loads[next(iter(loads))][0]["version"]
            for name, loads in self.found.items()
        }
        print(f"\n{self.name}:\n")
        print("| | " + " | ".join(f"{name} {versions[name]}".strip() for name in names) + " |")
        print("|---|" + "---:|" * len(names))

        def ratios(load):
            """Returns the ratios of the first library to each other one: grants per s, and the 99th percentile."""

            def cell(of):
                first = self.found[names[0]][load]
                return "; ".join(f"{median(first, key) / of(key):.2f} x" for key in ("grants_per_s", "p99_ms"))

            return cell

        def row(label, load, cell):
            results = [self.found[name].get(load) for name in names]
            if any(results):
                cells = [cell(lambda key, all=all: median(all, key)) if all else "" for all in results]
                print(f"| {label} | " + " | ".join(cells) + " |")

        for load, label in PAIRS.items():
            row(f"acquire + release, {label}: pairs/s", load, lambda of: f"{of('grants_per_s'):,.0f}")
            row(".. p50; p99", load, lambda of: f"{ms(of('p50_ms'))}; {ms(of('p99_ms'))}")
            if all("allocs_per_grant" in all[0] for loads in self.found.values() for all in loads.values()):
                row(".. allocations", load, lambda of: f"{of('allocs_per_grant'):.0f}")
            row(f".. {names[0]} to this one: pairs/s; p99", load, ratios(load))
        for load, label in CONTENDED.items():
            row(f"{label}: grants/s", load, lambda of: f"{of('grants_per_s'):,.0f}")
            row(
                ".. wait p50; p99; longest",
                load,
                lambda of: "; ".join(ms(of(key)) for key in ("p50_ms", "p99_ms", "max_ms")),
            )
            row(
                ".. Jain's fairness index; commands per grant",
                load,
                lambda of: f"{of('jain'):.3f}; {of('commands_per_grant'):.1f}",
            )
            row(f".. {names[0]} to this one: grants/s; p99", load, ratios(load))
        for line in self.scale.splitlines():
            print(f"\n{line}")
        sys.stdout.flush()


    def measure_scale(self, address):
        """Measures many waits and many renewed holds of dlock. Only the program in Go does."""
        command = [self.command[0], "-addr", address, "-loads", "scale"]
        self.scale = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=True
        ).stdout


def median(results, key):
    return statistics.median(result[key] for result in results)


def ms(value):
    if value < 1:
        return f"{value * 1000:.0f} µs"
    return f"{value:.1f} ms" if value < 10 else f"{value:,.0f} ms"


def languages():
    """Returns all languages. `missing` says what a language lacks here, or is empty."""
    yield Language("Go", [str(BUILD / "go"), "-json", "-rounds", "1"], lacks("go"))
    java = ["java", "-cp", f"{BUILD}/java/classes:{BUILD}/java/dependency/*", "Peers"]
    yield Language("Java", java, lacks("java", "mvn"))
    yield Language("Python", [str(TOP / "target/python/bin/python"), "python.py"], "")
    yield Language("Node", ["node", str(BUILD / "node/node.mjs")], lacks("node"))


def lacks(*programs):
    return " ".join(program for program in programs if not shutil.which(program))


def start_server(program, module, folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder, "--logfile", "log"]
    server = subprocess.Popen([program, *options, "--loadmodule", module])
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return server, f"127.0.0.1:{port}"
        except OSError:
            if server.poll() is not None:
                sys.exit((pathlib.Path(folder) / "log").read_text())
            time.sleep(0.05)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("server")
    parser.add_argument("module")
    options = parser.parse_args()
    rounds, seconds = (1, 0.3) if options.quick else (5, 2)
    words = options.only.lower().split(",")
    chosen = []
    for language in languages():
        if not any(word in language.name.lower() for word in words):
            continue
        if language.missing:
            print(f"{language.name}: skipped, as {language.missing} is not installed", flush=True)
        else:
            chosen.append(language)
    version = subprocess.run([options.server, "--version"], capture_output=True, text=True, check=True).stdout
    version = version.split("v=")[1].split()[0]
    with tempfile.TemporaryDirectory() as folder:
        server, address = start_server(options.server, options.module, folder)
        try:
            for number in range(1, rounds + 1):
                for language in chosen:
                    print(f"round {number} of {rounds}: {language.name}", file=sys.stderr, flush=True)
                    language.measure(address, [*PAIRS, *CONTENDED], seconds)
            for language in chosen:
                if language.name == "Go" and not options.quick:
                    language.measure_scale(address)
        finally:
            server.kill()
            server.wait()
    print(
        f"\nMeasured on {datetime.date.today()}, server {version}, medians of {rounds} rounds of {seconds} s. "
        "Libraries that poll try again every 10 ms. Commands are those that the server executed, in scripts too."
    )
    for language in chosen:
        language.print()


if __name__ == "__main__":
    main()
