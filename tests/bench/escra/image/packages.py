"""What the image of the bench's applications holds: Debian's unmodified servers, and Python with Debian's libraries."""

from __future__ import annotations

SUITE = "bookworm"
IMAGE = "turnbuckle-bench:bookworm"
SERVERS = ("nginx-light", "fcgiwrap", "redis-server", "postgresql-15", "memcached", "gunicorn")
LIBRARIES = (
    "python3-flask",
    "python3-redis",
    "python3-pymemcache",
    "python3-psycopg2",
    "python3-urllib3",
    "python3-pil",
    "python3-numpy",
    "python3-sklearn",
)
PACKAGES = (*SERVERS, *LIBRARIES)

POSTGRES_BIN = "/usr/lib/postgresql/15/bin"
POSTGRES_DATA = "/var/lib/bench/postgres"
"""An empty cluster, made while the image is built: a container starts in a second."""

PREPARE = """\
set -eu
export DEBIAN_FRONTEND=noninteractive
printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d
mkdir -p /etc/postgresql-common
echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
apt-get -qq update
apt-get -qq -y -o Dpkg::Options::=--force-confold install --no-install-recommends {packages}
apt-get -qq clean
"""
"""Runs in the new root: no service may start while packages are set up, and no cluster is made in the default place."""

SET_UP = """\
set -eu
install -d -o postgres -g postgres -m 700 {data}
su postgres -c '{bin}/initdb --no-sync --locale=C.UTF-8 --auth=trust -D {data}' >/dev/null
echo 'host all all 0.0.0.0/0 trust' >>{data}/pg_hba.conf
/usr/bin/python3 -m compileall -q /usr/lib/python3/dist-packages || true
rm -rf /usr/share/doc /usr/share/man /usr/share/locale /usr/share/info /var/lib/apt/lists/* /var/cache/debconf/*
rm -rf /usr/sbin/policy-rc.d /var/log/* /tmp/*
mkdir -p /var/log/nginx
: >/etc/resolv.conf
"""
"""Runs last. `compileall` repeats what the packages' scripts did; some of Debian's test files do not compile."""


def prepare_script() -> str:
    """The shell script that installs the packages."""
    return PREPARE.format(packages=" ".join(PACKAGES))


def set_up_script() -> str:
    """The shell script that makes the empty database cluster and throws away what no server needs."""
    return SET_UP.format(bin=POSTGRES_BIN, data=POSTGRES_DATA)
