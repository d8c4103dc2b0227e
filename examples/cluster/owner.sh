#!/bin/sh
# Create the owner of the catalog, and the database. The PostgreSQL image runs this once, with an empty volume.
set -eu
psql -q -v ON_ERROR_STOP=1 -v password="$OWNER_PASSWORD" -U postgres <<'END'
CREATE ROLE penstock_owner LOGIN CREATEROLE PASSWORD :'password';
CREATE DATABASE lake OWNER penstock_owner;
END
