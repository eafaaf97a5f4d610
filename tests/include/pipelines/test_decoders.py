"""What the declaration of a decoder refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from include.errors import UsageError
from include.pipelines.gps_positions import PIPELINE
from include.pipelines.spec import Avro


@pytest.mark.parametrize("mode", ["failfast", "DROPMALFORMED", ""])
def test_mode_is_refused_when_avro_does_not_know_it(mode: Any) -> None:
    """In lower case, what was meant to end the run went to quarantine."""
    with pytest.raises(UsageError, match=f"mode='{mode}' is not known — one of: PERMISSIVE, FAILFAST"):
        Avro("gps-value", PIPELINE.decoder.schema, mode=mode)


@pytest.mark.parametrize("subject", [":.prod:gps-value", ":.:gps-value"])
def test_subject_is_refused_when_it_names_a_context_of_the_registry(subject: str) -> None:
    """A context has ids of its own, and a value says only an id."""
    with pytest.raises(UsageError, match=r"names a context .* write /contexts/ .* TIDEMARK_REGISTRY_URL"):
        replace(PIPELINE, decoder=replace(PIPELINE.decoder, subject=subject))
