#!/usr/bin/env python3
"""Prints the software bill of materials of dlock VERSION, CycloneDX 1.5: sbom.py VERSION, in the project's folder.

It lists every crate that is linked into the module or the command on this machine's platform. The environment variable
SOURCE_DATE_EPOCH sets the date in it.
"""

import json
import os
import subprocess
import sys
from datetime import datetime, timezone

OURS = {"dlock", "dlock-module"}


def cargo_metadata():
    host = next(
        line.split(": ")[1]
        for line in subprocess.check_output(["rustc", "-vV"], text=True).splitlines()
        if line.startswith("host: ")
    )
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", host]
    return json.loads(subprocess.check_output(command))


def linked(nodes, roots):
    """Returns the dependency graph of `roots`: maps the id of each package to the ids of the packages that it links."""
    graph, todo = {}, list(roots)
    while todo:
        package = todo.pop()
        if package in graph:
            continue
        dependencies = nodes[package]["deps"]
        # The kind of a dependency that is linked is null; others are "build" and "dev".
        graph[package] = [d["pkg"] for d in dependencies if any(kind["kind"] is None for kind in d["dep_kinds"])]
        todo += graph[package]
    return graph


def component(package):
    """Returns the component of CycloneDX for a package of `cargo metadata`."""
    entry = {
        "type": "application" if package["name"] in OURS else "library",
        "bom-ref": f"pkg:cargo/{package['name']}@{package['version']}",
        "name": package["name"],
        "version": package["version"],
        "purl": f"pkg:cargo/{package['name']}@{package['version']}",
    }
    if package["license"]:
        # Some crates have the old form "MIT/Apache-2.0".
        entry["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    return entry


def main():
    data = cargo_metadata()
    packages = {p["id"]: p for p in data["packages"]}
    nodes = {n["id"]: n for n in data["resolve"]["nodes"]}
    roots = [p["id"] for p in data["packages"] if p["name"] in OURS and p["source"] is None]
    graph = linked(nodes, roots)
    refs = {i: component(packages[i])["bom-ref"] for i in graph}
    date = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), timezone.utc)
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": date.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {"type": "application", "bom-ref": "dlock-dist", "name": "dlock-dist", "version": sys.argv[1]},
        },
        "components": sorted((component(packages[i]) for i in graph), key=lambda c: c["bom-ref"]),
        "dependencies": sorted(
            ({"ref": refs[i], "dependsOn": sorted({refs[d] for d in deps})} for i, deps in graph.items()),
            key=lambda d: d["ref"],
        ),
    }
    bom["dependencies"].append({"ref": "dlock-dist", "dependsOn": sorted(refs[i] for i in roots)})
    json.dump(bom, sys.stdout, indent=1)
    print()


main()
