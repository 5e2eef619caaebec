"""Validation against OpenAI's published response schemas (JSON Schema 2020-12, with OpenAPI 3.0's `nullable` honoured)."""
import functools
import json

import jsonschema

import support


def honour_nullable(value):
    if isinstance(value, list):
        return [honour_nullable(v) for v in value]
    if not isinstance(value, dict):
        return value
    out = {k: honour_nullable(v) for k, v in value.items()}
    if out.pop("nullable", False) is True:
        return {"anyOf": [out, {"type": "null"}]}
    return out


@functools.cache
def validator(name):
    shared = support.SHARED / "openai_api/openapi_subset.json"
    path = shared if shared.exists() else support.ROOT / "tests/data/openai_api/responses.json"
    schemas = honour_nullable(json.loads(path.read_text())["components"]["schemas"])
    return jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}})


def check(name, value):
    problems = [f"{'/'.join(map(str, e.absolute_path))}: {e.message[:300]}" for e in validator(name).iter_errors(value)]
    assert not problems, f"{name}: {problems}"
