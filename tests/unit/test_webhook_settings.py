"""What of the webhook can be set on the command line."""

from pathlib import Path

import pytest

from kvquota_operator.injection.outcomes import SidecarImage
from kvquota_operator.settings import Address, parse_settings
from kvquota_operator.webhook_settings import ServiceName, WebhookSettings

SERVED = ("--namespace=inference", "--no-leader-elect")
NEEDED = ("--webhook-listen=:9443", "--webhook-service=kvquota-system/webhook", "--sidecar-image=kvquota/sidecar:1")


def test_without_an_address_there_is_no_webhook() -> None:
    assert parse_settings([*SERVED]).webhook is None


def test_all_of_it() -> None:
    more = ("--webhook-certificates=/tls", "--sidecar-pull-policy=Always", "--sidecar-resources=1.5,1Gi")
    assert parse_settings([*SERVED, *NEEDED, *more]).webhook == WebhookSettings(
        listen=Address("", 9443),
        service=ServiceName("kvquota-system", "webhook"),
        image=SidecarImage("kvquota/sidecar:1", "Always", cpu="1.5", memory="1Gi"),
        certificates=Path("/tls"),
    )


def test_what_is_taken_where_nothing_is_said() -> None:
    found = parse_settings([*SERVED, *NEEDED]).webhook
    assert found is not None
    assert found.image == SidecarImage("kvquota/sidecar:1", "IfNotPresent", cpu="200m", memory="256Mi")
    assert found.certificates is None
    assert found.service.configuration == "kvquota-system-webhook"


@pytest.mark.parametrize(
    "image",
    [
        "sidecar",
        "kvquota/sidecar:1.0_b",
        "registry.example:5000/a/b-c__d@sha256:" + "0" * 64,
        "[::1]:5000/sidecar:1@sha256:" + "0" * 64,
    ],
)
def test_images_that_are_taken(image: str) -> None:
    found = parse_settings(
        [*SERVED, *NEEDED[:2], f"--sidecar-image={image}", "--sidecar-resources=1m,67108865"]
    ).webhook
    assert found is not None
    assert found.image == SidecarImage(image, cpu="1m", memory="67108865")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        pytest.param(
            NEEDED[:2], "--webhook-listen needs --webhook-service NS/NAME and --sidecar-image IMAGE", id="image"
        ),
        pytest.param(
            NEEDED[::2], "--webhook-listen needs --webhook-service NS/NAME and --sidecar-image IMAGE", id="service"
        ),
        pytest.param(
            NEEDED[1:],
            "there is no webhook: give it too, or leave --webhook-service, --sidecar-image out",
            id="a service and an image alone",
        ),
        pytest.param(("--webhook-certificates=/tls",), "or leave --webhook-certificates out", id="a folder alone"),
        pytest.param(("--sidecar-pull-policy=Always",), "or leave --sidecar-pull-policy out", id="a policy alone"),
        pytest.param(("--sidecar-resources=1,1Gi",), "or leave --sidecar-resources out", id="resources alone"),
        pytest.param(("--webhook-certificates=",), "no folder is named: write the path of the one", id="no folder"),
        pytest.param(("--sidecar-image=",), "'' is not an image: write one as in registry.example/", id="no image"),
        pytest.param(("--sidecar-image=has space",), "'has space' is not an image: write", id="an image with a space"),
        pytest.param(("--sidecar-image=KV/Side",), "'KV/Side' is not an image: write", id="a path in capitals"),
        pytest.param(("--webhook-service=webhook",), "webhook is not NAMESPACE/NAME: write", id="no namespace"),
        pytest.param(("--webhook-service=A/b",), "A/b is not NAMESPACE/NAME: write", id="no name of Kubernetes"),
        pytest.param((f"--webhook-service={'a' * 64}/b",), "b is not NAMESPACE/NAME: write", id="a name of 64"),
        pytest.param(("--sidecar-resources=200m",), "'200m' is not CPU,MEMORY: write 200m,256Mi", id="no memory"),
        pytest.param(("--sidecar-resources=much,1Gi",), "'much,1Gi' is not CPU,MEMORY: write", id="no quantity"),
        pytest.param(("--sidecar-resources=1Gi,1Gi",), "'1Gi,1Gi' is not CPU,MEMORY: write", id="memory for CPU"),
        pytest.param(("--sidecar-resources=1,1ki",), "'1,1ki' is not CPU,MEMORY: write", id="no unit of Kubernetes"),
        pytest.param(("--sidecar-resources=0,256Mi",), "with CPU 0 a sidecar cannot run: write more than 0", id="0"),
        pytest.param(("--sidecar-resources=0.0,256Mi",), "with CPU 0.0 a sidecar cannot run: write", id="0.0"),
        pytest.param(
            ("--sidecar-resources=1,0",), "memory 0 is too little: a sidecar alone takes up to 64Mi", id="0 B"
        ),
        pytest.param(("--sidecar-resources=1,10Mi",), "memory 10Mi is too little: a sidecar alone", id="10 MiB"),
        pytest.param(("--sidecar-resources=1,64Mi",), "memory 64Mi is too little: a sidecar alone", id="64 MiB"),
    ],
)
def test_what_does_not_fit_is_said(flags: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_settings([*SERVED, *flags])
    assert says in capsys.readouterr().err.replace("\n", " ")
