"""The form of a decision, the question that a person is asked, and the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import Param

from include.approvals.choices import digest_of_facts, what_is_known
from include.approvals.request import Choice, Request
from include.monitor.text import markdown_list
from include.pipelines import pipeline_names


def decision_form() -> dict[str, Param]:
    """Return the parameters of a run, in the order in which the form shows them."""
    text, number = ["null", "string"], ["null", "integer"]
    record, interval = "Record in quarantine", "Interval to pin again"
    return {
        "decision": Param(type="string", enum=[each.value for each in Choice], title="Decision"),
        "pipeline": Param(type="string", enum=list(pipeline_names()), title="Pipeline"),
        "topic": Param(
            None, type=text, title="Topic", description="To adopt, to stop reading, or of the records to discard."
        ),
        "reason_code": Param(None, type=text, title="Reason code", section=record),
        "topic_partition": Param(None, type=number, minimum=0, title="Topic partition", section=record),
        "offset": Param(None, type=number, minimum=0, title="Offset", section=record),
        "topic_id": Param(
            None,
            type=text,
            title="Topic id",
            section=record,
            description="Where the topic was created again, and both had a record at the offset.",
        ),
        "from": Param(None, type=text, format="date-time", title="From", section=interval),
        "to": Param(None, type=text, format="date-time", title="To", section=interval),
    }


def why() -> dict[str, Param]:
    """Return the field beside the answer."""
    return {"reason": Param("", type="string", title="Why", description="Kept in the ledger, with your name.")}


def question_of(form: Mapping[str, Any]) -> dict[str, str]:
    """Return subject and body of the question that a filled form leads to, and the digest of its facts.

    Raises like `what_is_known`.
    """
    request = Request.of_form(form)
    # Before what is shown: should the facts change between the two, nothing is carried out.
    digest = digest_of_facts(request)
    known = what_is_known(request)
    for line in known:
        print(line)
    body = f"What is known:\n\n{markdown_list(known[1:])}\n\nRejecting changes nothing.\n"
    return {"subject": f"{known[0]}?", "body": body, "digest": digest}


def answer_of(answer: Mapping[str, Any]) -> dict[str, str]:
    """Return who approved and why, from what the approval's task returned: by, reason."""
    user = (answer.get("responded_by_user") or {}).get("name") or "unknown"
    reason = str((answer.get("params_input") or {}).get("reason") or "").strip() or "no reason was given"
    return {"by": f"airflow {user}", "reason": reason}
