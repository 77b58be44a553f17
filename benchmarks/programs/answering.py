"""The loop of a program that answers the requests of a benchmark (``benchmarks/_peers.py``)."""

import json
import os
import sys


def answer_requests(make_answer):
    """Answer each JSON line on standard input with a JSON line on standard output, until the input ends.

    Args:
        make_answer: called once, with the other libraries' standard output sent to standard error; returns the
            function that turns a request into an answer, both dictionaries.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library writes to standard output must not mix with the answers
    answer = make_answer()
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()
