#!/usr/bin/env python3
"""Writes all documents as offline pages: docs.py MDBOOK FOLDER. Fails on a broken link.

The chapters are those of docs/README.md. The documents and the files that they link keep their paths, so that the
links work. Only links to a README are rewritten: see link_to_index.
"""

import html.parser
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

BOOK = """
[book]
title = "dlock"
language = "en"
[output.html]
no-section-label = true
smart-punctuation = false
[output.html.fold]
enable = false
"""


def links(text):
    """Returns the targets of the relative links of a document, without those in code."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return [target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", prose) if "://" not in target]


def stage(source):
    """Copies the documents and the files that they link. Makes SUMMARY.md, mdbook's table of contents, from the index
    docs/README.md."""
    index = pathlib.Path("docs/README.md").read_text()
    # In SUMMARY.md, all headings are of the first level, and an entry is a link without a description.
    summary = re.sub(r"^#+ ", "# ", index, flags=re.M)
    summary = re.sub(r"^(- \[.*?\])\((.*?)\).*", lambda m: f"{m[1]}({project_path('docs', m[2])})", summary, flags=re.M)
    chapters = [pathlib.Path("docs/README.md")] + [project_path("docs", target) for target in links(index)]
    for chapter in chapters:
        copy(chapter, source)
        for target in filter(None, links(chapter.read_text())):
            copy(project_path(chapter.parent, target), source)
    # The index itself is the last chapter.
    (source / "SUMMARY.md").write_text(summary.replace("# Documents\n", "# dlock\n", 1) + "\n[All documents](docs/README.md)\n")


def project_path(folder, target):
    """Resolves the target of a link in a document of `folder`. Returns its path in the project."""
    path = (pathlib.Path(folder) / target).resolve()
    return path.relative_to(pathlib.Path.cwd())


def copy(path, source):
    if path.is_dir():
        shutil.copytree(path, source / path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.md"))
    else:
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, source / path)


class Page(html.parser.HTMLParser):
    """The anchors and the links of an HTML page."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.targets = set(), []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids |= {attributes[name] for name in ("id", "name") if attributes.get(name)}
        self.targets += [attributes[name] for name in ("href", "src") if attributes.get(name)]


def link_to_index(folder):
    """Replaces links to README.html: mdbook renders README.md as index.html."""
    for path in folder.rglob("*.html"):
        path.write_text(re.sub(r'(href="[^":]*)\bREADME\.html', r"\1index.html", path.read_text()))


def broken_links(folder):
    """Yields the broken links of all pages, each with the path of its page."""
    pages = {path.resolve(): Page(path) for path in folder.rglob("*.html")}
    checked = 0
    for path, page in pages.items():
        # The links that mdbook writes in these two files are relative to another page.
        if path.name in ("404.html", "toc.html"):
            continue
        for target in page.targets:
            if re.match(r"[a-z]+:", target):
                continue
            file, _, anchor = urllib.parse.unquote(target).partition("#")
            to = (path.parent / file).resolve() if file else path
            checked += 1
            if not to.exists() or (anchor and to in pages and anchor not in pages[to].ids):
                yield f"{path.relative_to(folder.resolve())}: {target}"
    print(f"{len(pages)} pages, {checked} links")
    if checked < 100:
        yield f"only {checked} links were checked"


def main():
    mdbook, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "src").mkdir(parents=True)
    (folder / "book.toml").write_text(BOOK)
    stage(folder / "src")
    subprocess.run([mdbook, "build", folder], check=True)
    link_to_index(folder / "book")
    broken = sorted(set(broken_links(folder / "book")))
    sys.exit("\n".join(["broken links:", *broken]) if broken else 0)


main()
