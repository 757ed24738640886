#!/bin/sh
# A host of the soft-RoCE lab in network namespace h<number>, its application in the machine's own: rxe works only there
# (in another one the device is made, but its traffic hangs; 6.12). With "tors" this machine holds both switches too, and
# its network cards are their ports to the other machine; without, they are the host's uplinks.
#   guest_rdma_node.sh <number> <other's number> [tors]
set -eu
number=$1 other=$2 tors=${3:-}
host=h$number
configuration=/run/exchange/frr

modprobe -a virtio_net veth bridge vxlan cls_flower act_tunnel_key act_mirred sch_ingress cls_bpf rdma_rxe ib_uverbs rdma_ucm

namespace() {
    ip netns add "$1"
    # As the fabric's own set-up: routes over any port, flows spread by their ports.
    ip netns exec "$1" sysctl -qw net.ipv4.ip_forward=1 net.ipv4.fib_multipath_hash_policy=1 \
        net.ipv6.conf.all.forwarding=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0
    ip -n "$1" link set lo up
    ip -n "$1" address add "$2/32" dev lo
}

routing() { # namespace; bfdd before the others, or a full core takes its packets for lost
    mkdir -p "/etc/frr/$1" "/run/frr/$1"
    chown -R frr:frr "/etc/frr/$1" /run/frr
    for daemon in zebra:15 bgpd:15 bfdd:30; do
        name=${daemon%:*}
        options=
        [ "$name" != zebra ] || options="-s 90000000"
        # shellcheck disable=SC2086 # options are words
        ip netns exec "$1" chrt -r "${daemon#*:}" /usr/lib/frr/$name -d -N "$1" -f "$configuration/$1-$name.conf" $options
    done
}

namespace "$host" "10.255.0.$number"
if [ "$tors" ]; then
    namespace s1 10.255.0.101
    namespace s2 10.255.0.102
    ip link add isl netns s1 type veth peer name isl netns s2
    for switch in 1 2; do
        ip link add "p$switch" netns "$host" type veth peer name "d$number" netns "s$switch"
        ip link set "eth$((switch - 1))" netns "s$switch" name "d$other"
        for port in "d$number" "d$other" isl; do ip -n "s$switch" link set "$port" up; done
    done
else
    for switch in 1 2; do ip link set "eth$((switch - 1))" netns "$host" name "p$switch"; done
fi
ip -n "$host" -batch - <<BATCH
link set p1 up
link set p2 up
link add br0 type bridge
link set br0 addrgenmode none up
link add vx100 type vxlan id 100 local 10.255.0.$number dstport 4789 nolearning
link set vx100 master br0 addrgenmode none up
link add vxenc0 type vxlan external local 10.255.0.$number dstport 4790 nolearning
link set vxenc0 addrgenmode none up
link add rep0 type veth peer name app netns /proc/1/ns/net
link set rep0 master br0 addrgenmode none up
BATCH
ip netns exec "$host" bridge link set dev vx100 neigh_suppress on learning off
ip -batch - <<BATCH
link set app address 02:00:00:00:00:0$number mtu 1400 up
address add 172.16.0.$number/24 dev app
BATCH
started=
for node in ${tors:+s1 s2} "$host"; do
    routing "$node" &
    started="$started $!"
done
for job in $started; do wait "$job"; done
rdma link add rxe0 type rxe netdev app
