"""The functions of the split "dev"."""

from __future__ import annotations

from composer_replication.envs.python_tasks.bank import choice, either, formatted, given, integers, lists, texts


@given(items=lists(integers(0, 2), 0, 9))
def count_changes(items: list[int]) -> int:
    """Return how many items differ from the item right before them."""
    count = 0
    for index in range(1, len(items)):
        if items[index] != items[index - 1]:
            count += 1
    return count


@given(items=lists(integers(0, 4)), value=integers(0, 4))
def last_position(items: list[int], value: int) -> int:
    """Return the greatest index at which the items have `value`, or -1 if they do not."""
    for index in range(len(items) - 1, -1, -1):
        if items[index] == value:
            return index
    return -1


@given(limit=integers(0, 40), first=integers(2, 7), second=integers(2, 7))
def sum_of_multiples(limit: int, first: int, second: int) -> int:
    """Return the sum of the positive numbers below `limit` that `first` or `second` divides, each counted once."""
    total = 0
    for number in range(1, limit):
        if number % first == 0 or number % second == 0:
            total += number
    return total


def alternate_case(text: str) -> str:
    """Return the text with its letters in upper and lower case in turn, beginning with upper case.

    Other characters stay and do not count.
    """
    result = ""
    upper = True
    for character in text:
        if character.isalpha():
            result += character.upper() if upper else character.lower()
            upper = not upper
        else:
            result += character
    return result


@given(count=integers(0, 4))
def lowest_names(scores: dict[str, int], count: int) -> list[str]:
    """Return the `count` names with the lowest scores, lowest first, equal ones in alphabetical order; all if fewer."""
    ordered = sorted(scores, key=lambda name: (scores[name], name))
    return ordered[:count]


@given(row=integers(0, 3), column=integers(0, 3))
def neighbour_sum(rows: list[list[int]], row: int, column: int) -> int:
    """Return the sum of the numbers right above, below, left and right of a place in a matrix, as far as they exist.

    The place itself may be outside.
    """
    total = 0
    for place in [(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]:
        if 0 <= place[0] < len(rows) and 0 <= place[1] < len(rows[0]):
            total += rows[place[0]][place[1]]
    return total


@given(number=either(integers(0, 40), choice(63, 64, 127, 255, 1000)))
def count_one_bits(number: int) -> int:
    """Return the number of ones in the binary form of a number that is not negative."""
    count = 0
    while number > 0:
        count += number % 2
        number //= 2
    return count


@given(low=integers(-5, 30), high=integers(0, 110))
def squares_between(low: int, high: int) -> list[int]:
    """Return, in ascending order, the square numbers from `low` to `high`, both included; 0 is one."""
    squares = []
    root = 0
    while root * root <= high:
        if root * root >= low:
            squares.append(root * root)
        root += 1
    return squares


@given(amount=integers(0, 120))
def change_coins(amount: int) -> list[int]:
    """Return the fewest coins of 50, 20, 10, 5, 2 and 1 that make up the amount, the largest first."""
    coins = []
    for coin in [50, 20, 10, 5, 2, 1]:
        while amount >= coin:
            coins.append(coin)
            amount -= coin
    return coins


@given(cell=formatted("{}{}", texts("ABCZ", 1, 2), integers(1, 30)))
def cell_position(cell: str) -> tuple[int, int]:
    """Return the row and column, both counted from 0, of a spreadsheet's cell such as "B3" or "AA10"."""
    row = column = 0
    for character in cell:
        if character.isdigit():
            row = row * 10 + int(character)
        else:
            column = column * 26 + ord(character) - ord("A") + 1
    return row - 1, column - 1


def cut_out(first: tuple[int, int], second: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the parts of the first interval, given as start and end, that the second does not cover, in order.

    Empty parts are left out.
    """
    parts = [(first[0], min(first[1], second[0])), (max(first[0], second[1]), first[1])]
    return [(start, end) for start, end in parts if start < end]


@given(year=either(integers(1, 2100), choice(1, 100, 101, 1900, 1901, 2000, 2001)))
def century_of(year: int) -> int:
    """Return the century of a year: the years 1 to 100 are in century 1."""
    return (year - 1) // 100 + 1


@given(text=texts("aabBc", 0, 8))
def doubled_letters(text: str) -> list[str]:
    """Return the characters that stand twice in a row somewhere in the text, each once, in order of appearance."""
    doubled: list[str] = []
    for index in range(1, len(text)):
        if text[index] == text[index - 1] and text[index] not in doubled:
            doubled.append(text[index])
    return doubled


@given(first=integers(1, 4), second=integers(1, 4), third=integers(1, 6))
def triangle_kind(first: int, second: int, third: int) -> str:
    """Return "equilateral", "isosceles" or "scalene" for three sides; "none" if two are not longer than the third."""
    shortest, middle, longest = sorted([first, second, third])
    if shortest + middle <= longest:
        return "none"
    if shortest == longest:
        return "equilateral"
    return "isosceles" if middle in (shortest, longest) else "scalene"


def middle_item(items: list[int]) -> int | None:
    """Return the item in the middle of the sorted items, the smaller one if there are two; None without items."""
    if not items:
        return None
    ordered = sorted(items)
    return ordered[(len(ordered) - 1) // 2]


@given(text=either(texts("ab()", 0, 5), formatted("({})", texts("ab()", 0, 4)), formatted("(({}))", texts("ab", 0, 3))))
def peel_brackets(text: str) -> str:
    """Return the text without the "(" at its beginning and the ")" at its end, as long as it has both."""
    while len(text) >= 2 and text[0] == "(" and text[-1] == ")":
        text = text[1:-1]
    return text
