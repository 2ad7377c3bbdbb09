#!/usr/bin/env bash
# Runs a command with everything that tests of containers need: a Docker engine, compose, a base image, Prometheus.
#
#     scripts/with_docker.sh .venv/bin/python -m pytest tests/docker
#
# What is there is used. What is missing is installed on Debian and Ubuntu (as root), an engine that is started here is
# stopped at the end, and images that cannot be pulled are made of Debian's packages: a base image by mmdebstrap, and
# Prometheus on top of it. Wheels then come from deploy/docker/wheelhouse, as in a place without an index.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "docker: $*" >&2; }
fail() { echo "error: $*" >&2; exit 2; }

# Compose, images and the base are what docker-compose.yml and the Dockerfile name, unless the user named others.
BASE=$(sed -n 's/^ARG BASE_IMAGE=//p' deploy/docker/Dockerfile)
PROMETHEUS=$(sed -n 's/.*SHOAL_PROMETHEUS_IMAGE:-\([^}]*\)}.*/\1/p' docker-compose.yml)
GRAFANA=$(sed -n 's/.*SHOAL_GRAFANA_IMAGE:-\([^}]*\)}.*/\1/p' docker-compose.yml)
DATA_ROOT=${SHOAL_DOCKER_DATA_ROOT:-/var/lib/shoal-docker}

# Commands that are missing, and the packages that bring them.
need() {
  local missing=()
  while (($#)); do
    command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ] || missing+=("$2")
    shift 2
  done
  ((${#missing[@]})) || return 0
  command -v apt-get >/dev/null || fail "missing: ${missing[*]} (names of Debian's packages); install them and try again"
  [ "$(id -u)" = 0 ] || fail "missing: ${missing[*]}; install them (sudo apt-get install ${missing[*]}) and try again"
  say "installing ${missing[*]} ..."
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends "${missing[@]}" >/dev/null
}

engine=
stop_engine() {
  [ -n "$engine" ] || return 0
  say "stopping the engine that was started here"
  kill "$engine" 2>/dev/null || true
  wait "$engine" 2>/dev/null || true
}
trap stop_engine EXIT

start_engine() {
  docker info >/dev/null 2>&1 && return 0
  [ "$(id -u)" = 0 ] || fail "no Docker engine answers; start it, or run this as root"
  need dockerd docker.io iptables iptables
  say "no engine answers: starting one with its data in $DATA_ROOT ..."
  mkdir -p "$DATA_ROOT"
  dockerd --data-root "$DATA_ROOT" >"$DATA_ROOT/dockerd.log" 2>&1 &
  engine=$!
  for _ in $(seq 100); do
    docker info >/dev/null 2>&1 && return 0
    kill -0 "$engine" 2>/dev/null || fail "the engine does not start: $(tail -n 1 "$DATA_ROOT/dockerd.log")"
    sleep 0.3
  done
  fail "the engine does not answer after 30 s; see $DATA_ROOT/dockerd.log"
}

has_image() { docker image inspect "$1" >/dev/null 2>&1 || docker pull --quiet "$1" >/dev/null 2>&1; }

make_base() {
  export SHOAL_BASE_IMAGE=shoal-base:bookworm PIP_NO_INDEX=1
  docker image inspect "$SHOAL_BASE_IMAGE" >/dev/null 2>&1 && return 0
  need mmdebstrap mmdebstrap
  say "$BASE cannot be pulled: making a base image of Debian's packages ..."
  local tar
  tar=$(mktemp --suffix .tar)
  mmdebstrap --quiet --variant=minbase --include=python3,python3-venv,python3-pip,ca-certificates,tini bookworm "$tar"
  docker import "$tar" "$SHOAL_BASE_IMAGE" >/dev/null
  rm -f "$tar"
}

make_prometheus() {
  export SHOAL_PROMETHEUS_IMAGE=shoal-prometheus:debian
  docker image inspect "$SHOAL_PROMETHEUS_IMAGE" >/dev/null 2>&1 && return 0
  say "$PROMETHEUS cannot be pulled: making an image of Debian's ..."
  local context
  context=$(mktemp -d)
  cp "$(PATH="$PWD/.venv/tools/bin:$PATH" command -v prometheus)" "$context/"
  printf '%s\n' "FROM ${SHOAL_BASE_IMAGE:-$BASE}" 'COPY prometheus /bin/' \
    'RUN mkdir -p /prometheus && chown nobody /prometheus' 'USER nobody' 'ENTRYPOINT ["/bin/prometheus"]' >"$context/Dockerfile"
  docker build --quiet --tag "$SHOAL_PROMETHEUS_IMAGE" "$context" >/dev/null
  rm -rf "$context"
}

(($#)) || fail "usage: scripts/with_docker.sh COMMAND..."
need docker docker.io
docker compose version >/dev/null 2>&1 || need docker-compose docker-compose
start_engine
[ -n "${SHOAL_BASE_IMAGE:-}" ] || has_image "$BASE" || make_base
# The index is there for the download, not for the build.
[ -z "${PIP_NO_INDEX:-}" ] || env -u PIP_NO_INDEX make --no-print-directory wheelhouse
[ -n "${SHOAL_PROMETHEUS_IMAGE:-}" ] || has_image "$PROMETHEUS" || make_prometheus
if [ -n "${SHOAL_GRAFANA_IMAGE:-}" ] || has_image "$GRAFANA"; then
  export SHOAL_WITH_GRAFANA=1
else
  say "$GRAFANA cannot be pulled: tests go without Grafana"
fi
"$@"
