"""A client of fsdpd, the training service.

    with fsdpd.connect() as client:
        job = client.submit("job.yaml", "train.epochs=3")
        weights = client.pull(client.wait(job.id).id)

Messages are those of proto/fsdpd/v1, in fsdpd.messages; client.stub has all methods of the API.
"""
from .client import Client, connect
from .error import Error
from .safetensors import read_safetensors

__all__ = ["Client", "Error", "connect", "read_safetensors"]
