"""A webhook of somebody else, which is asked after ours and adds arguments to every pod's first container."""

import base64
import contextlib
import json
import ssl
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from kvquota_operator.adapters.authority import Lifetimes, next_authority, sign
from kvquota_operator.adapters.certificates import load, server_context

NAME = "zz-meddling"  # webhooks are asked in the order of their configurations' names


@contextlib.contextmanager
def meddling(arguments: Sequence[str], namespace: str) -> Iterator[dict[str, Any]]:
    """Serve while the context lasts; gives the MutatingWebhookConfiguration to apply."""
    now = datetime.now(UTC)
    authority = next_authority(None, NAME, now, Lifetimes())
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(arguments))
    server.socket = _secured(server, sign(authority, ["127.0.0.1"], now, Lifetimes()))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield _configuration(server.server_port, authority.bundle, namespace)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _secured(server: ThreadingHTTPServer, signed: Any) -> ssl.SSLSocket:
    context = server_context()
    load(context, signed)
    return context.wrap_socket(server.socket, server_side=True)


def _handler(arguments: Sequence[str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
            found = asked["object"]["spec"]["containers"][0].get("args", [])
            change = [{"op": "add", "path": "/spec/containers/0/args", "value": [*found, *arguments]}]
            response = {"uid": asked["uid"], "allowed": True, "patchType": "JSONPatch"}
            response["patch"] = base64.b64encode(json.dumps(change).encode()).decode()
            body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None: ...

    return Handler


def _configuration(port: int, bundle: bytes, namespace: str) -> dict[str, Any]:
    hook = {
        "name": "meddling.example.com",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "clientConfig": {"url": f"https://127.0.0.1:{port}/", "caBundle": base64.b64encode(bundle).decode()},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": NAME},
        "webhooks": [hook],
    }
