"""An argument written as bare text gets the type its schema says, and is left alone where that says a string."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.models.formats.schema import Tools, json_or_text, typed


def kinds(schema: Any, **defs: Any) -> frozenset[str]:
    parameters = {"properties": {"x": schema}, "$defs": defs}
    return Tools([{"function": {"name": "f", "parameters": parameters}}]).kinds("f", "x")


def of(text: str, schema: Any, *, loose: bool = False) -> Any:
    return typed(text, kinds(schema), loose=loose)


STRING, NUMBER, INTEGER = {"type": "string"}, {"type": "number"}, {"type": "integer"}


class TestValues:
    @given(st.text())
    def test_a_string_is_verbatim(self, text: str) -> None:
        assert of(text, STRING) == text
        assert of(text, {"anyOf": [STRING, INTEGER]}) == text

    @pytest.mark.parametrize("text", ["02134", "true", "None", "null", "[60, 30]", '"quoted"', " x ", "1e3"])
    def test_a_string_that_looks_like_something_else_stays_one(self, text: str) -> None:
        assert of(text, STRING) == text

    @pytest.mark.parametrize("text", ["true", "True", " true\n"])
    def test_true_in_every_spelling(self, text: str) -> None:
        assert of(text, {"type": "boolean"}) is True

    @pytest.mark.parametrize("text", ["false", "False"])
    def test_false_in_every_spelling(self, text: str) -> None:
        assert of(text, {"type": "boolean"}) is False

    def test_a_boolean_that_is_none_stays_text(self) -> None:
        assert of("yes", {"type": "boolean"}) == "yes"
        assert of("TRUE", {"type": "boolean"}) == "TRUE"

    @pytest.mark.parametrize(
        ("text", "value"), [("3", 3), ("-4", -4), ("1_000", 1000), ("02134", 2134), ("2.50", 2.5), ("1e3", 1000.0)]
    )
    def test_numbers(self, text: str, value: float) -> None:
        for schema in (NUMBER, INTEGER):
            found = of(text, schema)
            assert found == value
            assert type(found) is type(value)

    @pytest.mark.parametrize("text", ["three", "NaN", "inf", "-Infinity", "1e999", "9" * 5000])
    def test_what_is_no_number_stays_text(self, text: str) -> None:
        assert of(text, NUMBER) == text

    def test_null_where_the_schema_allows_it_or_has_no_string(self) -> None:
        for text in ("null", "None"):
            assert of(text, {"type": ["string", "null"]}) is None
            assert of(text, {"type": "string", "nullable": True}) is None
            assert of(text, INTEGER) is None
            assert of(text, STRING) == text
        assert of("nil", {"type": ["string", "null"]}) == "nil"

    def test_structures_in_json_and_in_python(self) -> None:
        assert of('{"a": [true, null]}', {"type": "object"}) == {"a": [True, None]}
        assert of("{'a': True, 'b': (1, 2)}", {"type": "object"}) == {"a": True, "b": (1, 2)}
        assert of("[1, 2]", {"type": "array"}) == [1, 2]

    @pytest.mark.parametrize("text", ["{a: 1", "{1, 2}", "b'x'", "1+2j", "[NaN]", "[" * 5000, "{'a': ...}", "f()"])
    def test_what_no_json_can_hold_stays_text(self, text: str) -> None:
        assert of(text, {"type": "object"}) == text

    def test_odd_escapes_raise_no_warning(self, recwarn: pytest.WarningsRecorder) -> None:
        assert of(r"{'a': '\d'}", {"type": "object"}) == {"a": r"\d"}
        assert not recwarn.list

    @pytest.mark.parametrize("schema", [{}, True, None, {"description": "any"}])
    def test_without_a_type_it_stays_text_unless_the_format_is_loose(self, schema: Any) -> None:
        assert of("5", schema) == "5"
        assert of("5", schema, loose=True) == 5
        assert of("True", schema, loose=True) is True
        assert of("hello", schema, loose=True) == "hello"
        assert of("02134", schema, loose=True) == "02134"

    @given(st.text(), st.sampled_from([STRING, NUMBER, {"type": "object"}, {"type": ["null", "boolean"]}, {}]))
    def test_a_value_is_always_json(self, text: str, schema: Any) -> None:
        json.dumps(of(text, schema, loose=True), allow_nan=False)

    @pytest.mark.parametrize(("text", "value"), [("3", 3), ("x", "x"), ("NaN", "NaN"), ("[1e999]", "[1e999]")])
    def test_json_or_text(self, text: str, value: Any) -> None:
        assert json_or_text(text) == value
        assert json_or_text("[" * 100_000) == "[" * 100_000


class TestKinds:
    def test_one_type_or_several(self) -> None:
        assert kinds(STRING) == {"string"}
        assert kinds({"type": ["integer", "null"]}) == {"integer", "null"}

    def test_alternatives_are_united(self) -> None:
        assert kinds({"anyOf": [INTEGER, {"type": "null"}]}) == {"integer", "null"}
        assert kinds({"oneOf": [STRING, INTEGER]}) == {"string", "integer"}
        assert kinds({"allOf": [{"description": "x"}, STRING]}) == {"string"}

    def test_an_alternative_that_allows_anything_leaves_nothing_known(self) -> None:
        assert kinds({"anyOf": [STRING, {}]}) == frozenset()

    def test_values_tell_their_types(self) -> None:
        assert kinds({"enum": ["on", 1, None, True, 2.5, [], {}]}) == {
            "string", "number", "null", "boolean", "array", "object",
        }  # fmt: skip
        assert kinds({"const": "x"}) == {"string"}

    def test_references_are_followed(self) -> None:
        assert kinds({"$ref": "#/$defs/s"}, s=STRING) == {"string"}
        assert kinds({"anyOf": [{"$ref": "#/$defs/a~1b"}, {"type": "null"}]}, **{"a/b": INTEGER}) == {
            "integer", "null",
        }  # fmt: skip

    @pytest.mark.parametrize("target", ["#/$defs/missing", "#/$defs/missing/deeper", "other.json", "#"])
    def test_references_to_nowhere_leave_nothing_known(self, target: str) -> None:
        assert kinds({"$ref": target}, s=STRING) == frozenset()

    def test_a_schema_that_refers_to_itself_ends(self) -> None:
        assert kinds({"$ref": "#/$defs/s"}, s={"$ref": "#/$defs/s"}) == frozenset()
        assert kinds({"$ref": "#/$defs/s"}, s={"anyOf": [{"$ref": "#/$defs/s"}]}) == frozenset()
        root = {"anyOf": [{"$ref": "#"}, {"$ref": "#/anyOf/0"}], "$ref": None}
        assert Tools([{"function": {"name": "f", "parameters": root}}]).kinds("f", "x") == frozenset()
        loop: dict[str, Any] = {"$defs": {}, "anyOf": []}
        loop["$defs"]["s"] = {"anyOf": [{"$ref": "#/$defs/s"}]}
        loop["anyOf"] = [{"$ref": "#/$defs/s"}]
        assert Tools([{"function": {"name": "f", "parameters": loop}}]).kinds("f", "x") == frozenset()

    def test_properties_may_stand_in_an_alternative(self) -> None:
        root = {"anyOf": [{"type": "null"}, {"properties": {"x": STRING}}]}
        assert Tools([{"function": {"name": "f", "parameters": root}}]).kinds("f", "x") == {"string"}

    @pytest.mark.parametrize("parameters", [None, "x", {}, {"properties": []}, {"properties": {"y": STRING}}])
    def test_what_is_not_declared_is_not_known(self, parameters: Any) -> None:
        tools = Tools([{"function": {"name": "f", "parameters": parameters}}])
        assert tools.kinds("f", "x") == frozenset()
        assert tools.kinds("g", "x") == frozenset()
        assert "f" in tools
        assert "g" not in tools
