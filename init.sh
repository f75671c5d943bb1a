#!/bin/sh
# Prepare a PostgreSQL database for the bridge: a least-privilege role, its grants, a publication.
#
# Run it against any server through psql's own variables (PGHOST, PGUSER, ...), or put it in
# /docker-entrypoint-initdb.d of the postgres image. A second run adds what is missing and removes
# nothing; --remove takes only its event triggers away. Names reach SQL only as psql variables and
# through format(%I), never pasted, and all of it is one transaction: it happens whole or not at
# all. The transaction begins with a search_path on which no role can put functions or operators:
# a superuser runs this, and would run those of any role that may create them.

# The postgres image sources a script that is not executable, with its own list of files as
# arguments; the subshell below keeps our settings and our exit out of its shell.
walbridge_init() (
    set -eu

    usage() {
        cat <<'USAGE'
Usage: init.sh [--help | --remove]

Prepares a database for the bridge. Run it as a superuser; with BRIDGE_TABLES, the tables' owner
with CREATEROLE and REPLICATION will do.

If the role may create event triggers, it installs three (walbridge_ddl, walbridge_drop,
walbridge_rewrite) with their functions in schema walbridge. They report DDL on published tables
in the WAL, at its place. They never make a statement fail. The bridge works without them and then
finds such DDL by polling the catalog. A second run upgrades them. A schema walbridge, or a function
in it, that belongs to another role than the current one or a superuser is an error.

  --remove   remove the event triggers and their functions, and nothing else

  POSTGRES_BRIDGE_USER           role of the bridge                        (bridge)
  POSTGRES_BRIDGE_PASSWORD       its password, set anew at each run        (required)
  POSTGRES_BRIDGE_PASSWORD_FILE  file with the password, instead of it
  BRIDGE_PUBLICATION             publication that names the tables         (cdc_pub)
  BRIDGE_TABLES                  tables, comma separated, in SQL's quoting (all tables)
                                 users,sales.orders,"Odd, Name",archive.*
  PSQL                           psql to use, version 14 or newer          (psql)
  PGHOST PGPORT PGUSER PGPASSWORD PGDATABASE ...   as psql reads them;
                                 user and database default to POSTGRES_USER and POSTGRES_DB

  PGHOST=db PGUSER=postgres PGDATABASE=shop POSTGRES_BRIDGE_PASSWORD=... ./init.sh
USAGE
    }

    fail() {
        printf 'init.sh: %s\n' "$1" >&2
        exit "${2:-1}"
    }

    remove=
    for argument in "$@"; do
        case $argument in
            -h | --help) usage && exit 0 ;;
            --remove) remove=yes ;;
            *) usage >&2 && fail "unknown argument: $argument" 2 ;;
        esac
    done

    if [ -n "$remove" ]; then
        "${PSQL:-psql}" --no-psqlrc --quiet --set ON_ERROR_STOP=1 --set VERBOSITY=terse \
            --single-transaction --file - <<'SQL'
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL client_min_messages = 'warning';
DROP EVENT TRIGGER IF EXISTS walbridge_ddl;
DROP EVENT TRIGGER IF EXISTS walbridge_drop;
DROP EVENT TRIGGER IF EXISTS walbridge_rewrite;
DROP FUNCTION IF EXISTS walbridge.on_ddl(), walbridge.on_drop(), walbridge.on_rewrite();
DROP FUNCTION IF EXISTS walbridge.report(oid[], text, text);
DROP SCHEMA IF EXISTS walbridge;
SQL
        exit 0
    fi

    if [ -n "${POSTGRES_BRIDGE_PASSWORD_FILE:-}" ]; then
        [ -z "${POSTGRES_BRIDGE_PASSWORD:-}" ] ||
            fail "set POSTGRES_BRIDGE_PASSWORD or POSTGRES_BRIDGE_PASSWORD_FILE, not both"
        [ -r "$POSTGRES_BRIDGE_PASSWORD_FILE" ] ||
            fail "cannot read POSTGRES_BRIDGE_PASSWORD_FILE: $POSTGRES_BRIDGE_PASSWORD_FILE"
        POSTGRES_BRIDGE_PASSWORD=$(cat "$POSTGRES_BRIDGE_PASSWORD_FILE")
    fi
    [ -n "${POSTGRES_BRIDGE_PASSWORD:-}" ] ||
        fail "no password for the bridge's role: set POSTGRES_BRIDGE_PASSWORD or POSTGRES_BRIDGE_PASSWORD_FILE"

    psql=${PSQL:-psql}
    command -v "$psql" >/dev/null 2>&1 ||
        fail "$psql is not there: install the PostgreSQL client, or name its psql in PSQL"

    export POSTGRES_BRIDGE_USER="${POSTGRES_BRIDGE_USER:-bridge}"
    export POSTGRES_BRIDGE_PASSWORD
    export BRIDGE_PUBLICATION="${BRIDGE_PUBLICATION:-cdc_pub}"
    export BRIDGE_TABLES="${BRIDGE_TABLES:-}"
    if [ -n "${PGUSER:-${POSTGRES_USER:-}}" ]; then
        export PGUSER="${PGUSER:-$POSTGRES_USER}"
    fi
    if [ -n "${PGDATABASE:-${POSTGRES_DB:-}}" ]; then
        export PGDATABASE="${PGDATABASE:-$POSTGRES_DB}"
    fi
    export PGAPPNAME=walbridge-init

    # The password travels in the environment: arguments are for everybody to see.
    exec "$psql" --no-psqlrc --quiet --tuples-only --no-align \
        --set ON_ERROR_STOP=1 --set VERBOSITY=terse --single-transaction --file - <<'SQL'
SHOW search_path \gset
SET LOCAL search_path = pg_catalog, pg_temp;

\getenv role POSTGRES_BRIDGE_USER
\getenv password POSTGRES_BRIDGE_PASSWORD
\getenv publication BRIDGE_PUBLICATION
\getenv tables BRIDGE_TABLES

-- Keep the password out of the server's log, where we may.
SELECT rolsuper AS superuser FROM pg_roles WHERE rolname = current_user \gset
\if :superuser
SET LOCAL log_statement = 'none';
SET LOCAL log_min_duration_statement = -1;
SET LOCAL log_min_error_statement = 'panic';
\endif
SET LOCAL client_min_messages = 'warning';

SELECT set_config('walbridge.role', :'role', true),
       set_config('walbridge.publication', :'publication', true),
       set_config('walbridge.all_tables', (btrim(:'tables') = '')::text, true) \g /dev/null

-- What was asked for: one row per entry of the list, which is split at commas outside quotes.
CREATE TEMPORARY TABLE walbridge_asked ON COMMIT DROP AS
SELECT entry, entry ~ '\.\s*\*$' AS is_schema,
       CASE WHEN entry ~ '\.\s*\*$' THEN to_regnamespace(regexp_replace(entry, '\.\s*\*$', '')) END AS schema,
       NULL::regclass AS relation
  FROM (SELECT btrim(part[1], E' \t\r\n') AS entry
          FROM regexp_matches(:'tables', '((?:[^,"]|"(?:[^"]|"")*"|")+)', 'g') AS part) AS parts
 WHERE entry <> '';
-- Unqualified names are those of the role's own search_path, which is in force for one statement
-- without an operator or an unqualified function.
SELECT set_config('search_path', :'search_path', true) \g /dev/null
UPDATE pg_temp.walbridge_asked SET relation = pg_catalog.to_regclass(entry) WHERE NOT is_schema;
SET LOCAL search_path = pg_catalog, pg_temp;

DO $$
DECLARE
    role text := current_setting('walbridge.role');
    publication text := current_setting('walbridge.publication');
    all_tables boolean := current_setting('walbridge.all_tables');
    superuser boolean := (SELECT rolsuper FROM pg_roles WHERE rolname = current_user);
    found pg_publication := (SELECT p FROM pg_publication AS p WHERE pubname = publication);
    missing text := (SELECT string_agg(entry, ', ') FROM walbridge_asked WHERE schema IS NULL AND relation IS NULL);
BEGIN
    IF current_setting('wal_level') <> 'logical' THEN
        RAISE 'wal_level is %, the bridge needs logical. Run: ALTER SYSTEM SET wal_level = logical; then restart PostgreSQL and run this again.',
            current_setting('wal_level');
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = role AND (rolsuper OR role = current_user)) THEN
        RAISE 'role % administers this server, the bridge needs one of its own. Choose another name in POSTGRES_BRIDGE_USER.', role;
    END IF;
    IF NOT all_tables AND NOT EXISTS (SELECT FROM walbridge_asked) THEN
        RAISE 'BRIDGE_TABLES names no table. Leave it empty for all tables.';
    END IF;
    IF missing IS NOT NULL THEN
        RAISE 'not in database %: %. Create them first, or correct BRIDGE_TABLES; names are in SQL''s quoting.',
            current_database(), missing;
    END IF;
    IF NOT superuser AND (all_tables OR EXISTS (SELECT FROM walbridge_asked WHERE schema IS NOT NULL)) THEN
        RAISE 'only a superuser can publish all tables, and % is none. Name the tables in BRIDGE_TABLES.', current_user;
    END IF;
    IF EXISTS (SELECT FROM walbridge_asked WHERE schema IS NOT NULL) AND current_setting('server_version_num')::int < 150000 THEN
        RAISE 'a whole schema in BRIDGE_TABLES needs PostgreSQL 15. Name its tables.';
    END IF;
    IF all_tables AND NOT found.puballtables THEN
        RAISE 'publication % exists and names its tables. List them in BRIDGE_TABLES, choose another BRIDGE_PUBLICATION, or drop it.',
            publication;
    END IF;
    IF NOT (found.pubinsert AND found.pubupdate AND found.pubdelete AND found.pubtruncate) THEN
        RAISE WARNING 'publication % leaves out some operations. To mirror tables, run: ALTER PUBLICATION % SET (publish = ''insert, update, delete, truncate'');',
            publication, quote_ident(publication);
    END IF;
END $$;

-- The tables the bridge will read.
CREATE TEMPORARY TABLE walbridge_wanted ON COMMIT DROP AS
SELECT c.oid AS relation, c.relnamespace AS schema, n.nspname, c.relname, c.relkind, c.relreplident,
       c.relowner
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE (c.oid IN (SELECT relation FROM walbridge_asked)
        OR c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
           AND (c.relnamespace IN (SELECT schema FROM walbridge_asked)
                OR current_setting('walbridge.all_tables')::boolean
                   AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'));

-- The role.
SELECT format('CREATE ROLE %I', :'role')
 WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = :'role') \gexec
SELECT format('ALTER ROLE %I LOGIN REPLICATION', :'role')
 WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = :'role' AND rolcanlogin AND rolreplication) \gexec
SELECT format('ALTER ROLE %I PASSWORD %L', :'role', :'password') \gexec

-- Its grants: to connect, and to read the wanted tables.
SELECT format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), :'role') \gexec
SELECT format('GRANT USAGE ON SCHEMA %I TO %I', nspname, :'role')
  FROM (SELECT nspname FROM walbridge_wanted
        UNION SELECT nspname FROM pg_namespace
               WHERE oid IN (SELECT schema FROM walbridge_asked)
                  -- A schema that is empty now may get tables later.
                  OR current_setting('walbridge.all_tables')::boolean AND nspname <> 'walbridge'
                     AND nspname !~ '^pg_' AND nspname <> 'information_schema') AS schemas \gexec
SELECT format('GRANT SELECT ON TABLE %I.%I TO %I', nspname, relname, :'role') FROM walbridge_wanted \gexec

-- Where tables join the publication by themselves, their owners let the bridge read them as well.
CREATE TEMPORARY TABLE walbridge_owners ON COMMIT DROP AS
SELECT rolname FROM pg_roles
 WHERE rolname !~ '^pg_'
   AND (rolname = current_user
        OR oid IN (SELECT relowner FROM walbridge_wanted)
        OR oid IN (SELECT nspowner FROM pg_namespace)
        OR oid = (SELECT datdba FROM pg_database WHERE datname = current_database()));
SELECT format('ALTER DEFAULT PRIVILEGES FOR ROLE %I GRANT %s TO %I', rolname, privilege, :'role')
  FROM walbridge_owners, unnest(ARRAY['SELECT ON TABLES', 'USAGE ON SCHEMAS']) AS privilege
 WHERE current_setting('walbridge.all_tables')::boolean \gexec
SELECT format('ALTER DEFAULT PRIVILEGES FOR ROLE %I IN SCHEMA %I GRANT SELECT ON TABLES TO %I', rolname, nspname, :'role')
  FROM walbridge_owners, pg_namespace WHERE oid IN (SELECT schema FROM walbridge_asked) \gexec

-- The publication. A partitioned table is published as one table, whatever its partitions.
SELECT format('CREATE PUBLICATION %I %s WITH (publish_via_partition_root = true)', :'publication',
              CASE WHEN current_setting('walbridge.all_tables')::boolean THEN 'FOR ALL TABLES' ELSE '' END)
 WHERE NOT EXISTS (SELECT FROM pg_publication WHERE pubname = :'publication') \gexec
SELECT oid AS publication_oid, NOT puballtables AS takes_tables,
       EXISTS (SELECT FROM walbridge_asked WHERE schema IS NOT NULL) AND NOT puballtables AS takes_schemas
  FROM pg_publication WHERE pubname = :'publication' \gset
\if :takes_schemas
SELECT format('ALTER PUBLICATION %I ADD TABLES IN SCHEMA %I', :'publication', nspname)
  FROM pg_namespace
 WHERE oid IN (SELECT schema FROM walbridge_asked)
   AND oid NOT IN (SELECT pnnspid FROM pg_publication_namespace WHERE pnpubid = :publication_oid) \gexec
\endif
\if :takes_tables
SELECT format('ALTER PUBLICATION %I ADD TABLE %I.%I', :'publication', nspname, relname)
  FROM walbridge_wanted
 WHERE relation IN (SELECT relation FROM walbridge_asked)
   AND relation NOT IN (SELECT prrelid FROM pg_publication_rel WHERE prpubid = :publication_oid) \gexec
\endif

-- Event triggers that report DDL on published tables in the WAL, where the role may create them.
-- They only say where to look; the bridge takes the facts from the catalog. An error in them is a
-- warning: no statement fails because of them. A message has 1,000 events at most: the bridge reads
-- none with more than 10,000, which no trigger writes.
DO $install$
DECLARE
    stranger text;
    name text;
BEGIN
    CREATE SCHEMA IF NOT EXISTS walbridge;
    SELECT string_agg(DISTINCT format('%s belongs to role %s', what, coalesce(rolname, 'PUBLIC')), ', ') INTO stranger
      FROM (SELECT 'schema walbridge' AS what, nspowner AS owner FROM pg_namespace WHERE nspname = 'walbridge'
            UNION ALL
            SELECT 'the right to create in schema walbridge', a.grantee
              FROM pg_namespace, aclexplode(nspacl) AS a WHERE nspname = 'walbridge' AND a.privilege_type = 'CREATE'
            UNION ALL
            SELECT format('function %s', oid::regprocedure), proowner
              FROM pg_proc WHERE pronamespace = 'walbridge'::regnamespace) AS owned
      LEFT JOIN pg_roles AS r ON r.oid = owned.owner
     WHERE rolname IS DISTINCT FROM current_user AND rolsuper IS DISTINCT FROM true;
    IF stranger IS NOT NULL THEN
        RAISE '%. Event triggers run for every role, so a role with rights to their functions could act as any other. Run: DROP SCHEMA walbridge CASCADE; then run this again.', stranger;
    END IF;

    CREATE OR REPLACE FUNCTION walbridge.report(relations oid[], kind text, reason text) RETURNS void
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
        SELECT count(pg_logical_emit_message(true, 'bridge-ddl', content))
          FROM (SELECT json_build_object('version', 1, 'events', json_agg(event))::text AS content
                  FROM (SELECT json_build_object('kind', kind, 'relation_id', c.oid::bigint, 'schema', n.nspname,
                                                 'table', c.relname, 'reason', reason) AS event,
                               (row_number() OVER () - 1) / 1000 AS part
                          FROM (WITH RECURSIVE below AS (
                                    SELECT r.oid FROM unnest(relations) AS r(oid)
                                    UNION
                                    -- ALTER TABLE reports the table it names, and alters all that inherit from it.
                                    SELECT i.inhrelid FROM below JOIN pg_inherits AS i ON i.inhparent = below.oid
                                     WHERE kind = 'alter')
                                SELECT DISTINCT coalesce(a.relid, r.oid) AS oid
                                  FROM below AS r
                                  LEFT JOIN LATERAL pg_partition_ancestors(r.oid) AS a(relid) ON true) AS t
                          JOIN pg_class AS c ON c.oid = t.oid
                          JOIN pg_namespace AS n ON n.oid = c.relnamespace
                         WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
                           AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
                           AND (EXISTS (SELECT FROM pg_publication WHERE puballtables)
                                OR EXISTS (SELECT FROM pg_publication_rel WHERE prrelid = c.oid)
                                OR EXISTS (SELECT FROM pg_publication_namespace WHERE pnnspid = c.relnamespace))) AS found
                 GROUP BY part) AS messages;
    $body$;

    CREATE OR REPLACE FUNCTION walbridge.on_ddl() RETURNS event_trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
    DECLARE
        relations oid[];
        types oid[];
        published oid[];
    BEGIN
        IF NOT EXISTS (SELECT FROM pg_publication) THEN
            RETURN;
        END IF;
        SELECT array_agg(objid) FILTER (WHERE classid = 'pg_class'::regclass),
               array_agg(objid) FILTER (WHERE classid = 'pg_type'::regclass), array_agg(r.prrelid)
          INTO relations, types, published
          FROM pg_event_trigger_ddl_commands() AS d
          LEFT JOIN pg_publication_rel AS r ON d.classid = 'pg_publication_rel'::regclass AND r.oid = d.objid;
        -- No index leads from a type to its columns: all columns are read, so only if a type changed.
        IF types IS NOT NULL THEN
            SELECT relations || array_agg(DISTINCT attrelid) INTO relations FROM pg_attribute WHERE atttypid = ANY(types);
        END IF;
        IF relations IS NOT NULL THEN
            PERFORM walbridge.report(relations, 'alter', tg_tag);
        END IF;
        IF array_remove(published, NULL) <> '{}' THEN
            PERFORM walbridge.report(array_remove(published, NULL), 'publish', tg_tag);
        END IF;
    EXCEPTION WHEN OTHERS THEN
        RAISE WARNING 'walbridge: % is not reported in the WAL: %', tg_tag, SQLERRM;
    END $body$;

    CREATE OR REPLACE FUNCTION walbridge.on_drop() RETURNS event_trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
    BEGIN
        IF NOT EXISTS (SELECT FROM pg_publication) THEN
            RETURN;
        END IF;
        PERFORM pg_logical_emit_message(true, 'bridge-ddl', content) FROM (
            WITH dropped AS (SELECT * FROM pg_event_trigger_dropped_objects() WHERE NOT is_temporary),
            relation AS (SELECT address_names FROM dropped WHERE object_type = 'publication relation')
            SELECT json_build_object('version', 1, 'events', json_agg(event))::text AS content
              FROM (SELECT event, (row_number() OVER () - 1) / 1000 AS part FROM (
                    SELECT json_build_object('kind', 'drop', 'relation_id', d.objid::bigint, 'schema', d.schema_name,
                                             'table', d.object_name, 'reason', tg_tag) AS event
                      FROM dropped AS d
                     WHERE d.classid = 'pg_class'::regclass AND d.objsubid = 0 AND d.object_type = 'table'
                       AND (EXISTS (SELECT FROM pg_publication WHERE puballtables)
                            OR ARRAY[d.schema_name, d.object_name] IN (SELECT address_names FROM relation)
                            OR d.schema_name IN (SELECT n.nspname FROM pg_publication_namespace AS p
                                                   JOIN pg_namespace AS n ON n.oid = p.pnnspid))
                    UNION ALL
                    SELECT json_build_object('kind', 'unpublish', 'relation_id', c.oid::bigint, 'schema', n.nspname,
                                             'table', c.relname, 'reason', tg_tag)
                      FROM relation AS r
                      JOIN pg_namespace AS n ON n.nspname = r.address_names[1]
                      JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = r.address_names[2]) AS events) AS parts
             GROUP BY part) AS messages;
    EXCEPTION WHEN OTHERS THEN
        RAISE WARNING 'walbridge: % is not reported in the WAL: %', tg_tag, SQLERRM;
    END $body$;

    CREATE OR REPLACE FUNCTION walbridge.on_rewrite() RETURNS event_trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
    BEGIN
        PERFORM walbridge.report(ARRAY[pg_event_trigger_table_rewrite_oid()], 'rewrite', tg_tag);
    EXCEPTION WHEN OTHERS THEN
        RAISE WARNING 'walbridge: % is not reported in the WAL: %', tg_tag, SQLERRM;
    END $body$;

    REVOKE ALL ON FUNCTION walbridge.report(oid[], text, text), walbridge.on_ddl(), walbridge.on_drop(),
        walbridge.on_rewrite() FROM PUBLIC;
    IF NOT EXISTS (SELECT FROM pg_event_trigger WHERE evtname = 'walbridge_ddl') THEN
        CREATE EVENT TRIGGER walbridge_ddl ON ddl_command_end EXECUTE FUNCTION walbridge.on_ddl();
    END IF;
    IF NOT EXISTS (SELECT FROM pg_event_trigger WHERE evtname = 'walbridge_drop') THEN
        CREATE EVENT TRIGGER walbridge_drop ON sql_drop EXECUTE FUNCTION walbridge.on_drop();
    END IF;
    IF NOT EXISTS (SELECT FROM pg_event_trigger WHERE evtname = 'walbridge_rewrite') THEN
        CREATE EVENT TRIGGER walbridge_rewrite ON table_rewrite EXECUTE FUNCTION walbridge.on_rewrite();
    END IF;
    -- Also under session_replication_role = replica; one that was disabled stays so.
    FOR name IN SELECT evtname FROM pg_event_trigger
                 WHERE evtname IN ('walbridge_ddl', 'walbridge_drop', 'walbridge_rewrite') AND evtenabled = 'O' LOOP
        EXECUTE format('ALTER EVENT TRIGGER %I ENABLE ALWAYS', name);
    END LOOP;
EXCEPTION WHEN insufficient_privilege THEN
    RAISE NOTICE 'role % may not create event triggers: the bridge finds DDL by polling the catalog', current_user;
END $install$;

-- PostgreSQL refuses UPDATE and DELETE on a published table whose rows it cannot name.
SELECT format('warning: %I.%I has no primary key: PostgreSQL will refuse UPDATE and DELETE on it. Add a key, or run: ALTER TABLE %I.%I REPLICA IDENTITY FULL;',
              nspname, relname, nspname, relname)
  FROM walbridge_wanted
 WHERE relreplident = 'n'
    OR relreplident = 'd' AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = relation AND indisprimary)
 ORDER BY nspname, relname;
SELECT format('database %I: role %I can log in, replicate and read %s tables; publication %I has %s tables', current_database(),
              :'role', (SELECT count(*) FROM walbridge_wanted), :'publication',
              (SELECT count(*) FROM pg_publication_tables WHERE pubname = :'publication'));
SQL
)

case ${BASH_SOURCE:-$0} in
    "$0") walbridge_init "$@" ;;
    *) walbridge_init ;;
esac
