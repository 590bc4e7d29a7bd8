#!/bin/sh
# Stands between the engine and the jail of a test: plants what a careless server would pass on (an
# open directory of the host, a secret variable), and names the layers that a test build leaves out.
here=${0%/*}
exec 9</
read -r MCP_FORGE_OMIT_LAYERS < "$here/layers"
read -r PLANTED_SECRET_TOKEN < "$here/secret"
export MCP_FORGE_OMIT_LAYERS PLANTED_SECRET_TOKEN
exec "$here/mcp-forge" "$@"
