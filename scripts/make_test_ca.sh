#!/bin/sh
# A certificate authority for tests, and a server certificate that it has signed: ca.pem, server.pem, server.key.
# For anything but tests, use your own authority: who holds ca.key can pass for the server.
#
# usage: make_test_ca.sh DIRECTORY HOST...     (names or addresses that clients connect to)
set -eu

[ $# -ge 2 ] || { sed -n 's/^# usage/usage/p' "$0" >&2; exit 64; }
directory=$1
shift
days=365
names=
for host in "$@"; do
    case $host in
        *[!0-9.]*) kind=DNS ;;
        *) kind=IP ;;
    esac
    case $host in *:*) kind=IP ;; esac
    names=${names:+$names,}$kind:$host
done

umask 077
mkdir -p "$directory"
cd "$directory"
if [ ! -f ca.key ]; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days "$days" -sha256 \
        -subj "/CN=Turnbuckle test CA" -addext "keyUsage=critical,keyCertSign,cRLSign" \
        -keyout ca.key -out ca.pem 2>/dev/null
fi
openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -sha256 \
    -subj "/CN=$1" -keyout server.key -out server.csr 2>/dev/null
printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\nkeyUsage=critical,digitalSignature\n' "$names" > server.ext
openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days "$days" -sha256 \
    -extfile server.ext -out server.pem 2>/dev/null
rm -f server.csr server.ext ca.srl
chmod 644 ca.pem server.pem
echo "$directory: ca.pem, server.pem for $names (valid for $days days)"
