"""Syntax trees are built by one thread at a time."""

import threading

from whetstone.python_syntax import parse_expression, parse_syntax


def test_many_threads_can_parse_concurrently():
    text = "[" + ", ".join(f"f(a={k}, b=[({k}, 'x')])" for k in range(200)) + "]"
    failures = []

    def work():
        for _ in range(20):
            try:
                parse_expression(text)
                parse_syntax(f"x = {text}")
            except SystemError as error:
                failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
