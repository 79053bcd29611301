"""What the daemon can be asked, for programs: OpenAPI 3.1, made of the messages' types."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, get_type_hints

import msgspec

from rms._version import __version__
from rms.daemon.ask.http import PLAIN, Endpoint
from rms.wire.users import ErrorAnswer

REFUSALS = {
    400: "What was sent is no such message, or cannot be.",
    401: "It was asked without the token that is expected here, or over a connection of others.",
    404: "There is no such job, node, step or path.",
    409: "The job is in no state for this.",
    413: "More was sent than anybody has reason to.",
    503: "Nothing can be kept now: the disk is full, or its files are in the way.",
}

SECURITY = (
    "At a Unix socket jobs and meters show their token. Over TCP requests are signed as "
    "rms/wire/signing.py describes; GET /metrics alone accepts the token of the file metrics-token."
)


def describe(endpoints: Sequence[Endpoint], queries: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the description of these endpoints, as JSON has it.

    Args:
        queries: of a path, the parameters of its query, text each and none required.
    """
    answers = [get_type_hints(each.call)["return"] for each in endpoints]
    bodies = [each.body for each in endpoints if each.body is not None]
    types = [*answers, *bodies, ErrorAnswer]
    found, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    schemas = dict(zip(map(str, types), found, strict=True))
    refused = {
        str(status): {"description": words, "content": _json(schemas[str(ErrorAnswer)])}
        for status, words in REFUSALS.items()
    }
    paths: dict[str, Any] = {}
    for endpoint, answer in zip(endpoints, answers, strict=True):
        done = {"description": "It was done.", "content": _content(schemas[str(answer)])}
        parameters = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in re.findall(r"{(\w+)}", endpoint.path)
        ] + [
            {"name": name, "in": "query", "schema": {"type": "string"}}
            for name in queries.get(endpoint.path, ())
        ]
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = {
            "summary": (endpoint.call.__doc__ or "").partition("\n")[0],
            "parameters": parameters,
            "responses": {"200": done, **refused},
        } | (
            {}
            if endpoint.body is None
            else {"requestBody": {"content": _json(schemas[str(endpoint.body)])}}
        )
    return {
        "openapi": "3.1.0",
        "info": {"title": "rms", "version": __version__},
        "paths": paths,
        "security": [{}, {"token": []}],
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": SECURITY}
            },
        },
    }


def _content(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an answer is: a text, or JSON."""
    return {PLAIN: {"schema": schema}} if schema.get("type") == "string" else _json(schema)


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
