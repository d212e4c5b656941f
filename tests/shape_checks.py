"""Checks of types and shapes at the first calls of a function in a test.

A check by jaxtyping takes longer than most functions do, and training calls the same ones thousands
of times. So each function is checked at its first few calls in a test. A function inside a function
is made anew, with its check, at every call of the outer one: it is checked once.
"""

import functools
import inspect

import jaxtyping
import torch
from jaxtyping import _decorator

CHECKED_CALLS = 8

_check_always = _decorator.jaxtyped
_test = 0
_checked_once = set()


def begin_test():
    """Check every function again."""
    global _test
    _test += 1


def limit_checks():
    """Limit the checks of what is imported from here on."""
    jaxtyping.jaxtyped = _decorator.jaxtyped = _check_first_calls


def _check_first_calls(function=None, *, typechecker):
    if function is None:
        return functools.partial(_check_first_calls, typechecker=typechecker)
    if not inspect.isfunction(function):
        # The functions of a class, a property or a class method come here on their own.
        return _check_always(function, typechecker=typechecker)
    if "<locals>" in function.__qualname__:
        if function.__code__ in _checked_once:
            return function
        _checked_once.add(function.__code__)
        return _check_always(function, typechecker=typechecker)
    checked, test, left = None, 0, 0

    @functools.wraps(function)
    def first_calls_checked(*args, **kwargs):
        nonlocal checked, test, left
        __tracebackhide__ = True
        if torch.compiler.is_exporting():  # sizes are symbols
            return function(*args, **kwargs)
        if test != _test:
            test, left = _test, CHECKED_CALLS
        if not left:
            return function(*args, **kwargs)
        left -= 1
        if checked is None:
            checked = _check_always(function, typechecker=typechecker)
        return checked(*args, **kwargs)

    return first_calls_checked
