# shellcheck shell=bash
# Hosts that are network namespaces of this machine, with cables to a bridge. Who sources this sets
#
#     hosts=(a b)        their names
#     prefix=ct$$        of the names of namespaces and links, which have up to 15 characters
#     network=10.213.7   host number N, from 1, has the address network.N; the bridge has network.254
#
# and ends with `remove_hosts`. Needs root and ip.

space() { echo "$prefix-$1"; }
port() { echo "$prefix"p"$1"; } # of its cable: the end at the bridge ..
end() { echo "$prefix"h"$1"; }  # .. and the other one
address() {
    local n
    for n in "${!hosts[@]}"; do [[ ${hosts[n]} != "$1" ]] || echo "$network.$((n + 1))"; done
}
processes() { ip netns pids "$(space "$1")" 2>/dev/null; }

make_hosts() {
    local host
    ip link add "$prefix" type bridge && ip address add "$network.254/24" dev "$prefix" && ip link set "$prefix" up || return
    for host in "${hosts[@]}"; do
        ip netns add "$(space "$host")" && ip link add "$(port "$host")" type veth peer name "$(end "$host")" &&
            ip link set "$(port "$host")" master "$prefix" up && ip link set "$(end "$host")" netns "$(space "$host")" &&
            ip -n "$(space "$host")" address add "$(address "$host")/24" dev "$(end "$host")" &&
            ip -n "$(space "$host")" link set lo up && ip -n "$(space "$host")" link set "$(end "$host")" up || return
    done
}

# With all processes that are left on them.
remove_hosts() {
    local host pid
    for host in "${hosts[@]}"; do
        for pid in $(processes "$host"); do kill -KILL "$pid"; done
        ip netns del "$(space "$host")"
    done
    ip link del "$prefix"
} 2>/dev/null
