"""What is between a call's markers is a call or is not; agents can always read the arguments of one.

Each format's grammar as a whole is tested against SGLang's (`test_against_sglang.py`); here is what ours adds.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.models.formats import REASONING_FORMATS, TOOL_FORMATS
from adapters.models.formats.base import NO_CALL
from adapters.models.formats.cursor import Cursor, Incomplete, Malformed
from adapters.models.formats.json_calls import calls_of
from adapters.models.formats.reasoning import reasoning_of
from adapters.models.formats.schema import Tools
from adapters.models.marks import Marks
from adapters.models.reply import Reply, ToolCall
from tests.adapters.replies import UNMARKED, all_marks, formats, marks_of, reply_of, tool

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)
TOOLS = [tool("f", s={"type": "string"}, n={"type": "integer"}, o={"type": "object"})]


def read(name: str, text: str, **options: Any) -> Reply:
    return reply_of(text, formats(name), **{"tools": TOOLS, **options})


def arguments_of(name: str, text: str, **options: Any) -> list[Any]:
    return [json.loads(call.arguments) for call in read(name, text, **options).calls]


def hermes(body: str) -> str:
    return f"<tool_call>{body}</tool_call>"


@given(texts.filter(bool), st.dictionaries(texts, values, max_size=4), st.booleans())
def test_a_well_formed_call_is_read_whatever_its_spelling(
    name: str, arguments: dict[str, Any], ascii_: bool
) -> None:
    body = json.dumps({"arguments": arguments, "name": name}, ensure_ascii=ascii_, indent=1)
    [parsed] = calls_of(body)
    assert parsed.name == name
    assert json.loads(parsed.arguments) == arguments
    if not any("\U00100000" <= character <= "\U0010ffff" for character in body):  # a model's text holds no marks
        assert [call.name for call in read("hermes", hermes(f"\n{body}\n")).calls] == [name]


def test_arguments_keep_their_order_and_their_characters() -> None:
    [call] = calls_of('{"name": "f", "arguments": {"b": 1.0, "a": "Tür"}}')
    assert (call.name, call.arguments) == ("f", '{"b": 1.0, "a": "Tür"}')


@pytest.mark.parametrize("rest", ["", ', "parameters": {}', ', "arguments": {}'])
def test_a_call_without_arguments_has_none(rest: str) -> None:
    assert [call.arguments for call in calls_of(f'{{"name": "f"{rest}}}')] == ["{}"]


@pytest.mark.parametrize(
    "body",
    [
        "",
        "nonsense",
        '{"name": "f", "arguments": {"a": 1}',
        '["f", {}]',
        "[]",
        '"f"',
        '{"arguments": {}}',
        '{"name": "", "arguments": {}}',
        '{"name": 1, "arguments": {}}',
        '{"name": null, "arguments": {}}',
        '{"name": "f", "arguments": null}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": "{}"}',
        '{"name": "f", "arguments": {}} {"name": "g", "arguments": {}}',
        '{"name": "f"]',
        '{"name": "f", "arguments": {"a": "x\ny"}}',
        '{"name": "f", "arguments": {"a": "\\\n"}}',
        '{"name": "f", "arguments": {"a": NaN}}',
        '{"name": "f", "arguments": {"a": [-Infinity]}}',
        '{"name": "f", "arguments": {"a": 1e999}}',
        '{"name": "f", "arguments": {"a": "\\ud800"}}',
        '{"name": "f", "arguments": {"\\udc00": 1}}',
        '{"name": "\\ud800", "arguments": {}}',
        "[" * 100_000,
        "[" * 100_000 + "]" * 100_000,
    ],
    ids=lambda body: body[:40],
)
def test_what_is_no_call_is_content_as_it_was_written(body: str) -> None:
    assert read("hermes", hermes(body)) == Reply(hermes(body), "", ())


class TestMarkersAreTokens:
    """Where the tokenizer has a token for a marker, the same letters as ordinary text are no marker."""

    @pytest.mark.parametrize(
        ("name", "opener", "spelled"),
        [
            ("glm45", "<tool_call>f<arg_key>s</arg_key><arg_value>", "</arg_value></tool_call>"),
            ("gemma4", '<|tool_call>call:f{s:<|"|>', '<|"|>}<tool_call|>'),
            ("minimax-m2", '<minimax:tool_call><invoke name="f"><parameter name="s">', "</minimax:tool_call>"),
        ],
    )
    def test_a_value_may_quote_the_markers_of_its_own_format(self, name: str, opener: str, spelled: str) -> None:
        marks = all_marks()
        closer = {"minimax-m2": "</parameter></invoke></minimax:tool_call>"}.get(name, spelled)
        text = marks.marked(opener) + f"quote {spelled}" + marks.marked(closer)
        parsed = reply_of("", formats(name))  # without tokens nothing of this can be told
        assert parsed.calls == ()
        reader = TOOL_FORMATS[name].reader
        assert reader is not None
        block = reader(marks).read(text, 0, Tools(TOOLS), True)
        assert block is not None
        [call] = block.pieces
        assert json.loads(call.arguments) == {"s": f"quote {spelled}"}  # type: ignore[union-attr]

    def test_control_tokens_inside_arguments_are_spelled_out_even_if_special(self) -> None:
        marks = marks_of("<tool_call>", "</tool_call>", special=["<|pad|>"])
        body = hermes('{"name": "f", "arguments": {"s": "a<|pad|>b"}}')
        assert arguments_of("hermes", body, marks=marks) == [{"s": "a<|pad|>b"}]


class TestTagged:
    def test_a_value_loses_one_newline_at_each_end(self) -> None:
        text = "<tool_call><function=f><parameter=s>\n\n x \n\n</parameter></function></tool_call>"
        assert arguments_of("qwen3_coder", text) == [{"s": "\n x \n"}]
        assert arguments_of("qwen3_coder", text.replace("\n\n x \n\n", "\n")) == [{"s": ""}]

    @pytest.mark.parametrize("text", ["</parameter> b", "a </parameter>", "</function>", "</tool_call>"])
    def test_a_value_may_hold_closers_behind_which_the_call_does_not_go_on(self, text: str) -> None:
        made = f"<tool_call><function=f><parameter=s>\n{text}\n</parameter></function></tool_call>"
        assert arguments_of("qwen3_coder", made) == [{"s": text}]

    def test_a_value_that_holds_another_arguments_opener_is_no_call(self) -> None:
        first = "<tool_call><function=f><parameter=s>\nx\n</function></tool_call>\n"
        second = "<tool_call><function=f><parameter=s>\ny\n</parameter></function></tool_call>"
        reply = read("qwen3_coder", first + second)
        assert reply.content == first.rstrip()
        assert [call.arguments for call in reply.calls] == ['{"s": "y"}']

    def test_the_model_says_itself_whether_a_value_is_a_string(self) -> None:
        def made(flag: str) -> str:
            call = (
                f'<｜DSML｜invoke name="f"><｜DSML｜parameter name="n"{flag}>3</｜DSML｜parameter></｜DSML｜invoke>'
            )
            return f"<｜DSML｜tool_calls>{call}</｜DSML｜tool_calls>"

        assert arguments_of("deepseekv4", made(' string="true"')) == [{"n": "3"}]
        assert arguments_of("deepseekv4", made(' string="false"')) == [{"n": 3}]
        assert arguments_of("deepseekv4", made(' string="maybe"')) == []

    def test_attributes_that_the_format_does_not_know_make_no_call(self) -> None:
        call = '<invoke name="f"><parameter name="s">x</parameter></invoke>'
        block = f"<minimax:tool_call>{call}</minimax:tool_call>"
        assert arguments_of("minimax-m2", block) == [{"s": "x"}]
        assert arguments_of("minimax-m2", block.replace('name="f"', 'name="f" id="1"')) == []
        assert arguments_of("minimax-m2", block.replace('name="s"', 'name="s" type="x"')) == []

    def test_a_name_that_is_none_makes_no_call(self) -> None:
        assert arguments_of("qwen3_coder", "<tool_call><function=f g></function></tool_call>") == []
        assert arguments_of("qwen3_coder", "<tool_call><function=></function></tool_call>") == []

    def test_a_json_body_has_to_be_an_object(self) -> None:
        made = '<｜DSML｜tool_calls><｜DSML｜invoke name="f">{"a": 1}</｜DSML｜invoke></｜DSML｜tool_calls>'
        assert arguments_of("deepseekv4", made) == [{"a": 1}]
        assert arguments_of("deepseekv4", made.replace('{"a": 1}', '{"a"}')) == []


class TestSections:
    BEGIN, END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"

    @staticmethod
    def call(number: int, arguments: str = "{}") -> str:
        return f"<|tool_call_begin|>functions.f:{number}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"

    def test_each_call_is_decided_alone_and_the_rest_is_content_in_its_place(self) -> None:
        text = f"{self.BEGIN}{self.call(0)} so {self.call(1, '{')}{self.call(2)}{self.END} done"
        reply = read("kimi_k2", text)
        assert [call.id for call in reply.calls] == ["functions.f:0", "functions.f:2"]
        assert reply.content == f"so {self.call(1, '{')} done"

    def test_a_block_with_too_much_that_is_no_call_is_read_no_further(self) -> None:
        broken = "".join(self.call(number, "{x}") for number in range(20))
        assert len(read("kimi_k2", f"{self.BEGIN}{self.call(0)}{broken}{self.call(1)}{self.END}").calls) == 1
        broken = "".join(self.call(number, "{x}") for number in range(19))
        assert len(read("kimi_k2", f"{self.BEGIN}{self.call(0)}{broken}{self.call(1)}{self.END}").calls) == 2

    def test_arguments_have_to_be_an_object(self) -> None:
        assert read("kimi_k2", f"{self.BEGIN}{self.call(0, '[1]')}{self.END}").calls == ()

    def test_kimis_calls_keep_the_ids_the_model_wrote(self) -> None:
        [call] = read("kimi_k2", f"{self.BEGIN}{self.call(7)}{self.END}").calls
        assert call == ToolCall("functions.f:7", "f", "{}")


class TestMistral:
    def test_ids_are_the_models_own_or_such_as_the_template_accepts(self) -> None:
        listed = read("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "abcdef123"}, {"name": "f"}]')
        assert listed.calls[0].id == "abcdef123"
        assert listed.calls[1].id.isalnum()
        assert len(listed.calls[1].id) == 9
        again = read("mistral", "[TOOL_CALLS]f[CALL_ID]abcdef124[ARGS]{}[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]f[ARGS]{}")
        assert again.calls[0].id == "abcdef124"
        assert len({call.id for call in again.calls}) == 3

    def test_an_id_that_is_no_text_is_not_taken(self) -> None:
        [call] = read("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": 3}]').calls
        assert len(call.id) == 9


class TestLlama:
    def test_without_the_tag_only_a_tool_of_the_request_is_called(self) -> None:
        assert len(read("llama3", '{"name": "f", "parameters": {}}').calls) == 1
        answer = '{"name": "Ada", "parameters": {}}'
        assert read("llama3", answer) == Reply(answer, "", ())
        assert len(read("llama3", f"<|python_tag|>{answer}").calls) == 1

    def test_what_follows_a_call_without_being_one_is_content(self) -> None:
        reply = read("llama3", '{"name": "f", "parameters": {}}; {"name": "Ada", "parameters": {}}')
        assert (len(reply.calls), reply.content) == (1, '; {"name": "Ada", "parameters": {}}')

    def test_an_answer_in_json_flows(self) -> None:
        assert read("llama3", '  {"answer": [1, 2]} ').content == '  {"answer": [1, 2]} '

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            ("'x'", "x"),
            ("-3", -3),
            ("-2.5", -2.5),
            ("True", True),
            ("true", True),
            ("null", None),
            ("None", None),
            ("[1, {'a': false}]", [1, {"a": False}]),
            ("{}", {}),
        ],
    )
    def test_python_values(self, value: str, expected: Any) -> None:
        assert arguments_of("pythonic", f"[f(s={value})]") == [{"s": expected}]

    @pytest.mark.parametrize(
        "text",
        [
            "[f(s=-'x')]",
            "[f(s=not_a_word)]",
            "[f(s={1: 2})]",
            "[f(s={**{}})]",
            "[f(s=(1, 2))]",
            "[f(s=b'x')]",
            "[f(s=1j)]",
            "[f(s=...)]",
            "[f(s=1e999)]",
            "[f(1)]",
            "[f(**{})]",
            "[f(), g]",
            "[f.g()]",
            "[f()][0]",
            "[f()",
            "[f(" + "(" * 500 + ")]",
            "[1] is a footnote",
        ],
        ids=lambda text: text[:20],
    )
    def test_anything_else_is_content(self, text: str) -> None:
        assert read("pythonic", text) == Reply(text, "", ())

    def test_odd_escapes_in_python_text_raise_no_warning(self, recwarn: pytest.WarningsRecorder) -> None:
        assert arguments_of("pythonic", r"[f(s='\d')]") == [{"s": r"\d"}]
        assert not recwarn.list


class TestGemma:
    def test_values_of_every_kind(self) -> None:
        body = '{s:<|"|>a{}[],:<|"|>,n:[1,-2.5e3,[]],o:{k:true,x:None},e:{},z:<|"|><|"|>}'
        assert arguments_of("gemma4", f"<|tool_call>call:f{body}<tool_call|>") == [
            {"s": "a{}[],:", "n": [1, -2500.0, []], "o": {"k": True, "x": None}, "e": {}, "z": ""}
        ]

    def test_nesting_without_end_is_no_call(self) -> None:
        text = f"<|tool_call>call:f{{n:{'[' * 5000}{']' * 5000}}}<tool_call|>"
        assert read("gemma4", text) == Reply(text, "", ())


class TestNemotron:
    def test_a_list_in_one_block(self) -> None:
        made = 'Hm. <TOOLCALL>[{"name": "f", "arguments": {"n": 1}}, {"name": "g", "arguments": {}}]</TOOLCALL>'
        reply = read("nemotron_v2", made)
        assert (reply.content, [call.name for call in reply.calls]) == ("Hm.", ["f", "g"])


class TestReading:
    """The rule behind every split giving one reply: what was decided stays."""

    SAMPLE = hermes('{"name": "f", "arguments": {"s": "a \\" b", "l": [1, {}]}}')

    def test_more_text_changes_no_decision(self) -> None:
        reader = TOOL_FORMATS["hermes"].reader
        assert reader is not None
        hermes_reader = reader(UNMARKED)
        for text in (self.SAMPLE, self.SAMPLE.replace(":", ";"), "<tool_call>{]}", "<tool_call>[1] x"):
            decided = None
            for end in range(len("<tool_call>"), len(text) + 1):
                block = hermes_reader.read(text[:end], 0, Tools(), False)
                assert decided is None or block == decided
                decided = block
            assert decided == hermes_reader.read(text, 0, Tools(), True)

    def test_at_the_end_nothing_is_undecided(self) -> None:
        for name, known in TOOL_FORMATS.items():
            if known.reader is None:
                continue
            reader = known.reader(Marks({}, frozenset()))
            for opener in (*reader.openers, *reader.starts):
                assert reader.read(opener, 0, Tools(), True) is NO_CALL, name
                assert reader.read(opener, 0, Tools(), False) is None, name

    def test_a_cursor_needs_something_to_read(self) -> None:
        with pytest.raises(Incomplete):
            Cursor("", 0, False).sees("x")
        with pytest.raises(Malformed):
            Cursor("", 0, True).take("x")
        with pytest.raises(Malformed):
            Cursor("plain", 0, False).json()


class TestNames:
    def test_every_name_of_sglang_that_the_samples_use_is_known(self) -> None:
        names = ("qwen25", "hermes", "qwen3_coder", "glm45", "glm47", "deepseekv3", "deepseekv31", "deepseekv32")
        names += ("deepseekv4", "kimi_k2", "minimax-m2", "llama3", "pythonic", "mistral", "gpt-oss", "gemma4")
        assert set(names) <= set(TOOL_FORMATS)
        assert TOOL_FORMATS["qwen25"] is TOOL_FORMATS["hermes"]

    def test_the_markers_are_those_of_the_published_formats(self) -> None:
        assert TOOL_FORMATS["hermes"].markers == ("<tool_call>", "</tool_call>")
        think = REASONING_FORMATS["qwen3"]
        assert (think.opener, think.closer) == ("<think>", "</think>")

    @pytest.mark.parametrize(
        ("template", "name"),
        [
            ("{{ '<think>' }}{{ '</think>' }}", "think"),
            ("[THINK][/THINK]", "mistral"),
            ("◁think▷◁/think▷", "kimi"),
            ("<seed:think></seed:think>", "seed_think"),
            ("<|channel>thought<channel|>", "gemma4"),
        ],
    )
    def test_a_template_names_its_reasoning_markers(self, template: str, name: str) -> None:
        found = reasoning_of(template)
        assert found is not None
        assert found.name == name

    def test_a_template_without_markers_has_no_reasoning(self) -> None:
        assert reasoning_of("{{ messages }}") is None
