"""The Hive metastore's schema on PostgreSQL, created before the first Spark session.

With `datanucleus.schema.autoCreateAll=true` a session would deadlock with itself on PostgreSQL. DataNucleus's
SchemaTool, which PySpark ships, creates the same tables in two seconds.
"""

from __future__ import annotations

import subprocess
import zipfile

from psycopg2.errors import LockNotAvailable
from sqlalchemy import Connection, create_engine, inspect, text
from sqlalchemy.exc import OperationalError

from include.errors import LockHeld, ServiceUnreachable
from include.ledger.connection import driver_options
from include.ledger.database import CHANGE_SECONDS, unreachable
from include.services.java import escaped, jdbc_url
from include.settings import settings, write_private
from include.spark.jars import SHORT_LIVED, classpath, java, pyspark_home

_VALUES = text("""
    SELECT format_type(atttypid, atttypmod), collname
    FROM pg_attribute JOIN pg_collation ON pg_collation.oid = attcollation
    WHERE attrelid = '"PARTITION_KEY_VALS"'::regclass AND attname = 'PART_KEY_VAL'
""")
"""Type and collation of the values of partition columns."""


def create_metastore_schema() -> None:
    """Create the metastore's tables in the catalog database if missing.

    Raise ServiceUnreachable when that fails, LockHeld when another transaction keeps using them.
    """
    engine = create_engine(settings().database("catalog"), connect_args=driver_options())
    try:
        if not inspect(engine).has_table("PARTITIONS"):
            _create_tables()
        with engine.begin() as connection:
            _compare_as_spark_does(connection)
    except OperationalError as error:
        if isinstance(error.orig, LockNotAvailable):
            raise LockHeld(
                f"another program has used the Hive catalog in one transaction for more than {CHANGE_SECONDS} s",
                remedy="end that transaction, which pg_stat_activity names, then run this again",
            ) from error
        raise unreachable(error) from error
    finally:
        engine.dispose()


def _compare_as_spark_does(connection: Connection) -> None:
    """Let values of partition columns be compared by their characters' codes, whatever the database's collation is.

    Spark lets the metastore look for `category > 'Z'`: in English, `books` is not among these.
    """
    of_type, collation = connection.execute(_VALUES).one()
    if collation != "C":
        connection.execute(text(f"SET LOCAL lock_timeout = '{CHANGE_SECONDS}s'"))
        connection.execute(text(f'ALTER TABLE "PARTITION_KEY_VALS" ALTER "PART_KEY_VAL" TYPE {of_type} COLLATE "C"'))


def _create_tables() -> None:
    folder = settings().home / "metastore"
    folder.mkdir(parents=True, exist_ok=True)
    jars = pyspark_home() / "jars"
    with zipfile.ZipFile(next(jars.glob("hive-metastore-*.jar"))) as archive:
        (folder / "package.jdo").write_bytes(archive.read("package.jdo"))
    catalog = settings().database("catalog")
    properties = {
        "javax.jdo.PersistenceManagerFactoryClass": "org.datanucleus.api.jdo.JDOPersistenceManagerFactory",
        "javax.jdo.option.ConnectionURL": jdbc_url(settings(), "catalog"),
        "javax.jdo.option.ConnectionDriverName": "org.postgresql.Driver",
        "javax.jdo.option.ConnectionUserName": catalog.username or "",
        "javax.jdo.option.ConnectionPassword": str(catalog.password or ""),
        "datanucleus.rdbms.useLegacyNativeValueStrategy": "true",
        "datanucleus.identifierFactory": "datanucleus1",
        "datanucleus.schema.autoCreateAll": "true",
        "datanucleus.plugin.pluginRegistryBundleCheck": "LOG",
    }
    file = folder / "metastore.properties"
    write_private(file, "".join(f"{key}={escaped(value)}\n" for key, value in properties.items()))
    postgresql = next(str(jar) for jar in classpath("spark") if jar.name.startswith("postgresql-"))
    command = [java(), "-Xmx512m", *SHORT_LIVED, "-cp", f"{jars}/*:{postgresql}"]
    command += ["org.datanucleus.store.schema.SchemaTool", "-create", "-api", "JDO"]
    command += ["-props", str(file), str(folder / "package.jdo")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    file.unlink()
    if result.returncode:
        raise ServiceUnreachable(
            f"the metastore's schema could not be created: {(result.stderr or result.stdout).strip().splitlines()[-1]}",
            remedy="see the PostgreSQL log",
        )
