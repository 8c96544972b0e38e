"""Cron expressions against a matcher that looks at every minute, and the grammar's refusals."""

from __future__ import annotations

import contextlib
from calendar import monthrange
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from django_belay.contract.cron import MAX_EXPRESSION, NICKNAMES, Schedule, parse_schedule
from django_belay.exceptions import InvalidCron

MINUTE = timedelta(minutes=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def next_texts(expression: str, after: str, count: int, zone: str | None = None) -> list[str]:
    """The next slots, which the walk backwards finds as well."""
    schedule = parse_schedule(expression, zone)
    slots = list(islice(schedule.after(at(after)), count))
    assert list(takewhile(lambda slot: slot > at(after), schedule.until(slots[-1])))[::-1] == slots
    return [f"{slot:%m-%d %H:%M}" for slot in slots]


# -- against every minute -------------------------------------------------------------

BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))


@dataclass(frozen=True)
class Expression:
    """An expression together with the numbers that its fields mean."""

    texts: tuple[str, ...]
    numbers: tuple[frozenset[int], ...]

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    def matches(self, wall: datetime) -> bool:
        minute, hour, day, month, weekday = self.numbers
        on_day, on_weekday = wall.day in day, wall.isoweekday() % 7 in weekday
        if self.texts[2] != "*" and self.texts[4] != "*":
            is_day = on_day or on_weekday
        else:
            is_day = on_day and on_weekday
        return is_day and wall.month in month and wall.hour in hour and wall.minute in minute

    @property
    def ever_matches(self) -> bool:
        if self.texts[2] != "*" and self.texts[4] != "*":
            return True
        return any(min(self.numbers[2]) <= monthrange(2032, month)[1] for month in self.numbers[3])

    @property
    def is_fixed(self) -> bool:
        texts = " ".join(self.texts[:2])
        return (
            "*" not in texts and "/" not in texts and len(self.numbers[0]) < 60 and len(self.numbers[1]) < 24
        )


@st.composite
def items(draw: st.DrawFn, least: int, most: int) -> tuple[str, frozenset[int]]:
    kind = draw(st.sampled_from(["number", "number", "range", "step", "stepped range"]))
    if kind == "number":
        number = draw(st.integers(least, most))
        return f"{number}", frozenset([number])
    step = draw(st.integers(1, min(9, most)))
    if kind == "step":
        return f"*/{step}", frozenset(range(least, most + 1, step))
    low = draw(st.integers(least, most))
    high = draw(st.integers(low, most))
    if kind == "range":
        return f"{low}-{high}", frozenset(range(low, high + 1))
    return f"{low}-{high}/{step}", frozenset(range(low, high + 1, step))


@st.composite
def fields(draw: st.DrawFn, least: int, most: int) -> tuple[str, frozenset[int]]:
    if draw(st.integers(0, 2)) == 0:
        return "*", frozenset(range(least, most + 1))
    found = draw(st.lists(items(least, most), min_size=1, max_size=3))
    return ",".join(text for text, _ in found), frozenset().union(*(numbers for _, numbers in found))


@st.composite
def expressions(draw: st.DrawFn) -> Expression:
    found = [draw(fields(*bounds)) for bounds in BOUNDS]
    # Random months are mostly another one than the change's: have every month half of the time.
    if draw(st.booleans()):
        found[3] = ("*", frozenset(range(1, 13)))
    # Times around the change make the difference.
    if draw(st.booleans()):
        hours = draw(st.lists(st.sampled_from([0, 1, 2, 3, 23]), min_size=1, max_size=3, unique=True))
        found[1] = (",".join(map(str, hours)), frozenset(hours))
    return Expression(tuple(text for text, _ in found), tuple(numbers for _, numbers in found))


CHANGES = [
    ("Europe/Berlin", "2030-03-31T01:00"),
    ("Europe/Berlin", "2030-10-27T01:00"),
    ("America/New_York", "2030-03-10T07:00"),
    ("America/New_York", "2030-11-03T06:00"),
    ("Australia/Lord_Howe", "2030-04-06T15:00"),  # half an hour
    ("Australia/Lord_Howe", "2030-10-05T15:30"),
    ("America/Havana", "2030-03-10T05:00"),  # midnight is leapt over
    ("America/Havana", "2030-11-03T05:00"),
    ("Africa/Cairo", "2030-04-25T22:00"),
    ("Africa/Cairo", "2030-10-31T21:00"),  # the last hour of a day comes twice
    ("Asia/Kathmandu", "2030-01-31T18:15"),  # no change, three quarters of an hour
    ("UTC", "2030-02-28T23:00"),
]


def walls(zone: tzinfo, start: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
    instant = start
    while instant <= end:
        yield instant, instant.astimezone(zone)
        instant += MINUTE


def naive_slots(expression: Expression, zone: tzinfo, start: datetime, end: datetime) -> list[datetime]:
    """Slots later than ``start`` up to ``end``, minute by minute."""
    found = []
    before: datetime | None = None
    for instant, local in walls(zone, start, end):
        wall = local.replace(tzinfo=None, fold=0)
        if before is not None:
            leapt = [before + MINUTE * n for n in range(1, int((wall - before) / MINUTE))]
            is_first = local.fold == 0
            if expression.is_fixed:
                hit = (is_first and expression.matches(wall)) or any(map(expression.matches, leapt))
            else:
                hit = expression.matches(wall)
            if hit:
                found.append(instant)
        before = wall
    return found


@given(expressions(), st.sampled_from(CHANGES), st.integers(0, 2880))
@example(
    Expression(
        ("30", "2", "*", "*", "*"), tuple(map(frozenset, ([30], [2], range(1, 32), range(1, 13), range(7))))
    ),
    CHANGES[0],
    2000,
)
def test_slots_are_those_of_a_look_at_every_minute(
    expression: Expression, change: tuple[str, str], margin: int
) -> None:
    zone = ZoneInfo(change[0])
    start, end = at(change[1]) - MINUTE * margin, at(change[1]) + timedelta(days=1)
    expected = naive_slots(expression, zone, start, end)
    if not expression.ever_matches:
        with pytest.raises(InvalidCron, match="never run"):
            parse_schedule(expression.text, change[0])
        return
    schedule = parse_schedule(expression.text, change[0])
    assert schedule.is_fixed == expression.is_fixed
    assert list(takewhile(lambda slot: slot <= end, schedule.after(start))) == expected
    assert list(takewhile(lambda slot: slot > start, schedule.until(end)))[::-1] == expected


@given(
    st.sampled_from(CHANGES),
    st.integers(-200, 200),
    st.sampled_from(["30 0-3 * * *", "*/20 * * * *", "0 2 * * *"]),
)
def test_walks_from_within_a_change_agree(change: tuple[str, str], seconds: int, expression: str) -> None:
    schedule = parse_schedule(expression, change[0])
    middle = at(change[1]) + timedelta(seconds=seconds * 37)
    early, late = middle - timedelta(hours=6), middle + timedelta(hours=6)
    whole = list(takewhile(lambda slot: slot <= late, schedule.after(early)))
    before = list(takewhile(lambda slot: slot > early, schedule.until(middle)))[::-1]
    behind = list(takewhile(lambda slot: slot <= late, schedule.after(middle)))
    assert before + behind == whole


# -- clock changes, spelled out ----------------------------------------------------------


def test_a_fixed_time_in_the_gap_runs_in_the_first_minute_after_it() -> None:
    assert next_texts("30 2 * * *", "2030-03-30 00:00", 3, "Europe/Berlin") == [
        "03-30 01:30", "03-31 01:00", "04-01 00:30",
    ]  # fmt: skip


def test_fixed_times_that_meet_in_one_minute_run_once() -> None:
    assert next_texts("0,15,30 2,3 * * *", "2030-03-31 00:00", 4, "Europe/Berlin") == [
        "03-31 01:00", "03-31 01:15", "03-31 01:30", "04-01 00:00",
    ]  # fmt: skip


def test_a_fixed_time_in_the_repeated_hour_runs_once() -> None:
    assert next_texts("30 2 * * *", "2030-10-26 12:00", 2, "Europe/Berlin") == ["10-27 00:30", "10-28 01:30"]


@pytest.mark.parametrize("expression", ["30 * * * *", "30 0-23 * * *", "30 */1 * * *", "30 0-23/1 * * *"])
def test_an_hourly_entry_runs_in_both_turns_of_the_repeated_hour(expression: str) -> None:
    assert next_texts(expression, "2030-10-27 00:00", 3, "Europe/Berlin") == [
        "10-27 00:30", "10-27 01:30", "10-27 02:30",
    ]  # fmt: skip


def test_both_turns_of_a_repeated_hour_are_found_from_months_away() -> None:
    assert next_texts("*/30 2 27 10 *", "2030-01-01 00:00", 4, "Europe/Berlin") == [
        "10-27 00:00", "10-27 00:30", "10-27 01:00", "10-27 01:30",
    ]  # fmt: skip


def test_an_interval_runs_every_real_quarter_of_an_hour_across_the_gap() -> None:
    assert next_texts("*/15 * * * *", "2030-03-31 00:40", 3, "Europe/Berlin") == [
        "03-31 00:45", "03-31 01:00", "03-31 01:15",
    ]  # fmt: skip


def test_midnight_that_is_leapt_over_runs_at_one() -> None:
    assert next_texts("@daily", "2030-03-09 12:00", 2, "America/Havana") == ["03-10 05:00", "03-11 04:00"]


def test_a_whole_day_that_a_zone_skipped_runs_in_the_minute_after_it() -> None:
    assert next_texts("0 12 * * *", "2011-12-29 00:00", 3, "Pacific/Apia") == [
        "12-29 22:00", "12-30 10:00", "12-30 22:00",
    ]  # fmt: skip


# -- days ----------------------------------------------------------------------------------


def test_day_of_month_or_day_of_week_when_both_are_restricted() -> None:
    # 2030-01-04 is a Friday.
    assert next_texts("0 0 13 * FRI", "2030-01-05 12:00", 3) == ["01-11 00:00", "01-13 00:00", "01-18 00:00"]


def test_a_step_over_every_day_counts_as_restricted() -> None:
    assert next_texts("0 0 */2 * MON", "2030-01-05 12:00", 4) == [
        "01-07 00:00", "01-09 00:00", "01-11 00:00", "01-13 00:00",
    ]  # fmt: skip
    assert next_texts("0 0 13 * */2", "2030-01-11 12:00", 3) == ["01-12 00:00", "01-13 00:00", "01-15 00:00"]


def test_day_of_week_alone_restricts() -> None:
    assert next_texts("0 8 * * 1-5", "2030-01-04 09:00", 2) == ["01-07 08:00", "01-08 08:00"]


@pytest.mark.parametrize("weekday", ["0", "7", "SUN", "sun", "7-7"])
def test_sunday_has_all_its_names(weekday: str) -> None:
    assert next_texts(f"0 0 * * {weekday}", "2030-01-04 00:00", 1) == ["01-06 00:00"]


def test_a_leap_day_is_found_years_ahead() -> None:
    [slot] = islice(parse_schedule("0 0 29 2 *").after(at("2096-03-01 00:00")), 1)
    assert slot == at("2104-02-29 00:00")
    [slot] = islice(parse_schedule("0 0 29 2 *").until(at("2103-03-01 00:00")), 1)
    assert slot == at("2096-02-29 00:00")


@pytest.mark.parametrize(("nickname", "expression"), NICKNAMES.items())
def test_a_nickname_is_its_expression(nickname: str, expression: str) -> None:
    named, spelled = parse_schedule(nickname), parse_schedule(expression)
    assert named.spelled == spelled.spelled
    assert parse_schedule(f" {nickname.upper()} ").spelled == spelled.spelled


def test_all_nicknames_of_the_contract_are_known() -> None:
    assert set(NICKNAMES) == {"@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually"}


# -- edges of an instant ----------------------------------------------------------------------


@pytest.mark.parametrize("expression", ["* * * * *", "0 12 * * *"])
def test_after_is_strict_and_until_is_not(expression: str) -> None:
    schedule: Schedule = parse_schedule(expression)
    noon = at("2030-01-01 12:00")
    assert next(schedule.until(noon)) == noon
    assert next(schedule.until(noon + timedelta(seconds=59, microseconds=999_999))) == noon
    assert next(schedule.after(noon - timedelta(microseconds=1))) == noon
    assert next(schedule.after(noon)) > noon
    assert next(schedule.until(noon - timedelta(microseconds=1))) < noon


# -- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "has 0 fields"),
        ("* * * *", "has 4 fields"),
        ("0 * * * * *", "has 6 fields"),
        ("0 0 0 1 1 * 2030", "has 7 fields"),
        ("*\n* * * *", "fields"),
        ("60 * * * *", "minute '60': 60 is not from 0 to 59"),
        ("* 24 * * *", "hour '24': 24 is not from 0 to 23"),
        ("* * 0 * *", "day of the month '0': 0 is not from 1 to 31"),
        ("* * * 13 *", "13 is not from 1 to 12, or JAN to DEC"),
        ("* * * * 8", "8 is not from 0 to 7, or SUN to SAT"),
        ("* * L * *", "day of the month 'L'"),
        ("* * 15W * *", "day of the month '15W'"),
        ("* * ? * *", "day of the month"),
        ("* * * * 5#2", "day of the week '5#2'"),
        ("* * * * 5L", "day of the week '5L'"),
        ("* * * * MONDAY", "day of the week 'MONDAY'"),
        ("* * * * JAN", "day of the week 'JAN'"),
        ("MON * * * *", "minute 'MON'"),
        ("* * JAN * *", "day of the month 'JAN'"),
        ("R * * * *", "minute 'R'"),
        ("H * * * *", "minute 'H'"),
        ("0~59 * * * *", "minute '0~59'"),
        ("-1 * * * *", "minute '-1'"),
        ("1,,2 * * * *", "minute '1,,2'"),
        ("5-1 * * * *", "the range 5-1 runs backwards"),
        ("* * * * FRI-MON", "runs backwards"),
        ("*/0 * * * *", "the step '0' is not from 1 to 60"),
        ("*/61 * * * *", "the step '61' is not from 1 to 60"),
        ("*/-1 * * * *", "the step '-1'"),
        ("*/5/2 * * * *", "the step '5/2'"),
        ("5/15 * * * *", "5/15 has a step without a range; 5-59/15"),
        ("*-5 * * * *", "minute '\\*-5'"),
        ("١ * * * *", "minute"),
        ("1e1 * * * *", "minute"),
        ("@reboot", "is no known nickname"),
        ("@every 5m", "is no known nickname"),
        ("@minutely", "is no known nickname"),
        ("0 0 30 2 *", "would never run"),
        ("0 0 31 4,6,9,11 *", "would never run"),
        ("1," * MAX_EXPRESSION, "characters"),
        (None, "is no text"),
        (5, "is no text"),
    ],
)
def test_what_is_not_in_the_grammar_is_refused_with_what_is(expression: str, message: str) -> None:
    with pytest.raises(InvalidCron, match=message) as caught:
        parse_schedule(expression)
    assert len(str(caught.value)) < 600


def test_a_refusal_names_what_is_allowed() -> None:
    with pytest.raises(InvalidCron, match=r"allowed are five fields .*@hourly, @daily"):
        parse_schedule("every day")


def test_a_day_that_no_month_has_is_fine_beside_a_weekday() -> None:
    assert next_texts("0 0 31 2 MON", "2030-02-01 00:00", 1) == ["02-04 00:00"]


@given(st.text(max_size=40))
def test_any_text_is_a_schedule_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidCron):
        parse_schedule(text)


@pytest.mark.parametrize(
    "zone",
    [
        "",
        "Mars/Olympus",
        "Europe",
        "../etc/passwd",
        "/etc/passwd",
        "a\0b",
        "localtime",
        "\ud800",
        5,
        "x" * 5000,
    ],
)
def test_a_zone_that_is_none_is_refused(zone: str) -> None:
    with pytest.raises(InvalidCron, match=r"time zone .* is not known here") as caught:
        parse_schedule("@daily", zone)
    assert len(str(caught.value)) < 400


def test_without_a_zone_it_is_utc() -> None:
    assert next_texts("0 12 * * *", "2030-07-01 00:00", 1) == ["07-01 12:00"]
    assert next_texts("0 12 * * *", "2030-07-01 00:00", 1, "Asia/Kathmandu") == ["07-01 06:15"]
