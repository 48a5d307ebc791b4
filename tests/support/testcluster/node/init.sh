#!/bin/bash
# The node from the inside. First in the caller's namespaces: join the node's cgroups and make its namespaces.
# Then as process 1 of them: mounts, network, programs. When process 1 ends, the kernel ends and removes all of it.
#
# Environment, set by single_node.py: NODE_DIR (state), NODE_NAME, NODE_IP, SERVICE_IP, API_PORT, BRIDGE,
# CGROUP_VERSION, CGROUP_GROUPS (directories to join), CGROUP_MOUNTS (v1: options of each hierarchy).
set -eu
BIN=$NODE_DIR/bin
CERTS=$NODE_DIR/certs

join_cgroups() {
  for group in $CGROUP_GROUPS; do echo $$ >"$group/cgroup.procs"; done
  exec unshare --cgroup bash "$0" unshare
}

unshare_all() {
  # On v2 a group that hands controllers on holds no processes, so the programs live in a group below the root.
  if [ "$CGROUP_VERSION" = 2 ]; then
    mkdir "$CGROUP_GROUPS/init"
    echo $$ >"$CGROUP_GROUPS/init/cgroup.procs"
  fi
  exec unshare --mount --net --pid --uts --ipc --fork --kill-child=SIGKILL bash "$0" init
}

tell_pid() { # /proc is still the caller's here, so this is the id that the caller knows process 1 by
  read -r pid _ </proc/self/stat
  echo "$pid" >"$NODE_DIR/init.pid.part"
  mv "$NODE_DIR/init.pid.part" "$NODE_DIR/init.pid"
}

mount_all() {
  mount --make-rshared /
  mount -t proc proc /proc
  mount -t tmpfs tmpfs /run
  mount -t tmpfs tmpfs /var/lib
  mkdir /var/lib/kubelet
  mount --bind "$NODE_DIR/varlog" /var/log
  mount --bind "$NODE_DIR/kubelet" /var/lib/kubelet
  umount -R /sys/fs/cgroup
  mount -t sysfs sysfs /sys
  if [ "$CGROUP_VERSION" = 2 ]; then mount_cgroup_v2; else mount_cgroup_v1; fi
}

mount_cgroup_v1() {
  mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
  for options in $CGROUP_MOUNTS; do
    mkdir "/sys/fs/cgroup/${options#name=}"
    mount -t cgroup -o "$options" cgroup "/sys/fs/cgroup/${options#name=}"
  done
}

mount_cgroup_v2() {
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
  echo "+cpu +cpuset +memory +pids" >/sys/fs/cgroup/cgroup.subtree_control
}

# The kubelet sets these for the whole machine: show it the values it wants instead.
hide_sysctls() {
  for pair in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    shown=/run/sysctl/${pair%%=*}
    mkdir -p "$(dirname "$shown")"
    echo "${pair#*=}" >"$shown"
    mount --bind "$shown" "/proc/sys/${pair%%=*}"
  done
}

# Nothing can leave: packets to anywhere but the node, its pods and the API server are refused at once.
set_up_network() {
  hostname "$NODE_NAME"
  ip link set lo up
  ip addr add "$SERVICE_IP/32" dev lo
  ip link add "$BRIDGE" type bridge
  ip addr add "$NODE_IP/24" dev "$BRIDGE"
  ip link set "$BRIDGE" up
  ip route add unreachable default
  echo 1 >/proc/sys/net/ipv4/ip_forward
}

# start NAME COMMAND...: the log is NAME.log; a program that ends leaves its exit code in ended/NAME
start() {
  name=$1
  shift
  { "$@" >"$NODE_DIR/$name.log" 2>&1 && code=0 || code=$?; echo "$code" >"$NODE_DIR/ended/$name"; } &
}

start_store() {
  start containerd containerd -c "$NODE_DIR/containerd.toml"
  start etcd "$BIN/etcd" --data-dir "$NODE_DIR/etcd-data" --unsafe-no-fsync --listen-peer-urls http://127.0.0.1:2380 \
    --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379
  start kube-apiserver "$BIN/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 \
    --bind-address=0.0.0.0 --advertise-address="$NODE_IP" --secure-port="$API_PORT" --cert-dir="$CERTS" \
    --tls-cert-file="$CERTS/server.crt" --tls-private-key-file="$CERTS/server.key" \
    --service-account-issuer=https://kubernetes.default.svc --service-account-key-file="$CERTS/service-account.key" \
    --service-account-signing-key-file="$CERTS/service-account.key" --token-auth-file="$NODE_DIR/tokens.csv" \
    --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true \
    --service-cluster-ip-range="${SERVICE_IP%.*}.0/24" --kubelet-preferred-address-types=InternalIP \
    --enable-aggregator-routing=true
}

start_controllers() {
  start kube-controller-manager "$BIN/kube-controller-manager" --kubeconfig="$NODE_DIR/inside.kubeconfig" \
    --service-account-private-key-file="$CERTS/service-account.key" --root-ca-file="$CERTS/ca.crt" \
    --leader-elect=false --bind-address=127.0.0.1 --cert-dir="$CERTS"
  start kube-scheduler "$BIN/kube-scheduler" --kubeconfig="$NODE_DIR/inside.kubeconfig" \
    --leader-elect=false --bind-address=127.0.0.1 --cert-dir="$CERTS"
}

start_kubelet() {
  start kubelet "$BIN/kubelet" --config="$NODE_DIR/kubelet.json" --kubeconfig="$NODE_DIR/kubelet.kubeconfig" \
    --hostname-override="$NODE_NAME" --node-ip="$NODE_IP"
}

# The caller gives up in time on these two waits and ends the node.
wait_for_api() {
  until "$BIN/kubectl" --kubeconfig "$NODE_DIR/inside.kubeconfig" get --raw=/readyz >/dev/null 2>&1; do sleep 0.1; done
}

# A kubelet that starts while containerd has an image mounted to unpack it takes that mount for its disk, and ends.
wait_for_images() {
  until [ -e "$NODE_DIR/images-loaded" ]; do sleep 0.1; done
}

init() {
  trap 'exit 0' TERM
  tell_pid
  mount_all
  hide_sysctls
  set_up_network
  start_store
  touch "$NODE_DIR/namespaces-ready"
  wait_for_api
  start_controllers
  wait_for_images
  start_kubelet
  while :; do # reap orphans, which come to process 1
    sleep 86400 &
    wait $! || true
  done
}

case ${1-} in
'') join_cgroups ;;
unshare) unshare_all ;;
init) init ;;
esac
