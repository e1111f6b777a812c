"""Places in the output of compilers, checkers and test runs."""

from __future__ import annotations

import pytest

from composer_replication.hint_generator.findings import Finding, findings, own_frame

TRACEBACK = """\
Traceback (most recent call last):
  File "/app/run.py", line 4, in <module>
    main()
  File "/app/shop/cart.py", line 12, in total
    return self.items["price"]
           ~~~~~~~~~~^^^^^^^^^
  File "/usr/lib/python3.12/site-packages/lib/core.py", line 3, in get
    raise KeyError(name)
KeyError: 'price'
"""

PLACES = {
    "go": (
        "compile_error",
        "# shop/cart\ncart/cart.go:12:9: undefined: Price\nFAIL\tshop/cart [build failed]",
        Finding("cart/cart.go", 12, "cart/cart.go:12:9: undefined: Price"),
    ),
    "golangci-lint behind a task runner": (
        "type_or_lint_error",
        "[lint] $ golangci-lint run\n[lint] cart/cart.go:12:2: error is not nil (nilerr)\n[lint] \treturn n, nil\n"
        "[lint] \t^\n[lint] 1 issues:",
        Finding("cart/cart.go", 12, "cart/cart.go:12:2: error is not nil (nilerr)", "return n, nil"),
    ),
    "tsc": (
        "type_or_lint_error",
        "src/cart.ts(12,5): error TS2322: Type 'string' is not assignable to type 'number'.",
        Finding("src/cart.ts", 12, "src/cart.ts:12:5: error TS2322: Type 'string' is not assignable to type 'number'."),
    ),
    "tsc --pretty": (
        "type_or_lint_error",
        "src/cart.ts:12:5 - error TS2304: Cannot find name 'price'.\n\n12     price + 1\n       ~~~~~\n",
        Finding("src/cart.ts", 12, "src/cart.ts:12:5 - error TS2304: Cannot find name 'price'.", "price + 1"),
    ),
    "ruff": (
        "type_or_lint_error",
        "F401 [*] `os` imported but unused\n --> shop/cart.py:1:8\n  |\n1 | import os\n  |        ^^\n",
        Finding("shop/cart.py", 1, "shop/cart.py:1:8: F401 [*] `os` imported but unused", "import os"),
    ),
    "mypy": (
        "type_or_lint_error",
        'shop/cart.py:12: error: Name "price" is not defined  [name-defined]\nFound 1 error in 1 file',
        Finding("shop/cart.py", 12, 'shop/cart.py:12: error: Name "price" is not defined  [name-defined]'),
    ),
    "rustc": (
        "compile_error",
        "error[E0425]: cannot find value `price` in this scope\n --> src/cart.rs:12:5\n   |\n12 |     price\n"
        "   |     ^^^^^",
        Finding("src/cart.rs", 12, "src/cart.rs:12:5: error[E0425]: cannot find value `price` in this scope", "price"),
    ),
    "gcc": (
        "compile_error",
        "cart.c: In function 'main':\ncart.c:12:12: error: 'price' undeclared\n   12 |     return price;\n"
        "      |            ^~~~~",
        Finding("cart.c", 12, "cart.c:12:12: error: 'price' undeclared", "return price;"),
    ),
    "eslint": (
        "type_or_lint_error",
        "\n/app/src/cart.ts\n  12:5  error    'x' is never used  no-unused-vars\n\n✖ 2 problems (1 error, 1 warning)",
        Finding("/app/src/cart.ts", 12, "/app/src/cart.ts:12:5: error 'x' is never used no-unused-vars"),
    ),
    "a traceback": (
        "traceback",
        TRACEBACK,
        Finding("/app/shop/cart.py", 12, "/app/shop/cart.py:12: KeyError: 'price'", 'return self.items["price"]'),
    ),
    "pytest": (
        "test_failure",
        "    def total(self):\n>       return self.items['price']\nE       KeyError: 'price'\n\n"
        "shop/cart.py:12: KeyError\n",
        Finding("shop/cart.py", 12, "shop/cart.py:12: KeyError: 'price'", "return self.items['price']"),
    ),
    "pytest, of a file that cannot be parsed": (
        "test_failure",
        'E     File "/app/shop/cart.py", line 12\nE       def total()\nE                  ^\n'
        "E   SyntaxError: expected ':'\n",
        Finding("/app/shop/cart.py", 12, "/app/shop/cart.py:12: SyntaxError: expected ':'"),
    ),
    "pytest --tb=short": (
        "test_failure",
        "shop/cart.py:12: in total\n    return self.items['price']\n           ^^^^\nE   KeyError: 'price'\n",
        Finding("shop/cart.py", 12, "shop/cart.py:12: KeyError: 'price'", "return self.items['price']"),
    ),
    "a file that Node cannot parse": (
        "compile_error",
        "/app/src/cart.js:12\n  clear() {\n          ^\n\nSyntaxError: Unexpected token '{'\n"
        "    at node:internal/main:7:4",
        Finding("/app/src/cart.js", 12, "/app/src/cart.js:12: SyntaxError: Unexpected token '{'"),
    ),
    "a shell script": (
        "traceback",
        "./scripts/backup.sh: line 12: stmp: unbound variable",
        Finding("./scripts/backup.sh", 12, "./scripts/backup.sh:12: stmp: unbound variable"),
    ),
    "a Rust panic": (
        "test_failure",
        "thread 'tests::last' (7) panicked at src/cart.rs:12:21:\nattempt to subtract with overflow\nnote: run with",
        Finding("src/cart.rs", 12, "src/cart.rs:12:21: attempt to subtract with overflow"),
    ),
    "biome": (
        "type_or_lint_error",
        "src/cart.ts:12:35 lint/suspicious/noDoubleEquals  FIXABLE  ━━━━\n\n"
        "  × Using == may be unsafe.\n\n    11 │ x\n",
        Finding("src/cart.ts", 12, "src/cart.ts:12:35: lint/suspicious/noDoubleEquals: Using == may be unsafe."),
    ),
    "make": (
        "compile_error",
        "Makefile:12: *** missing separator.  Stop.",
        Finding("Makefile", 12, "Makefile:12: *** missing separator.  Stop."),
    ),
    "Java": (
        "traceback",
        'Exception in thread "main" java.lang.NullPointerException: no cart\n\tat shop.Cart.add(Cart.java:12)\n'
        "\tat shop.Main.main(Main.java:4)",
        Finding("Cart.java", 12, 'Cart.java:12: Exception in thread "main" java.lang.NullPointerException: no cart'),
    ),
    "node": (
        "traceback",
        "/app/cart.js:2\n  return o.x.y;\n             ^\n\nTypeError: Cannot read properties of undefined\n"
        "    at f (/app/cart.js:2:13)\n    at Object.<anonymous> (/app/run.js:4:1)\n    at node:internal/main:5:1\n",
        Finding("/app/cart.js", 2, "/app/cart.js:2: TypeError: Cannot read properties of undefined"),
    ),
}


@pytest.mark.parametrize(("kind", "output", "expected"), PLACES.values(), ids=PLACES)
def test_the_place_is_found(kind: str, output: str, expected: Finding) -> None:
    assert findings(output, kind) == [expected]


@pytest.mark.parametrize(
    ("kind", "output"),
    [
        ("type_or_lint_error", "a.py:3: note: see above\na.c:4:1: warning: unused"),
        ("traceback", 'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\nKeyError: 1'),
        ("type_or_lint_error", "Found 3 errors at 12:30: sorry"),
        ("compile_error", "see https://example.com:443: nothing"),
    ],
)
def test_nothing_is_found_in_what_names_no_place(kind: str, output: str) -> None:
    assert findings(output, kind) == []


def test_the_innermost_frame_that_is_not_a_librarys() -> None:
    assert own_frame(TRACEBACK) == "/app/shop/cart.py"
    assert (
        own_frame('Traceback (most recent call last):\n  File "<stdin>", line 1, in <module>\nKeyError: 1') == "<stdin>"
    )
    assert own_frame("TypeError: x\n    at [eval]:1:6\n    at node:internal/vm:1:1") == "[eval]"
    assert own_frame("./scripts/backup.sh: line 12: stmp: unbound variable") == "./scripts/backup.sh"
    assert own_frame("bash: line 1: x: command not found") is None
