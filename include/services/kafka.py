"""The embedded Kafka broker: KRaft, one node, loopback only."""

from __future__ import annotations

import subprocess
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from include.errors import ServiceUnreachable, UsageError
from include.services import kafka_access, process
from include.services.java import escaped
from include.services.process import ServiceStatus
from include.settings import settings, write_private
from include.spark.jars import classpath, java

HEAP = "512m"

# Generated records have timestamps in the past, so the broker deletes nothing by age and accepts any timestamp.
# The no-op records in the metadata log serve other controllers only; without them an idle broker costs a third less.
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},SASL_SSL://127.0.0.1:{secured},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_SSL://127.0.0.1:{secured}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT
listener.name.sasl_ssl.sasl.enabled.mechanisms=PLAIN
listener.name.sasl_ssl.plain.sasl.jaas.config=\
  org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";
listener.name.sasl_ssl.ssl.keystore.type=PKCS12
listener.name.sasl_ssl.ssl.keystore.location={keystore}
listener.name.sasl_ssl.ssl.keystore.password={password}
log.dirs={data}
num.partitions=4
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
log.retention.ms=-1
metadata.max.idle.interval.ms=0
log.message.timestamp.before.max.ms=9223372036854775807
log.message.timestamp.after.max.ms={latest}
"""


_LATEST = 9_000_000_000_000_000
"""Milliseconds that a record's timestamp may lie ahead. Spark cannot read a record beyond the year 294247, which would
stop the streams of its topic."""


def up() -> None:
    """Start the broker on its last port if that is free. Raise ServiceUnreachable when it does not answer in 90 s."""
    state = process.read_state("kafka")
    data = settings().home / "kafka"
    ports = process.free_ports({use: state.get(use) for use in ("port", "secured_port", "controller")})
    port, secured = ports["port"], ports["secured_port"]
    access = kafka_access.ensure_access()
    properties = settings().home / "services" / "kafka.properties"
    filled = _PROPERTIES.format(
        latest=_LATEST,
        port=port,
        secured=secured,
        controller=ports["controller"],
        data=escaped(str(data)),
        user=kafka_access.USER,
        password=escaped(access.password),
        keystore=escaped(str(access.keystore)),
    )
    write_private(properties, filled)
    _format_storage(data, properties)
    command = [*_java_command(), "kafka.Kafka", str(properties)]
    started = process.start_detached("kafka", command)
    process.write_started(
        "kafka",
        started,
        address=f"127.0.0.1:{port}",
        secured_address=f"127.0.0.1:{secured}",
        **ports,
        data=str(data),
    )
    process.wait_until("kafka", lambda: _answers(f"127.0.0.1:{port}"), started, 90)


def _java_command() -> list[str]:
    jars = ":".join(str(jar) for jar in classpath("broker"))
    options = ["-Xms128m", f"-Xmx{HEAP}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    return [java(), *options, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", jars]


def _format_storage(data: Path, properties: Path) -> None:
    if (data / "meta.properties").exists():
        return
    data.mkdir(parents=True, exist_ok=True)
    cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    # Written with "=": one id in 64 begins with a dash and would be read as an option.
    command = [*_java_command(), "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(properties)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        last = (result.stdout + result.stderr).strip().splitlines()[-1:]
        raise ServiceUnreachable(f"Kafka's storage could not be formatted: {' '.join(last)}", remedy=f"see {data}")


def _answers(address: str) -> bool:
    client = AdminClient({"bootstrap.servers": address, "log_level": 0, "error_cb": lambda _: None})
    try:
        return bool(client.list_topics(timeout=2).brokers)
    except KafkaException:
        return False


def status() -> ServiceStatus:
    """Return address and health of the configured or embedded broker; a healthy one answers a metadata request.

    Where the client options are refused, `detail` says why.
    """
    current = settings()
    if current.kafka_bootstrap:
        healthy, detail = False, ""
        try:
            options = {**current.kafka_client_options(), "log_level": 0, "error_cb": lambda _: None}
            healthy = bool(AdminClient(options).list_topics(timeout=5).brokers)
        except UsageError as error:
            # What needs no Kafka, as `down`, goes on.
            detail = str(error)
        except KafkaException:
            pass
        return ServiceStatus(current.kafka_bootstrap, healthy, None, external=True, detail=detail)
    state = process.read_state("kafka")
    broker = process.running(state)
    healthy = broker is not None and _answers(state["address"])
    secured = state.get("secured_address")
    detail = f"SASL_SSL at {secured}, client options in {kafka_access.client_properties()}" if secured else ""
    return ServiceStatus(state.get("address", ""), healthy, broker.pid if broker else None, detail=detail)


def down() -> None:
    """Stop the embedded broker if it is running."""
    process.stop_service("kafka")
