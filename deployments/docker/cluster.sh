#!/bin/sh
# A whole cluster in containers of this machine's engine, from the images of `make images`: Postgres, Prefect's
# server, the service, and an agent whose trials run in containers beside it.
#
#   cluster.sh up FOLDER     prints the service's address and the password of the user determined
#   cluster.sh down FOLDER   removes the containers; the data stay in FOLDER
#
# All of it listens on this machine's loopback. PORT (default 8080) is the service's, the next two are Prefect's
# and Postgres'. SLOTS (default 2) are the agent's. VERSION: of the images.
set -eu
verb=${1:-} folder=${2:-}
case $verb:$folder in
up:/* | down:/*) ;;
*) echo "usage: $0 up|down FOLDER (an absolute path)" >&2; exit 2 ;;
esac
here=$(cd "$(dirname "$0")" && pwd)
version=${VERSION:-$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$here/../../harness/determined/__version__.py")}
port=${PORT:-8080} prefect=$((${PORT:-8080} + 1)) postgres=$((${PORT:-8080} + 2))
image=determined-prefect/service:$version
label=determined.cluster-folder=$folder

down() {
    # The agent first: it ends its trials, and their containers.
    for part in agent service prefect postgres; do
        for name in $(docker ps --all --quiet --filter "label=$label" --filter "label=determined.part=$part"); do
            docker stop --time 20 "$name" >/dev/null
            docker rm --volumes "$name" >/dev/null
        done
    done
}
if [ "$verb" = down ]; then
    down
    exit
fi

run() { # PART OPTION... -- IMAGE COMMAND...
    part=$1
    shift
    docker run --detach --init --network host --restart unless-stopped --name "det-$port-$part" \
        --label "$label" --label "determined.part=$part" "$@" >/dev/null
}
wait_for() { # PART COMMAND...
    part=$1
    shift
    tries=0
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        if [ "$tries" -gt 600 ]; then
            echo "$part does not answer; the end of its log:" >&2
            docker logs --tail 20 "det-$port-$part" >&2
            exit 1
        fi
        sleep 0.2
    done
}

mkdir -p "$folder/postgres" "$folder/checkpoints" "$folder/agent"
secrets=$folder/secrets
if [ ! -e "$secrets" ]; then
    (
        umask 077
        for name in db_password prefect_password agent_token user_password; do
            echo "$name=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')"
        done >"$secrets.part"
        echo "cluster_id=$(cat /proc/sys/kernel/random/uuid)" >>"$secrets.part"
        mv "$secrets.part" "$secrets"
    )
fi
# shellcheck disable=SC1090
. "$secrets"
chown 65534:65534 "$folder/postgres"

# Postgres refuses to be root, and wants an account with a name. Its programs come with the image.
run postgres --user nobody:nogroup --volume "$folder/postgres:/data" --env "PASSWORD=$db_password" "$image" sh -euc '
    bin=$(python3 -c "from determined_deployments.local.postgres import binary; print(binary(\"postgres\").parent)")
    if [ ! -e /data/db ]; then
        rm -rf /data/new
        echo "$PASSWORD" >/tmp/password
        "$bin/initdb" -D /data/new -U determined --auth=scram-sha-256 --pwfile=/tmp/password --encoding=UTF8 \
            --locale=C --locale-provider=builtin --builtin-locale=C.UTF-8
        mv /data/new /data/db
    fi
    exec "$bin/postgres" -D /data/db -h 127.0.0.1 -p '"$postgres"' -k ""'
server=postgresql://determined:$db_password@127.0.0.1:$postgres
wait_for postgres docker exec --env "URL=$server/postgres" "det-$port-postgres" python3 -c '
import os
from determined_deployments.local import databases
databases.ensure(os.environ["URL"])'

run prefect --env "PREFECT_API_URL=http://127.0.0.1:$prefect/api" --env DO_NOT_TRACK=1 \
    --env "PREFECT_API_AUTH_STRING=admin:$prefect_password" \
    --env "PREFECT_SERVER_API_AUTH_STRING=admin:$prefect_password" \
    --env PREFECT_SERVER_ANALYTICS_ENABLED=false \
    --env PREFECT_SERVER_DATABASE_MIGRATE_ON_START=false \
    --env "PREFECT_API_DATABASE_CONNECTION_URL=postgresql+asyncpg${server#postgresql}/prefect" \
    "$image" python3 -m determined_deployments.prefect_process 127.0.0.1 "$prefect"

(
    umask 077
    cat >"$folder/service.json" <<JSON
{"host": "127.0.0.1", "port": $port, "db_url": "$server/determined", "agent_token": "$agent_token",
 "prefect_api_url": "http://127.0.0.1:$prefect/api", "prefect_auth": "admin:$prefect_password",
 "cluster_id": "$cluster_id", "bootstrap_passwords": {"determined": "$user_password", "admin": "$user_password"},
 "default_checkpoint_storage": {"type": "shared_fs", "host_path": "$folder/checkpoints"}}
JSON
)
run service --volume "$folder:$folder" --env "DET_SERVICE_CONFIG=$folder/service.json" "$image"
wait_for service docker exec "det-$port-service" python3 -c "
import urllib.request
urllib.request.urlopen('http://127.0.0.1:$port/ready')"

# The paths of trials' mounts are the machine's, so the folder has the same path inside; and the agent finds its
# supervisors by the machine's process ids.
run agent --pid host --volume "$folder:$folder" --volume "${DOCKER_SOCKET:-/var/run/docker.sock}:/var/run/docker.sock" \
    --env "DET_DATA_DIR=$folder/agent" --env "DET_MASTER=http://127.0.0.1:$port" --env "DET_AGENT_TOKEN=$agent_token" \
    --env "PREFECT_API_URL=http://127.0.0.1:$prefect/api" --env "PREFECT_API_AUTH_STRING=admin:$prefect_password" \
    "determined-prefect/agent:$version" --type docker --name "agent-$port" --artificial-slots "${SLOTS:-2}"
wait_for agent sh -c "docker logs det-$port-agent 2>&1 | grep -q 'registered as'"
echo "DET_MASTER=http://127.0.0.1:$port DET_USER=determined DET_PASS=$user_password"
