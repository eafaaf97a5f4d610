"""The task `publish`, which waits for a person when a build failed only by warnings.

While it waits it takes no task slot: Airflow calls `execute_complete` when somebody has answered, there or by
`./tidemark approve`.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Context, Param
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from airflow.sdk.execution_time.hitl import upsert_hitl_detail

from include.airflow.interval_run.build import code_of_build
from include.airflow.interval_run.decision import ANSWERED_ELSEWHERE, DecisionTrigger
from include.airflow.interval_run.links import push_links
from include.airflow.interval_run.step_log import log_step
from include.airflow.spark import JobOperator
from include.airflow.tasks import take_step
from include.errors import ValidationFailed
from include.intervals import approving, steps
from include.intervals.approving import Answered
from include.intervals.reporting.addresses import interval_page
from include.intervals.reporting.asking import notify_overtaken
from include.intervals.reporting.summary import summarize
from include.ledger.intervals import builds
from include.ledger.intervals.attempts import load_attempt
from include.ledger.validation import approvals
from include.ledger.validation.approvals import Question
from include.monitor.text import markdown_list, quantity

APPROVE, REFUSE = "Approve", "Refuse"


class PublishOperator(JobOperator):
    """Validates and registers a build; asks a person if only warnings were not met."""

    def __init__(self, *, pipeline: str, attempt: Any, **kwargs: Any) -> None:
        super().__init__(job="publish", pipeline=pipeline, attempt=attempt, **kwargs)

    def execute(self, context: Context) -> None:
        """Publish, unless the driver of `build_interval` has; wait for a person when only warnings were not met.

        Where somebody has answered before this asks, it goes on as was decided.
        """
        push_links(context, self)
        self.check_attempt(context)
        code = code_of_build(self.number)
        if code is None:
            code = self.run_job(context)
        question = take_step(self._question) if code == ValidationFailed.exit_code else None
        if question is None:
            self._end(code)
        elif question.decision is None:
            self._ask(context, question)
        else:
            self._go_on(context, question)

    def _end(self, code: int) -> None:
        if code:
            raise self.failure(code)
        log_step("publish", self.number)

    def execute_complete(self, context: Context, event: dict[str, Any], question: int) -> None:
        """Note what was answered, by whom and why; register, or fail and leave the catalog as it was.

        It also fails when another question was asked by now: Airflow shows only the first question of a task's try. If
        an approval of that one has published the build, only a refusal fails. A decision that was taken outside of
        Airflow counts as one in it. An answer about a build that has a newer one is none.
        """
        self.check_attempt(context)
        if event.get(ANSWERED_ELSEWHERE) == Answered.BUILT_AGAIN:
            raise _built_again(question)
        if event.get(ANSWERED_ELSEWHERE) == Answered.OVERTAKEN:
            interval = take_step(approvals.question, question).interval
            take_step(notify_overtaken, self.pipeline, [interval])
            raise AirflowFailException(
                f"question {question} is no longer asked: {Answered.OVERTAKEN}; clear build_interval, "
                "which builds it again"
            )
        asked = take_step(lambda: approvals.last_of_build(load_attempt(self.number).build))
        if asked is None or asked.id != question:
            self._end_unasked(event, question, asked)
            return
        if ANSWERED_ELSEWHERE in event:
            self._go_on(context, asked)
            return
        if not take_step(approvals.is_latest, asked):
            # Airflow takes answers until the trigger has noticed that.
            raise _built_again(question)
        user = (event.get("responded_by_user") or {}).get("name") or "unknown"
        reason = str((event.get("params_input") or {}).get("reason") or "").strip() or "no reason was given"
        answer = {"by": f"airflow {user}", "reason": reason}
        if event["chosen_options"] != [APPROVE]:
            verdict = take_step(approving.refuse, asked, **answer)
            log_step("publish", self.number, failed=True)
            raise AirflowFailException(
                f"refused by {answer['by']}: {reason}; nothing was registered, see {verdict.report}"
            )
        for line in approving.lines_of(take_step(approving.approve, asked, **answer)):
            self.log.info("%s", line)
        self._end(self.run_job(context))

    def _end_unasked(self, event: dict[str, Any], question: int, last: Question | None) -> None:
        """Succeed if the build was published after a later question, and what was answered agrees; else fail."""
        why = f"question {question} is no longer asked: suite or build have changed since"
        if last is None or not take_step(builds.is_published, last.build):
            raise AirflowFailException(
                f"{why}, and nothing was registered; clear this task, which publishes or asks again"
            )
        if event.get("chosen_options", [APPROVE]) != [APPROVE]:
            raise AirflowFailException(
                f"{why}, and the build was registered by a later approval; run the interval again to replace it"
            )
        for line in approving.lines_of(last):
            self.log.info("%s", line)
        self._end(0)

    def _go_on(self, context: Context, asked: Question) -> None:
        """Succeed or fail as was decided outside of Airflow, where the build was published, too."""
        assert asked.decision is not None
        for line in approving.lines_of(asked):
            self.log.info("%s", line)
        if not asked.decision.approved:
            log_step("publish", self.number, failed=True)
            raise AirflowFailException(
                f"refused by {asked.decision.by}: {asked.decision.reason}; nothing was registered"
            )
        published = take_step(builds.is_published, asked.build)
        self._end(0 if published else self.run_job(context))

    def _question(self) -> Question | None:
        """Return the question that the build waits for, decided or not; None where it waits for none."""
        spec = load_attempt(self.number)
        validation = spec.findings.validation
        return approvals.last_of_build(spec.build) if validation is not None and validation.waits else None

    def _ask(self, context: Context, question: Question) -> None:
        """Show what was found and wait, without a task slot, until somebody has answered."""
        take_step(steps.announce, self.number)
        log_step("publish", self.number, failed=True)
        reason = Param("", type="string", title="Why", description="Kept in the ledger, with your name.")
        upsert_hitl_detail(
            ti_id=context["ti"].id,
            options=[APPROVE, REFUSE],
            subject=f"{self.pipeline} {question.interval}: {quantity(len(question.warnings), 'warning')}. Register it?",
            body=_body(self.number, question),
            params={"reason": reason.serialize()},
        )
        # Deferred, not only "awaiting input", which nobody but Airflow's API server ends.
        self.defer(
            trigger=DecisionTrigger(question.id), method_name="execute_complete", kwargs={"question": question.id}
        )


def _built_again(question: int) -> AirflowSkipException:
    return AirflowSkipException(
        f"question {question} is no longer asked: {Answered.BUILT_AGAIN}, which took the place of this build"
    )


def _body(attempt: int, question: Question) -> str:
    """Return what is known, as Markdown in which all data is plain text."""
    lines = markdown_list(summarize("publish", attempt))
    page = interval_page(question.pipeline, question.interval)
    return f"What was found ([the interval's page]({page})):\n\n{lines}\n\nRefusing leaves the catalog as it was.\n"
