"""The configuration that the node's programs read: container runtime, pod network, kubelet."""

import json
from pathlib import Path

NODE_NAME = "kvnode"
PAUSE_IMAGE = "localhost/pause:1"
PYTHON_IMAGE = "localhost/python:3.11"
"""The base image of Python images, for pods that need an interpreter and nothing else."""

NODE_IP = "10.244.0.1"
"""The bridge's own address: the kubelet refuses a loopback one, and a namespace has no other interface."""

SERVICE_IP = "10.96.0.1"
"""Address of the Service `kubernetes`: the API server itself listens on it, so pods reach it without a proxy."""

API_PORT = 443
"""The port that the Service `kubernetes` has."""

BRIDGE = "kv0"
_POD_SUBNET = "10.244.0.0/24"
_FIRST_POD_IP = "10.244.0.10"


def write_files(directory: Path, *, sync_frequency: str) -> None:
    """Write all files into the node's state directory, where `init.sh` expects them."""
    (directory / "cni").mkdir()
    (directory / "cni" / "10-bridge.conflist").write_text(json.dumps(_pod_network()))
    (directory / "containerd.toml").write_text(_containerd(directory))
    (directory / "kubelet.json").write_text(json.dumps(_kubelet(sync_frequency)))


def _pod_network() -> object:
    ranges = [[{"subnet": _POD_SUBNET, "rangeStart": _FIRST_POD_IP, "gateway": NODE_IP}]]
    ipam = {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": BRIDGE, "isGateway": True, "hairpinMode": True, "ipMasq": False, "ipam": ipam}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}


def _containerd(directory: Path) -> str:
    """`restrict_oom_score_adj`: without CAP_SYS_RESOURCE runc cannot lower a score and would fail every sandbox."""
    plugin = '[plugins."io.containerd.grpc.v1.cri"'
    return f"""version = 2
root = "{directory}/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
{plugin}]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
{plugin}.cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "{directory}/cni"
{plugin}.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
"""


def _kubelet(sync_frequency: str) -> object:
    """No eviction and no image collection: how full the machine's disk is must not decide what a test sees."""
    eviction = ("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree")
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "resolvConf": "",
        "maxOpenFiles": 20000,
        "evictionHard": dict.fromkeys(eviction, "0%"),
        "imageGCHighThresholdPercent": 100,
        "syncFrequency": sync_frequency,
    }
