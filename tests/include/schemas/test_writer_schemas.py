"""Kept writer schemas: compared with the registry's, which may be filled anew, and fetched again when cut short."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from include.errors import ServiceUnreachable, UsageError
from include.schemas import writer_schemas
from include.schemas.registry import MAX_ANSWER, RegisteredSchema, SchemaRegistry
from include.schemas.writer_schemas import Unusable, WriterSchemas
from tests.conftest import SetSettings
from tests.support.json_server import answering
from tests.support.receivers import tls_in, trust

SUBJECT = "gps-value"


def position(*fields: str) -> str:
    """A schema with these fields, whose records can also be read by one with the same in another order."""
    return json.dumps({"type": "record", "name": "P", "fields": [{"name": each, "type": "double"} for each in fields]})


FIRST, SWAPPED = position("lat", "lon"), position("lon", "lat")


class Registry:
    """What a registry has for id 1; in `spelled`, how it gives the schema as a version of its subject."""

    def __init__(self) -> None:
        self.schema = self.spelled = FIRST
        self.asked: list[str] = []
        self.versions = [1]
        self.denied = ""
        """A path that the user must not read."""

    def fill_anew(self) -> None:
        self.schema = self.spelled = SWAPPED

    def answer(self, _: str, path: str, __: object) -> tuple[int, object]:
        self.asked.append(path)
        if path == self.denied:
            return 403, {"error_code": 40301, "message": "denied"}
        answers: dict[str, object] = {
            f"/subjects/{SUBJECT}/versions": self.versions,
            f"/subjects/{SUBJECT}/versions/1": {"subject": SUBJECT, "version": 1, "id": 1, "schema": self.spelled},
            "/schemas/ids/1": {"schema": self.schema},
        }
        missing = 40402 if "/versions/" in path else 40403
        return (200, answers[path]) if path in answers else (404, {"error_code": missing, "message": "not found"})


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def source(registry: Registry) -> Iterator[SchemaRegistry]:
    with answering(registry.answer) as address:
        yield SchemaRegistry(address)


@pytest.fixture
def folder(tmp_path: Path, source: SchemaRegistry) -> Path:
    """The folder in which an earlier process has kept the schema."""
    WriterSchemas(tmp_path, source).resolve_subject(SUBJECT)
    assert (tmp_path / "1.json").exists()
    return tmp_path


def test_registry_is_trusted_when_the_machine_trusts_its_authority(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls, certificate = tls_in(tmp_path)
    with answering(registry.answer, tls) as address:
        with pytest.raises(ServiceUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
            SchemaRegistry(address).versions(SUBJECT)
        trust(monkeypatch, certificate)
        assert SchemaRegistry(address).versions(SUBJECT) == [1]


def test_schema_is_refused_when_the_registry_was_filled_anew_and_has_another_one_with_its_id(
    registry: Registry, source: SchemaRegistry, folder: Path
) -> None:
    registry.fill_anew()
    with pytest.raises(UsageError, match="has another schema with id 1") as raised:
        WriterSchemas(folder, source).resolve_subject(SUBJECT)
    assert f"version 1 of {SUBJECT}" in raised.value.message
    assert str(folder / "1.json") in raised.value.message
    # Without the file, the registry's counts.
    (folder / "1.json").unlink()
    schemas = WriterSchemas(folder, source)
    schemas.resolve_subject(SUBJECT)
    assert schemas.resolved() == {1: SWAPPED}


@pytest.mark.parametrize("spelled", [json.dumps(json.loads(FIRST), indent=2), '{"type": "record", "name": "x.P"}'])
def test_kept_schema_stays_when_the_registry_only_spells_it_otherwise(
    registry: Registry, source: SchemaRegistry, folder: Path, spelled: str
) -> None:
    registry.spelled = spelled
    schemas = WriterSchemas(folder, source)
    schemas.resolve_subject(SUBJECT)
    assert schemas.resolved() == {1: FIRST}


@pytest.mark.parametrize("text", ["", '{"schema": "{\\"ty', '"schema"', "{}"])
def test_schema_is_fetched_again_when_its_file_was_cut_short(
    registry: Registry, source: SchemaRegistry, folder: Path, text: str
) -> None:
    whole = (folder / "1.json").read_text()
    (folder / "1.json").write_text(text)
    registry.asked.clear()
    schemas = WriterSchemas(folder, source)
    schemas.resolve([1], SUBJECT)
    assert schemas.resolved() == {1: FIRST}
    assert registry.asked == ["/schemas/ids/1"]
    assert (folder / "1.json").read_text() == whole


def test_subject_s_schema_is_resolved_when_too_many_ids_are_unknown(
    registry: Registry, source: SchemaRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes first: what is not resolved by then is unknown to this process."""
    monkeypatch.setattr(writer_schemas, "MOST_UNKNOWN", 2)
    schemas = WriterSchemas(tmp_path, source)
    schemas.resolve([7, 8, 9, 1], SUBJECT)
    assert schemas.asks_no_more()
    assert schemas.resolved()[1] == FIRST
    assert schemas.unknown() == {7, 8}
    registry.asked.clear()
    schemas.resolve([9, 10], SUBJECT)
    assert registry.asked == []


@pytest.mark.parametrize("characters", [writer_schemas.MAX_SCHEMA_BYTES, MAX_ANSWER])
def test_schema_is_unusable_when_it_is_longer_than_any(
    registry: Registry, source: SchemaRegistry, tmp_path: Path, characters: int
) -> None:
    registry.schema = registry.spelled = json.dumps({**json.loads(FIRST), "doc": "x" * characters})
    schemas = WriterSchemas(tmp_path, source)
    schemas.resolve_subject(SUBJECT)
    schemas.resolve([1, 7], SUBJECT)
    resolved = schemas.resolved()
    assert resolved[1] == Unusable("unusable_schema", "its schema is longer than 262144 characters")
    assert schemas.unknown() == {7}
    assert list(tmp_path.iterdir()) == []


WIDE = {
    "type": "record",
    "name": "P",
    "fields": [{"name": f"f{each}", "type": "long", "doc": 'a "word" in [0, until)'} for each in range(70)],
}


@pytest.mark.parametrize("doc", ["[" * 70, '\\"' + "{" * 70, "\n" + "]" * 70], ids=["open", "quoted", "closed"])
def test_schema_is_usable_when_only_its_texts_have_many_brackets(
    registry: Registry, source: SchemaRegistry, tmp_path: Path, doc: str
) -> None:
    registry.schema = registry.spelled = json.dumps({**WIDE, "doc": doc})
    schemas = WriterSchemas(tmp_path, source)
    schemas.resolve_subject(SUBJECT)
    assert schemas.resolved() == {1: registry.schema}


def test_schema_is_unusable_in_each_process_when_its_texts_hide_how_deep_it_is(
    registry: Registry, source: SchemaRegistry, tmp_path: Path
) -> None:
    deep = "[" * 998 + "]" * 998
    registry.schema = registry.spelled = f'{{"doc": "{"}" * 2_000}", "of_our_own": {deep}, {FIRST[1:]}'
    too_deep = Unusable("unusable_schema", "its schema is nested deeper than 32 types")
    first = WriterSchemas(tmp_path, source)
    first.resolve_subject(SUBJECT)
    assert first.resolved() == {1: too_deep}
    # Kept on disk, and judged when the next process starts.
    assert (tmp_path / "1.json").exists()
    second = WriterSchemas(tmp_path, source)
    second.resolve_subject(SUBJECT)
    assert second.resolved() == {1: too_deep}


def test_depth_is_found_at_once_when_a_text_does_not_end() -> None:
    schema = '{"doc": "' + '\\"' * (writer_schemas.MAX_SCHEMA_BYTES // 2 - 10)
    assert isinstance(writer_schemas.usable(RegisteredSchema(schema)), str)


def test_registry_counts_as_unreachable_when_its_answer_is_nested_too_deep() -> None:
    with (
        answering(lambda *_: (200, b"[" * 100_000)) as address,
        pytest.raises(ServiceUnreachable, match="not JSON: is this a schema registry"),
    ):
        SchemaRegistry(address).versions(SUBJECT)


def test_subject_s_other_versions_are_resolved_when_one_is_deleted_meanwhile(
    registry: Registry, source: SchemaRegistry, tmp_path: Path
) -> None:
    registry.versions = [2, 1]
    schemas = WriterSchemas(tmp_path, source)
    schemas.resolve_subject(SUBJECT)
    assert schemas.resolved() == {1: FIRST}


def test_id_and_right_are_named_when_the_user_must_not_read_its_schema(
    registry: Registry, source: SchemaRegistry, tmp_path: Path
) -> None:
    registry.denied = "/schemas/ids/7"
    with pytest.raises(ServiceUnreachable, match=r"its user has no right to /schemas/ids/7 — grant .* its subject"):
        WriterSchemas(tmp_path, source).resolve([7], SUBJECT)


@pytest.mark.parametrize(
    ("address", "named"),
    [
        ("https://registry:8081/a/", "https://registry:8081/a"),
        ("https://key@registry:8081", "https://key@registry:8081"),
        ("https://reader:canary@registry:8081/a", "https://reader:***@registry:8081/a"),
    ],
)
def test_schemas_are_kept_where_they_always_were_when_the_address_has_a_user(
    tmp_path: Path, set_settings: SetSettings, address: str, named: str
) -> None:
    kept = tmp_path / "schemas" / hashlib.sha256(named.encode()).hexdigest()[:16] / "1.json"
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps({"schema": FIRST, "kind": "AVRO", "references": 0}))
    set_settings(TIDEMARK_HOME=str(tmp_path), TIDEMARK_REGISTRY_URL=address)
    # Not the process's own, which is kept in a cache.
    assert [*writer_schemas.writer_schemas.__wrapped__().resolved()] == [1]
