"""What of the webhook can be set on the command line."""

from pathlib import Path

import pytest

from kvquota_operator.injection.outcomes import SidecarImage
from kvquota_operator.settings import Address, parse_settings
from kvquota_operator.webhook_settings import ServiceName, WebhookSettings

SERVED = ("--namespace=inference", "--no-leader-elect")
NEEDED = ("--webhook-listen=:9443", "--webhook-service=kvquota-system/webhook", "--sidecar-image=kvquota/sidecar:1")


def test_without_an_address_there_is_no_webhook() -> None:
    assert parse_settings([*SERVED, "--sidecar-image=kvquota/sidecar:1"]).webhook is None


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
    ("flags", "says"),
    [
        pytest.param(
            NEEDED[:2], "--webhook-listen needs --webhook-service NS/NAME and --sidecar-image IMAGE", id="image"
        ),
        pytest.param(
            NEEDED[::2], "--webhook-listen needs --webhook-service NS/NAME and --sidecar-image IMAGE", id="service"
        ),
        pytest.param(("--webhook-service=webhook",), "webhook is not NAMESPACE/NAME: write", id="no namespace"),
        pytest.param(("--webhook-service=A/b",), "A/b is not NAMESPACE/NAME: write", id="no name of Kubernetes"),
        pytest.param(("--sidecar-resources=200m",), "200m is not CPU,MEMORY: write 200m,256Mi", id="no memory"),
        pytest.param(("--sidecar-resources=much,1Gi",), "much,1Gi is not CPU,MEMORY: write", id="no quantity"),
    ],
)
def test_what_does_not_fit_is_said(flags: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_settings([*SERVED, *flags])
    assert says in capsys.readouterr().err.replace("\n", " ")
