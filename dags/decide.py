"""One DAG for decisions that only a person may take: it shows the facts, waits, and carries out what was approved."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, get_current_context, task

from include.airflow.approvals.form import answer_of, decision_form, question_of, why
from include.airflow.tasks import result_of, take_step
from include.approvals.choices import carry_out
from include.approvals.request import Request

DOC = """
### Decide

**What**: takes a decision that only a person may take, about one pipeline. Trigger it, and fill in the form:

| decision | needs | writes the same as |
|---|---|---|
| accept loss | | `./tidemark accept-loss` |
| adopt topic | topic | `./tidemark adopt` |
| stop reading topic | topic | `./tidemark unsubscribe` |
| new generation | | `./tidemark new-generation` |
| pin again | from, to | `./tidemark interval --repin`, without building it: run `interval__…` then |
| discard from quarantine | reason code, or topic partition and offset | `./tidemark quarantine discard` |
| repair the catalog | | `./tidemark doctor --repair`, for this pipeline |

**When**: triggered manually. `show` writes the facts into its log and into the question: the exact loss, or the plan. `approve` then waits for
you, without a task slot, as long as it takes: look at its *Required actions*. Your answer is kept with your name. *Reject* skips `carry_out`.
Do not mark `approve` as successful: that is no answer, and `carry_out` fails.

**Reads** the ledger, and Kafka, the catalog or the lake as the decision needs. **Writes** the ledger; a repair also the catalog and the lake.

**A failure** of `show` means that there is nothing to decide, or that the form is incomplete; the error says which. A failure of `carry_out` means
that the facts are no longer those that you were shown, or that a stream still runs: do what the error says, then clear `show`, which asks again.
"""


def decide_dag() -> DAG:
    """Return the DAG `decide`."""
    with DAG(
        "decide",
        description="Decisions: a loss, a topic, a generation, a pin, a record, a repair; shown, then approved",
        schedule=None,
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        is_paused_upon_creation=True,
        tags=["tidemark", "decisions"],
        params=decision_form(),
        doc_md=DOC,
    ) as dag:

        @task(execution_timeout=timedelta(minutes=10))
        def show() -> dict[str, str]:
            """Return the question with the facts, and their digest."""
            return take_step(question_of, get_current_context()["params"])

        approve = ApprovalOperator(
            task_id="approve",
            subject="{{ ti.xcom_pull(task_ids='show')['subject'] }}",
            body="{{ ti.xcom_pull(task_ids='show')['body'] }}",
            params=why(),
            # If the answer comes before the process that asked has ended, Airflow takes that end for the end of the
            # process that has the answer, and fails the task: then it asks once more.
            retries=1,
            retry_delay=timedelta(seconds=1),
        )

        @task(execution_timeout=timedelta(hours=1))
        def carry_out_decision(answer: Any) -> list[str]:
            """Do what was approved if the facts are still those that were shown; return what was done."""
            context = get_current_context()
            request = take_step(Request.of_form, context["params"])
            # A question of older code has no digest: it is refused, and asked again.
            digest = (context["ti"].xcom_pull(task_ids="show") or {}).get("digest", "")
            given = take_step(result_of, "approve", answer, request.pipeline.name)
            return take_step(carry_out, request, digest=digest, **answer_of(given))

        show() >> approve >> carry_out_decision.override(task_id="carry_out")(approve.output)
    return dag


decide = decide_dag()
