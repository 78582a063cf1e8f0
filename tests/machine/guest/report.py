"""Events for the host: one JSON object a line on standard output, which is the virtio port."""

import json
import subprocess
import time

START = time.monotonic()
# What the names of checks begin with, where the same ones are made of something else elsewhere.
prefix = ""


def emit(ev, **members):
    print(json.dumps({"ev": ev, "at": round(time.monotonic() - START, 1), **members}), flush=True)


def log(text):
    emit("log", text=text)


def check(name, ok, detail=""):
    """One check. A failed one carries what is needed to understand it: the output and the journal's end."""
    name = prefix + name
    if ok:
        emit("check", name=name, ok=True)
    else:
        emit("check", name=name, ok=False, detail=str(detail), journal=journal())
    return ok


def journal(lines=25):
    done = subprocess.run(["journalctl", "-b", "--no-pager", "-o", "short-monotonic", "-n", str(lines)], capture_output=True, text=True, check=False)
    return done.stdout


class Done:
    """How a command ended: its exit status and what it printed."""

    def __init__(self, status, out, err, seconds):
        self.status, self.out, self.err, self.seconds = status, out, err, seconds

    def __str__(self):
        return f"exit {self.status} after {self.seconds:.1f} s\nstdout: {self.out.strip()}\nstderr: {self.err.strip()}"


def run(*command, timeout=60, **options):
    """Runs a command to its end; one that hangs is killed and counts as exit 124."""
    start = time.monotonic()
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, errors="replace", check=False,
                              timeout=timeout, stdin=None if "input" in options else subprocess.DEVNULL, **options)
    except subprocess.TimeoutExpired as late:
        def text(data):
            return (data or b"").decode(errors="replace") if isinstance(data, bytes) else (data or "")
        return Done(124, text(late.stdout), text(late.stderr) + f"\nstill running after {timeout} s", time.monotonic() - start)
    return Done(done.returncode, done.stdout, done.stderr, time.monotonic() - start)


def must(*command, **options):
    done = run(*command, **options)
    if done.status:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done}")
    return done


class Part:
    """A timed part of the run."""

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        self.start = time.monotonic()
        emit("part", name=self.name)
        return self

    def __exit__(self, *failure):
        emit("part-end", name=self.name, seconds=round(time.monotonic() - self.start, 1))
