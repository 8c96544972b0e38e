"""A job's signature as the codec of its input."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType, NotRequired, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_belay.contract.inputs import InputCodec
from django_belay.exceptions import ConfigurationError, InvalidInput

if TYPE_CHECKING:
    from nowhere import Context, Result  # type: ignore[import-not-found]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Shape(enum.Enum):
    SQUARE = (1, 1)
    ROUND = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Right(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Line:
    sku: str
    quantity: int = 1
    price: Decimal | None = None


@dataclasses.dataclass(frozen=True)
class Order:
    id: uuid.UUID
    lines: list[Line]
    parent: Order | None = None
    total: int = dataclasses.field(init=False, default=0)


class Address(TypedDict):
    city: str
    since: NotRequired[date]


UserId = NewType("UserId", int)
ID = uuid.UUID(int=7)


def codec(annotation: Any) -> InputCodec:
    def job(ctx: Context, value) -> Result:  # type: ignore[no-untyped-def]
        raise AssertionError

    job.__annotations__["value"] = annotation
    return InputCodec.for_function(job)


def stored(form: Any) -> Any:
    return json.loads(json.dumps(form))


def round_trip(annotation: Any, value: Any) -> Any:
    found = codec(annotation)
    form = found.encode((value,))
    back = found.decode(stored(form))["value"]
    assert back == value
    assert type(back) is type(value)
    return form["value"]


@pytest.mark.parametrize(
    ("annotation", "value", "form"),
    [
        (int, 5, 5),
        (str, "x", "x"),
        (bool, True, True),
        (float, 1.5, 1.5),
        (None, None, None),
        (datetime, datetime(2026, 7, 21, 9, 30, 0, 1, tzinfo=UTC), "2026-07-21T09:30:00.000001+00:00"),
        (datetime, datetime(2026, 7, 21, tzinfo=timezone(timedelta(hours=-3))), "2026-07-21T00:00:00-03:00"),
        (datetime, datetime(2026, 7, 21, 9, 30), "2026-07-21T09:30:00"),
        (date, date(2026, 7, 21), "2026-07-21"),
        (time, time(9, 30, tzinfo=UTC), "09:30:00+00:00"),
        (timedelta, timedelta(days=-1, microseconds=1), "-P0DT23H59M59.999999S"),
        (uuid.UUID, ID, str(ID)),
        (Decimal, Decimal("1.20"), "1.20"),
        (Decimal, Decimal("-1E+30"), "-1E+30"),
        (Colour, Colour.RED, "red"),
        (Shape, Shape.SQUARE, "SQUARE"),
        (Level, Level.HIGH, 2),
        (Right, Right.READ | Right.WRITE, 3),
        (Line, Line("a", 2, Decimal("1.0")), {"sku": "a", "quantity": 2, "price": "1.0"}),
        (
            Order,
            Order(ID, [Line("a")], Order(ID, [])),
            {
                "id": str(ID),
                "lines": [{"sku": "a", "quantity": 1, "price": None}],
                "parent": {"id": str(ID), "lines": [], "parent": None},
            },
        ),
        (list, [1, "a", None], [1, "a", None]),
        (list[date], [date(2026, 1, 1)], ["2026-01-01"]),
        (Sequence[int], [1], [1]),
        (tuple[int, str], (1, "a"), [1, "a"]),
        (tuple[int, ...], (1, 2), [1, 2]),
        (tuple[()], (), []),
        (tuple, (1, "a"), [1, "a"]),
        (set[int], {3, 1}, [1, 3]),
        (frozenset[uuid.UUID], frozenset({ID}), [str(ID)]),
        (dict, {"a": [1]}, {"a": [1]}),
        (dict[str, date], {"a": date(2026, 1, 1)}, {"a": "2026-01-01"}),
        (dict[int, bool], {-3: True}, {"-3": True}),
        (dict[date, int], {date(2026, 1, 1): 1}, {"2026-01-01": 1}),
        (dict[Level, int], {Level.LOW: 1}, {"1": 1}),
        (Mapping[str, int], {"a": 1}, {"a": 1}),
        (Address, {"city": "Brno", "since": date(2026, 1, 1)}, {"city": "Brno", "since": "2026-01-01"}),
        (Address, {"city": "Brno"}, {"city": "Brno"}),
        (date | None, None, None),
        (date | None, date(2026, 1, 1), "2026-01-01"),
        (int | float, 1, 1),
        (int | float, 1.0, 1.0),
        (bool | int, 1, 1),
        (date | str, date(2026, 1, 1), "2026-01-01"),
        (str | date, date(2026, 1, 1), "2026-01-01"),
        (date | str, "soon", "soon"),
        (date | datetime, date(2026, 1, 1), "2026-01-01"),
        (date | datetime, datetime(2026, 1, 1), "2026-01-01T00:00:00"),
        (Colour | Level | str, Level.LOW, 1),
        (Line | Order, Line("a"), {"sku": "a", "quantity": 1, "price": None}),
        (list[int] | dict[str, int] | None, {"a": 1}, {"a": 1}),
        (Literal["a", 1, True, None], True, True),
        (Literal["a", 1, True], 1, 1),
        (Literal[Colour.RED], Colour.RED, "red"),
        (Annotated[int, "a note"], 1, 1),
        (UserId, 1, 1),
        (Any, {"a": [1, None]}, {"a": [1, None]}),
        (object, [1], [1]),
    ],
)
def test_a_typed_argument_comes_back(annotation: Any, value: Any, form: Any) -> None:
    assert round_trip(annotation, value) == form


@pytest.mark.parametrize(
    ("annotation", "value", "path", "says"),
    [
        (int, True, "input.value", "found bool, expected int"),
        (int, 1.0, "input.value", "found float, expected int"),
        (int, 2**64, "input.value", "beyond 64 bits"),
        (float, True, "input.value", "found bool, expected float"),
        (float, float("nan"), "input.value", "found NaN"),
        (float, 2**53 + 1, "input.value", "cannot hold exactly"),
        (float, 10**400, "input.value", "beyond the range"),
        (str, 1, "input.value", "found int, expected str"),
        (str, "a\0", "input.value", "NUL"),
        (str, "\ud800", "input.value", "surrogate"),
        (date, datetime(2026, 1, 1), "input.value", "found datetime, expected date"),
        (datetime, date(2026, 1, 1), "input.value", "found date, expected datetime"),
        (uuid.UUID, str(ID), "input.value", "found str, expected UUID"),
        (Decimal, 1, "input.value", "found int, expected Decimal"),
        (Colour, "red", "input.value", "found str, expected Colour"),
        (Line, {"sku": "a"}, "input.value", "found dict, expected Line"),
        (
            Order,
            Order(ID, [Line("a"), Line("b", "2")]),
            "input.value.lines[1].quantity",
            "found str, expected int",
        ),  # type: ignore[arg-type]
        (list[int], [1, "x"], "input.value[1]", "found str, expected int"),
        (list[int], (1,), "input.value", r"found tuple, expected list\[int\]"),
        (tuple[int, str], (1,), "input.value", "found 1 items"),
        (tuple[int, str], (1, 2), "input.value[1]", "found int, expected str"),
        (set[int], frozenset(), "input.value", "found frozenset"),
        (dict[str, int], {"a b": "x"}, 'input.value["a b"]', "found str, expected int"),
        (dict[int, int], {"a": 1}, "input.value.a", "key that does not fit"),
        (Address, {"since": date(2026, 1, 1), "zip": 1}, "input.value", "missing city; unexpected zip"),
        (int | str, 1.5, "input.value", r"found float, expected int \| str"),
        (date | str, "2026-01-01", "input.value", "read back as another type"),
        (Level | int, 1, "input.value", "read back as another type"),
        (Literal["a", 1], True, "input.value", "found bool, expected one of 'a', 1"),
        (Any, {"a": [date(2026, 1, 1)]}, "input.value.a[0]", "found date"),
        (None, 0, "input.value", "found int, expected None"),
    ],
)
def test_a_wrong_argument_is_refused_with_its_path(annotation: Any, value: Any, path: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says) as refused:
        codec(annotation).encode((value,))
    assert refused.value.path == path


@pytest.mark.parametrize(
    ("annotation", "form", "path", "says"),
    [
        (int, "1", "input.value", "found str, expected int"),
        (int, 1.0, "input.value", "found float, expected int"),
        (datetime, "2026-01-01", "input.value", "no datetime"),
        (datetime, 5, "input.value", "found int, expected text of a datetime"),
        (date, "2026-13-01", "input.value", "no date"),
        (timedelta, "5 s", "input.value", "no timedelta"),
        (uuid.UUID, "x", "input.value", "no UUID"),
        (Decimal, "1_0", "input.value", "no Decimal"),
        (Colour, "green", "input.value", r"expected Colour \('red', 'blue'\)"),
        (Colour, [], "input.value", "found list"),
        (Level, True, "input.value", "found bool"),
        (Right, 8, "input.value", "no value of Right"),
        (Line, {"quantity": 1}, "input.value", "missing sku"),
        (Line, {"sku": "a", "old": 1}, "input.value", "unexpected old"),
        (Line, {"sku": 1}, "input.value.sku", "found int"),
        (list[int], {}, "input.value", "found dict"),
        (set[Any], [[]], "input.value", "not hashable"),
        (dict[int, int], {"1.5": 1}, 'input.value["1.5"]', "key that does not fit"),
        (date | int, "x", "input.value", r"found str, expected date \| int"),
    ],
)
def test_a_stored_value_that_does_not_fit_is_refused(
    annotation: Any, form: Any, path: str, says: str
) -> None:
    with pytest.raises(InvalidInput, match=says) as refused:
        codec(annotation).decode({"value": form})
    assert refused.value.path == path


def test_what_jsonb_does_to_floats_is_undone() -> None:
    assert repr(codec(float).decode({"value": 10**300})["value"]) == "1e+300"
    half = enum.Enum("half", {"BIG": 1e16})
    assert codec(half).decode({"value": 10**16})["value"] is half.BIG  # type: ignore[attr-defined]


def send(ctx: Context, order_id: int, note: str = "", *, day: date | None = None) -> Result:
    raise AssertionError


SEND = InputCodec.for_function(send)


def test_arguments_are_bound_by_place_and_by_name() -> None:
    assert SEND.encode((1,), {"day": date(2026, 1, 1)}) == {"order_id": 1, "day": "2026-01-01"}
    assert SEND.encode((), {"order_id": 1}) == {"order_id": 1}
    assert SEND.takes_context
    assert SEND.parameters == ("order_id", "note", "day")
    assert SEND.required == {"order_id"}


def test_the_bytes_are_those_of_the_object() -> None:
    members, data = SEND.encode_json((1, "ů"))
    assert json.loads(data) == members == {"order_id": 1, "note": "ů"}


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((), {}, r"missing order_id; send takes order_id: int, note: str \(optional\), day: date \| None"),
        ((), {"order": 1}, "missing order_id; unexpected order;"),
        ((1,), {"b": 1, "a": 1}, "unexpected a, b;"),
        ((1,), {"order_id": 1}, "given twice: order_id"),
        ((1, "x", None), {}, "3 positional arguments, at most 2"),
        ((), {"order_id": 1, 5: 1}, "unexpected '5'"),
        ((), {"order_id": 1, "\x1b[31m": 1}, r"unexpected '\\x1b\[31m'"),
    ],
)
def test_missing_and_unexpected_arguments_are_named(args: Any, kwargs: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        SEND.encode(args, kwargs)


def test_a_bulk_input_is_named_by_its_place() -> None:
    with pytest.raises(InvalidInput, match=r"^inputs\[17\]\.note: found int"):
        SEND.encode((), {"order_id": 1, "note": 2}, path="inputs[17]")


def test_a_default_is_not_stored_so_that_the_running_code_decides() -> None:
    assert SEND.decode(SEND.encode((1,))) == {"order_id": 1}


def test_rows_of_other_code_are_refused_clearly() -> None:
    with pytest.raises(InvalidInput, match="missing order_id; unexpected id;"):
        SEND.decode({"id": 1})
    with pytest.raises(InvalidInput, match="found list, expected object of the job's arguments"):
        SEND.decode([])  # type: ignore[arg-type]


def test_a_job_may_have_no_context_and_no_arguments() -> None:
    def job() -> None: ...

    assert InputCodec.for_function(job).encode() == {}
    assert not InputCodec.for_function(job).takes_context
    with pytest.raises(InvalidInput, match="takes no arguments"):
        InputCodec.for_function(job).decode({"a": 1})


def test_extra_names_go_to_a_job_that_takes_any() -> None:
    def job(ctx: Context, a: int, **rest: date) -> None: ...

    found = InputCodec.for_function(job)
    form = found.encode((1,), {"b": date(2026, 1, 1)})
    assert form == {"a": 1, "b": "2026-01-01"}
    assert found.decode(form) == {"a": 1, "b": date(2026, 1, 1)}
    with pytest.raises(InvalidInput, match=r"input\.b: found int"):
        found.encode((1,), {"b": 1})
    with pytest.raises(InvalidInput, match="missing a"):
        found.decode({"b": "2026-01-01"})


def test_what_looks_encrypted_is_refused() -> None:
    def job(ctx: Context, **rest: Any) -> None: ...

    with pytest.raises(InvalidInput, match=r"\$enc"):
        InputCodec.for_function(job).encode((), {"$enc": "x"})


def test_arguments_that_contain_themselves_are_refused() -> None:
    lines: list[Any] = []
    order = Order(ID, lines)
    lines.append(lines)
    with pytest.raises(InvalidInput, match="found list, expected Line"):
        codec(Order).encode((order,))
    looped = Order(ID, [])
    object.__setattr__(looped, "parent", looped)
    with pytest.raises(InvalidInput, match="contains itself"):
        codec(Order).encode((looped,))
    with pytest.raises(InvalidInput, match="contains itself"):
        codec(Any).encode((lines,))


def test_depth_has_a_ceiling() -> None:
    assert codec(Any).encode(([[]],), max_depth=3)
    with pytest.raises(InvalidInput, match="deeper than 2"):
        codec(Any).encode(([[]],), max_depth=2)


def test_a_dataclass_that_refuses_its_fields_is_named() -> None:
    @dataclasses.dataclass
    class Positive:
        value: int

        def __post_init__(self) -> None:
            if self.value < 0:
                raise KeyError(self.value)

    with pytest.raises(InvalidInput, match="Positive refused its fields with KeyError"):
        codec(Positive).decode({"value": {"value": -1}})


def test_a_subclass_of_a_dataclass_would_lose_fields() -> None:
    class Special(Line): ...

    with pytest.raises(InvalidInput, match="found Special, expected Line"):
        codec(Line).encode((Special("a"),))


@dataclasses.dataclass
class Bad:
    number: complex


@dataclasses.dataclass
class Unknown:
    thing: Missing  # type: ignore[name-defined]  # noqa: F821


def test_annotations_are_resolved_at_first_use() -> None:
    def job(ctx: Context, value: Late) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    found = InputCodec.for_function(job)
    globals()["Late"] = int
    try:
        assert found.encode((1,)) == {"value": 1}
    finally:
        del globals()["Late"]


@pytest.mark.parametrize(
    ("annotation", "says"),
    [
        (
            "Missing",
            "parameter value: the annotation 'Missing' cannot be resolved: name 'Missing' is not defined",
        ),
        ("1 +", "cannot be resolved"),
        (bytes, "parameter value: bytes is no type"),
        (list[Bad], "Bad.number: complex is no type"),
        (Unknown, "an annotation of Unknown cannot be resolved"),
        (dict[bool, int], "keys of type bool"),
        (Callable[[], int], "no type a job's input can hold"),
    ],
)
def test_an_annotation_that_does_not_work_is_named(annotation: Any, says: str) -> None:
    found = codec(annotation)
    for use in (found.compile, lambda: found.encode((1,)), lambda: found.decode({"value": 1})):
        with pytest.raises(ConfigurationError, match=says):
            use()


def test_a_function_that_cannot_be_called_by_name_is_refused() -> None:
    def star(ctx: Context, *args: int) -> None: ...
    def positional(ctx: Context, a: int, /) -> None: ...

    for function in (star, positional):
        with pytest.raises(ConfigurationError, match="cannot be given by name"):
            InputCodec.for_function(function)


def test_wrapped_functions_and_callables_work() -> None:
    @functools.wraps(send)
    def wrapped(*args: Any, **kwargs: Any) -> Any: ...

    class Job:
        def __call__(self, ctx: Context, day: date) -> None: ...

    assert InputCodec.for_function(wrapped).encode((1,)) == {"order_id": 1}
    assert InputCodec.for_function(functools.partial(send, note="x")).encode((1,)) == {"order_id": 1}
    assert InputCodec.for_function(Job()).encode((date(2026, 1, 1),)) == {"day": "2026-01-01"}


def test_messages_do_not_show_values() -> None:
    secret = "hunter2"
    for annotation in (int, date, Colour, Literal["a"], date | int, uuid.UUID, list[int]):
        with pytest.raises(InvalidInput) as refused:
            codec(annotation).encode((secret,))
        assert secret not in str(refused.value)
        with pytest.raises(InvalidInput) as refused:
            codec(annotation).decode({"value": secret})
        assert secret not in str(refused.value)


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@given(
    st.tuples(
        st.datetimes(timezones=st.none() | st.just(UTC) | st.just(timezone(timedelta(hours=5, minutes=30)))),
        st.timedeltas(),
        st.decimals(allow_nan=False),
        st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53),
        st.dictionaries(st.integers(-(2**63), 2**63), st.times()),
        st.sets(st.dates()),
        TEXT | st.dates() | st.integers(-5, 5) | st.none(),
    )
)
def test_any_arguments_come_back_or_are_refused(values: tuple[Any, ...]) -> None:
    annotations = (datetime, timedelta, Decimal, float, dict[int, time], set[date])
    for annotation, value in zip(annotations, values, strict=False):
        found = codec(annotation)
        assert found.decode(stored(found.encode((value,)))) == {"value": value}
    union = codec(date | int | str | None)
    try:
        form = union.encode((values[-1],))
    except InvalidInput as refused:
        assert "read back as another type" in str(refused)  # noqa: PT017 - the message is the point
    else:
        assert union.decode(stored(form)) == {"value": values[-1]}
