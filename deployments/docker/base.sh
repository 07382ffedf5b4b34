#!/bin/sh
# The base image for `make images`: pulled, or made from Debian's packages where no registry is reached.
#
#   base.sh IMAGE        an image with Python 3.11 or later and its module venv
#
# Prints the name of the image to build from. Making it needs root, dockerd and apt-get, and a minute.
set -eu
wanted=$1
made=determined-prefect/base:bookworm

if docker image inspect "$wanted" >/dev/null 2>&1 || docker pull --quiet "$wanted" >/dev/null 2>&1; then
    echo "$wanted"
    exit
fi
echo "$wanted cannot be pulled; making $made from Debian's packages" >&2
if ! docker image inspect "$made" >/dev/null 2>&1; then
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    command -v debootstrap >/dev/null || apt-get -q install --yes --no-install-recommends debootstrap >&2
    debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv bookworm "$folder/root" >&2
    tar -C "$folder/root" -c \
        --exclude='./var/cache/apt/*' --exclude='./var/lib/apt/lists/*' --exclude='./usr/share/doc/*' \
        --exclude='./proc/*' --exclude='./sys/*' --exclude='./dev/*' . |
        docker import - "$made" >&2
fi
echo "$made"
