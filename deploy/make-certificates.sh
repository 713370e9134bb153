#!/bin/sh
# An authority of your own, and a certificate for each node of NATS. Run again, it keeps the authority and makes new
# certificates. Keep ca.key off the machines it is made for.
#   deploy/make-certificates.sh tls n1.example n2.example n3.example
set -eu
umask 077
[ $# -ge 2 ] || { echo "usage: $0 FOLDER NODE..." >&2; exit 2; }
folder=$1
shift
mkdir -p "$folder"
if [ ! -e "$folder/ca.key" ]; then
  openssl ecparam -name prime256v1 -genkey -noout -out "$folder/ca.key"
  openssl req -x509 -new -key "$folder/ca.key" -sha256 -days 3650 -subj "/CN=pyoco NATS authority" \
    -addext "keyUsage=critical,keyCertSign,cRLSign" -out "$folder/ca.crt"
fi
for node in "$@"; do
  home="$folder/$node"
  mkdir -p "$home"
  case $node in *[!0-9.]*) name="DNS:$node" ;; *) name="IP:$node" ;; esac
  openssl ecparam -name prime256v1 -genkey -noout -out "$home/node.key"
  openssl req -new -key "$home/node.key" -subj "/CN=$node" -out "$home/node.csr"
  printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\nbasicConstraints=CA:FALSE\n' "$name" > "$home/node.ext"
  printf 'authorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n' >> "$home/node.ext"
  openssl x509 -req -in "$home/node.csr" -CA "$folder/ca.crt" -CAkey "$folder/ca.key" -CAcreateserial \
    -sha256 -days 397 -extfile "$home/node.ext" -out "$home/node.crt" 2> /dev/null
  cp "$folder/ca.crt" "$home/ca.crt"
  rm "$home/node.csr" "$home/node.ext"
done
chmod 644 "$folder/ca.crt"
