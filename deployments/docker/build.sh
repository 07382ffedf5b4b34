#!/bin/sh
# Builds images; called by `make images`, from the repository's root.
#
#   build.sh PYTHON BASE TARGET...      targets: harness service agent
#
# Packages are fetched here, by this machine's pip and its settings, for images whose Python has the same
# version as PYTHON.
set -eu
python=$1
base=$(deployments/docker/base.sh "$2")
shift 2
number='import sys; print("%d.%d" % sys.version_info[:2])'
ours=$("$python" -c "$number")
theirs=$(docker run --rm "$base" python3 -c "$number")
if [ "$ours" != "$theirs" ]; then
    echo "$base has Python $theirs, and $python is $ours: give another BASE, or another PYTHON" >&2
    exit 1
fi
full=$(docker run --rm "$base" python3 -c 'import platform; print(platform.python_version())')
version=$("$python" -c 'import runpy; print(runpy.run_path("harness/determined/__version__.py")["__version__"])')
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
fetch() {
    "$python" -m pip wheel --quiet --disable-pip-version-check --constraint constraints.txt \
        --wheel-dir "$context/wheels" "$@"
}
fetched=
for target in "$@"; do
    case $target in
    harness) extras=examples,tensorboard,s3,gcs,azure ;;
    service | agent) extras=cluster,docker,kubernetes,mlflow,redis,tpe,s3,gcs,azure ;;
    *) echo "no image $target; there are harness, service and agent" >&2; exit 1 ;;
    esac
    cp deployments/docker/Dockerfile "$context"
    if [ "$extras" != "$fetched" ]; then
        rm -rf "$context/wheels"
        fetch ".[$extras]"
        # Again for what these need in turn.
        while other=$("$python" deployments/docker/other_wheels.py "$context/wheels" "$full") && [ -n "$other" ]; do
            # shellcheck disable=SC2086  # names of packages
            fetch $other
        done
        fetched=$extras
    fi
    # The classic builder: Debian's package has no other.
    DOCKER_BUILDKIT=0 docker build --quiet --target "$target" --build-arg "BASE=$base" \
        --build-arg "EXTRAS=$extras" --tag "determined-prefect/$target:$version" "$context" >/dev/null
    echo "determined-prefect/$target:$version"
done
