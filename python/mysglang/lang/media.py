"""Images and videos as OpenAI's API wants them."""

from __future__ import annotations

import base64
import mimetypes
from pathlib import Path
from typing import Any

from mysglang.lang.expressions import Media

_REMOTE = ("http://", "https://", "data:")
_UNKNOWN_TYPE = {"image_url": "image/jpeg", "video_url": "video/mp4"}


def content_part(media: Media) -> dict[str, Any]:
    """Returns the part of a message's content that shows `media`: {"type": "image_url", "image_url": {"url": …}}."""
    url: dict[str, Any] = {"url": data_url(media)}
    if media.num_frames is not None:
        url["num_frames"] = media.num_frames
    return {"type": media.kind, media.kind: url}


def data_url(media: Media) -> str:
    """Returns a URL as it is; a file, or bytes, as a data URL. Raises FileNotFoundError, TypeError."""
    source = media.source
    if isinstance(source, str) and source.startswith(_REMOTE):
        return source
    if isinstance(source, bytes):
        return _as_url(source, _UNKNOWN_TYPE[media.kind])
    if isinstance(source, str | Path):
        guessed, _ = mimetypes.guess_type(str(source))
        return _as_url(Path(source).read_bytes(), guessed or _UNKNOWN_TYPE[media.kind])
    raise TypeError(f"an image or a video is a path, a URL or bytes; got {type(source).__name__}.")


def _as_url(content: bytes, mime_type: str) -> str:
    return f"data:{mime_type};base64,{base64.b64encode(content).decode()}"
