#!/bin/sh
# Create the login of the Penstock processes, or give it the current password.
set -eu
psql -q -v ON_ERROR_STOP=1 -v password="$SERVICE_PASSWORD" <<'END'
SELECT 'CREATE ROLE penstock_service LOGIN IN ROLE penstock_app'
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'penstock_service') \gexec
ALTER ROLE penstock_service PASSWORD :'password';
END
