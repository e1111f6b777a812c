"""The functions of the split "train"."""

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
    matrices,
    texts,
    words,
)


def running_maximum(items: list[int]) -> list[int]:
    """Return, for every position, the largest item up to and including it."""
    result: list[int] = []
    for item in items:
        result.append(item if not result else max(item, result[-1]))
    return result


def rotate_left(items: list[int], steps: int) -> list[int]:
    """Return the items moved `steps` places to the left, around the end; a negative number moves to the right."""
    if not items:
        return []
    start = steps % len(items)
    return items[start:] + items[:start]


@given(size=integers(1, 4))
def split_into_chunks(items: list[int], size: int) -> list[list[int]]:
    """Return the items as consecutive lists of `size` items; the last one may be shorter."""
    chunks = []
    for start in range(0, len(items), size):
        chunks.append(items[start : start + size])
    return chunks


def longest_increasing_run(items: list[int]) -> int:
    """Return the length of the longest stretch of neighbours in which every item is greater than the one before."""
    longest = current = 0
    for index, item in enumerate(items):
        current = current + 1 if index > 0 and item > items[index - 1] else 1
        longest = max(longest, current)
    return longest


def second_largest(items: list[int]) -> int | None:
    """Return the second largest of the distinct items, or None if there are fewer than two."""
    distinct = sorted(set(items))
    if len(distinct) < 2:
        return None
    return distinct[-2]


def interleave(first: list[int], second: list[int]) -> list[int]:
    """Return items of both lists in turn, beginning with `first`; what the longer list has left follows."""
    result = []
    for index in range(max(len(first), len(second))):
        if index < len(first):
            result.append(first[index])
        if index < len(second):
            result.append(second[index])
    return result


@given(distance=integers(0, 6))
def thin_out(items: list[int], distance: int) -> list[int]:
    """Return the items, in order, without those that differ from the last kept item by less than `distance`."""
    kept: list[int] = []
    for item in items:
        if not kept or abs(item - kept[-1]) >= distance:
            kept.append(item)
    return kept


@given(items=lists(integers(0, 3), 0, 9))
def find_peaks(items: list[int]) -> list[int]:
    """Return the indices of the items that are greater than both neighbours; the first and last item are no peaks."""
    peaks = []
    for index in range(1, len(items) - 1):
        if items[index] > items[index - 1] and items[index] > items[index + 1]:
            peaks.append(index)
    return peaks


@given(items=lists(integers(-3, 4)), target=integers(-3, 4))
def count_pairs_with_sum(items: list[int], target: int) -> int:
    """Return the number of pairs of items, at two different positions, whose sum is `target`."""
    count = 0
    for index, item in enumerate(items):
        for other in items[index + 1 :]:
            if item + other == target:
                count += 1
    return count


def order_by_sign(items: list[int]) -> list[int]:
    """Return the negative items, then the zeros, then the positive items, each group in its given order."""
    negative = [item for item in items if item < 0]
    positive = [item for item in items if item > 0]
    zeros = len(items) - len(negative) - len(positive)
    return negative + [0] * zeros + positive


@given(first=ascending(lists(integers(-5, 9))), second=ascending(lists(integers(-5, 9))))
def merge_sorted(first: list[int], second: list[int]) -> list[int]:
    """Return the items of two ascending lists as one ascending list."""
    merged = []
    left = right = 0
    while left < len(first) and right < len(second):
        if first[left] <= second[right]:
            merged.append(first[left])
            left += 1
        else:
            merged.append(second[right])
            right += 1
    return merged + first[left:] + second[right:]


@given(width=integers(1, 4))
def window_sums(items: list[int], width: int) -> list[int]:
    """Return the sum of every `width` consecutive items, from left to right; none if there are fewer items."""
    return [sum(items[start : start + width]) for start in range(len(items) - width + 1)]


@given(low=integers(-5, 0), high=integers(1, 9))
def clamp_all(items: list[int], low: int, high: int) -> list[int]:
    """Return the items with those below `low` raised to it and those above `high` lowered to it."""
    return [min(max(item, low), high) for item in items]


def count_vowels(text: str) -> int:
    """Return how many characters of the text are one of a, e, i, o, u, in either case."""
    count = 0
    for character in text.lower():
        if character in "aeiou":
            count += 1
    return count


@given(
    text=either(texts("aA1 ,"), choice("Never odd or even", "No, Bob!", "Noon", "x1 2X", "eel lee", "ab, Ba", "abca"))
)
def is_palindrome(text: str) -> bool:
    """Return whether the letters and digits of the text read the same in both directions, ignoring case."""
    letters = [character.lower() for character in text if character.isalnum()]
    return letters == letters[::-1]


@given(text=joined(" ", words, 1), shift=integers(-30, 30))
def caesar_shift(text: str, shift: int) -> str:
    """Return the text with each letter from a to z or A to Z moved `shift` letters on, around the end of the alphabet.

    Letters keep their case, and other characters stay as they are.
    """
    result = ""
    for character in text:
        first = "a" if character.islower() else "A"
        moved = (ord(character) - ord(first) + shift) % 26
        result += chr(ord(first) + moved) if character.isalpha() else character
    return result


@given(text=texts("aab", 0, 8))
def run_length_encode(text: str) -> str:
    """Return each run of one character as the character and the run's length: "aab" becomes "a2b1"."""
    encoded = ""
    start = 0
    for index in range(1, len(text) + 1):
        if index == len(text) or text[index] != text[start]:
            encoded += text[start] + str(index - start)
            start = index
    return encoded


def headline(text: str) -> str:
    """Return the text with its words in lower case and capitalized, except words of up to two letters after the first.

    Words are separated by one space.
    """
    result = []
    for index, word in enumerate(text.lower().split()):
        result.append(word.capitalize() if index == 0 or len(word) > 2 else word)
    return " ".join(result)


def longest_word(text: str) -> str:
    """Return the longest word of the text, the first one if several are; an empty text if there is no word."""
    longest = ""
    for word in text.split():
        if len(word) > len(longest):
            longest = word
    return longest


@given(strings=lists(formatted("{}{}", choice("in", "inter", "int", "in"), texts("et", 0, 4)), 0, 4))
def common_prefix(strings: list[str]) -> str:
    """Return the longest text that all strings begin with; an empty text if there are no strings."""
    if not strings:
        return ""
    prefix = strings[0]
    for string in strings[1:]:
        while not string.startswith(prefix):
            prefix = prefix[:-1]
    return prefix


@given(text=either(joined(" ", words), joined("-", words), joined(" ", formatted("{}-{}", words, words))))
def acronym(text: str) -> str:
    """Return the first characters of the words in upper case; spaces and hyphens separate words."""
    return "".join(word[0].upper() for word in text.replace("-", " ").split())


@given(text=texts("ab", 0, 9), part=texts("ab", 0, 2))
def count_occurrences(text: str, part: str) -> int:
    """Return at how many positions of the text `part` begins, overlapping ones included; 0 for an empty part."""
    if not part:
        return 0
    count = 0
    for start in range(len(text) - len(part) + 1):
        if text[start : start + len(part)] == part:
            count += 1
    return count


@given(first=texts("abc", 0, 6), second=texts("abc", 0, 6))
def count_differences(first: str, second: str) -> int:
    """Return the number of positions at which the texts differ; positions that only one of them has count too."""
    count = abs(len(first) - len(second))
    for index in range(min(len(first), len(second))):
        if first[index] != second[index]:
            count += 1
    return count


def word_counts(text: str) -> dict[str, int]:
    """Return how often each word occurs in the text; words are compared and returned in lower case."""
    counts: dict[str, int] = {}
    for word in text.lower().split():
        counts[word] = counts.get(word, 0) + 1
    return counts


def names_by_value(mapping: dict[str, int]) -> dict[int, list[str]]:
    """Return, for each value of the mapping, the list of its keys in alphabetical order."""
    result: dict[int, list[str]] = {}
    for name in sorted(mapping):
        result.setdefault(mapping[name], []).append(name)
    return result


@given(items=lists(choice("a", "b", "c", "Z")))
def most_frequent(items: list[str]) -> str | None:
    """Return the item that occurs most often, the alphabetically first of several; None if there are no items."""
    best = None
    for item in sorted(items):
        if best is None or items.count(item) > items.count(best):
            best = item
    return best


def merge_totals(first: dict[str, int], second: dict[str, int]) -> dict[str, int]:
    """Return the sum of both values for each key of either mapping, without the keys whose sum is 0."""
    totals = dict(first)
    for name, value in second.items():
        totals[name] = totals.get(name, 0) + value
    return {name: total for name, total in totals.items() if total != 0}


def group_by_length(strings: list[str]) -> dict[int, list[str]]:
    """Return the strings by their length: each length with its strings, in their given order."""
    groups: dict[int, list[str]] = {}
    for string in strings:
        groups.setdefault(len(string), []).append(string)
    return groups


@given(number=integers(-2000, 2000))
def digit_sum(number: int) -> int:
    """Return the sum of the decimal digits of the number; its sign does not matter."""
    rest = abs(number)
    total = 0
    while rest > 0:
        total += rest % 10
        rest //= 10
    return total


@given(first=either(integers(-12, 40), choice(0, 36, -48)), second=either(integers(-12, 40), choice(0, 60, 24)))
def greatest_common_divisor(first: int, second: int) -> int:
    """Return the greatest number that divides both, never a negative one; 0 if both are 0."""
    while second != 0:
        first, second = second, first % second
    return abs(first)


@given(number=either(integers(-2, 30), choice(0, 1, 2, 4, 9, 49, 97, 91, 121, 101)))
def is_prime(number: int) -> bool:
    """Return whether the number is a prime number."""
    if number < 2:
        return False
    for divisor in range(2, number):
        if divisor * divisor > number:
            break
        if number % divisor == 0:
            return False
    return True


@given(number=either(integers(1, 60), integers(1, 2100)))
def to_roman(number: int) -> str:
    """Return a positive number as a Roman numeral, such as "XIV" for 14."""
    symbols = {1000: "M", 900: "CM", 500: "D", 400: "CD", 100: "C", 90: "XC", 50: "L", 40: "XL", 10: "X", 9: "IX"}
    result = ""
    for value, symbol in {**symbols, 5: "V", 4: "IV", 1: "I"}.items():
        result += symbol * (number // value)
        number %= value
    return result


@given(number=integers(1, 30))
def collatz_steps(number: int) -> int:
    """Return the number of steps to 1, where a step halves an even number and makes an odd number n into 3n + 1."""
    steps = 0
    while number != 1:
        number = number // 2 if number % 2 == 0 else 3 * number + 1
        steps += 1
    return steps


@given(number=either(integers(0, 40), choice(0, 1, 99, 100, 120, 143, 144)))
def integer_square_root(number: int) -> int:
    """Return the greatest whole number whose square is not greater than the number, which is not negative."""
    root = 0
    while (root + 1) * (root + 1) <= number:
        root += 1
    return root


@given(number=integers(0, 200), base=integers(2, 9))
def in_base(number: int, base: int) -> str:
    """Return the digits of a number that is not negative in the given base, from 2 to 9; "0" for 0."""
    digits = ""
    while number > 0:
        digits = str(number % base) + digits
        number //= base
    return digits or "0"


@given(
    text=either(
        formatted("{}h{}m{}s", integers(0, 3), integers(0, 59), integers(0, 59)),
        formatted("{}m{}s", integers(0, 90), integers(0, 59)),
        formatted("{}{}", integers(0, 50), choice("h", "m", "s")),
    )
)
def parse_duration(text: str) -> int:
    """Return the seconds of a duration such as "1h20m5s", in which some of the parts may be missing."""
    seconds = number = 0
    for character in text:
        if character.isdigit():
            number = number * 10 + int(character)
        else:
            seconds += number * {"h": 3600, "m": 60, "s": 1}[character]
            number = 0
    return seconds


@given(text=joined(";", choice("a=1", "b=2", "c=", "=7", "flag", " a = 3 ", "b=x=y", "", "d= 4")))
def parse_settings(text: str) -> dict[str, str]:
    """Return the keys and values of a text such as "a=1;b=2", without the spaces around them.

    A value begins after the first "="; parts without "=" are left out, and the last value of a key counts.
    """
    settings = {}
    for part in text.split(";"):
        name, sign, value = part.partition("=")
        if sign:
            settings[name.strip()] = value.strip()
    return settings


@given(text=formatted("{}{}", integers(0, 12), joined("", formatted("{}{}", choice("+", "-"), integers(0, 30)))))
def evaluate_sum(text: str) -> int:
    """Return the value of a text of whole numbers with "+" and "-" between them, such as "3+40-2"."""
    total = 0
    for part in text.replace("-", "+-").split("+"):
        total += int(part)
    return total


@given(
    text=either(
        texts("()[]", 0, 4), choice("(a[b])", "([])[]", "([)]", "((", "x", "(()[])", "[[]]()", ")(", "[(])", "()x")
    )
)
def is_balanced(text: str) -> bool:
    """Return whether every "(" and "[" of the text is closed by its ")" or "]" in the right order, and none is left.

    Other characters do not matter.
    """
    opened: list[str] = []
    for character in text:
        if character in "([":
            opened.append(character)
        elif character in ")]" and (not opened or opened.pop() + character not in ("()", "[]")):
            return False
    return not opened


def merge_intervals(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the intervals in ascending order, with those that overlap or touch made into one."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def overlap_length(first: tuple[int, int], second: tuple[int, int]) -> int:
    """Return the length of the part that two intervals, given as start and end, have in common; 0 if there is none."""
    start = max(first[0], second[0])
    end = min(first[1], second[1])
    return max(0, end - start)


def transpose(rows: list[list[int]]) -> list[list[int]]:
    """Return the columns of a matrix, given as its rows, as a list of rows."""
    columns = []
    for column in range(len(rows[0])):
        columns.append([row[column] for row in rows])
    return columns


@given(rows=matrices(integers(-5, 9), square=True))
def diagonal_sums(rows: list[list[int]]) -> tuple[int, int]:
    """Return the sums of both diagonals of a square matrix: the one from the top left, then that from the top right."""
    size = len(rows)
    main = sum(rows[index][index] for index in range(size))
    other = sum(rows[index][size - 1 - index] for index in range(size))
    return main, other


@given(rows=matrices(integers(0, 2)), value=integers(0, 2))
def row_with_most(rows: list[list[int]], value: int) -> int | None:
    """Return the index of the row that has `value` most often, the first of several; None if no row has it."""
    best, most = None, 0
    for index, row in enumerate(rows):
        if row.count(value) > most:
            best, most = index, row.count(value)
    return best


@given(year=either(integers(1890, 2030), choice(1600, 1700, 1900, 2000, 2100, 2400, 2024, 1996)))
def is_leap_year(year: int) -> bool:
    """Return whether the year has 366 days: it is divisible by 4, but if it is by 100, then by 400 too."""
    if year % 100 == 0:
        return year % 400 == 0
    return year % 4 == 0


@given(month=either(integers(1, 12), choice(2)), year=choice(1900, 2000, 2010, 2023, 2024, 2025))
def days_in_month(month: int, year: int) -> int:
    """Return the number of days of a month from 1 to 12, with 29 for February of leap years."""
    if month == 2:
        leap = year % 400 == 0 or (year % 4 == 0 and year % 100 != 0)
        return 29 if leap else 28
    return 30 if month in (4, 6, 9, 11) else 31


@given(start=formatted("{:02}:{:02}", integers(0, 23), integers(0, 59)), end=choice("00:00", "07:30", "12:05", "23:59"))
def minutes_between(start: str, end: str) -> int:
    """Return the minutes from one time such as "09:30" to the next moment when the clock shows the other.

    It is 0 if both are equal.
    """
    first = int(start[:2]) * 60 + int(start[3:])
    last = int(end[:2]) * 60 + int(end[3:])
    return (last - first) % (24 * 60)
