"""Runs in the sandbox: loads solution.py, makes the calls that stdin names, and prints what they return, as text.

It knows no expected result. The solution shares its process and may forge what is printed, but it cannot know what to
print. It imports next to nothing, as every module takes longer to load than most solutions to run.
"""

from __future__ import annotations

import os
import sys

SOLUTION = "solution.py"
_MOST_FRAMES = 3
_LONGEST_LINE = 100
_LONGEST_TEXT = 2000


def plain_text(value: object) -> str:
    """Return a value of plain built-in types as text: equal for equal values of equal types, all the way down.

    Raises:
        TypeError: a value of another type, be it a subclass.
    """
    if value is None or type(value) in (bool, int, float, str):
        return repr(value)
    if type(value) is list:
        return f"[{', '.join(map(plain_text, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(plain_text, value))}{',' * (len(value) == 1)})"
    if type(value) is dict:
        items = sorted(f"{plain_text(key)}: {plain_text(item)}" for key, item in value.items())
        return f"{{{', '.join(items)}}}"
    raise TypeError(
        f"a result is made of None, bool, int, float, str, list, tuple and dict, not {type(value).__name__}"
    )


def error_text(error: BaseException, source: str) -> str:
    """Say what was raised, and where in the solution, as a traceback does."""
    lines, said = source.split("\n"), str(error)
    places = []
    traceback = error.__traceback__
    while traceback is not None:
        number, code = traceback.tb_lineno, traceback.tb_frame.f_code
        if code.co_filename == SOLUTION:
            line = "".join(lines[number - 1 : number]).strip()[:_LONGEST_LINE]
            places.append(f'  File "{SOLUTION}", line {number}, in {code.co_name}\n    {line}\n')
        traceback = traceback.tb_next
    if isinstance(error, SyntaxError):
        places.append(f'  File "{SOLUTION}", line {error.lineno}\n    {(error.text or "").strip()[:_LONGEST_LINE]}\n')
        said = error.msg
    return "".join(places[-_MOST_FRAMES:]) + type(error).__name__ + (said and f": {said}")


def main() -> None:
    """Print a line for each call: the mark, the call's number, 1 if it returned or else 0, and its text in hex."""
    mark, calls = eval(sys.stdin.read())  # noqa: S307 - written by the grader, as are the arguments
    leave = os._exit
    # What the solution prints is not a result.
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    namespace: dict[str, object] = {"__name__": "solution"}
    source = unusable = ""
    try:
        with open(SOLUTION, encoding="utf-8") as file:  # noqa: PTH123
            source = file.read()
        exec(compile(source, SOLUTION, "exec", dont_inherit=True), namespace)
    except BaseException as error:  # noqa: BLE001 - SystemExit too
        unusable = error_text(error, source)
        namespace.clear()
    for number, (name, arguments) in enumerate(calls):
        returned, text = 0, unusable
        function = namespace.get(name)
        try:
            if callable(function):
                returned, text = 1, plain_text(function(*eval(arguments)))  # noqa: S307
            elif not unusable:
                text = f"NameError: {SOLUTION} does not define {name}"
        except BaseException as error:  # noqa: BLE001
            returned, text = 0, error_text(error, source)
        results.write(f"{mark} {number} {returned} {text[:_LONGEST_TEXT].encode(errors='replace').hex()}\n")
        results.flush()
    # Neither threads nor exit handlers of the solution get another turn.
    leave(0)


if __name__ == "__main__":
    main()
