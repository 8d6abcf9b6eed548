"""Reads the files of TLS as the server will, so that a bad one is refused before anything is launched."""

from __future__ import annotations

import ssl
from pathlib import Path

from mysglang.srt.args.serving import ServingArgs


def complaint_about(args: ServingArgs) -> str | None:
    """Returns an error message if a file of TLS cannot be used, or None. Missing files and flags without one another
    are not looked at: other rules refuse them.
    """
    cert, key, authorities = args.ssl_certfile, args.ssl_keyfile, args.ssl_ca_certs
    if cert is None or key is None or not all(Path(file).is_file() for file in (cert, key, authorities or cert)):
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for flag, file in {"--ssl-certfile": cert, "--ssl-ca-certs": authorities}.items():
        try:
            context.load_verify_locations(file or cert)
        except OSError as error:
            return f"{flag} {file}: it holds no certificates in PEM that can be read ({error})."
    # Without a function, OpenSSL would ask for the password at the terminal.
    password = args.ssl_keyfile_password or ""
    try:
        context.load_cert_chain(cert, key, lambda: password)
    except (OSError, ValueError) as error:
        return (
            f"--ssl-keyfile {key}: it holds no private key in PEM that --ssl-keyfile-password opens and that fits "
            f"--ssl-certfile {cert} ({error})."
        )
    return None
