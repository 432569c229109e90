"""Check a proof that was written to a file, or read from one."""

from collections.abc import Callable
from pathlib import Path

from l0tre.api.inputs import Image, load_one
from l0tre.certify.checker.certificate import AnyCertificate, Certificate, SetCertificate, read_certificate
from l0tre.certify.checker.check import CheckResult
from l0tre.certify.checker.check import check as check_certificate
from l0tre.domain import Domain, make_domain
from l0tre.memory import default_budget
from l0tre.model.sources import Source

__all__ = ["CheckResult", "check"]


def check(
    certificate: str | Path | AnyCertificate,
    network: Source,
    image: Image,
    domain: Domain | None = None,
    *,
    device: str = "auto",
    memory_bytes: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> CheckResult:
    """Establish that no change of at most ``radius`` groups in the domain changes the decision, or say why not.

    The checker shares no code with the prover except the network's graph.

    Args:
        certificate: A file that :func:`l0tre.verify` wrote, or what :func:`l0tre.read_certificate` gives.
        network: As for :func:`l0tre.verify`.
        image: As for :func:`l0tre.verify`.
        domain: What may change; default every pixel or feature in [0, 1]. It must be that of the proof.
        device: Where to compute, if ``network`` is not loaded yet.
        memory_bytes: Bytes that one step may take, approximately; 0 for a share of what is free.
        progress: Called with the nodes done and the nodes in all.

    Returns:
        What was found; the proof holds.

    Raises:
        CertificateError: If the file cannot be read or anything does not hold; the message says what.
        L0treError: If the network or the image cannot be used.
    """
    proof = certificate if isinstance(certificate, Certificate | SetCertificate) else read_certificate(certificate)
    net, data = load_one(network, image, None, device, domain)
    return check_certificate(
        proof,
        net,
        data.images[0],
        domain or make_domain(net.input_shape),
        device=net.device,
        memory=memory_bytes or default_budget(net.device),
        progress=progress,
    )
