"""The functions of the split "held_out"."""

from __future__ import annotations

from composer_replication.envs.python_tasks.bank import (
    ascending,
    choice,
    either,
    formatted,
    given,
    integers,
    joined,
    lists,
    mappings,
    pairs,
    texts,
    words,
)


@given(items=lists(integers(0, 2), 0, 9))
def drop_repeats(items: list[int]) -> list[int]:
    """Return the items without those that are equal to the item right before them."""
    kept: list[int] = []
    for item in items:
        if not kept or kept[-1] != item:
            kept.append(item)
    return kept


@given(items=lists(integers(-1, 3), 0, 9))
def move_zeros_last(items: list[int]) -> list[int]:
    """Return the items with all zeros moved to the end; the others keep their order."""
    others = [item for item in items if item != 0]
    return others + [0] * (len(items) - len(others))


@given(items=lists(choice(1, 1, 1, 2, 3), 0, 6))
def majority_item(items: list[int]) -> int | None:
    """Return the item that makes up more than half of the items, or None if there is none."""
    for item in items:
        if items.count(item) * 2 > len(items):
            return item
    return None


def best_stretch_sum(items: list[int]) -> int:
    """Return the largest sum of one or more neighbouring items; 0 if there are no items."""
    if not items:
        return 0
    best = current = items[0]
    for item in items[1:]:
        current = max(item, current + item)
        best = max(best, current)
    return best


@given(size=integers(1, 4))
def reverse_in_blocks(items: list[int], size: int) -> list[int]:
    """Return the items with every block of `size` consecutive items reversed; the last block may be shorter."""
    result = []
    for start in range(0, len(items), size):
        block = items[start : start + size]
        result += block[::-1]
    return result


@given(items=lists(integers(0, 5)))
def ranks(items: list[int]) -> list[int]:
    """Return the rank of every item: 1 for the largest, 2 for the next smaller value, ...; equal items share one."""
    order = sorted(set(items), reverse=True)
    return [order.index(item) + 1 for item in items]


@given(items=lists(integers(-4, 12)))
def missing_numbers(items: list[int]) -> list[int]:
    """Return, in ascending order, the whole numbers between the smallest and the largest item that are not items."""
    if not items:
        return []
    return [number for number in range(min(items), max(items) + 1) if number not in items]


@given(first=lists(integers(0, 6)), second=lists(integers(0, 6)))
def shared_items(first: list[int], second: list[int]) -> list[int]:
    """Return the items that both lists have, each of them once, in the order in which `first` has them."""
    shared = []
    for item in first:
        if item in second and item not in shared:
            shared.append(item)
    return shared


@given(items=ascending(lists(integers(0, 12))), value=integers(-1, 13))
def insert_position(items: list[int], value: int) -> int:
    """Return the first index of the ascending items at which `value` can be inserted so that they stay ascending."""
    low, high = 0, len(items)
    while low < high:
        middle = (low + high) // 2
        if items[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@given(items=either(lists(integers(-2, 2)), choice([1, 7, 3, 6, 5, 6], [2, 1, -1], [5], [3, 0, 3], [0, 0], [4, 9, 4])))
def balance_index(items: list[int]) -> int | None:
    """Return the first index at which the items before it and the items after it have equal sums; None without one."""
    before = 0
    for index, item in enumerate(items):
        if before == sum(items[index + 1 :]):
            return index
        before += item
    return None


@given(items=lists(integers(0, 6)))
def count_inversions(items: list[int]) -> int:
    """Return the number of pairs of positions of which the earlier one has the greater item."""
    count = 0
    for index, item in enumerate(items):
        for later in items[index + 1 :]:
            if item > later:
                count += 1
    return count


@given(number=integers(0, 24))
def pascal_row(number: int) -> list[int]:
    """Return row `number` of Pascal's triangle; row 0 is [1], and each inner number is the sum of the two above it."""
    row = [1]
    for _ in range(number):
        row = [1] + [row[index] + row[index + 1] for index in range(len(row) - 1)] + [1]
    return row


@given(text=texts("12 3ab4", 0, 10), kept=integers(0, 3))
def mask_digits(text: str, kept: int) -> str:
    """Return the text with all digits but the last `kept` ones replaced by "*"; other characters stay."""
    result = ""
    seen = 0
    for character in text[::-1]:
        if character.isdigit():
            seen += 1
            result = ("*" if seen > kept else character) + result
        else:
            result = character + result
    return result


@given(
    first=choice("Listen", "dusty", "Noon", "a b", "tree", "", "aab", "Bab"),
    second=choice("silent", "Study", "no on", "BA", "reet", "  ", "abb", "TREE", "b ab"),
)
def is_anagram(first: str, second: str) -> bool:
    """Return whether both texts have the same letters equally often, ignoring case and spaces."""
    left = sorted(first.lower().replace(" ", ""))
    right = sorted(second.lower().replace(" ", ""))
    return left == right


@given(text=either(joined(" ", words), joined("  ", words)))
def reverse_words(text: str) -> str:
    """Return the words of the text in reverse order, with one space between them."""
    return " ".join(reversed(text.split()))


@given(text=joined("", choice("get", "Item", "By", "X", "name", "ID", "2"), 0, 4))
def snake_case(text: str) -> str:
    """Return a name in lower case, with "_" before each letter that was upper case, except at the beginning."""
    result = ""
    for index, character in enumerate(text):
        if character.isupper() and index > 0:
            result += "_"
        result += character.lower()
    return result


@given(text=joined(" ", words, 0, 7), width=integers(6, 16))
def wrap_text(text: str, width: int) -> list[str]:
    """Return the words of the text as lines with one space between words, each line as long as `width` allows.

    A word that is longer than `width` has a line of its own.
    """
    lines: list[str] = []
    for word in text.split():
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += " " + word
        else:
            lines.append(word)
    return lines


@given(line=joined("", choice("x = 1", " ", "#", '"', " # note", '"#"', "y"), 0, 6))
def strip_comment(line: str) -> str:
    """Return the line up to its first "#" outside double quotes, without spaces at its end."""
    quoted = False
    for index, character in enumerate(line):
        if character == '"':
            quoted = not quoted
        if character == "#" and not quoted:
            return line[:index].rstrip(" ")
    return line.rstrip(" ")


@given(text=texts("abcAB", 0, 7))
def first_unique(text: str) -> str | None:
    """Return the first character that occurs only once in the text, or None; upper and lower case are different."""
    for character in text:
        if text.count(character) == 1:
            return character
    return None


@given(word=formatted("{}{}", choice("", "str", "y", "qu", "b"), choice("apple", "eel", "ing", "art", "", "oo")))
def pig_latin(word: str) -> str:
    """Return a word in lower case with the letters before its first a, e, i, o or u moved to the end, then "ay"."""
    for index, letter in enumerate(word):
        if letter in "aeiou":
            return word[index:] + word[:index] + "ay"
    return word + "ay"


@given(text=texts("abc", 0, 5), width=integers(0, 9), fill=choice("*", "-"))
def center_text(text: str, width: int, fill: str) -> str:
    """Return the text in the middle of `width` characters, with `fill` around it; an odd one is put on the right."""
    missing = max(0, width - len(text))
    left = missing // 2
    return fill * left + text + fill * (missing - left)


@given(first=texts("abc", 0, 5), second=texts("abc", 0, 5))
def edit_distance(first: str, second: str) -> int:
    """Return the smallest number of inserted, removed and replaced characters that makes `first` into `second`."""
    row = list(range(len(second) + 1))
    for index, left in enumerate(first, 1):
        previous, row = row, [index]
        for column, right in enumerate(second, 1):
            kept = previous[column - 1] + (left != right)
            row.append(min(kept, previous[column] + 1, row[-1] + 1))
    return row[-1]


@given(part=texts("abc", 0, 4), text=texts("abc", 2, 8))
def is_subsequence(part: str, text: str) -> bool:
    """Return whether the characters of `part` occur in the text in this order, possibly with others between them."""
    position = 0
    for character in text:
        if position < len(part) and part[position] == character:
            position += 1
    return position == len(part)


@given(text=texts("abca", 0, 7))
def letter_positions(text: str) -> dict[str, list[int]]:
    """Return, for each character of the text, the ascending list of the indices at which it stands."""
    positions: dict[str, list[int]] = {}
    for index, character in enumerate(text):
        positions.setdefault(character, []).append(index)
    return positions


@given(limit=integers(-3, 6))
def names_above(scores: dict[str, int], limit: int) -> list[str]:
    """Return the names whose score is above `limit`, the highest first and equal ones in alphabetical order."""
    chosen = [name for name in sorted(scores) if scores[name] > limit]
    return sorted(chosen, key=lambda name: scores[name], reverse=True)


@given(prices=mappings(words, integers(1, 9)), budget=integers(0, 20))
def affordable(prices: dict[str, int], budget: int) -> list[str]:
    """Return what can be bought, one of each, the cheapest first, until the next one costs more than what is left.

    Of equal prices the alphabetically first name comes first.
    """
    bought: list[str] = []
    for price, name in sorted((price, name) for name, price in prices.items()):
        if price > budget:
            break
        budget -= price
        bought.append(name)
    return bought


@given(
    stock=mappings(choice("nut", "nail", "screw"), integers(0, 5)),
    changes=lists(pairs(choice("nut", "nail", "bolt"), integers(-6, 5)), 0, 5),
)
def apply_changes(stock: dict[str, int], changes: list[tuple[str, int]]) -> dict[str, int]:
    """Return the stock after the changes, made in order: each adds its number to its name's, but never below 0.

    A name that is new begins at 0.
    """
    result = dict(stock)
    for name, change in changes:
        result[name] = max(0, result.get(name, 0) + change)
    return result


@given(
    first=mappings(choice("a", "b", "c", "d"), integers(0, 2)),
    second=mappings(choice("a", "b", "c", "d"), integers(0, 2)),
)
def differing_keys(first: dict[str, int], second: dict[str, int]) -> list[str]:
    """Return, in alphabetical order, the keys that only one of the mappings has or whose values differ."""
    keys = [*first, *(key for key in second if key not in first)]
    return [key for key in sorted(keys) if first.get(key) != second.get(key)]


@given(number=either(integers(1, 40), choice(6, 28, 496)))
def divisor_kind(number: int) -> str:
    """Return "perfect" if a positive number is the sum of its smaller divisors, "abundant" if that sum is greater.

    If it is less, return "deficient".
    """
    total = 0
    for divisor in range(1, number):
        if number % divisor == 0:
            total += divisor
    if total == number:
        return "perfect"
    return "abundant" if total > number else "deficient"


@given(number=either(integers(1, 60), choice(64, 81, 97, 210, 360)))
def prime_factors(number: int) -> list[int]:
    """Return the prime numbers whose product is the positive number, in ascending order; none for 1."""
    factors = []
    divisor = 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return factors


@given(number=either(integers(-999, 999), choice(0, 120, -450)))
def reverse_digits(number: int) -> int:
    """Return the number whose decimal digits are reversed, with the same sign: -120 becomes -21."""
    reversed_digits = int(str(abs(number))[::-1])
    return -reversed_digits if number < 0 else reversed_digits


@given(limit=either(integers(-2, 40), choice(55, 56, 90, 233, 1000)))
def fibonacci_below(limit: int) -> list[int]:
    """Return the Fibonacci numbers that are less than `limit`, which begin with 1, 1, 2, 3."""
    numbers = []
    current, following = 1, 1
    while current < limit:
        numbers.append(current)
        current, following = following, current + following
    return numbers


@given(numbers=lists(integers(1, 12), 0, 4))
def least_common_multiple(numbers: list[int]) -> int:
    """Return the smallest positive number that all the positive numbers divide; 1 if there are none."""
    multiple = 1
    for number in numbers:
        step = multiple
        while multiple % number != 0:
            multiple += step
    return multiple


@given(number=integers(-20, 40), step=integers(1, 10))
def round_to_multiple(number: int, step: int) -> int:
    """Return the multiple of the positive `step` that is nearest to the number; the greater one if two are."""
    below = number // step * step
    return below + step if (number - below) * 2 >= step else below


@given(text=either(choice("79927398713", "18", "0", "4539", "91", "59"), texts("0123456789", 1, 5)))
def luhn_valid(text: str) -> bool:
    """Return whether the digits pass the Luhn check: their sum, after the following change, is divisible by 10.

    From the right, every second digit is doubled, and 9 is taken away from a double above 9.
    """
    total = 0
    for index, character in enumerate(reversed(text)):
        digit = int(character) * (1 + index % 2)
        total += digit - 9 if digit > 9 else digit
    return total % 10 == 0


@given(text=either(texts("0123456789abcdefABCDEF", 0, 4), texts("09afgAF-", 1, 3)))
def hexadecimal_value(text: str) -> int | None:
    """Return the value of a hexadecimal number with letters of either case; None if it is empty or is not one."""
    value = 0
    for character in text.lower():
        if character not in "0123456789abcdef":
            return None
        value = value * 16 + "0123456789abcdef".index(character)
    return value if text else None


@given(first=joined(".", choice(0, 1, 2, 10), 1, 3), second=joined(".", choice(0, 1, 2, 10), 1, 3))
def compare_versions(first: str, second: str) -> int:
    """Return -1, 0 or 1 if the first version, such as "1.10.2", is lower, equal or higher, comparing number by number.

    Missing numbers count as 0.
    """
    left = [int(part) for part in first.split(".")]
    right = [int(part) for part in second.split(".")]
    length = max(len(left), len(right))
    left += [0] * (length - len(left))
    right += [0] * (length - len(right))
    return (left > right) - (left < right)


@given(line=joined(",", choice("a", '"b,c"', "", '"x"', "12", '","', 'd"e"f')))
def split_fields(line: str) -> list[str]:
    """Return the fields of a line between its commas; commas in double quotes do not count, and quotes are removed."""
    fields = [""]
    quoted = False
    for character in line:
        if character == '"':
            quoted = not quoted
        elif character == "," and not quoted:
            fields.append("")
        else:
            fields[-1] += character
    return fields


@given(
    tokens=either(
        formatted("{} {} {}", integers(-5, 9), integers(0, 9), choice("+", "-", "*")),
        formatted("{} {} {} - {}", integers(0, 9), integers(0, 9), integers(0, 9), choice("+", "*", "-")),
    )
)
def evaluate_postfix(tokens: str) -> int:
    """Return the value of an expression in postfix notation, such as "7 2 -" for 7 - 2, with "+", "-" and "*"."""
    stack: list[int] = []
    for token in tokens.split():
        if token in ("+", "-", "*"):
            right, left = stack.pop(), stack.pop()
            stack.append(left + right if token == "+" else left - right if token == "-" else left * right)
        else:
            stack.append(int(token))
    return stack[-1]


@given(text=joined(",", either(integers(0, 20), choice("1-3", "4-4", "8-10", "9-7", "2-5")), 0, 4))
def expand_ranges(text: str) -> list[int]:
    """Return the numbers of a text such as "1-3,7": a range includes both ends.

    A range from high to low has no numbers, nor has an empty text.
    """
    numbers: list[int] = []
    for part in text.split(",") if text else []:
        first, dash, last = part.partition("-")
        numbers += range(int(first), int(last) + 1) if dash else [int(first)]
    return numbers


@given(end=integers(5, 20))
def free_gaps(busy: list[tuple[int, int]], end: int) -> list[tuple[int, int]]:
    """Return the intervals between 0 and `end` that no busy interval covers, in ascending order, without empty ones."""
    gaps = []
    free_from = 0
    for start, stop in sorted(busy):
        if min(start, end) > free_from:
            gaps.append((free_from, min(start, end)))
        free_from = max(free_from, stop)
    if free_from < end:
        gaps.append((free_from, end))
    return gaps


def most_at_once(visits: list[tuple[int, int]]) -> int:
    """Return the largest number of visits, given as arrival and departure, that go on at one moment.

    A visit has ended at the moment of its departure.
    """
    most = 0
    for moment, _ in visits:
        present = [1 for arrival, departure in visits if arrival <= moment < departure]
        most = max(most, len(present))
    return most


def rotate_clockwise(rows: list[list[int]]) -> list[list[int]]:
    """Return the rows of a matrix that is turned to the right: its first column, read upwards, comes first."""
    result = []
    for column in range(len(rows[0])):
        result.append([row[column] for row in reversed(rows)])
    return result


def spiral_order(rows: list[list[int]]) -> list[int]:
    """Return the numbers of a matrix along a spiral: the first row to the right, the last column down, then inwards."""
    result: list[int] = []
    rest = [list(row) for row in rows]
    while rest:
        result += rest.pop(0)
        rest = [list(column) for column in zip(*rest, strict=True)][::-1]
    return result


@given(grid=lists(texts("##.", 4, 4), 1, 4))
def count_islands(grid: list[str]) -> int:
    """Return the number of groups of "#" in the rows of a grid; those beside or above each other are one group."""
    land = {(row, column) for row, line in enumerate(grid) for column, cell in enumerate(line) if cell == "#"}
    count = 0
    while land:
        count += 1
        waiting = [land.pop()]
        while waiting:
            row, column = waiting.pop()
            for place in [(row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)]:
                if place in land:
                    land.remove(place)
                    waiting.append(place)
    return count


@given(month=either(integers(1, 12), choice(3, 12)), day=integers(1, 28), leap=choice(True, False))
def day_of_year(month: int, day: int, leap: bool) -> int:
    """Return the number of the day in its year, 1 for the first of January; February has 29 days if `leap`."""
    lengths = [31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
    return sum(lengths[: month - 1]) + day


@given(minutes=either(integers(0, 1439), choice(0, 5, 719, 720, 725, 780)))
def twelve_hour_clock(minutes: int) -> str:
    """Return the time so many minutes after midnight as "1:05 pm"; midnight is "12:00 am" and noon "12:00 pm"."""
    hour = minutes // 60
    suffix = "am" if hour < 12 else "pm"
    return str(hour % 12 or 12) + ":" + str(minutes % 60).zfill(2) + " " + suffix
