"""Pictures as arrays of bytes."""
import io
import os
import warnings

from .records import Malformed


def size_from(text):
    """Height and width of "32" or "32x48"."""
    parts = text.lower().split("x")
    if not 1 <= len(parts) <= 2 or not all(part.isdigit() and 0 < int(part) <= 65535 for part in parts):
        raise ValueError
    return [int(parts[0]), int(parts[-1])]


def bytes_of(image, path):
    """An image of a record: a path, which may be relative to the record's file, or bytes."""
    if isinstance(image, dict):
        image = image.get("bytes") or image.get("path")
    if isinstance(image, bytes):
        return image
    if not isinstance(image, str) or not image:
        raise Malformed("its image is neither a path nor bytes")
    try:
        with open(os.path.join(os.path.dirname(path), image), "rb") as file:
            return file.read()
    except OSError as error:
        raise Malformed(f"{image}: {error.strerror or error}") from None
    except ValueError:
        raise Malformed(f"its image's path is {image!r}") from None


def decode(data, mode, size):
    """(H, W, C) of uint8, (H, W) in shades of grey; upright, resized if a size is given."""
    import numpy
    from PIL import Image, ImageOps, UnidentifiedImageError
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data)) as file:
                image = ImageOps.exif_transpose(file).convert(mode)
    except UnidentifiedImageError:
        raise Malformed("it is no image") from None
    except Exception as error:  # Pillow's plugins raise many types
        raise Malformed(f"its image cannot be read: {error}") from None
    if size and (image.height, image.width) != tuple(size):
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return numpy.asarray(image, dtype=numpy.uint8)
