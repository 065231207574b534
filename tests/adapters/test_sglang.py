"""SGLang's `/generate`: bodies are written around ids, streams of both kinds are read, contradictions refused."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.engines.base import (
    ContractError,
    EngineFailure,
    EngineInfo,
    EngineRefusal,
    EngineRequest,
    Finish,
    ReportedVersions,
)
from adapters.engines.sglang import ReplyReader, engine_info, generate_body, raise_error, raise_http_error

ABORT = {"type": "abort", "message": "Aborted"}
STOP = {"type": "stop", "matched": 9}
IDS = [5, 6, 7, 8, 9]
LOGPROBS = [-0.5, -0.25, -1.0, 0.0, -2.0]


def chunk(
    ids: list[int],
    total: int | None,
    finish: dict[str, Any] | None = None,
    logprobs: list[Any] | None = None,
    **meta: Any,
) -> dict[str, Any]:
    """A chunk of `ids` when `total` tokens were sampled."""
    entries = [[-float(i) / 8, i, None] for i in ids] if logprobs is None else logprobs
    info: dict[str, Any] = {"finish_reason": finish, "output_token_logprobs": entries, **meta}
    if total is not None:
        info["completion_tokens"] = total
    return {"output_ids": ids, "meta_info": info}


def read(*chunks: dict[str, Any]) -> ReplyReader:
    reader = ReplyReader()
    for each in chunks:
        reader.read(each)
    return reader


class TestBody:
    REQUEST = EngineRequest(
        rid="r1",
        session_id="s",
        input_ids_json=[b"1,2", b"3"],
        sampling={"temperature": 0.5, "stop": ["x"], "max_new_tokens": 1, "skip_special_tokens": True},
        max_new_tokens=7,
        stop_token_ids=(9, 10),
        stream_interval=4,
    )

    def test_it_is_json_around_the_ids(self) -> None:
        body = orjson.loads(generate_body(self.REQUEST))
        assert body["input_ids"] == [1, 2, 3]
        assert (body["rid"], body["return_logprob"], body["stream"]) == ("r1", True, True)
        assert set(body) == {"input_ids", "rid", "return_logprob", "stream", "sampling_params"}

    def test_what_exactness_needs_cannot_be_overridden_by_the_sampling(self) -> None:
        assert orjson.loads(generate_body(self.REQUEST))["sampling_params"] == {
            "temperature": 0.5,
            "stop": ["x"],
            "max_new_tokens": 7,
            "stop_token_ids": [9, 10],
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "no_stop_trim": True,
            "stream_interval": 4,
        }


class TestStreams:
    @given(st.lists(st.integers(0, 200), max_size=20), st.lists(st.integers(0, 20), max_size=6))
    def test_cumulative_and_incremental_streams_give_the_same(self, ids: list[int], cuts: list[int]) -> None:
        edges = [*sorted({cut % (len(ids) + 1) for cut in cuts}), len(ids)]
        cumulative, incremental, before = [], [], 0
        for number, edge in enumerate(edges):
            finish = {"type": "length", "length": 3} if number == len(edges) - 1 else None
            cumulative.append(chunk(ids[:edge], edge, finish, weight_version="v"))
            incremental.append(chunk(ids[before:edge], edge, finish, weight_version="v"))
            before = edge
        one, other = read(*cumulative), read(*incremental)
        assert one.output_ids == other.output_ids == ids
        assert one.logprobs == other.logprobs == [-i / 8 for i in ids]
        assert one.finish == other.finish == Finish("length")
        assert one.versions == other.versions == ReportedVersions(single="v")

    def test_a_repeated_cumulative_chunk_adds_nothing(self) -> None:
        assert read(chunk([5, 6], 2), chunk([5, 6], 2), chunk([5, 6, 7], 3)).output_ids == [5, 6, 7]

    def test_an_empty_incremental_chunk_adds_nothing(self) -> None:
        assert read(chunk([5], 1), chunk([], 1), chunk([6], 2)).output_ids == [5, 6]

    def test_null_lists_are_empty(self) -> None:
        empty = {"output_ids": None, "meta_info": {"output_token_logprobs": None, "completion_tokens": 0}}
        assert read(empty).output_ids == []

    def test_the_matched_stop_is_kept(self) -> None:
        assert read(chunk([9], 1, STOP)).finish == Finish("stop", matched=9)
        assert read(chunk([9], 1, {"type": "stop", "matched": "END"})).finish == Finish("stop", matched="END")

    def test_until_the_end_there_is_no_finish(self) -> None:
        reader = read(chunk([5], 1, weight_version="v1"))
        assert reader.finish is None
        assert reader.weight_version == "v1"
        assert reader.versions == ReportedVersions()


class TestAborts:
    def test_an_aborted_call_keeps_what_was_sampled(self) -> None:
        reader = read(chunk([5, 6], 2), chunk([5, 6, 7], 3, ABORT))
        assert reader.output_ids == [5, 6, 7]
        assert reader.finish == Finish("abort", message="Aborted")

    def test_an_abort_from_the_queue_has_no_ids_and_sparse_meta(self) -> None:
        reader = read({"text": "", "meta_info": {"id": "r", "finish_reason": ABORT}})
        assert reader.output_ids == []
        assert reader.finish == Finish("abort", message="Aborted")
        assert reader.versions == ReportedVersions()

    def test_an_abort_without_a_message_is_one(self) -> None:
        assert read(chunk([], 0, {"type": "abort"})).finish == Finish("abort")

    @pytest.mark.parametrize("held", [[5], [5, 6]])
    def test_a_repeated_last_id_is_not_doubled(self, held: list[int]) -> None:
        reader = read(chunk(held, len(held)), chunk(held[-1:], len(held), ABORT))
        assert reader.output_ids == held
        assert len(reader.logprobs) == len(held)

    def test_ids_without_logprobs_in_an_abort_are_dropped(self) -> None:
        reader = read(chunk([5], 1), chunk([5, 6], 2, ABORT, logprobs=[[-1.0, 5, None]]))
        assert reader.output_ids == [5]
        assert reader.finish is not None

    def test_a_count_that_does_not_fit_drops_the_aborts_ids(self) -> None:
        assert read(chunk([5, 6], 2), chunk([7], 9, ABORT)).output_ids == [5, 6]

    def test_an_abort_with_a_status_is_an_error(self) -> None:
        with pytest.raises(EngineRefusal, match="too long") as refused:
            read(chunk([], 0, {"type": "abort", "message": "too long", "status_code": 400}))
        assert refused.value.status == 400
        with pytest.raises(EngineFailure, match="InternalServerError") as failed:
            read(chunk([], 0, {"type": "abort", "err_type": "InternalServerError"}))
        assert failed.value.status == 500
        with pytest.raises(EngineFailure) as busy:
            read(chunk([], 0, {"type": "abort", "message": "full", "status_code": 503}))
        assert busy.value.status == 503


class TestContract:
    @pytest.mark.parametrize(
        ("chunks", "words"),
        [
            ([{"output_ids": [5]}], "no meta_info"),
            ([{"output_ids": [5], "meta_info": None}], "no meta_info"),
            ([chunk([5, 6], 2, logprobs=[[-1.0, 5, None]])], "2 output_ids and 1 logprobs"),
            ([chunk([5], 1, logprobs=[])], "1 output_ids and 0 logprobs"),
            ([chunk([5], None)], "no completion_tokens"),
            ([chunk([5, 6], 2), chunk([7], 4)], "counts 4 completion_tokens; 2 ids came before, 1 in this chunk"),
            ([chunk([5, 6, 7], 3), chunk([5, 6], 2)], "counts 2 completion_tokens"),
            ([chunk([5], 1, logprobs=[[-1.0, 6, None]])], r"output_ids\[0\] is 5, but its logprob is of token 6"),
            ([chunk([-1], 1)], r"output_ids\[0\] is -1; a token id is an int32"),
            ([chunk([5], 1), chunk([2**31], 2)], r"output_ids\[1\] is 2147483648; a token id is an int32"),
            ([chunk([True], 1)], r"output_ids\[0\] is True; a token id is an int32"),
            ([chunk([5], 1), chunk([6], 2, logprobs=[[-1.0, 7, None]])], r"output_ids\[1\] is 6"),
            ([chunk([5], 1, logprobs=[[float("nan"), 5, None]])], r"logprob of output_ids\[0\] is nan"),
            ([chunk([5], 1, logprobs=[[float("-inf"), 5, None]])], "is -inf"),
            ([chunk([5], 1, logprobs=[[0.25, 5, None]])], "is 0.25; finite and <= 0 is right"),
            ([chunk([5], 1, logprobs=[[None, 5, None]])], "is None"),
            ([chunk([5], 1, logprobs=[["-1", 5, None]])], "is '-1'"),
            ([chunk([5], 1, {"type": "sleep"})], "finish_reason is"),
            ([chunk([5], 1, "stop")], "finish_reason is 'stop'"),  # type: ignore[arg-type]
        ],
    )
    def test_a_reply_that_contradicts_itself_is_refused(self, chunks: list[dict[str, Any]], words: str) -> None:
        with pytest.raises(ContractError, match=words):
            read(*chunks)

    def test_a_refused_chunk_leaves_what_was_held(self) -> None:
        reader = read(chunk([5], 1))
        with pytest.raises(ContractError):
            reader.read(chunk([6, 7], 3, logprobs=[[-1.0, 6, None], [float("nan"), 7, None]]))
        assert (reader.output_ids, len(reader.logprobs)) == ([5], 1)

    def test_whole_numbers_are_logprobs_too(self) -> None:
        logprobs = read(chunk([5], 1, logprobs=[[0, 5, None]])).logprobs
        assert logprobs == [0.0]
        assert isinstance(logprobs[0], float)


class TestVersions:
    def versions(self, spans: list[dict[str, Any]], **meta: Any) -> ReportedVersions:
        return read(chunk(IDS, 5, STOP, weight_versions=spans, **meta)).versions

    def test_spans_are_taken_as_they_are(self) -> None:
        spans = [{"start": 0, "end": 2, "version": 7}, {"start": 2, "end": 5, "version": "8"}]
        assert self.versions(spans, weight_version="8") == ReportedVersions(
            spans=((0, 2, "7"), (2, 5, "8")), single="8"
        )

    def test_empty_spans_and_spans_beyond_the_output_are_left_out(self) -> None:
        spans = [
            {"start": 0, "end": 0, "version": "6"},
            {"start": 0, "end": 5, "version": "7"},
            {"start": 5, "end": 5, "version": "8"},
            {"start": 5, "end": 6, "version": "9"},
        ]
        assert self.versions(spans).spans == ((0, 5, "7"),)

    @pytest.mark.parametrize("edges", [[(0, 2), (3, 5)], [(0, 3), (2, 5)], [(1, 5)], [(0, 4)], [(2, 5), (0, 2)]])
    def test_gaps_overlaps_and_missing_ends_are_refused(self, edges: list[tuple[int, int]]) -> None:
        with pytest.raises(ContractError, match="do not cover 5 tokens"):
            self.versions([{"start": start, "end": end, "version": "v"} for start, end in edges])

    def test_without_spans_one_name_or_none_is_reported(self) -> None:
        assert read(chunk(IDS, 5, STOP, weight_version="7")).versions == ReportedVersions(single="7")
        assert read(chunk(IDS, 5, STOP)).versions == ReportedVersions()
        assert read(chunk(IDS, 5, STOP, weight_version=7, weight_versions=[])).versions == ReportedVersions()
        assert self.versions([{"start": 0, "end": 5, "version": "v"}]).single is None

    def test_the_newest_name_is_known_while_it_runs(self) -> None:
        reader = read(chunk([5], 1, weight_version="7"), chunk([6], 2, weight_version="8"), chunk([7], 3))
        assert reader.weight_version == "8"


class TestErrors:
    @pytest.mark.parametrize(
        ("error", "kind", "status", "message"),
        [
            ("no such model", EngineRefusal, 400, "no such model"),
            ({"message": "too long", "code": 400}, EngineRefusal, 400, "too long"),
            ({"message": "slow down", "code": 429}, EngineRefusal, 429, "slow down"),
            ({"message": "down", "code": 503}, EngineFailure, 503, "down"),
            ({"message": "odd", "code": "internal"}, EngineFailure, 500, "odd"),
            ({"message": "odd"}, EngineFailure, 500, "odd"),
            ({"code": 400}, EngineRefusal, 400, "the engine gives no reason"),
            ({}, EngineFailure, 500, "the engine gives no reason"),
        ],
    )
    def test_an_error_inside_a_stream_is_raised_with_its_words(
        self, error: Any, kind: type[EngineRefusal | EngineFailure], status: int, message: str
    ) -> None:
        with pytest.raises(kind) as caught:
            read({"error": error})
        assert (caught.value.status, str(caught.value)) == (status, message)
        with pytest.raises(kind):
            raise_error(error)

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            (b'{"error": {"message": "too long", "code": 400}}', "too long"),
            (b'{"error": "too long"}', "too long"),
            (b'{"object": "error", "message": "too long", "code": 400}', "too long"),
            (b'{"detail": "too long"}', "too long"),
            (b'{"detail": [{"loc": ["body"], "msg": "too long"}]}', "too long"),
            (b'{"other": 1}', '{"other": 1}'),
            (b"too long", "too long"),
            (b"[1]", "[1]"),
            (b"", ""),
            (b"\xff", "\N{REPLACEMENT CHARACTER}"),
        ],
    )
    def test_every_shape_of_an_http_error_gives_its_words(self, body: bytes, message: str) -> None:
        with pytest.raises(EngineRefusal) as refused:
            raise_http_error(422, body)
        assert refused.value.status == 422
        assert message in str(refused.value)
        with pytest.raises(EngineFailure) as failed:
            raise_http_error(502, body)
        assert failed.value.status == 502
        assert message in str(failed.value)


class TestInfo:
    def test_three_sources_make_one_picture(self) -> None:
        model_info = {
            "model_path": "Qwen/Qwen3-8B",
            "tokenizer_path": "tok",
            "weight_version": "7",
            "tool_call_parser": "qwen25",
            "reasoning_parser": "qwen3",
        }
        server_info = {"incremental_streaming_output": True, "version": "0.5.23", "weight_version": "6"}
        models = {"data": [{"id": "served", "max_model_len": 4096}]}
        assert engine_info(model_info, server_info, models) == EngineInfo(
            model_id="served",
            tokenizer_path="tok",
            context_length=4096,
            weight_version="7",
            incremental=True,
            version="0.5.23",
            tool_call_parser="qwen25",
            reasoning_parser="qwen3",
        )

    def test_older_servers_name_the_stream_differently(self) -> None:
        assert engine_info({}, {"stream_output": False}, {}).incremental is False
        assert engine_info({}, {"stream_output": "yes"}, {}).incremental is None

    def test_a_silent_engine_is_a_model_of_unknown_properties(self) -> None:
        unknown = engine_info({}, {}, {})
        assert unknown == EngineInfo("model", None, None, None, None, None, None, None)
        assert engine_info({"model_path": "p"}, {"weight_version": "6"}, {"data": []}) == EngineInfo(
            "p", None, None, "6", None, None, None, None
        )
