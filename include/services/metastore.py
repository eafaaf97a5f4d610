"""The Hive metastore's schema on PostgreSQL, created before the first Spark session.

With `datanucleus.schema.autoCreateAll=true` a session would deadlock with itself on PostgreSQL. DataNucleus's
SchemaTool, which PySpark ships, creates the same tables in two seconds.
"""

from __future__ import annotations

import subprocess
import zipfile

from sqlalchemy import create_engine, inspect

from include.errors import ServiceUnreachable
from include.services.java_properties import escaped
from include.services.jdbc import jdbc_url
from include.settings import settings, write_private
from include.spark.jars import SHORT_LIVED, classpath, java, pyspark_home


def create_metastore_schema() -> None:
    """Create the metastore's tables in the catalog database if missing. Raise ServiceUnreachable when that fails."""
    engine = create_engine(settings().database("catalog"))
    try:
        if inspect(engine).has_table("PARTITIONS"):
            return
    finally:
        engine.dispose()
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
