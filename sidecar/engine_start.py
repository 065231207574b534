"""What a start has to know of the engine: what it says of itself, and the model that follows from it."""

from __future__ import annotations

import asyncio
import logging

from adapters.engines.base import EngineError, EngineInfo, EngineRefusal
from adapters.models.selection import ENGINE, ParserChoice
from sidecar.config import Settings, SettingsError
from sidecar.generation.engine_parsing import EngineParsing
from sidecar.generation.transport import EngineTransport
from sidecar.model_files import lasting_name, read_model
from sidecar.tito.model import Model, build_model

log = logging.getLogger(__name__)


async def ask_engine(settings: Settings, transport: EngineTransport) -> EngineInfo | None:
    """What the engine says of itself; waits for an engine that still starts if nothing else tells. None if it does
    not answer and need not. Raises `SettingsError` if it is no engine, or refuses the key."""
    parsers = settings.tool_call_parser, settings.reasoning_parser
    needed = settings.tokenizer is None or settings.context_window is None or ENGINE in parsers
    attempt = 0
    while True:
        try:
            return await transport.info()
        except EngineRefusal as error:
            raise SettingsError(
                f"--engine-url {settings.engine_url} answers {error.status}: {error}; "
                "is it an SGLang server, and is --engine-api-key right?"
            ) from error
        except EngineError as error:
            if not needed:
                log.warning("the engine does not answer yet: %s", error)
                return None
            if attempt % 10 == 0:
                log.warning("waiting for the engine (--engine-url): %s", error)
            attempt += 1
            await asyncio.sleep(1)


async def check_engine_parser(settings: Settings, model: Model, parsing: EngineParsing) -> None:
    """That the engine can be asked to parse, if it is to. Raises `SettingsError`."""
    parser = model.parsers.formats.engine
    if parser is None:
        return
    try:
        await parsing.check(parser)
    except EngineError as error:
        raise SettingsError(
            f"{parser.flag} is 'engine', but --engine-url {settings.engine_url} cannot be asked: {error}. "
            "It takes an SGLang server, not a router, and a parser that works at its endpoint; else set "
            f"{parser.flag} to auto, none or a name"
        ) from error


def load_model(settings: Settings, info: EngineInfo) -> Model:
    """Tokenizer, template and parsers, proven by the self-test; takes seconds. Raises `SettingsError`."""
    name = settings.tokenizer or info.tokenizer_path
    if name is None:
        raise SettingsError("the engine does not name its tokenizer; set --tokenizer")
    text = read_model(lasting_name(name), settings.chat_template)
    try:
        return build_model(
            text,
            family_name=settings.model_family,
            parsers=ParserChoice(
                settings.tool_call_parser,
                settings.reasoning_parser,
                info.tool_call_parser,
                info.reasoning_parser,
            ),
            protect_content=settings.special_tokens_in_content == "text",
            allow_unstable=settings.on_unstable_template == "segment" or settings.token_build_mode == "snapshot",
        )
    except ValueError as error:
        raise SettingsError(str(error)) from error
