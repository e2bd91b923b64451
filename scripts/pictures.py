#!/usr/bin/env python3
"""Records two pictures as animated SVG: a second `dlock run` that waits for the first one, and `dlock top`:
pictures.py PORT FOLDER.

Terminals are windows of a separate tmux, which are captured several times a second. Needs `dlock` and `tmux` in PATH, and
a server with the module on PORT.
"""

import html
import itertools
import os
import pathlib
import re
import subprocess
import sys
import time

COLORS = ["#1d2433", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d7dae0"]
BRIGHT = ["#7f8896", *COLORS[1:7], "#ffffff"]
BACK, FRONT = COLORS[0], COLORS[7]
WIDTH, HEIGHT = 8.4, 18  # of one character, at 14 px


class Terminal:
    """A shell in a tmux window."""

    def __init__(self, name, columns, rows):
        self.name, self.columns, self.rows = name, columns, rows
        self.tmux("new-session", "-d", "-s", name, "-x", str(columns), "-y", str(rows), "PS1='$ ' exec bash --norc")
        self.until("$")

    def tmux(self, *words):
        done = subprocess.run(["tmux", "-L", f"pictures-{os.getpid()}", *words], capture_output=True, text=True, check=True)
        return done.stdout

    def type(self, text):
        self.tmux("send-keys", "-t", self.name, "-l", text)

    def enter(self):
        self.tmux("send-keys", "-t", self.name, "Enter")

    def lines(self):
        """Returns the lines on the screen, with their escape sequences for colors."""
        return self.tmux("capture-pane", "-e", "-p", "-t", self.name).rstrip("\n").split("\n")

    def until(self, text):
        for _ in range(300):
            if text in "\n".join(self.lines()):
                return
            time.sleep(0.05)
        sys.exit(f"{self.name} does not show {text!r}:\n" + "\n".join(self.lines()))

    def end(self):
        self.tmux("kill-session", "-t", self.name)


class Recording:
    """The contents of terminals over time. The picture shows them one above the other."""

    def __init__(self, *terminals):
        self.terminals, self.frames, self.start = terminals, [], time.monotonic()

    def watch(self, seconds):
        """Adds a frame whenever a terminal changes."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            screens = [terminal.lines() for terminal in self.terminals]
            if not self.frames or self.frames[-1][1] != screens:
                self.frames.append((time.monotonic() - self.start, screens))
            time.sleep(0.1)

    def svg(self, title):
        """Returns the picture: an endless loop of the frames, each for as long as the terminals showed it."""
        total = time.monotonic() - self.start
        width = max(t.columns for t in self.terminals) * WIDTH + 24
        heights = [t.rows * HEIGHT + 20 for t in self.terminals]
        out = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {sum(heights) + 8 * len(heights)}" '
            f'width="{width:.0f}" role="img"><title>{html.escape(title)}</title>',
            "<style>text{font:14px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;white-space:pre}"
            f"g.f{{visibility:hidden;animation:f {total:.1f}s step-end infinite}}",
            # Without animation, for example on paper, the last frame is visible.
            "g.f:last-of-type{visibility:visible}",
        ]
        ends = [at for at, _ in self.frames[1:]] + [total]
        for n, ((begin, _), end) in enumerate(zip(self.frames, ends)):
            # The first frame is visible from the start.
            begin_percent, end_percent = (100 * at / total for at in (begin if n else 0, end))
            before = "0%{visibility:hidden}" if n else ""
            after = f"{end_percent:.2f}%{{visibility:hidden}}" if end_percent < 99.99 else ""
            visible = f"{begin_percent:.2f}%{{visibility:visible}}"
            out.append(f"#f{n}{{animation-name:k{n}}}@keyframes k{n}{{{before}{visible}{after}}}")
        out.append("</style>")
        top = 0
        tops = []
        for height in heights:
            out.append(f'<rect y="{top}" width="100%" height="{height}" rx="6" fill="{BACK}"/>')
            tops.append(top + 10)
            top += height + 8
        for n, (_, screens) in enumerate(self.frames):
            out.append(f'<g class="f" id="f{n}">')
            for top, lines in zip(tops, screens):
                out += [span for row, line in enumerate(lines) for span in spans(line, top + row * HEIGHT)]
            out.append("</g>")
        return "\n".join([*out, "</svg>\n"])


def spans(line, top):
    """Yields the parts of a line that have one style each, as SVG."""
    column, fill, back, bold = 0, FRONT, None, False
    for part in re.split(r"(\x1b\[[\d;]*m)", line):
        if part.startswith("\x1b"):
            fill, back, bold = styled(part[2:-1], fill, back, bold)
        elif part:
            x, y, wide = 12 + column * WIDTH, top + 14, len(part) * WIDTH
            if back:
                yield f'<rect x="{x:.1f}" y="{top}" width="{wide:.1f}" height="{HEIGHT}" fill="{back}"/>'
            if part.strip():
                weight = ' font-weight="bold"' if bold else ""
                yield (
                    f'<text x="{x:.1f}" y="{y}" fill="{fill}"{weight} textLength="{wide:.1f}" '
                    f'xml:space="preserve">{html.escape(part)}</text>'
                )
            column += len(part)


def styled(codes, fill, back, bold):
    """Returns the style after an escape sequence with these codes."""
    for code in map(int, codes.split(";") if codes else ["0"]):
        if code == 0:
            fill, back, bold = FRONT, None, False
        elif code == 1:
            bold = True
        elif code == 2:
            fill = BRIGHT[0]
        elif code == 7:
            fill, back = back or BACK, fill
        elif code in (27, 49):
            fill, back = FRONT, None
        elif code == 22:
            bold = False
        elif 30 <= code <= 37:
            fill = COLORS[code - 30]
        elif 90 <= code <= 97:
            fill = BRIGHT[code - 90]
        elif code == 39:
            fill = FRONT
        elif 40 <= code <= 47:
            back = COLORS[code - 40]
    return fill, back, bold


def handoff():
    one, two = Terminal("one", 78, 6), Terminal("two", 78, 6)
    recording = Recording(one, two)
    one.type("dlock run report -- sh -c 'echo writing; sleep 4; echo written'")
    recording.watch(1)
    one.enter()
    recording.watch(1)
    two.type("dlock run report -- sh -c 'echo writing, with the fence $DLOCK_FENCE'")
    recording.watch(1)
    two.enter()
    recording.watch(4)
    # The second run has printed its fence. A fence follows the Unix time in µs, which begins with 1 until 2033.
    two.until("fence 1")
    recording.watch(3)
    one.end(), two.end()
    return recording.svg("dlock run hands a lock on: the second run begins when the first one ends")


def top():
    names = ["invoice:42", "invoice:57", "report", "migrate", "license:cad"]
    work = [
        subprocess.Popen(
            ["sh", "-c", f"while dlock run {name} --label {label} -- sleep {seconds}; do :; done"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for (name, seconds), label in itertools.product(zip(names, [0.3, 0.7, 1.1, 1.6, 2.3]), ["web1", "web2", "cron"])
    ]
    terminal = Terminal("top", 110, 26)
    recording = Recording(terminal)
    terminal.type("dlock top")
    terminal.enter()
    recording.watch(9)
    terminal.end()
    for loop in work:
        os.killpg(loop.pid, 15)
    return recording.svg("dlock top: servers, locks and the log, live")


def main():
    os.environ.update(DLOCK_SERVERS=f"redis://127.0.0.1:{sys.argv[1]}", TERM="xterm")
    folder = pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for name, record in (("run", handoff), ("top", top)):
        (folder / f"{name}.svg").write_text(record())


main()
