"""LibreTranslate's shape of ``/translate``: a body with ``q``. Other bodies are the native route's."""

from typing import Annotated, Literal

import msgspec
from litestar import Response
from litestar.handlers import HTTPRouteHandler

from padserve.core import GenerationSpec
from padserve.errors import InvalidField
from padserve.http.adapters.base import Adapter, AnyRequest, Desk
from padserve.http.adapters.dialect import Dialect, Problem, speak
from padserve.http.adapters.fields import NativeOptions, native
from padserve.http.body import BodyDecoder
from padserve.http.tasks import Shape
from padserve.tasks.generating import LanguageCode
from padserve.tasks.translate import TranslateRequest

AUTO = "auto"


class LibreTranslateRequest(NativeOptions, frozen=True, kw_only=True):
    """Sentences are translated one by one, as LibreTranslate does. Fields that are not listed are ignored."""

    q: str | list[str]
    source: LanguageCode
    target: LanguageCode
    format: Literal["text", "html"] = "text"
    alternatives: Annotated[int, msgspec.Meta(ge=0, le=63)] = 0
    split: Literal["none", "sentence"] = "sentence"
    model: str | None = None


class LibreTranslateReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``alternatives``: where they are asked for; of each text where ``q`` is a list."""

    translatedText: str | list[str]  # noqa: N815
    alternatives: list[str | list[str]] | None = None


class LibreTranslateError(msgspec.Struct, frozen=True):
    error: str


def _write(problem: Problem) -> tuple[int, LibreTranslateError]:
    """An invalid field is a 400 there."""
    status = int(problem["status"])
    return 400 if status == 422 else status, LibreTranslateError(str(problem["detail"]))


class LibreTranslate(Adapter):
    prefix, tag = "", "libretranslate"
    tasks = frozenset({"translate"})
    dialect = Dialect(LibreTranslateError, _write)

    def routes(self, desk: Desk) -> list[HTTPRouteHandler]:
        return []

    def shapes(self, desk: Desk) -> dict[str, Shape]:
        decoder, task = BodyDecoder(LibreTranslateRequest), desk.tasks["translate"]

        async def answer(request: AnyRequest, body: bytes) -> Response[bytes]:
            speak(request.scope, self.dialect)
            given = decoder.decode(body)
            generation = desk.select(given.model, task.name).generation
            asked = _asked(given, generation or GenerationSpec(True, None))
            reply = await desk.run(request, task, asked)
            outputs = [[output.text for output in result.outputs] for result in reply.results]  # type: ignore[union-attr]
            return desk.answer(reply, _reply(outputs, isinstance(given.q, list), given.alternatives > 0))

        return {task.name: Shape("q", LibreTranslateRequest, LibreTranslateReply, answer)}


def _asked(given: LibreTranslateRequest, generation: GenerationSpec) -> TranslateRequest:
    """Errors: `InvalidField`."""
    if given.format == "html":
        raise InvalidField("format: html is not supported; send the text without its tags, as text", field="format")
    if given.source == AUTO and generation.needs_source:
        known = ", ".join(generation.languages)
        raise InvalidField(f"source: the language is not detected; give one of {known}", field="source")
    told = bool(generation.languages)  # of a checkpoint that does not say its languages nothing can be checked
    outputs = given.alternatives + 1
    return TranslateRequest(
        model=given.model,
        inputs=given.q,
        source_lang=given.source if told and given.source != AUTO else None,
        target_lang=given.target if told else None,
        split=given.split,
        num_return_sequences=outputs,
        num_beams=max(int(generation.defaults.get("num_beams") or 1), outputs) if outputs > 1 else None,
        **native(given),
    )


def _reply(outputs: list[list[str]], many: bool, with_alternatives: bool) -> LibreTranslateReply:
    """``outputs``: of each text, best first."""
    best, others = [texts[0] for texts in outputs], [texts[1:] for texts in outputs]
    alternatives: list[str | list[str]] = [*others] if many else [*others[0]]
    return LibreTranslateReply(
        translatedText=best if many else best[0], alternatives=alternatives if with_alternatives else None
    )
