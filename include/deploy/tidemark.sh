#!/bin/bash
# The command in a container of the image, with the secrets that its entrypoint gives the container's own process.
exec /opt/tidemark/include/deploy/entrypoint.sh python -m include.cli "$@"
