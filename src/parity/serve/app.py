"""The HTTP side of the server: OpenAI's image endpoint, and what a machine asks about its state."""

import asyncio
import base64
import json
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.exceptions import HTTPException

from parity.base.errors import ParityError
from parity.experiment.schema import brief
from parity.generate import Generator, check_captions
from parity.generate.folder import make_png
from parity.serve.worker import Closed, Event, Full, Row, Worker

MOST_IMAGES, MOST_PARTIAL = 10, 3  # of a request, as in OpenAI's API


class ImageRequest(BaseModel):
    """A request for images. What OpenAI's API has beside this is refused, unless it says what is done anyway."""

    model_config = ConfigDict(extra="forbid", strict=True)
    prompt: str
    model: str = ""
    n: int = Field(1, ge=1, le=MOST_IMAGES)
    size: str = "auto"
    seed: int | None = Field(None, ge=0, lt=1 << 63)
    stream: bool = False
    partial_images: int = Field(0, ge=0, le=MOST_PARTIAL)
    response_format: Literal["b64_json"] = "b64_json"
    output_format: Literal["png"] = "png"
    background: Literal["auto", "opaque"] = "auto"
    quality: Literal["auto"] = "auto"
    user: str = ""  # not read

    @model_validator(mode="before")
    @classmethod
    def leave_out_null(cls, fields: Any) -> Any:
        return {k: v for k, v in fields.items() if v is not None} if isinstance(fields, dict) else fields


class Refused(Exception):
    """A request that is not answered with images. param: the field that is wrong, if one is."""

    def __init__(self, status: int, message: str, param: str | None = None):
        super().__init__(message)
        self.status, self.param = status, param

    @property
    def body(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = "rate_limit_error" if self.status == 429 else kind
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": None}}


def describe_invalid(error: Mapping[str, Any]) -> Refused:
    """Describe what pydantic refuses: the field, its value and what is allowed."""
    field = next((str(part) for part in error["loc"][1:] if isinstance(part, str)), None)
    if error["type"] == "extra_forbidden":
        allowed = f"unknown; allowed: {', '.join(ImageRequest.model_fields)}"
    else:
        allowed = error["msg"].replace("Input should be", "allowed:").replace("Field required", "required")
    value = "" if field is None or error["type"] == "missing" else f" = {brief(error['input'])}"
    return Refused(400, f"{field or 'body'}{value}: {allowed}", field)


class Images:
    """Answers requests for images of one model by a worker."""

    def __init__(self, generator: Generator, method: str, chosen: Mapping[str, Any], worker: Worker):
        self.generator, self.method, self.chosen, self.worker = generator, method, chosen, worker
        self.size = f"{worker.loaded.side}x{worker.loaded.side}"
        self.started = int(time.time())

    def check(self, asked: ImageRequest) -> None:
        """Raise Refused for a request that no image can be made of."""
        model = self.generator.case.model
        for field, value, allowed in (
            ("model", asked.model or model, (model,)),
            ("size", asked.size, (self.size, "auto")),
        ):
            if value not in allowed:
                raise Refused(400, f"{field} = {brief(value)}: allowed: {', '.join(allowed)}", field)
        if asked.partial_images and not asked.stream:
            problem = f"partial_images = {asked.partial_images}: allowed: 0 without stream"
            raise Refused(400, problem, "partial_images")
        if asked.stream and asked.n > 1:
            raise Refused(400, f"n = {asked.n}: allowed: 1 with stream", "n")
        try:
            check_captions([asked.prompt], self.generator.case.spec)
        except ParityError as error:
            raise Refused(400, str(error), "prompt") from None

    async def follow(self, asked: ImageRequest, seed: int, request: Request) -> AsyncIterator[Event]:
        """Let the worker make the images; yield what becomes of them, and end early if the client leaves. Raises
        Refused if there is an image that cannot be made."""
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def post(event: Event) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            events.put_nowait(None)

        rows = [Row(asked.prompt, seed, number, post, asked.partial_images) for number in range(asked.n)]
        try:
            self.worker.add(rows)
        except Closed:
            raise Refused(503, "the server is stopping; allowed: another one") from None
        except Full:
            problem = f"{self.worker.most_waiting} images wait, the most that may"
            raise Refused(429, f"{problem}; allowed: to try again later") from None
        watcher = asyncio.create_task(watch())
        left = len(rows)
        try:
            while left and (event := await events.get()) is not None:
                if event.problem:
                    wrong = (400, f"prompt: {event.problem}", "prompt") if event.is_refused else (500, event.problem)
                    raise Refused(*wrong)
                left -= event.passes > 0
                yield event
        finally:
            watcher.cancel()
            self.worker.drop(rows)

    async def write(self, event: Event) -> str:
        """Write an image as PNG in base 64: of a whole image the bytes of the file that `parity generate` writes."""
        facts = {**self.generator.list_facts(self.method, self.chosen, event.row.seed), "passes": event.passes}
        png = await asyncio.to_thread(make_png, event.image, facts, event.row.prompt)
        return base64.b64encode(png).decode()

    def describe(self, seed: int) -> dict[str, Any]:
        about = {"output_format": "png", "quality": "auto", "background": "opaque", "size": self.size}
        return {**about, "seed": seed}

    async def answer(self, asked: ImageRequest, request: Request) -> Response:
        """Answer a request with all images, or with a stream of events."""
        self.check(asked)
        seed = secrets.randbits(63) if asked.seed is None else asked.seed
        events = self.follow(asked, seed, request)
        if asked.stream:
            first = await anext(events, None)  # what is refused at once has a status of its own
            return StreamingResponse(self.stream(first, events, seed), media_type="text/event-stream")
        images = {event.row.number: await self.write(event) async for event in events}
        if len(images) < asked.n:
            return Response(status_code=499)  # the client has left
        data = [{"b64_json": images[number]} for number in range(asked.n)]
        return JSONResponse({"created": int(time.time()), "data": data, **self.describe(seed)})

    async def stream(self, first: Event | None, events: AsyncIterator[Event], seed: int) -> AsyncIterator[str]:
        """Write the events of an image as server-sent ones."""
        async with aclosing(events):  # type: ignore[type-var]
            try:
                event = first
                while event is not None:
                    kind = "completed" if event.passes else "partial_image"
                    index = {} if event.passes else {"partial_image_index": event.number}
                    made = {"type": f"image_generation.{kind}", "b64_json": await self.write(event), **index}
                    made |= {"created_at": int(time.time()), **self.describe(seed)}
                    yield f"event: {made['type']}\ndata: {json.dumps(made)}\n\n"
                    event = await anext(events, None)
            except Refused as error:
                yield f"event: error\ndata: {json.dumps(error.body)}\n\n"


def write_metrics(worker: Worker) -> str:
    """Write the state of a worker in the text format of Prometheus."""
    counts = worker.counts
    gained = counts.tokens / max(counts.row_passes, 1)
    an_hour = 3600 * counts.images / max(counts.seconds, 1e-9)
    rows = [
        ("parity_queue_length", "gauge", "images that wait for a place", len(worker.waiting)),
        ("parity_running_rows", "gauge", "images that are decoded", len(worker.running)),
        ("parity_batch_size", "gauge", "images that may be decoded at once", worker.batch),
        ("parity_images_total", "counter", "images made", counts.images),
        ("parity_passes_total", "counter", "passes of the model", counts.passes),
        ("parity_tokens_total", "counter", "tokens drawn", counts.tokens),
        ("parity_failures_total", "counter", "batches that ended with an error", counts.failures),
        ("parity_decoding_seconds_total", "counter", "seconds in which images were decoded", counts.seconds),
        ("parity_tokens_per_pass", "gauge", "tokens an image gains in a pass", gained),
        ("parity_images_per_hour", "gauge", "images in an hour of decoding", an_hour),
    ]
    return "".join(
        f"# HELP {name} {text}\n# TYPE {name} {kind}\n{name} {value:.10g}\n" for name, kind, text, value in rows
    )


def make_app(images: Images) -> FastAPI:
    """Make the application."""
    app = FastAPI(title="parity serve")
    worker, model = images.worker, images.generator.case.model

    @app.exception_handler(Refused)
    async def refuse(request: Request, error: Refused) -> Response:
        return JSONResponse(error.body, error.status)

    @app.exception_handler(RequestValidationError)
    async def refuse_invalid(request: Request, error: RequestValidationError) -> Response:
        return await refuse(request, describe_invalid(error.errors()[0]))

    @app.exception_handler(HTTPException)
    async def refuse_address(request: Request, error: HTTPException) -> Response:
        return await refuse(request, Refused(error.status_code, f"{request.url.path}: {error.detail}"))

    @app.post("/v1/images/generations")
    async def generations(asked: ImageRequest, request: Request) -> Response:
        return await images.answer(asked, request)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        one = {"id": model, "object": "model", "created": images.started, "owned_by": "parity"}
        return {"object": "list", "data": [one]}

    @app.get("/health")
    async def health() -> Response:
        if worker.is_closed:
            raise Refused(503, "the server is stopping")
        return JSONResponse({"status": "ok"})

    @app.get("/metrics")
    async def metrics() -> Response:
        return PlainTextResponse(write_metrics(worker), media_type="text/plain; version=0.0.4")

    return app
