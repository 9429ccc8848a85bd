"""Image tools `crop`, `zoom`, `rotate`, `draw` and `measure`; each result is a new image with a number.

Images of a task are under `images` in its private data: `data:` URLs or files. Every image that a tool creates can be
used in further calls.

Note:
    A file of a few bytes can decompress to gigabytes, and an image can grow with each turn. Sizes are checked before
    pixels are read or created, and all images of an episode have a total limit.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
import threading
from pathlib import Path
from typing import Literal

from PIL import Image as Pictures
from PIL import ImageDraw

from whetstone.chat.message import Image, Text
from whetstone.errors import InfrastructureError, ToolError, summarize_exception
from whetstone.tools.protocol import Episode, Result

_MOST_SIDE, _MOST_PIXELS, _MOST_PICTURES = 4096, 16_000_000, 64
_MOST_PIXELS_TOGETHER = 8 * _MOST_PIXELS
"""Maximum number of pixels of all images of an episode; each takes three bytes."""
_MOST_AWAY = 100_000
"""Maximum distance of a point from the edge of an image, in pixels."""
Color = Literal["red", "green", "blue", "yellow", "black", "white"]


class ImageTools:
    """Tools for the images of an episode: `crop`, `zoom`, `rotate`, `draw`, `measure`.

    Args:
        max_side: Maximum length of the longer side of an image that the model sees, in pixels.
    """

    effects = "read"

    def __init__(self, *, max_side: int = 1024) -> None:
        self.max_side = max_side
        self.pictures: list[Pictures.Image] = []
        self._lock = threading.Lock()

    def open(self, episode: Episode) -> None:
        """Load the images of the task.

        Raises:
            InfrastructureError: If an image cannot be read.
        """
        self.pictures = []
        for source in episode.task.private.get("images", ()):
            try:
                self.pictures.append(load_image(source))
            except (OSError, ValueError) as error:
                raise InfrastructureError(
                    f"task {episode.task.id}: image {len(self.pictures) + 1} cannot be read: {error}"
                ) from None

    def crop(self, image: int, left: int, top: int, right: int, bottom: int) -> Result:
        """Show a part of a picture.

        Args:
            image: The picture's number, from 1.
            left: Pixels from the left edge.
            top: Pixels from the upper edge.
            right: Where the part ends, in pixels from the left edge.
            bottom: Where it ends, in pixels from the upper edge.
        """
        return self._store(self._part(image, left, top, right, bottom))

    def zoom(self, image: int, left: int, top: int, right: int, bottom: int, factor: float = 2.0) -> Result:
        """Show a part of a picture larger.

        Args:
            image: The picture's number, from 1.
            left: Pixels from the left edge.
            top: Pixels from the upper edge.
            right: Where the part ends, in pixels from the left edge.
            bottom: Where it ends, in pixels from the upper edge.
            factor: How many times as large, up to 16.
        """
        if not 1 <= factor <= 16:
            raise ToolError(f"the factor is from 1 to 16, got {factor:g}")
        part = self._part(image, left, top, right, bottom)
        size = (round(part.width * factor), round(part.height * factor))
        _may_be(*size)
        return self._store(part.resize(size, Pictures.Resampling.LANCZOS))

    def rotate(self, image: int, degrees: float) -> Result:
        """Turn a picture.

        Args:
            image: The picture's number, from 1.
            degrees: How far, against the clock.
        """
        picture = self._get_picture(image)
        if not math.isfinite(degrees):
            raise ToolError(f"the degrees are a number, got {degrees:g}")
        across, up = (abs(f(math.radians(degrees % 360))) for f in (math.cos, math.sin))
        width, height = picture.size
        _may_be(math.ceil(width * across + height * up), math.ceil(width * up + height * across))
        return self._store(picture.rotate(degrees % 360, expand=True, fillcolor="white"))

    def draw(
        self, image: int, shape: Literal["box", "line", "point"], x1: int, y1: int, x2: int = 0, y2: int = 0,
        colour: Color = "red",
    ) -> Result:  # fmt: skip
        """Draw on a copy of a picture.

        Args:
            image: The picture's number, from 1.
            shape: A box between two corners, a line between two points, or a point.
            x1: The first point, in pixels from the left edge.
            y1: The first point, in pixels from the upper edge.
            x2: The second point, in pixels from the left edge; not for a point.
            y2: The second point, in pixels from the upper edge; not for a point.
            colour: The colour.
        """
        copy = self._get_picture(image).copy()
        if max(map(abs, (x1, y1, x2, y2))) > _MOST_AWAY:
            raise ToolError(f"a point is up to {_MOST_AWAY} pixels away from the picture")
        pen = ImageDraw.Draw(copy)
        if shape == "point":
            pen.ellipse((x1 - 3, y1 - 3, x1 + 3, y1 + 3), fill=colour)
        elif shape == "line":
            pen.line((x1, y1, x2, y2), fill=colour, width=2)
        else:
            pen.rectangle((min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)), outline=colour, width=2)
        return self._store(copy)

    def measure(self, image: int, x1: int = -1, y1: int = -1, x2: int = -1, y2: int = -1) -> str:
        """Tell a picture's size, the colour at a point, or how far two points are apart.

        Args:
            image: The picture's number, from 1.
            x1: A point, in pixels from the left edge; -1 for the size alone.
            y1: A point, in pixels from the upper edge.
            x2: A second point, in pixels from the left edge; -1 for the colour at the first.
            y2: A second point, in pixels from the upper edge.
        """
        picture = self._get_picture(image)
        if max(map(abs, (x1, y1, x2, y2))) > _MOST_AWAY:
            raise ToolError(f"a point is up to {_MOST_AWAY} pixels away from the picture")
        if x1 < 0:
            return f"{picture.width}×{picture.height} pixels"
        if x2 >= 0:
            return f"{math.dist((x1, y1), (x2, y2)):.1f} pixels"
        if not (x1 < picture.width and 0 <= y1 < picture.height):
            raise ToolError(f"({x1}, {y1}) is outside of {picture.width}×{picture.height} pixels")
        red, green, blue = picture.getpixel((x1, y1))  # type: ignore[misc]
        return f"#{red:02x}{green:02x}{blue:02x}"

    def _part(self, image: int, left: int, top: int, right: int, bottom: int) -> Pictures.Image:
        picture = self._get_picture(image)
        left, top, right, bottom = max(left, 0), max(top, 0), min(right, picture.width), min(bottom, picture.height)
        if left >= right or top >= bottom:
            raise ToolError(
                f"nothing of the picture, which is {picture.width}×{picture.height} pixels, is in that part"
            )
        return picture.crop((left, top, right, bottom))

    def _get_picture(self, image: int) -> Pictures.Image:
        if not 1 <= image <= len(self.pictures):
            raise ToolError(f"there is no picture {image}; there are {len(self.pictures)}, the first is 1")
        return self.pictures[image - 1]

    def _store(self, picture: Pictures.Image) -> Result:
        with self._lock:  # calls of one turn run side by side
            if len(self.pictures) >= _MOST_PICTURES:
                raise ToolError(f"there are {_MOST_PICTURES} pictures already")
            if sum(one.width * one.height for one in (*self.pictures, picture)) > _MOST_PIXELS_TOGETHER:
                raise ToolError(f"all pictures together have up to {_MOST_PIXELS_TOGETHER} pixels; take smaller parts")
            self.pictures.append(picture)
            number = len(self.pictures)
        thumbnail = picture.copy()
        thumbnail.thumbnail((self.max_side, self.max_side))
        words = f"picture {number}: {picture.width}×{picture.height} pixels"
        return Result((Text(words), Image(as_url(thumbnail))))


def _may_be(width: int, height: int) -> None:
    """Raise `ToolError` if an image of this size is too large to create."""
    if max(width, height) > _MOST_SIDE or width * height > _MOST_PIXELS:
        raise ToolError(
            f"the picture would be {width}×{height} pixels, up to {_MOST_SIDE} a side and {_MOST_PIXELS} are possible"
        )


def load_image(source: str) -> Pictures.Image:
    """Load an image from a `data:` URL or a file, as RGB.

    Raises:
        ValueError: If it is not an image, or is too large.
        OSError: If the file cannot be read.
    """
    if source.startswith("data:"):
        try:
            data = base64.b64decode(source.partition(",")[2], validate=True)
        except binascii.Error:
            raise ValueError("a `data:` URL must contain valid base64") from None
    else:
        data = Path(source).read_bytes()
    try:
        picture = Pictures.open(io.BytesIO(data))
        if picture.width * picture.height > _MOST_PIXELS:
            raise ValueError(f"an image of {picture.width}×{picture.height} pixels exceeds {_MOST_PIXELS} pixels")
        picture.load()
        return picture.convert("RGB")
    except (Pictures.DecompressionBombError, SyntaxError, EOFError) as error:  # as files that are damaged have them
        raise ValueError(summarize_exception(error)) from None


def as_url(picture: Pictures.Image) -> str:
    """Return an image as a `data:` URL with PNG."""
    file = io.BytesIO()
    picture.save(file, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
