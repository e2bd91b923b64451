#!/usr/bin/env python3
"""Checks that each alert of contrib/ fires in a real Prometheus, which scrapes a real exporter of three real servers;
that each query of the dashboard returns data; and that redis_exporter reads INFO dlock.

scripts/alerts.py PROMETHEUS REDIS_EXPORTER DLOCK SERVER MODULE, in the project's folder. This script
changes the rules of contrib/: it shortens their windows from minutes to 20 s and the longest wait to 5 s, and removes
`for`.
scripts/test-contrib.sh calls this script, and tests the unchanged rules with promtool."""

import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from contextlib import ExitStack
from pathlib import Path

PROMETHEUS, REDIS_EXPORTER, DLOCK, SERVER, MODULE = sys.argv[1:]
ALERTS = set(re.findall(r"alert: (\w+)", Path("contrib/prometheus/dlock.rules.yml").read_text()))


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def until(what, condition, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if condition():
                return
        except OSError:
            pass
        time.sleep(0.2)
    sys.exit(f"!! {what}: not within {seconds} s")


def start(stack, *command):
    process = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


class Server:
    """A server with the module. Its folder contains the fence mark, the file that keeps fences rising."""

    def __init__(self, stack, folder, *options):
        self.port = free_port()
        self.dir = folder / f"server-{self.port}"
        self.dir.mkdir()
        self.process = start(
            stack, SERVER, "--port", self.port, "--bind", "127.0.0.1", "--dir", self.dir, "--save", "",
            "--loadmodule", MODULE, *options,
        )  # fmt: skip
        until("the server", lambda: self("PING") == "+PONG")

    def send(self, *words):
        """Sends a command over a new connection, and returns the connection."""
        connection = socket.create_connection(("127.0.0.1", self.port), 5)
        encoded = b"".join(b"$%d\r\n%s\r\n" % (len(w), w.encode()) for w in words)
        connection.sendall(b"*%d\r\n%s" % (len(words), encoded))
        return connection

    def __call__(self, *words):
        """Sends a command, and returns the first line of the reply."""
        with self.send(*words) as connection, connection.makefile() as reply:
            return reply.readline().strip()


class Prometheus:
    """A Prometheus that scrapes the exporter on the port `exporter` each second."""

    def __init__(self, stack, folder, exporter):
        rules = Path("contrib/prometheus/dlock.rules.yml").read_text()
        rules = re.sub(r"^ +for: .*\n", "", rules, flags=re.M)
        rules = rules.replace("dlock_longest_wait_seconds > 60", "dlock_longest_wait_seconds > 5")
        # An alert on a counter lasts about as long as its window: 20 s are enough for `expect` to see it.
        (folder / "rules.yml").write_text(re.sub(r"\[\d+m\]", "[20s]", rules))
        (folder / "prometheus.yml").write_text(
            json.dumps(
                {
                    "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                    "rule_files": ["rules.yml"],
                    "scrape_configs": [
                        {"job_name": "dlock", "static_configs": [{"targets": [f"127.0.0.1:{exporter}"]}]}
                    ],
                }
            )
        )
        self.address = f"127.0.0.1:{free_port()}"
        start(
            stack, PROMETHEUS, f"--config.file={folder}/prometheus.yml", f"--web.listen-address={self.address}",
            f"--storage.tsdb.path={folder}/data", "--log.level=warn",
        )  # fmt: skip
        until("Prometheus", lambda: self.get("query", query="up")["data"]["result"])

    def get(self, what, **arguments):
        url = f"http://{self.address}/api/v1/{what}?{urllib.parse.urlencode(arguments)}"
        with urllib.request.urlopen(url, timeout=5) as answer:
            return json.load(answer)

    def firing(self):
        alerts = self.get("alerts")["data"]["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def expect(self, alert):
        until(f"{alert} fires", lambda: alert in self.firing())
        print(f"   fires: {alert}", flush=True)
        alerts_seen.add(alert)

    def expect_dashboard(self):
        dashboard = json.loads(Path("contrib/grafana/dlock.json").read_text())
        queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
        assert len(queries) > 20, queries
        for query in queries:
            query = query.replace("$server", ".*").replace("$__rate_interval", "20s")
            until(f"data for {query}", lambda: self.get("query", query=query)["data"]["result"])
        print(f"   the dashboard's {len(queries)} queries answer with data")


def expect_redis_exporter(stack, server):
    port = free_port()
    start(
        stack, REDIS_EXPORTER, "-redis.addr", f"redis://127.0.0.1:{server.port}", "-web.listen-address",
        f"127.0.0.1:{port}", "-script", "contrib/redis_exporter/dlock.lua",
    )  # fmt: skip

    def scraped():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return 'redis_script_values{key="deadlocks"} 1\n' in answer.read().decode()

    until("redis_exporter shows the deadlock", scraped)
    print("   redis_exporter reads INFO dlock")


def main(stack, folder):
    # Without keyspace events, a server reports a warning in INFO, on which DlockWarning fires.
    without_warnings = ("--notify-keyspace-events", "Kd")
    servers = [Server(stack, folder, *without_warnings) for _ in range(3)]
    server = servers[0]
    exporter = free_port()
    urls = [word for one in servers for word in ("-s", f"redis://127.0.0.1:{one.port}")]
    exporter_process = start(stack, DLOCK, "exporter", "--listen", f"127.0.0.1:{exporter}", *urls)
    prometheus = Prometheus(stack, folder, exporter)
    until("the metrics", lambda: prometheus.get("query", query="count(dlock_up) == 3")["data"]["result"])
    # An alert about the rate of a counter needs two scrapes.
    until("a second scrape", lambda: prometheus.get("query", query="rate(dlock_grants_total[20s])")["data"]["result"])
    assert prometheus.firing() == set(), prometheus.firing()
    print("   no alert fires while all is well")

    # DlockSlowWaits needs a wait of more than 10 s. Four other alerts are raised during this wait.
    server("DLOCK.ACQUIRE", "slow", "holder", "600000")
    waiting = server.send("DLOCK.ACQUIRE", "slow", "waiter", "600000", "BLOCK", "0")
    wait_began = time.monotonic()
    server("DLOCK.ACQUIRE", "short", "t", "1")
    prometheus.expect("DlockExpiries")
    # Two sharers that both ask for the exclusive lock wait for each other.
    for token in ("a", "b"):
        server("DLOCK.ACQUIRE", "shared", token, "600000", "SHARED")
    server("DLOCK.ACQUIRE", "shared", "a", "600000", "QUEUE", "600000")
    reply = server("DLOCK.ACQUIRE", "shared", "b", "600000", "QUEUE", "600000")
    assert reply.startswith("-DEADLOCK"), reply
    prometheus.expect("DlockDeadlocks")
    server("CONFIG", "SET", "dlock.max-queued", "0")
    reply = server("DLOCK.ACQUIRE", "slow", "refused", "600000", "QUEUE", "600000")
    assert reply.startswith("-QUEUEFULL"), reply
    prometheus.expect("DlockQueueRefusals")
    prometheus.expect("DlockLongWait")
    until("a wait of more than 10 s", lambda: time.monotonic() - wait_began > 11)
    server("DLOCK.RELEASE", "slow", "holder")
    assert waiting.recv(1) == b":"
    prometheus.expect("DlockSlowWaits")
    prometheus.expect_dashboard()
    expect_redis_exporter(stack, server)

    server("CONFIG", "SET", "notify-keyspace-events", "")
    prometheus.expect("DlockWarning")
    # With a maxmemory of one byte, the server evicts the locks before it refuses the SET.
    server("CONFIG", "SET", "maxmemory-policy", "allkeys-lru", "maxmemory", "1")
    server("SET", "too", "much")
    prometheus.expect("DlockEvictions")
    server("CONFIG", "SET", "maxmemory", "0", "dlock.restart-grace", "60000")
    # A flush that ends a hold begins a grace period.
    server("DLOCK.ACQUIRE", "forgotten", "t", "60000")
    server("FLUSHALL")
    prometheus.expect("DlockGrace")
    # The fence mark is in this folder.
    shutil.rmtree(server.dir)
    prometheus.expect("DlockFenceMarkFailing")
    servers[1].process.kill()
    prometheus.expect("DlockServerDown")
    servers[2].process.kill()
    prometheus.expect("DlockNoQuorum")
    exporter_process.kill()
    prometheus.expect("DlockNotWatched")
    assert alerts_seen == ALERTS, f"did not fire: {ALERTS - alerts_seen}"


alerts_seen = set()
with tempfile.TemporaryDirectory() as name, ExitStack() as processes:
    log = open(Path(name) / "log", "w")  # noqa: SIM115
    main(processes, Path(name))
