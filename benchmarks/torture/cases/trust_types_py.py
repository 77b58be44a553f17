"""a file types.py stands in the working directory"""

from benchmarks.torture.bench import UNSAFE, Bench, Outcome


def run(bench: Bench) -> Outcome:
    directory = bench.root / "downloads"
    directory.mkdir()
    mark = directory / "was_run"
    for name in ("types.py", "sitecustomize.py", "random.py", "struct.py"):
        (directory / name).write_text(f"open({str(mark)!r}, 'w').close()\nraise SystemExit('{name} was imported')\n")
    outcome = bench.judge(bench.load(cwd=directory), 1)
    return Outcome(UNSAFE, "a Python file of the working directory was run") if mark.exists() else outcome
