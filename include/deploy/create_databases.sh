#!/bin/bash
# Runs once, when PostgreSQL's data folder is new. Passwords come from secret files and never appear in
# an argument: psql reads them itself.
set -euo pipefail
psql --no-psqlrc --set ON_ERROR_STOP=1 --username postgres --dbname postgres <<'SQL'
\set tidemark_password `cat /run/secrets/tidemark_db_password`
\set registry_password `cat /run/secrets/registry_db_password`
SET password_encryption = 'scram-sha-256';
SET log_statement = 'none';
CREATE ROLE tidemark LOGIN PASSWORD :'tidemark_password';
CREATE ROLE registry LOGIN PASSWORD :'registry_password';
CREATE DATABASE ledger OWNER tidemark;
CREATE DATABASE catalog OWNER tidemark;
CREATE DATABASE airflow OWNER tidemark;
-- A frozen scheduler holds the runs that it had locked, and every other one passes over them without a word.
ALTER DATABASE airflow SET idle_in_transaction_session_timeout = '10min';
CREATE DATABASE serving OWNER tidemark;
CREATE DATABASE registry OWNER registry;
REVOKE CONNECT ON DATABASE ledger, catalog, airflow, serving, registry FROM PUBLIC;
SQL
